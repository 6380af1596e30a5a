use ipam_kit::Select;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::answer;
use ipam_kit::host::{Settings, replace_own};
use serde_json::{Value, json};

use crate::selector::FromWhereabouts;

/// A call of the delegate: ADD with `cniVersion` 1.1.0, a kubeconfig and an empty flat file, unless
/// told otherwise. The kubeconfigs `/k` and `/flat` exist.
pub(crate) struct Call {
    config: Value,
    verb: &'static str,
    args: String,
    flat: String,
    provider: Option<String>,
}

impl Call {
    pub(crate) fn ipam(ipam: Value) -> Self {
        let mut config = json!({"cniVersion": "1.1.0", "name": "net", "type": "macvlan",
            "cni.dev/valid-attachments": [], "ipam": ipam});
        if config["ipam"]["kubernetes"].is_null() {
            config["ipam"]["kubernetes"] = json!({"kubeconfig": "/k"});
        }
        let (args, flat) = (String::new(), "{}".to_owned());
        Self { config, verb: "ADD", args, flat, provider: None }
    }

    /// Without a kubeconfig.
    pub(crate) fn bare(ipam: Value) -> Self {
        let mut call = Self::ipam(ipam);
        call.config["ipam"].as_object_mut().unwrap().remove("kubernetes");
        call
    }

    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// With a key of `ipam`.
    pub(crate) fn ipam_key(mut self, key: &str, value: Value) -> Self {
        self.config["ipam"][key] = value;
        self
    }

    pub(crate) fn verb(self, verb: &'static str) -> Self {
        Self { verb, ..self }
    }

    pub(crate) fn args(self, args: &str) -> Self {
        Self { args: args.to_owned(), ..self }
    }

    /// With this flat file.
    pub(crate) fn flat(self, content: impl ToString) -> Self {
        Self { flat: content.to_string(), ..self }
    }

    /// With this file of a provider, `PROVIDER`.
    pub(crate) fn provider(self, content: impl ToString) -> Self {
        Self { provider: Some(content.to_string()), ..self }
    }

    /// The answer of a call that succeeds.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        let (exit, answer) = self.run();
        assert_eq!(exit, 0, "{answer}");
        answer
    }

    /// The details of a call that fails with this code and a message that starts like this. `FLAT`
    /// is the path of the flat file.
    #[track_caller]
    pub(crate) fn err(self, code: u64, message: &str) -> String {
        let (exit, answer) = self.run();
        assert_eq!((exit, &answer["code"]), (1, &json!(code)), "{answer}");
        let found = answer["msg"].as_str().unwrap();
        assert!(found.starts_with(message), "{found}");
        answer["details"].as_str().unwrap_or_default().to_owned()
    }

    /// Each pool of the answer: the parts of its ranges, and the requested address.
    #[track_caller]
    pub(crate) fn pools(self) -> Vec<String> {
        let answer = self.ok();
        let pools = answer["pools"].as_array().unwrap().iter().map(|pool| {
            let ranges = pool["ranges"].as_array().unwrap().iter().map(|range| {
                let [start, end] = ["rangeStart", "rangeEnd"].map(|it| range[it].as_str().unwrap());
                format!("{start}-{end}")
            });
            let ranges = ranges.collect::<Vec<_>>().join(",");
            match pool["requested-ip"].as_str() {
                None => ranges,
                Some(requested) => format!("{ranges} for {requested}"),
            }
        });
        pools.collect()
    }

    fn run(mut self) -> (u8, Value) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("whereabouts.conf");
        let with_folder = |text: &str| {
            let kubeconfig = |name| format!("\"{}/{name}\"", folder.path().display());
            text.replace("\"/k\"", &kubeconfig("k")).replace("\"/flat\"", &kubeconfig("flat"))
        };
        let flat = with_folder(&self.flat);
        for (name, content) in [("k", ""), ("flat", ""), ("whereabouts.conf", &*flat)] {
            let [file, draft] = [name, "draft"].map(|name| folder.path().join(name));
            replace_own(&file, &draft, 0o600, content.as_bytes()).unwrap();
        }
        let file = file.to_str().unwrap();
        if self.config["ipam"]["configuration_path"].is_null() {
            self.config["ipam"]["configuration_path"] = file.into();
        }
        let environment = Environment::new([
            ("CNI_COMMAND", self.verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "net1"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", &self.args),
        ]);
        let stdin = with_folder(&self.config.to_string());
        let settings = Settings::default();
        let provider_file = folder.path().join("whereabouts-ipam.conf");
        if let Some(content) = &self.provider {
            let draft = folder.path().join("draft");
            replace_own(&provider_file, &draft, 0o600, content.as_bytes()).unwrap();
        }
        let provider = provider_file.to_str().unwrap().to_owned();
        let selector = Select(FromWhereabouts { provider_file });
        let reply = answer(&selector, environment, stdin.as_bytes(), settings);
        let text = reply.stdout.replace(file, "FLAT").replace(&provider, "PROVIDER");
        let text = text.replace(folder.path().to_str().unwrap(), "");
        (reply.exit, serde_json::from_str(&text).unwrap())
    }
}
