use ipam_kit::Select;
use ipam_kit::cni::Environment;
use ipam_kit::delegate::answer;
use ipam_kit::host::Settings;
use serde_json::{Value, json};

use crate::selector::Static;

/// A call of the delegate, ADD with `cniVersion` 1.1.0 unless told otherwise.
pub(crate) struct Call {
    config: Value,
    verb: &'static str,
}

impl Call {
    pub(crate) fn ipam(ipam: Value) -> Self {
        let config = json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge",
            "cni.dev/valid-attachments": [], "ipam": ipam});
        Self { config, verb: "ADD" }
    }

    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub(crate) fn verb(self, verb: &'static str) -> Self {
        Self { verb, ..self }
    }

    /// The answer of a call that succeeds.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        let (exit, answer) = self.run();
        assert_eq!(exit, 0, "{answer}");
        answer
    }

    /// The details of a call that fails with this code and a message that starts like this.
    #[track_caller]
    pub(crate) fn err(self, code: u64, message: &str) -> String {
        let (exit, answer) = self.run();
        assert_eq!((exit, &answer["code"]), (1, &json!(code)), "{answer}");
        let found = answer["msg"].as_str().unwrap();
        assert!(found.starts_with(message), "{found}");
        answer["details"].as_str().unwrap_or_default().to_owned()
    }

    fn run(self) -> (u8, Value) {
        let environment = Environment::new([
            ("CNI_COMMAND", self.verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", "/run/netns/c1"),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        let stdin = self.config.to_string();
        let reply = answer(&Select(Static), environment, stdin.as_bytes(), Settings::default());
        (reply.exit, serde_json::from_str(&reply.stdout).unwrap())
    }
}
