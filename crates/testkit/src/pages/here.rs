//! A page's commands and texts on this machine.

use std::path::Path;
use std::process::Command;

/// What texts of a page are here, and the variables by which its commands find servers.
#[derive(Default)]
pub(super) struct Here {
    texts: Vec<(&'static str, String)>,
    variables: Vec<(&'static str, String)>,
}

impl Here {
    /// A text of the page that is another one here.
    pub(super) fn put(&mut self, text: &'static str, here: &str) {
        self.texts.push((text, here.to_owned()));
    }

    pub(super) fn set(&mut self, variable: &'static str, value: &str) {
        self.variables.push((variable, value.to_owned()));
    }

    /// A text of the page as it is here.
    pub(super) fn text(&self, text: &str) -> String {
        let named = |text: String, (named, here): &(&str, String)| text.replace(named, here);
        self.texts.iter().fold(text.to_owned(), named)
    }

    /// Runs a command of the page in a folder; what it prints.
    #[track_caller]
    pub(super) fn run(&self, mut shell: Command, folder: &Path, command: &str) -> String {
        let script = format!("cd '{}'; {}", folder.display(), self.text(command));
        shell.args(["-ec", &script]).env("LC_ALL", "C");
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A text without what differs from run to run: the width of columns, times, ages, revisions,
/// nodes.
pub fn masked(text: &str) -> Vec<Vec<String>> {
    let is_age = |word: &str| {
        let number = word.strip_suffix(['s', 'm', 'h', 'd']).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_node = |word: &str| {
        let lengths: Vec<usize> = word.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12]
    };
    let line = |line: &str| {
        let words = line.split_whitespace();
        let before = std::iter::once("").chain(words.clone());
        let word = |(before, word): (&str, &str)| match word {
            _ if before == "revision" => "REVISION".to_owned(),
            age if is_age(age) => "AGE".to_owned(),
            node if is_node(node) => "NODE".to_owned(),
            other => without_times(other),
        };
        before.zip(words).map(word).collect()
    };
    text.lines().map(line).collect()
}

/// A word without its times, which are milliseconds since 1970.
fn without_times(word: &str) -> String {
    let is_other = |c: char| !c.is_ascii_digit();
    let part = |part: &str| {
        let digits = part.trim_end_matches(is_other);
        if digits.len() == 13 { part.replace(digits, "TIME") } else { part.to_owned() }
    };
    word.split_inclusive(is_other).map(part).collect()
}
