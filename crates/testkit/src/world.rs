//! A world for process tests: a plugin folder, a state folder, and delegates made of shell.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

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

    /// It ended well, whatever it printed.
    #[track_caller]
    pub fn ended_well(self) {
        assert_eq!(self.exit, Some(0), "{self:?}");
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

    /// Puts a program into the plugin folder under another name.
    pub fn install_as(&self, program: &Path, name: &str) -> &Self {
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

    /// The processes whose environment names this world's plugin folder: calls, their delegates
    /// and what those left behind.
    pub fn processes(&self) -> Vec<u32> {
        let marker = self.path("bin").into_os_string().into_encoded_bytes();
        let marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.windows(marker.len()).any(|piece| piece == marker)
        };
        let entries = fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(marked).collect()
    }

    /// Waits until no process of this world is left; false when the time is over.
    pub fn is_quiet_within(&self, time: Duration) -> bool {
        let give_up = Instant::now() + time;
        while !self.processes().is_empty() {
            if Instant::now() > give_up {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Whether no process holds the record's lock.
    pub fn is_unlocked(&self, container: &str) -> bool {
        fs::File::open(self.record(container)).is_ok_and(|file| file.try_lock().is_ok())
    }

    /// Waits until a call sleeps with its record open; tells whether it has started nothing, so that
    /// it is the lock it waits for.
    #[track_caller]
    pub fn waits_for_lock(&self, call: &Child, container: &str) -> bool {
        let process = PathBuf::from(format!("/proc/{}", call.id()));
        let record = format!("/attachments/net/{container}/eth0");
        let is_record = |entry: fs::DirEntry| {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            target.display().to_string().ends_with(&record)
        };
        until("the call to sleep with its record open", || {
            let mut open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            open.any(is_record) && stat.contains(") S ")
        });
        let children = process.join(format!("task/{}/children", call.id()));
        fs::read_to_string(children).unwrap().is_empty()
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

/// The names in a folder, sorted; none where there is no folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
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

/// Waits until a condition holds; a bounded time, so that a defect fails the test.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < give_up, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process with SIGKILL, as the kernel does when memory is short.
pub fn kill_now(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

impl World {
    /// Shell that waits until [`World::open_gate`], for a bounded time, and first says that it is
    /// there.
    pub fn gate(&self, name: &str) -> String {
        format!(
            "n=0; : >'{at}'; while [ ! -e '{open}' ] && [ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done",
            at = self.path(&format!("{name}.at")).display(),
            open = self.path(&format!("{name}.open")).display(),
        )
    }

    /// Waits until a delegate has come to the gate.
    #[track_caller]
    pub fn at_gate(&self, name: &str) {
        let at = self.path(&format!("{name}.at"));
        until(&format!("a delegate at the gate {name}"), || at.exists());
    }

    pub fn open_gate(&self, name: &str) {
        fs::write(self.path(&format!("{name}.open")), "").unwrap();
    }

    /// An allocator as [`World::allocator`] makes it, which waits at a gate of its name before it
    /// takes its address.
    pub fn gated_allocator(&self, name: &str, address: &str) -> &Self {
        let held = self.path("held");
        fs::create_dir_all(&held).unwrap();
        let answer = json!({"cniVersion": "1.0.0", "ips": [{"address": address}], "pools": []});
        self.delegate(
            name,
            &format!(
                "f='{held}'/{name}-$CNI_CONTAINERID-$CNI_IFNAME\ncase $CNI_COMMAND in\n\
                 ADD) {gate}; echo {address} >\"$f\"; printf '%s' '{answer}';;\n\
                 DEL) rm -f \"$f\";;\nesac",
                held = held.display(),
                gate = self.gate(name),
            ),
        )
    }

    /// A delegate whose ADD fails with code 100.
    pub fn full(&self, name: &str) -> &Self {
        self.delegate(
            name,
            "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac",
        )
    }

    /// What is in the record, line by line.
    pub fn lines(&self, container: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.record(container)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The state of a record, in the operator's word.
    #[track_caller]
    pub fn state_of(&self, container: &str) -> String {
        let output = Command::new(binary("ipam-delegated"))
            .args(["attachments", "--json", "--state-dir"])
            .arg(self.path("state"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let row = rows.iter().find(|row| row["containerID"] == container);
        row.map_or("none".to_owned(), |row| row["state"].as_str().unwrap().to_owned())
    }

    /// Makes the repetition of every unsure DEL due now.
    pub fn make_due(&self) {
        self.make_due_at(1);
    }

    /// Makes the repetition of every unsure DEL due at a time in milliseconds since 1970.
    pub fn make_due_at(&self, time: u64) {
        let folder = self.path("state/unsure");
        for entry in fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let record = fs::read_link(folder.join(&name)).unwrap();
            let record = self.path("state/attachments").join(record);
            let (due, rest) = name.split_once('.').unwrap();
            let number: u64 = due.parse().unwrap();
            if let Ok(text) = fs::read_to_string(&record) {
                let text = text.replace(&format!("\"due\":{number}"), &format!("\"due\":{time}"));
                fs::write(&record, text).unwrap();
            }
            let new = folder.join(format!("{time:015}.{rest}"));
            fs::rename(folder.join(&name), new).unwrap();
        }
    }

    /// How many DELs are to be repeated.
    pub fn unsure(&self) -> usize {
        fs::read_dir(self.path("state/unsure")).map_or(0, Iterator::count)
    }
}

/// A mount namespace of a test's own, with empty `/etc/cni`, `/var/lib/cni` and `/var/log/cni`.
pub struct Host {
    keeper: Child,
}

impl Host {
    /// Makes the namespace. Needs root: a test that cannot run fails.
    pub fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test mounts in a namespace of its own: run it as root (cargo test under sudo, or in a container with CAP_SYS_ADMIN)"
        );
        let script = "for d in /etc/cni /var/lib/cni /var/log/cni; do mkdir -p $d && mount -t tmpfs tmpfs $d || exit 1; done\n\
                      echo ready; exec cat >/dev/null";
        let mut keeper = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare of util-linux is needed");
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the namespace could not be made");
        Self { keeper }
    }

    /// A place in the namespace, seen from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{inside}", self.keeper.id()))
    }

    /// Runs shell in the namespace; it must succeed.
    #[track_caller]
    pub fn shell(&self, script: &str) {
        let output = self.enter("/bin/sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Writes the host-wide settings.
    pub fn settings(&self, settings: &Value) -> &Self {
        fs::write(self.path("/etc/cni/ipam-delegated.json"), settings.to_string()).unwrap();
        self
    }

    /// A program to run in the namespace.
    pub fn enter(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.keeper.id())).arg(program);
        command
    }

    /// A call of `ipam-delegated` in the namespace, ready to be changed and started.
    pub fn command(&self, world: &World, verb: &str, container: &str) -> Command {
        let outside = world.command(verb, container);
        let mut command = self.enter(outside.get_program());
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Calls `ipam-delegated` in the namespace and waits.
    pub fn call(&self, world: &World, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.command(world, verb, container), network))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
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
