//! Pages on moving from a replaced plugin: what they say, and a node on which their commands are run.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::world::{Host, Outcome, binary, start, wait};

/// A page below the root of the project.
#[derive(Clone, Debug)]
pub struct Page(String);

impl Page {
    #[track_caller]
    pub fn read(file: &str) -> Self {
        Self(fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}")))
    }

    /// The text between a heading and the next one.
    #[track_caller]
    pub fn section(&self, heading: &str) -> &str {
        let begins = |line: &&str| line.trim_start_matches('#') == format!(" {heading}");
        let line = self.0.lines().filter(|line| line.starts_with('#')).find(begins);
        let line = line.unwrap_or_else(|| panic!("no heading {heading}"));
        let (_, rest) = self.0.split_once(&format!("\n{line}\n")).unwrap();
        rest.split("\n#").next().unwrap()
    }

    /// The blocks of a kind below a heading.
    pub fn blocks(&self, heading: &str, kind: &str) -> Vec<&str> {
        let opening = format!("\n```{kind}\n");
        let blocks = self.section(heading).split(&opening).skip(1);
        blocks.map(|rest| rest.split("\n```").next().unwrap()).collect()
    }

    /// The commands of the blocks of a kind below a heading, each with what it prints.
    #[track_caller]
    pub fn commands(&self, heading: &str, kind: &str) -> Vec<(String, String)> {
        let mut commands: Vec<(String, String)> = Vec::new();
        for line in self.blocks(heading, kind).into_iter().flat_map(str::lines) {
            match line.strip_prefix("$ ") {
                Some(command) => commands.push((command.to_owned(), String::new())),
                None => commands.last_mut().unwrap().1.extend([line, "\n"]),
            }
        }
        assert!(!commands.is_empty(), "{heading}");
        commands
    }

    /// The items of the first list below a heading.
    pub fn items(&self, heading: &str) -> Vec<String> {
        let mut texts = self.section(heading).split("\n\n");
        let list = texts.find(|text| text.trim_start().starts_with("- ")).unwrap();
        // An item may go on in the next line.
        let list = list.trim().replace("\n  ", " ");
        list.lines().map(|line| line.strip_prefix("- ").unwrap().to_owned()).collect()
    }
}

/// A node with the plugin and the network of a page, and a folder as a release archive has it.
pub struct Node {
    pub host: Host,
    pub page: Page,
    /// The first plugin of the network, as the runtime sends it.
    pub network: Value,
    archive: tempfile::TempDir,
    plugin: &'static str,
    /// The replaced program.
    original: Vec<u8>,
    /// What a text of the page stands for here.
    stands_for: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
}

impl Node {
    /// A node where this program is the plugin of that name.
    pub fn new(page: Page, plugin: &'static str, original: &Path, programs: &[&str]) -> Self {
        let archive = tempfile::TempDir::new().unwrap();
        let bin = archive.path().join("bin");
        fs::create_dir(&bin).unwrap();
        copy(&root().join("install.sh"), &archive.path().join("install.sh"));
        for name in programs {
            copy(&binary(name), &bin.join(name));
        }
        let host = Host::new();
        host.shell(
            "mkdir -p /opt/cni; mount -t tmpfs tmpfs /opt/cni; mkdir /opt/cni/bin /etc/cni/net.d",
        );
        copy(original, &host.path(&format!("/opt/cni/bin/{plugin}")));
        let original = fs::read(original).unwrap();
        let (stands_for, variables, network) = (Vec::new(), Vec::new(), Value::Null);
        let mut node =
            Self { host, page, network, archive, plugin, original, stands_for, variables };
        node.configure();
        node
    }

