//! A host with the programs of this workspace and a login to a Kubernetes API server, for pages that
//! show networks and commands.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::kube::{self, Kube, Kubeconfig, Login};
use crate::pages::{Page, masked};
use crate::world::{Host, Outcome, World, binary, host_local, start, wait};

/// Where pages have kubeconfigs, and where they are here: on a file system of the test's own.
const FOLDERS: [&str; 2] = ["/etc/kubernetes", "/etc/cni/kubernetes"];

pub struct Site {
    pub host: Host,
    pub world: World,
    pub kube: &'static Kube,
    /// The node that this host is.
    node: &'static str,
}

impl Site {
    /// With the administrator's login in `kubeconfig` and the node's own in `kubelet.conf`, and these
    /// presets.
    pub fn new(node: &'static str, presets: &[&str]) -> Self {
        let (host, world, kube) = (Host::new(), World::new(), Kube::shared());
        host.shell("mount -t tmpfs tmpfs /run; mkdir /etc/cni/net.d /etc/cni/kubernetes");
        let programs =
            ["ipam-delegated", "ipam-da-local", "ipam-ds-kube-node", "ipam-ds-node-annotation"];
        for name in programs {
            world.install(&binary(name));
        }
        for preset in presets {
            symlink(binary("ipam-delegated"), world.path("bin").join(preset)).unwrap();
        }
        symlink(kube::kubectl(), world.path("bin/kubectl")).unwrap();
        let site = Self { host, world, kube, node };
        site.log_in(&kube.admin(), "kubeconfig");
        site.log_in(&kube.kubelet(node), "kubelet.conf");
        site
    }

    fn log_in(&self, login: &Login, name: &str) {
        let path = self.host.path(FOLDERS[1]).join(name);
        Kubeconfig::of(self.kube, login).write(&path);
    }

    /// A text of a page as it is here.
    pub fn here(&self, text: &str) -> String {
        let bin = self.world.path("bin").display().to_string();
        text.replace(FOLDERS[0], FOLDERS[1]).replace("/opt/cni/bin", &bin)
    }

    pub fn network(&self, json: &str) -> Value {
        serde_json::from_str(&self.here(json)).unwrap()
    }

    /// The first plugin of a file of `examples`, as a runtime sends it.
    pub fn example(&self, name: &str) -> Value {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
        let conflist = self.network(&fs::read_to_string(file).unwrap());
        let mut network = conflist["plugins"][0].clone();
        for key in ["cniVersion", "name"] {
            network[key] = conflist[key].clone();
        }
        network
    }

    /// A call of the IPAM plugin that a network names.
    pub fn call(&self, verb: &str, container: &str, args: &str, network: &Value) -> Outcome {
        let program = self.world.path("bin").join(network["ipam"]["type"].as_str().unwrap());
        self.call_of(&program, verb, container, args, network)
    }

    /// A call of a program that finds others beside itself.
    pub fn call_of(
        &self,
        program: &Path,
        verb: &str,
        container: &str,
        args: &str,
        network: &Value,
    ) -> Outcome {
        let outside = self.world.command_of(program, verb, container);
        let mut command = self.host.enter(program);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.env("NODE_NAME", self.node).env("CNI_ARGS", args);
        command.env("CNI_PATH", program.parent().unwrap());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, network))
    }

    /// What shell prints on stdout, in a folder of the test's own.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        let mut shell = self.host.enter("/bin/sh");
        let folder = self.world.path("");
        let script = format!("cd '{}'\n{}", folder.display(), self.here(script));
        shell.args(["-ec", &script]).env_clear().env("NODE_NAME", self.node);
        shell.env("PATH", format!("{}:/usr/bin:/bin", folder.join("bin").display()));
        shell.env("HOME", &folder).env("KUBECONFIG", PathBuf::from(FOLDERS[1]).join("kubeconfig"));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command of a page that is about the plugin folder and `install.sh`, with the folder
    /// `plugins` of this world.
    #[track_caller]
    pub fn install(&self, command: &str) -> String {
        let plugins = self.world.path("plugins").display().to_string();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../install.sh");
        // The programs lie beside it, as in a release archive.
        fs::copy(script, self.world.path("install.sh")).unwrap();
        let command = command.replace("./install.sh", &format!("./install.sh --dir {plugins}"));
        self.shell(&command.replace("/opt/cni/bin", &plugins))
    }

    /// By a page's commands, a preset replaces the program of its name and gives the name back: each
    /// releases what the other gave, `lint` names the difference, and the checks print what the page
    /// shows. The program is played by host-local, which gets `theirs`.
    #[track_caller]
    pub fn assert_there_and_back(
        &self,
        program: &str,
        page: &Page,
        difference: &str,
        [network, theirs]: [&Value; 2],
        addresses: [&str; 3],
    ) {
        let preset = self.world.path("plugins").join(program);
        fs::create_dir(preset.parent().unwrap()).unwrap();
        fs::write(&preset, "the replaced program").unwrap();
        let host_local = host_local();
        let call = |program: &Path, verb: &str, container: &str, network: &Value| {
            self.call_of(program, verb, container, "", network)
        };
        assert_eq!(call(&host_local, "ADD", "before", theirs).ips(), addresses[..1]);

        let moving = page.commands("Moving", "console");
        let printed: String = moving.iter().map(|(command, _)| self.install(command)).collect();
        assert!(printed.contains(difference), "{printed}");
        assert_eq!(call(&preset, "ADD", "after", network).ips(), addresses[1..2]);
        for (command, shown) in page.commands("Check", "console") {
            let printed = self.as_on_a_page(&self.install(&command));
            assert_eq!(masked(&printed), masked(&shown), "{command}\n{printed}");
        }
        call(&preset, "DEL", "before", network).success();
        assert_eq!(call(&preset, "ADD", "last", network).ips(), addresses[2..]);
        call(&preset, "DEL", "last", network).success();
        for (command, _) in page.commands("Going back", "console") {
            self.install(&command);
        }
        assert_eq!(fs::read_to_string(preset).unwrap(), "the replaced program");
        call(&host_local, "DEL", "after", theirs).success();
    }

    /// What a command printed here, with the paths that a page has.
    fn as_on_a_page(&self, printed: &str) -> String {
        let plugins = self.world.path("plugins").display().to_string();
        printed.replace(&plugins, "/opt/cni/bin").replace(FOLDERS[1], FOLDERS[0])
    }

    /// Runs commands, each of which prints what a page shows.
    #[track_caller]
    pub fn follow(&self, commands: &[(String, String)]) {
        for (command, printed) in commands {
            assert_eq!(self.shell(command).trim_end(), printed.trim_end(), "{command}");
        }
    }
}
