//! Calls of a selector, and its answers.

use serde_json::{Deserializer, Map, Value, json};

use crate::bench::expect;
use crate::subject::{CallOutput, Subject};
use crate::{Finding, plain};
use ipam_kit::cni::{Environment, Version};

/// A selector, with a network configuration by which it chooses.
pub(super) struct SelectorCalls<'a> {
    subject: &'a dyn Subject,
    pub(super) config: Map<String, Value>,
}

/// An error object.
pub(super) struct CallError {
    pub(super) code: u64,
    pub(super) message: String,
}

/// The variables of a runtime, without `CNI_COMMAND`.
pub(super) const VARIABLES: [(&str, &str); 5] = [
    ("CNI_CONTAINERID", "c1"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_NETNS", "/run/netns/conformance-missing"),
    ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"),
    ("CNI_PATH", "/opt/cni/bin"),
];

impl<'a> SelectorCalls<'a> {
    pub(super) fn of(subject: &'a dyn Subject) -> Self {
        let mut config = subject.config();
        config.insert("cniVersion".to_owned(), json!(Version::NEWEST.as_str()));
        config.entry("name").or_insert_with(|| json!("conformance"));
        config.entry("ipam").or_insert_with(|| json!({}));
        Self { subject, config }
    }

    /// The configuration with one key set.
    pub(super) fn with(&self, key: &str, value: Value) -> Map<String, Value> {
        let mut config = self.config.clone();
        config.insert(key.to_owned(), value);
        config
    }

    /// A call as it ends.
    pub(super) fn output(
        &self,
        verb: &str,
        variables: &[(&str, &str)],
        stdin: &str,
    ) -> Result<CallOutput, Finding> {
        let command = [("CNI_COMMAND", verb)];
        let environment = Environment::new(command.iter().chain(variables).copied());
        Ok(self.subject.answer(environment, stdin.as_bytes())?)
    }

    /// The object that a call answers, or nothing; or else its error.
    pub(super) fn call(
        &self,
        verb: &str,
        config: &Map<String, Value>,
    ) -> Result<Result<Option<Value>, CallError>, Finding> {
        let variables = if matches!(verb, "GC" | "STATUS") { &VARIABLES[4..] } else { &VARIABLES };
        let output = self.output(verb, variables, &json!(config).to_string())?;
        let first = first_object(&output.stdout);
        if output.success {
            expect(first.is_some() || output.stdout.trim().is_empty(), || {
                format!("{verb} has on stdout {}", plain::output(&output.stdout))
            })?;
            return Ok(Ok(first));
        }
        failure(&output, first).map(Err)
    }

    /// The answer of an ADD that must succeed.
    pub(super) fn add(&self, config: &Map<String, Value>) -> Result<Value, Finding> {
        match self.call("ADD", config)? {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err("ADD answers nothing: expected a JSON object".to_owned().into()),
            Err(CallError { code, message }) => Err(format!("ADD fails: {code} {message}").into()),
        }
    }

    /// The pools that an ADD of the configuration answers.
    pub(super) fn pools(&self) -> Result<Vec<Value>, Finding> {
        pools_of(&self.add(&self.config)?)
    }
}

/// The pools of an answer, at least one.
pub(super) fn pools_of(answer: &Value) -> Result<Vec<Value>, Finding> {
    match answer["pools"].as_array() {
        Some(pools) if !pools.is_empty() => Ok(pools.clone()),
        _ => Err(format!(
            "the answer has no pools: expected at least one by the configuration of --config, \
             found {}",
            plain::output(&answer.to_string())
        )
        .into()),
    }
}

/// The error object of a call that failed.
pub(super) fn failure(output: &CallOutput, first: Option<Value>) -> Result<CallError, Finding> {
    let error = first.unwrap_or_default();
    let text = |key: &str| error[key].as_str().unwrap_or_default();
    let (code, message) = (error["code"].as_u64(), text("msg"));
    expect(code.is_some_and(|code| code > 0) && !message.is_empty(), || {
        let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| plain::output(text));
        format!(
            "it fails without an error object with code and msg: stdout: {stdout}; \
             stderr: {stderr}"
        )
    })?;
    let message = format!("{message} {}", text("details"));
    Ok(CallError { code: code.unwrap_or_default(), message: message.trim_end().to_owned() })
}

/// The JSON object that a text begins with.
fn first_object(text: &str) -> Option<Value> {
    let first = Deserializer::from_str(text).into_iter::<Value>().next()?;
    first.ok().filter(Value::is_object)
}
