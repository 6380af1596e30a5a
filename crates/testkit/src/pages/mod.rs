//! Pages: what they say, and where their commands are run.

mod here;
mod node;
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value};

use self::here::Here;
pub use self::here::masked;
pub use self::node::Node;
pub use self::shell::{CONFLIST, Shell};
use crate::world::binary;

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

    /// The first block of a kind.
    #[track_caller]
    pub fn first(&self, kind: &str) -> &str {
        let (_, rest) = self.0.split_once(&format!("\n```{kind}\n")).unwrap();
        rest.split("\n```").next().unwrap()
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

    /// The same of one program.
    #[track_caller]
    pub fn commands_of(&self, heading: &str, program: &str) -> Vec<(String, String)> {
        let mut commands = self.commands(heading, "console");
        commands.retain(|(command, _)| command.starts_with(program));
        assert!(!commands.is_empty(), "{heading}: {program}");
        commands
    }

    /// The first configuration below a heading.
    #[track_caller]
    pub fn json(&self, heading: &str) -> Value {
        serde_json::from_str(self.blocks(heading, "json")[0]).unwrap()
    }

    /// The keys of a configuration that are shown alone below a heading.
    #[track_caller]
    pub fn keys(&self, heading: &str) -> Map<String, Value> {
        serde_json::from_str(&format!("{{{}}}", self.blocks(heading, "json")[0])).unwrap()
    }

    /// The table of keys below a heading names each key that the program reads in a section of
    /// `ipam`.
    #[track_caller]
    pub fn assert_table_is_of(&self, heading: &str, program: &str, section: &str) {
        let about = Command::new(binary(program)).args(["about", "--json"]).output().unwrap();
        let about: Value = serde_json::from_slice(&about.stdout).unwrap();
        let keys: BTreeSet<&str> =
            about["keys"][section].as_object().unwrap().keys().map(String::as_str).collect();
        let (_, table) = self.section(heading).split_once("| key | means | default |\n").unwrap();
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let documented: BTreeSet<&str> =
            rows.map(|row| row.trim_start_matches("| `").split('`').next().unwrap()).collect();
        assert_eq!(documented, keys);
    }

    /// The table of errors says with which code each verb fails where the server's certificate is
    /// not to be trusted.
    #[track_caller]
    pub fn assert_codes_of_an_untrusted_server(&self, code_of: impl Fn(&str) -> u64) {
        for (verb, code) in [("ADD", 105), ("CHECK", 103), ("DEL", 103), ("STATUS", 50)] {
            assert_eq!(code_of(verb), code, "{verb}");
        }
        for (code, verbs) in [(105, "| ADD: "), (103, "other verbs than ADD")] {
            let rows = self.section("Errors").lines();
            let mut rows = rows.filter(|row| row.starts_with(&format!("| {code} |")));
            let says = |row: &str| row.contains("certificate") && row.contains(verbs);
            assert!(rows.any(says), "no row {code} of the table tells of a certificate");
        }
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