    /// With a server in place of the one that the page names, and variables by which commands find it.
    pub fn with_server(
        mut self,
        named: &'static str,
        url: &str,
        variables: &[(&'static str, &str)],
    ) -> Self {
        self.stands_for.push((named, url.to_owned()));
        self.variables.extend(variables.iter().map(|(name, value)| (*name, (*value).to_owned())));
        self.configure();
        self
    }

    /// A text of the page that is another one here.
    pub fn with(mut self, text: &'static str, here: &str) -> Self {
        self.stands_for.push((text, here.to_owned()));
        self
    }

    /// Writes the network of the page.
    fn configure(&mut self) {
        let conflist = self.here(self.page.blocks("Before", "json")[0]);
        fs::write(self.host.path("/etc/cni/net.d/10-racknet.conflist"), &conflist).unwrap();
        let conflist: Value = serde_json::from_str(&conflist).unwrap();
        self.network = conflist["plugins"][0].clone();
        self.network["cniVersion"] = conflist["cniVersion"].clone();
        self.network["name"] = conflist["name"].clone();
    }

    /// A call as the main plugin makes it.
    pub fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        self.call_of(&format!("/opt/cni/bin/{}", self.plugin), verb, container, network)
    }

    pub fn call_of(&self, program: &str, verb: &str, container: &str, network: &Value) -> Outcome {
        let mut command = self.host.enter(program);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_PATH", "/opt/cni/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", "eth0")
            .env("CNI_NETNS", "/run/netns/none");
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, Stdio::piped());
        }
        wait(start(command, network))
    }

    #[track_caller]
    pub fn add(&self, container: &str) -> Value {
        self.call("ADD", container, &self.network).success()
    }

    #[track_caller]
    pub fn del(&self, container: &str) {
        self.call("DEL", container, &self.network).success();
    }

    /// CHECK, in the first version that has it where the network's own has none.
    #[track_caller]
    pub fn check(&self, container: &str, result: &Value) {
        let mut network = self.network.clone();
        if network["cniVersion"] == "0.3.1" {
            network["cniVersion"] = "0.4.0".into();
        }
        network["prevResult"] = result.clone();
        self.call("CHECK", container, &network).success();
    }

    /// Whether the replaced program stands under its name.
    pub fn is_original(&self) -> bool {
        let installed = self.host.path(&format!("/opt/cni/bin/{}", self.plugin));
        fs::read(installed).is_ok_and(|bytes| bytes == self.original)
    }

    /// Runs the commands of a section in the folder of the archive; each prints what stands there.
    #[track_caller]
    pub fn follow(&self, heading: &str, kind: &str) {
        for (command, expected) in self.page.commands(heading, kind) {
            self.run(&command, &expected);
        }
    }

    #[track_caller]
    pub fn run(&self, command: &str, expected: &str) {
        let mut shell = self.host.enter("/bin/sh");
        let (folder, here) = (self.archive.path().display(), self.here(command));
        shell.args(["-ec", &format!("cd '{folder}'; {here}")]).env("LC_ALL", "C");
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let printed = String::from_utf8(output.stdout).unwrap().replace(&format!("{folder}/"), "");
        // install.sh also waits for the calls of other tests: their nodes have the same processes.
        // A test's state folder lies on a tmpfs, which lint warns of.
        let is_own = |line: &&str| !line.contains("under way") && !line.contains("tmpfs");
        let printed: String = printed.split_inclusive('\n').filter(is_own).collect();
        assert_eq!(plain(&printed), plain(&self.here(expected)), "{command}");
    }

    /// A text of the page as it is on this node.
    fn here(&self, text: &str) -> String {
        let named = |text: String, (named, here): &(&str, String)| text.replace(named, here);
        self.stands_for.iter().fold(text.to_owned(), named)
    }

    /// What a program of ours prints for a person.
    #[track_caller]
    pub fn ask(&self, arguments: &[&str]) -> String {
        let program = self.host.enter("/opt/cni/bin/ipam-delegated").args(arguments).output();
        let output = program.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text
    }

    /// Runs a command of the archive, whatever it prints.
    #[track_caller]
    pub fn in_archive(&self, command: &str) {
        self.host.shell(&format!("cd '{}'; {command}", self.archive.path().display()));
    }
}

/// A text without what differs from run to run: the width of columns, ages in seconds, the node.
fn plain(text: &str) -> Vec<Vec<String>> {
    let is_age = |word: &str| {
        let number = word.strip_suffix('s').unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_node = |word: &str| {
        let lengths: Vec<usize> = word.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12]
    };
    let word = |word: &str| match word {
        age if is_age(age) => "AGE".to_owned(),
        node if is_node(node) => "NODE".to_owned(),
        other => other.to_owned(),
    };
    text.lines().map(|line| line.split_whitespace().map(word).collect()).collect()
}

fn root() -> &'static Path {
    // A delegate's tests have a folder of their own.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |folder: &&Path| folder.join("install.sh").exists();
    manifest.ancestors().find(is_root).unwrap()
}

pub fn copy(from: &Path, to: &Path) {
    // Not by this process: what it has open for writing, no other thread's child may run.
    let status = Command::new("cp").args([from, to]).status().unwrap();
    assert!(status.success());
}
