//! Golden cases of the protocol: environment and stdin in, exact answer out.
//!
//! `tests/golden/*.json` are answered by the delegates below, in this process;
//! `tests/golden/chain/*.json` by the program `ipam-delegated` with delegates in shell, the cases
//! of a file one after the other in one world. A file is `{"about", "env", "stdin", "delegate"
//! or "delegates", "cases"}`; `env` and `stdin` of a case are merged over the file's (null
//! removes), a text as `stdin` is sent as it is (`piece×1000`: that many times; `${STATE}`: the
//! state folder). Expected is either `stdout`, exactly (null: nothing), or `code` with the
//! beginning of `msg` and, where it matters, a part of `details`; `as` is the error's `cniVersion`
//! where it is not the configuration's.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::path::{Path, PathBuf};

use ipam_delegated::chain::{Chain, Names};
use ipam_kit::cni::{Environment, IpamResult, ValidAttachments, Version};
use ipam_kit::delegate::answer;
use ipam_kit::host::Settings;
use ipam_kit::pool::Pool;
use ipam_kit::{Delegate, Request, Result, Select, Selection, Selector};
use ipam_testkit::world::World;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Golden {
    /// What the file is about, for readers.
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    env: Value,
    #[serde(default)]
    stdin: Value,
    #[serde(default)]
    delegate: Kind,
    /// Of a chain: name → body in shell, or the answer to every verb.
    #[serde(default)]
    delegates: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Mirror,
    Selector,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    about: String,
    #[serde(default)]
    env: Value,
    #[serde(default)]
    stdin: Value,
    #[serde(default, deserialize_with = "some")]
    stdout: Option<Value>,
    code: Option<u64>,
    msg: Option<String>,
    details: Option<String>,
    #[serde(rename = "as")]
    version: Option<String>,
    /// Of a chain: `delegate VERB`, in order.
    calls: Option<Vec<String>>,
}

/// Tells `"stdout": null` from no `stdout`.
fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Answers `ipam.result`, and shows what it was asked in the member `seen`.
struct Mirror;

#[derive(Deserialize)]
struct MirrorConfig {
    result: Option<Value>,
    /// Keys of `CNI_ARGS` to show.
    #[serde(default)]
    show: Vec<String>,
}

impl Mirror {
    fn answer(
        request: &Request,
        config: &MirrorConfig,
        keep: &ValidAttachments,
    ) -> Result<IpamResult> {
        let given = config.result.as_ref();
        let mut result = given.map_or_else(
            || Ok(IpamResult::default()),
            |result| IpamResult::parse(result, "ipam.result"),
        )?;
        let requested = request.requested()?;
        if !requested.is_empty() || !config.show.is_empty() {
            let requested = requested.iter().map(|r| format!("{} from {}", r.address, r.path));
            let shown = |key: &String| (key.clone(), json!(request.args.get(key)));
            let seen = json!({
                "requested": requested.collect::<Vec<_>>(),
                "args": config.show.iter().map(shown).collect::<Map<_, _>>(),
            });
            result.extra.insert("seen".to_owned(), seen);
        }
        if keep.iter().next().is_some() {
            result.extra.insert("keep".to_owned(), keep.to_json());
        }
        Ok(result)
    }
}

impl Delegate for Mirror {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        Self::answer(request, &request.network.settings()?, &ValidAttachments::default())
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        request.prev_result()?;
        Ok(None)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        request.prev_result()?;
        Ok(None)
    }

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        Self::answer(request, &request.network.settings()?, keep).map(Some)
    }
}

/// Selects the pools of `ipam.pools` by name.
struct ByName;

