//! A call of which a test reads the section `ipam`.

use serde_json::{Value, json};

use super::{IpamSection, SectionPool, add_to};
use crate::cni::{Environment, IpamResult, Verb};
use crate::delegate::Request;
use crate::error::Result;
use crate::host::Settings;

/// A call, ADD with `cniVersion` 1.1.0 unless told otherwise.
pub(super) struct SectionCall {
    config: Value,
    verb: Verb,
    args: String,
}

impl SectionCall {
    pub(super) fn ipam(ipam: Value) -> Self {
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge",
            "cni.dev/valid-attachments": [], "ipam": ipam});
        Self { config, verb: Verb::Add, args: String::new() }
    }

    pub(super) fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub(super) fn verb(self, verb: Verb) -> Self {
        Self { verb, ..self }
    }

    pub(super) fn args(self, args: &str) -> Self {
        Self { args: args.to_owned(), ..self }
    }

    /// The offer as a result that holds nothing else.
    #[track_caller]
    pub(super) fn ok(self) -> Value {
        self.read().unwrap().expect("an offer")
    }

    /// The details of a call that fails with this code and a message that starts like this.
    #[track_caller]
    pub(super) fn err(self, code: u32, message: &str) -> String {
        let error = self.read().unwrap_err();
        assert_eq!(error.code().number(), code, "{error}");
        assert!(error.to_string().starts_with(message), "{error}");
        error.details()
    }

    /// The settings for a plain host-local.
    pub(super) fn for_host_local(self) -> Value {
        let (offer, _) = self.offer().unwrap().expect("an offer");
        Value::Object(offer.for_host_local())
    }

    pub(super) fn read(self) -> Result<Option<Value>> {
        let Some((offer, request)) = self.offer()? else {
            return Ok(None);
        };
        let mut result = IpamResult::default();
        let pools = offer.pools.into_iter().map(|pool| SectionPool::into_pool(pool).to_json());
        result.extra.insert("pools".to_owned(), pools.collect());
        add_to(&mut result, offer.routes, offer.dns);
        result.into_json(request.network.version()).map(Some)
    }

    fn offer(self) -> Result<Option<(IpamSection, Request)>> {
        let environment = Environment::new([
            ("CNI_COMMAND", self.verb.as_str()),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_ARGS", &self.args),
        ]);
        let stdin = self.config.to_string();
        let request =
            Request::parse(self.verb, environment, stdin.as_bytes(), Settings::default())?;
        Ok(IpamSection::read(&request)?.map(|offer| (offer, request)))
    }
}
