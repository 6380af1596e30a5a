//! A host on which the containers of the DaemonSet's pod run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::world::{Host, Outcome, binary, start, until, wait};

/// The manifests and scripts of the image.
const DEPLOY: [&str; 2] = ["delegates/ipam-ds-kube-node/deploy", "delegates/ipam-da-kube/deploy"];

/// A host with the pod of the DaemonSet, whose containers run in a folder that has busybox and a release,
/// and nothing that is not mounted into it.
pub struct PodHost {
    pub host: Host,
    root: TempDir,
    pod: Value,
}

impl PodHost {
    /// A host that runs the pod of a DaemonSet, whose image has these programs.
    pub fn new(daemon_set: &Value, programs: &[&str]) -> Self {
        let host = Host::new();
        host.shell("for d in /opt/cni /run; do mkdir -p $d; mount -t tmpfs tmpfs $d; done");
        let pod = daemon_set["spec"]["template"]["spec"].clone();
        let machine = Self { host, root: TempDir::new().unwrap(), pod };
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
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        copy(&source.join("install.sh"), &root.join("ipam-delegated/install.sh"));
        for deploy in DEPLOY {
            let there = root.join("ipam-delegated").join(deploy);
            fs::create_dir_all(&there).unwrap();
            for entry in fs::read_dir(source.join(deploy)).unwrap() {
                let entry = entry.unwrap();
                copy(&entry.path(), &there.join(entry.file_name()));
            }
        }
        for name in programs {
            copy(&binary(name), &root.join("ipam-delegated/bin").join(name));
        }
        let applets = Command::new("chroot")
            .arg(root)
            .args(["/bin/busybox", "--install", "-s", "/bin"])
            .status();
        assert!(applets.unwrap().success());
        machine
    }

    /// The folder of a volume of the pod: of the host, or the test's, which fills it.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.host_path(name).unwrap_or_else(|| self.root.path().join(name))
    }

    fn host_path(&self, volume: &str) -> Option<PathBuf> {
        let mut volumes = self.pod["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|found| found["name"] == volume).unwrap();
        volume["hostPath"]["path"].as_str().map(PathBuf::from)
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
        for variable in container["env"].as_array().into_iter().flatten() {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.namespace") => "kube-system",
                Some("spec.nodeName") => "rack1-7",
                Some(field) => panic!("{field}"),
                None => variable["value"].as_str().unwrap(),
            };
            command.env(variable["name"].as_str().unwrap(), value);
        }
        command.envs(variables.iter().copied());
        command
    }

    /// Runs the init containers, each of which succeeds; what they print.
    #[track_caller]
    pub fn init(&self) -> String {
        let mut printed = String::new();
        for container in self.pod["initContainers"].as_array().unwrap() {
            let output = self.container(container, &[]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            printed += std::str::from_utf8(&output.stdout).unwrap();
        }
        printed
    }

    /// Starts the container that keeps the login.
    pub fn keep_login(&self, variables: &[(&str, &str)]) -> Keeper {
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
        self.host.path(self.volume("login").to_str().unwrap()).join(file)
    }

    pub fn token(&self) -> String {
        fs::read_to_string(self.login("token")).unwrap_or_default()
    }

    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.call_with(&[], verb, container, network)
    }

    /// A call of the IPAM plugin that a network names, as its main plugin makes it, with these
    /// variables.
    pub fn call_with(
        &self,
        variables: &[(&str, &str)],
        verb: &str,
        container: &str,
        network: &Value,
    ) -> Outcome {
        let plugin = network["ipam"]["type"].as_str().unwrap();
        let mut command = self.host.enter(format!("/opt/cni/bin/{plugin}"));
        command.env_clear().env("CNI_PATH", "/opt/cni/bin").env("CNI_COMMAND", verb);
        command.env("CNI_CONTAINERID", container).env("CNI_IFNAME", "net1");
        command.env("CNI_NETNS", "/run/netns/none").envs(variables.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, network))
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
