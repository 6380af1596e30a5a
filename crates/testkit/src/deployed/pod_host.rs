//! A host on which the containers of the DaemonSet's pod run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ipam_testkit::world::{Host, Outcome, binary, start, until, wait};
use serde_json::Value;

use super::script;

/// Where the login lies on the host.
pub const LOGIN: &str = "/etc/cni/net.d/ipam-delegated.d";

/// A host with the pod of the DaemonSet, whose containers run in a folder that has busybox and a release,
/// and nothing that is not mounted into it.
pub struct Machine {
    pub host: Host,
    pub root: tempfile::TempDir,
    pod: Value,
}

impl Machine {
    pub fn new(daemon_set: &Value) -> Self {
        let host = Host::new();
        host.shell("for d in /opt/cni /run; do mkdir -p $d; mount -t tmpfs tmpfs $d; done");
        let machine = Self {
            host,
            root: tempfile::tempdir().unwrap(),
            pod: daemon_set["spec"]["template"]["spec"].clone(),
        };
        let root = machine.root.path();
        for folder in
            ["bin", "dev", "lib", "lib64", "proc", "ipam-delegated/bin", "account", "script"]
        {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("dev/null"), "").unwrap();
        copy(Path::new("/bin/busybox"), &root.join("bin/busybox"));
        // Debian's busybox is without this one.
        copy(Path::new("/usr/bin/flock"), &root.join("bin/flock"));
        let install = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../install.sh");
        copy(&install, &root.join("ipam-delegated/install.sh"));
        for name in
            ["ipam-delegated", "ipam-da-local", "ipam-ds-kube-node", "ipam-ds-node-annotation"]
        {
            copy(&binary(name), &root.join("ipam-delegated/bin").join(name));
        }
        let applets = Command::new("chroot")
            .arg(root)
            .args(["/bin/busybox", "--install", "-s", "/bin"])
            .status();
        assert!(applets.unwrap().success());
        machine
    }

    /// Where the volumes of the pod are: of the host, or a folder of the test's.
    fn volume(&self, name: &str) -> PathBuf {
        let volumes = self.pod["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == name).unwrap();
        match volume["hostPath"]["path"].as_str() {
            Some(path) => path.into(),
            None => self.root.path().join(name),
        }
    }

    /// A container of the pod, with its mounts and its command, in a folder that it cannot write to.
    fn container(&self, container: &Value, variables: &[(&str, &str)]) -> Command {
        let root = self.root.path().display();
        let mut script = format!(
            "mount --bind {root} {root}; mount --bind /dev/null {root}/dev/null\n\
             mount -t proc proc {root}/proc\n\
             for lib in lib lib64; do [ ! -e /$lib ] || mount --bind /$lib {root}/$lib; done\n"
        );
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volume = self.volume(mount["name"].as_str().unwrap());
            let volume = volume.display();
            let path = mount["mountPath"].as_str().unwrap();
            script +=
                &format!("mkdir -p {volume} {root}{path}; mount --bind {volume} {root}{path}\n");
            if mount["readOnly"] == true {
                script += &format!("mount -o remount,bind,ro {root}{path}\n");
            }
        }
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        script += &format!("mount -o remount,bind,ro {root}; exec chroot {root} \"$@\"");
        let mut command = self.host.enter("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", &script, "sh"]);
        let words = container["command"].as_array().unwrap();
        command.args(words.iter().map(|word| word.as_str().unwrap()));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command.envs(variables.iter().copied());
        command
    }

    /// Runs the container that installs, and says what it said.
    #[track_caller]
    pub fn install(&self) -> String {
        let output = self.container(&self.pod["initContainers"][0], &[]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts the container that keeps the login.
    pub fn keep_login(&self, variables: &[(&str, &str)]) -> Keeper {
        fs::write(self.root.path().join("script/keep-login.sh"), script()).unwrap();
        Keeper::start(self.container(&self.pod["containers"][0], variables))
    }

    /// Whether the container is ready.
    pub fn is_ready(&self) -> bool {
        let container = &self.pod["containers"][0];
        let mut probing = container.clone();
        probing["command"] = container["readinessProbe"]["exec"]["command"].clone();
        self.container(&probing, &[]).status().unwrap().success()
    }

    /// A file of the login as the host has it.
    pub fn login(&self, file: &str) -> PathBuf {
        self.host.path(LOGIN).join(file)
    }

    pub fn token(&self) -> String {
        fs::read_to_string(self.login("token")).unwrap_or_default()
    }

    /// A call of the IPAM plugin that a network names, as its main plugin makes it.
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        let plugin = network["ipam"]["type"].as_str().unwrap();
        let mut command = self.host.enter(format!("/opt/cni/bin/{plugin}"));
        command.env_clear().env("CNI_PATH", "/opt/cni/bin").env("CNI_COMMAND", verb);
        command.env("CNI_CONTAINERID", container).env("CNI_IFNAME", "net1");
        command.env("CNI_NETNS", "/run/netns/none").stdin(Stdio::piped());
        wait(start(
            {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            },
            network,
        ))
    }
}

/// A running container.
pub struct Keeper(pub Child);

impl Keeper {
    /// Runs the script, which looks at the token ten times a second.
    pub fn start(mut command: Command) -> Self {
        command.env("EVERY", "0.1").stdout(Stdio::null()).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Waits until it has looked once more: begun and ended a look after this call.
    #[track_caller]
    pub fn looks(&self) {
        // It sleeps by a process of its own between two looks.
        let pid = self.0.id();
        let children = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let sleeping = || {
            let all = fs::read_to_string(&children).unwrap_or_default();
            let is_sleep = |pid: &&str| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm"));
                name.is_ok_and(|name| name.trim() == "sleep")
            };
            all.split_whitespace().find(is_sleep).map(str::to_owned)
        };
        let mut before = None;
        until("it to sleep", || {
            before = sleeping();
            before.is_some()
        });
        until("it to sleep again", || sleeping().is_some_and(|now| Some(now) != before));
    }

    /// Ends it as a kubelet does, and gives what it said on stderr.
    #[track_caller]
    pub fn end(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut said = String::new();
        let stderr = self.0.stderr.take();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
        std::io::Read::read_to_string(&mut stderr.unwrap(), &mut said).unwrap();
        said
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not by this process: what it has open for writing, no other thread's child may run.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}