#[derive(Deserialize)]
struct ByNameConfig {
    pools: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Selector for ByName {
    type Config = ByNameConfig;

    fn select(&self, config: ByNameConfig, _request: &Request) -> Result<Selection> {
        let pools = config.pools.into_iter().map(|pool| Pool::new(Some(pool.name), Vec::new()));
        Ok(Selection::of(pools.flatten()))
    }
}

/// The environment of a case that says nothing else.
fn default_env() -> Value {
    json!({
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0",
        "CNI_NETNS": "/run/netns/c1", "CNI_PATH": "/opt/cni/bin",
    })
}

/// JSON merge patch; null in the patch removes, and is no value here.
fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(patch) => {
            if !target.is_object() {
                *target = json!({});
            }
            let object = target.as_object_mut().expect("made one");
            for (key, value) in patch {
                if value.is_null() {
                    object.remove(key);
                } else {
                    merge(object.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        other => *target = other.clone(),
    }
}

impl Golden {
    fn env_of(&self, case: &Case) -> Vec<(String, String)> {
        let mut env = default_env();
        merge(&mut env, &or_empty(&self.env));
        merge(&mut env, &or_empty(&case.env));
        let text = |value: &Value| value.as_str().expect("variables are texts").to_owned();
        env.as_object().unwrap().iter().map(|(k, v)| (k.clone(), text(v))).collect()
    }

    fn stdin_of(&self, case: &Case) -> Value {
        let mut stdin = or_empty(&self.stdin);
        merge(&mut stdin, &or_empty(&case.stdin));
        stdin
    }
}

fn or_empty(value: &Value) -> Value {
    if value.is_null() { json!({}) } else { value.clone() }
}

fn bytes_of(stdin: &Value) -> Vec<u8> {
    match stdin {
        // "[×2000" stands for that many.
        Value::String(text) => match text.split_once('×') {
            Some((piece, times)) => piece.repeat(times.parse().unwrap()).into_bytes(),
            None => text.clone().into_bytes(),
        },
        other => other.to_string().into_bytes(),
    }
}

impl Case {
    /// What is wrong with an answer, if anything.
    fn fault(&self, stdin: &Value, exit: i32, stdout: &str) -> Option<String> {
        let found = if stdout.is_empty() {
            Value::Null
        } else {
            match serde_json::from_str(stdout) {
                Ok(found) => found,
                Err(error) => return Some(format!("stdout is no JSON ({error}): {stdout}")),
            }
        };
        match (&self.stdout, self.code) {
            (Some(expected), None) => {
                (exit != 0 || found != *expected).then(|| format!("exit {exit}: {found}"))
            }
            (None, Some(code)) => {
                let own = stdin["cniVersion"].as_str();
                let known = own.filter(|own| Version::ALL.iter().any(|v| v.as_str() == *own));
                let version = self.version.as_deref().or(known).unwrap_or("1.1.0");
                let text = |key: &str| found[key].as_str().unwrap_or_default();
                let fits = exit == 1
                    && found["code"] == code
                    && found["cniVersion"] == version
                    && text("msg").starts_with(self.msg.as_deref().expect("msg beside code"))
                    && text("details").contains(self.details.as_deref().unwrap_or_default())
                    && found.as_object().unwrap().keys().all(|key| {
                        ["cniVersion", "code", "msg", "details"].contains(&key.as_str())
                    });
                (!fits).then(|| format!("exit {exit}: {found}"))
            }
            _ => Some("the case must expect either stdout or code".to_owned()),
        }
    }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files
}

fn read(path: &Path) -> Golden {
    serde_json::from_slice(&fs::read(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn delegates_answer_as_written() {
    let mut faults = Vec::new();
    let mut count = 0;
    for path in files("tests/golden") {
        let golden = read(&path);
        for case in &golden.cases {
            count += 1;
            let environment = Environment::new(golden.env_of(case));
            let stdin = golden.stdin_of(case);
            let delegate: &dyn Delegate = match golden.delegate {
                Kind::Mirror => &Mirror,
                Kind::Selector => &Select(ByName),
            };
            let reply = answer(delegate, environment, &bytes_of(&stdin), Settings::default());
            if let Some(fault) = case.fault(&stdin, reply.exit.into(), &reply.stdout) {
                faults.push(format!("{}: {}: {fault}", path.display(), case.about));
            }
        }
    }
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_chain_answers_as_written() {
    let mut faults = Vec::new();
    for path in files("tests/golden/chain") {
        let golden = read(&path);
        let world = World::new();
        for (name, body) in &golden.delegates {
            match body {
                Value::String(body) => world.delegate(name, body),
                answer => world.delegate(name, &format!("printf '%s' '{answer}'")),
            };
        }
        for case in &golden.cases {
            let env = golden.env_of(case);
            let mut command = world.command("ADD", "c1");
            command.env_clear().env("PATH", "/usr/bin:/bin");
            command.envs(env.into_iter().map(|(key, value)| {
                // Wherever the runtime has its plugins, here is where they are.
                let value = value.replace("/opt/cni/bin", world.path("bin").to_str().unwrap());
                (key, value)
            }));
            let mut stdin = golden.stdin_of(case);
            // Unless the case is about a configuration without it.
            if let Some(ipam) = stdin.get_mut("ipam").and_then(Value::as_object_mut)
                && ipam.get("stateDir").is_none()
            {
                ipam.insert("stateDir".to_owned(), json!(world.path("state")));
            }
            if let Value::String(text) = &mut stdin {
                *text = text.replace("${STATE}", world.path("state").to_str().unwrap());
            }
            let outcome = ipam_testkit::world::wait(ipam_testkit::world::start_raw(
                command,
                &bytes_of(&stdin),
            ));
            let mut fault = case.fault(&stdin, outcome.exit.unwrap_or(-1), &outcome.stdout);
            let calls = world.take_calls();
            if case.calls.as_ref().is_some_and(|expected| *expected != calls) {
                fault = Some(format!("calls {calls:?}; {}", fault.unwrap_or_default()));
            }
            if let Some(fault) = fault {
                faults.push(format!(
                    "{}: {}: {fault}\n{}",
                    path.display(),
                    case.about,
                    outcome.stderr
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Multus sends a default network's DEL with nothing but `type` in `ipam`.
#[test]
fn a_stripped_del_releases_from_the_record() {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24");
    let chain = Chain::new(Names::default(), Path::new("/opt/cni/bin/ipam-delegated"));
    let call = |verb: &str, ipam: Value| {
        let mut env = default_env();
        merge(&mut env, &json!({"CNI_COMMAND": verb, "CNI_PATH": world.path("bin")}));
        merge(&mut env, &json!({"PATH": "/usr/bin:/bin"}));
        let env = env.as_object().unwrap().iter();
        let environment = Environment::new(env.map(|(k, v)| (k.clone(), v.as_str().unwrap())));
        let stdin = json!({
            "cniVersion": "1.0.0", "name": "lossy", "type": "macvlan",
            "capabilities": {"ips": true}, "ipam": ipam,
        });
        let settings = Settings { state_dir: world.path("state"), ..Settings::default() };
        let reply = answer(&chain, environment, stdin.to_string().as_bytes(), settings);
        assert_eq!(reply.exit, 0, "{}", reply.stdout);
        world.take_calls()
    };
    let ipam = json!({"type": "ipam-delegated", "delegates": ["ipam-da-x"], "prefix": "/x"});
    assert_eq!(call("ADD", ipam), ["ipam-da-x ADD"]);
    assert_eq!(world.held(), ["ipam-da-x-c1-eth0"]);
    let stripped = json!({"type": "ipam-delegated"});
    assert_eq!(call("DEL", stripped.clone()), ["ipam-da-x DEL"]);
    assert!(world.held().is_empty());
    assert_eq!(call("DEL", stripped), [""; 0], "nothing is known of it any more");
}
