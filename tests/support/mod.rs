//! A world for process tests: a plugin folder, a state folder, and delegates made of shell.

#![allow(
    dead_code,
    missing_docs,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A program of this workspace, built beside the test's own.
pub fn binary(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_ipam-delegated")).with_file_name(name);
    assert!(
        path.exists(),
        "{name} is not built: run `cargo build --workspace --bins --examples` first"
    );
    path
}

/// Debian's host-local. A missing one fails the test: `tests/run.sh` installs it.
pub fn host_local() -> PathBuf {
    let path = PathBuf::from("/usr/lib/cni/host-local");
    assert!(
        path.exists(),
        "{} is missing: apt-get install containernetworking-plugins",
        path.display()
    );
    path
}

/// Folders of a test's own.
pub struct World {
    temp: tempfile::TempDir,
}

/// What a call printed, and how it ended.
#[derive(Debug)]
pub struct Outcome {
    pub exit: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// stdout as JSON; null when nothing was printed.
    pub fn json(&self) -> Value {
        if self.stdout.trim().is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn success(self) -> Value {
        assert_eq!(self.exit, Some(0), "{self:?}");
        self.json()
    }

    /// The error's code and its `msg: details`.
    #[track_caller]
    pub fn failure(self) -> (u64, String) {
        assert_eq!(self.exit, Some(1), "{self:?}");
        let json = self.json();
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        (
            json["code"].as_u64().expect("an error code"),
            format!("{}: {}", text("msg"), text("details")),
        )
    }

    /// The addresses of the result.
    #[track_caller]
    pub fn ips(self) -> Vec<String> {
        let json = self.success();
        let ips = json["ips"].as_array().cloned().unwrap_or_default();
        ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()
    }
}

impl World {
    pub fn new() -> Self {
        let temp = tempfile::TempDir::new().unwrap();
        for folder in ["bin", "state", "data"] {
            fs::create_dir(temp.path().join(folder)).unwrap();
        }
        Self { temp }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Puts a program into the plugin folder.
    pub fn install(&self, program: &Path) -> &Self {
        let name = program.file_name().unwrap();
        std::os::unix::fs::symlink(program, self.path("bin").join(name)).unwrap();
        self
    }

    /// A delegate in shell. It notes each call, with `$in` its stdin; `body` does the rest.
    pub fn delegate(&self, name: &str, body: &str) -> &Self {
        let calls = self.path("calls");
        let script = format!(
            "#!/bin/sh\nin=$(cat)\nprintf '{{\"delegate\":\"{name}\",\"verb\":\"%s\",\"container\":\"%s\",\"stdin\":%s}}\\n' \
             \"$CNI_COMMAND\" \"$CNI_CONTAINERID\" \"$in\" >>'{}'\n{body}\n",
            calls.display()
        );
        let path = self.path("bin").join(name);
        // Written aside first: a file open for writing cannot be run.
        let new = self.path("new-delegate");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, path).unwrap();
        self
    }

    /// A selector that answers these pools.
    pub fn selector(&self, name: &str, pools: &Value) -> &Self {
        let answer = json!({"cniVersion": "1.0.0", "pools": pools});
        self.delegate(name, &format!("printf '%s' '{answer}'"))
    }

    /// An allocator that gives one address, keeps it in `held/<container>-<ifname>` and serves all
    /// pools.
    pub fn allocator(&self, name: &str, address: &str) -> &Self {
        let held = self.path("held");
        fs::create_dir_all(&held).unwrap();
        let answer = json!({"cniVersion": "1.0.0", "ips": [{"address": address}], "pools": [], "leases": [name]});
        self.delegate(
            name,
            &format!(
                "f='{}'/{name}-$CNI_CONTAINERID-$CNI_IFNAME\ncase $CNI_COMMAND in\n\
                 ADD) echo {address} >\"$f\"; printf '%s' '{answer}';;\n\
                 DEL) rm -f \"$f\";;\n\
                 CHECK) [ -f \"$f\" ] || {{ printf '{{\"code\":104,\"msg\":\"not held\"}}'; exit 1; }};;\nesac",
                held.display()
            ),
        )
    }

    /// What the allocators hold: `<delegate>-<container>-<ifname>`, sorted.
    pub fn held(&self) -> Vec<String> {
        let mut names: Vec<String> = match fs::read_dir(self.path("held")) {
            Ok(entries) => entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect(),
            Err(_) => Vec::new(),
        };
        names.sort();
        names
    }

    /// A network configuration for a chain, with the state folder of this world.
    pub fn network(&self, delegates: Value) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "net",
            "type": "bridge",
            "ipam": {
                "type": "ipam-delegated",
                "delegates": delegates,
                "stateDir": self.path("state"),
                "dataDir": self.path("data"),
            },
        })
    }

    /// A call of `ipam-delegated`, ready to be changed and started.
    pub fn command(&self, verb: &str, container: &str) -> Command {
        self.command_of(&binary("ipam-delegated"), verb, container)
    }

    pub fn command_of(&self, program: &Path, verb: &str, container: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", self.path("bin"))
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Calls `ipam-delegated` and waits.
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.command(verb, container), network))
    }

    /// What the delegates in shell were called with, in order.
    pub fn calls(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// The calls so far as `delegate VERB`, and forgets them.
    pub fn take_calls(&self) -> Vec<String> {
        let calls = self.calls();
        let _ = fs::remove_file(self.path("calls"));
        let text = |call: &Value, key: &str| call[key].as_str().unwrap().to_owned();
        calls
            .iter()
            .map(|call| format!("{} {}", text(call, "delegate"), text(call, "verb")))
            .collect()
    }

    /// The record of an attachment on `net`.
    pub fn record(&self, container: &str) -> PathBuf {
        self.path("state").join("attachments/net").join(container).join("eth0")
    }

    /// The events of a record, by name.
    pub fn events(&self, container: &str) -> Vec<String> {
        let text = fs::read_to_string(self.record(container)).unwrap_or_default();
        let event = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()["event"].as_str().unwrap().to_owned()
        };
        text.lines().map(event).collect()
    }
}

/// Starts a call with this network configuration on stdin.
pub fn start(command: Command, network: &Value) -> Child {
    start_raw(command, network.to_string().as_bytes())
}

/// Starts a call with these bytes on stdin.
pub fn start_raw(mut command: Command, stdin: &[u8]) -> Child {
    let mut child = command.spawn().unwrap();
    // A program that ends without reading closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child
}

/// Waits for a call and takes what it printed.
pub fn wait(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
