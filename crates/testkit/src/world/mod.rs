//! A world for process tests: a plugin folder, a state folder, and delegates made of shell.

mod call;
mod host;
mod state;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

pub use self::call::{Outcome, kill_now, start, start_raw, until, wait};
pub use self::host::Host;

/// A program of this workspace, built beside the test's own.
pub fn binary(name: &str) -> PathBuf {
    // The tests of the delegates' packages, too, run what lies in the workspace's folder.
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(
        path.exists(),
        "{name} is not built: run `cargo build --workspace --bins --examples` first"
    );
    path
}

/// Whether the tests that have a smaller size for every day are to run in full:
/// `IPAM_DELEGATED_TESTS=full`.
pub fn full_size() -> bool {
    std::env::var_os("IPAM_DELEGATED_TESTS").is_some_and(|size| size == "full")
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

    /// Puts a program into the plugin folder under another name.
    pub fn install_as(&self, program: &Path, name: &str) -> &Self {
        std::os::unix::fs::symlink(program, self.path("bin").join(name)).unwrap();
        self
    }

    /// A delegate in shell. It notes each call, with `$in` its stdin; `body` does the rest. People get no
    /// answer.
    pub fn delegate(&self, name: &str, body: &str) -> &Self {
        let calls = self.path("calls");
        let script = format!(
            "#!/bin/sh\n[ -n \"$CNI_COMMAND\" ] || exit 0\nin=$(cat)\nprintf '{{\"delegate\":\"{name}\",\"verb\":\"%s\",\"container\":\"%s\",\"stdin\":%s}}\\n' \
             \"$CNI_COMMAND\" \"$CNI_CONTAINERID\" \"$in\" >>'{}'\n{body}\n",
            calls.display()
        );
        self.program(name, &script)
    }

    /// A program in the plugin folder, as it is given.
    pub fn program(&self, name: &str, content: &str) -> &Self {
        // Written aside first, and by another process: a file open for writing cannot be run, and
        // what this process has open, a call that another thread starts may hold for a moment.
        let new = self.path(&format!("new-{name}"));
        let mut writer = Command::new("sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .arg(&new)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        fs::rename(&new, self.path("bin").join(name)).unwrap();
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
        names(&self.path("held"))
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
        cni_command(program, &self.path("bin"), verb, container)
    }

    /// Calls `ipam-delegated` and waits.
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.command(verb, container), network))
    }

    /// STATUS of `ipam-delegated`, in the first version that has it.
    pub fn status(&self, network: &Value) -> Outcome {
        let mut network = network.clone();
        network["cniVersion"] = "1.1.0".into();
        let mut command = self.command("STATUS", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        wait(start(command, &network))
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
}

/// A call of a plugin as a runtime makes it, with plugins in this folder, ready to be changed and
/// started.
pub fn cni_command(program: &Path, plugins: &Path, verb: &str, container: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_PATH", plugins)
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_NETNS", "/run/netns/none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The names in a folder, sorted; none where there is no folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Removes members of `ipam`.
pub fn without(network: &Value, keys: &[&str]) -> Value {
    let mut network = network.clone();
    let ipam = network["ipam"].as_object_mut().unwrap();
    keys.iter().for_each(|key| {
        ipam.remove(*key);
    });
    network
}

/// Sets a member of `ipam`.
pub fn with(network: &Value, key: &str, value: impl Into<Value>) -> Value {
    let mut network = network.clone();
    network["ipam"][key] = value.into();
    network
}
