//! The verbs an operator types, in a call without `CNI_COMMAND`: one file a verb.

mod about;
mod ask;
mod attachments;
mod compare;
mod dry_run;
mod explain;
mod findings;
mod forget;
mod gone;
mod lint;
mod list;
mod misspelt;
mod network;
mod origins;
mod ours;
mod overlaps;
mod pools;
pub(crate) mod preset_cli;
mod reap;
mod reassert;
mod recorded;
mod reference;
mod refusals;
mod release;
mod routes;
mod stores;
mod unclaimed;
mod verbs;
mod who;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use crate::chain::Preset;
use ipam_cli::{Column, Known, Row, Words, table};
use ipam_kit::cni::Environment;
use ipam_kit::error::{Error, Result};
use ipam_kit::host::{ResultCache, Settings, StateDir};
use ipam_kit::log::Wanted;
use ipam_kit::text::visible;
use verbs::{FIND, KNOWN, VERBS, help};

/// Runs an operator's verb and prints what it found: exit 0, or 1 with the error on stderr.
pub(crate) fn main(
    presets: &'static [Preset],
    program: PathBuf,
    environment: Environment,
    arguments: &[OsString],
) -> ExitCode {
    let printed = Operator::parse(presets, program, environment, arguments).and_then(|operator| {
        operator.start_log();
        operator.run()
    });
    let printed = printed.unwrap_or_else(|error| Printed {
        text: String::new(),
        warnings: vec![error.in_full()],
        failed: true,
    });
    for warning in &printed.warnings {
        eprintln!("ipam-delegated: {}", visible(warning));
    }
    let mut stdout = io::stdout();
    let written = stdout.write_all(printed.text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        // A reader that has seen enough closes the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("ipam-delegated: cannot print: {error}");
            ExitCode::FAILURE
        }
        _ if printed.failed => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

/// What a verb prints.
#[derive(Debug, Default)]
struct Printed {
    text: String,
    /// For stderr, a line each.
    warnings: Vec<String>,
    /// The exit status is 1.
    failed: bool,
}

impl Printed {
    fn text(text: String) -> Self {
        Self { text, ..Self::default() }
    }

    /// What succeeded; a failure becomes a warning, and the exit status 1.
    fn keep<T>(&mut self, outcome: Result<T>) -> Option<T> {
        outcome.map_err(|error| self.fail(&error)).ok()
    }

    fn fail(&mut self, error: &Error) {
        self.warnings.push(error.in_full());
        self.failed = true;
    }

    /// Sets the text: a table, or JSON where that was asked for.
    fn set_rows(&mut self, operator: &Operator, columns: &[Column], rows: Vec<Row>) {
        self.text = if operator.words.has("json") {
            let rows: Vec<Value> = rows.into_iter().map(Value::from).collect();
            format!("{}\n", Value::Array(rows))
        } else {
            table(columns, &rows)
        };
    }
}

/// What there is to know of records that stepped aside for another identity of the node: a line each.
fn of_other_identities(state: &StateDir) -> Vec<String> {
    let attachments = state.attachments().display().to_string();
    let told = |aside: PathBuf| {
        let name = aside.file_name().unwrap_or_default().to_string_lossy();
        let kept = state.root().join(name.replacen("attachments", "taken-back", 1));
        let (aside, kept) = (aside.display().to_string(), kept.display().to_string());
        [
            &*aside,
            " holds records of another identity of this node, or of the machine that it was cloned from; \
             every verb skips them; if they are of this machine, take them back: mkdir -p ",
            &attachments,
            " && cp -an ",
            &aside,
            "/. ",
            &attachments,
            "/ && mv ",
            &aside,
            " ",
            &kept,
        ]
        .concat()
    };
    state.set_aside().into_iter().map(told).collect()
}

/// A member of the configuration, on a line of its own.
fn line(section: &str, key: &str, value: &Value, text: &mut String) {
    say(text, &["  ", section, key, " = ", &value.to_string(), "\n"]);
}

/// Adds a line to a text, or the beginning of one: nothing but the end of the last part ends it.
fn say(text: &mut String, parts: &[&str]) {
    let said = parts.concat();
    let line = said.strip_suffix('\n');
    text.push_str(&visible(line.unwrap_or(&said)));
    text.push_str(if line.is_some() { "\n" } else { "" });
}

/// A person's call.
#[derive(Debug)]
struct Operator {
    presets: &'static [Preset],
    /// The name this program was called by, a path or not.
    program: PathBuf,
    environment: Environment,
    words: Words,
}

impl Operator {
    fn parse(
        presets: &'static [Preset],
        program: PathBuf,
        environment: Environment,
        arguments: &[OsString],
    ) -> Result<Self> {
        let known: Vec<Known> = KNOWN.iter().map(|(known, _)| *known).collect();
        let words = Words::parse(arguments, &known)?;
        Ok(Self { presets, program, environment, words })
    }

    fn run(&self) -> Result<Printed> {
        let typed = match self.words.verb() {
            None | Some("help") => return Ok(Printed::text(help(self.presets))),
            Some("version") => {
                return Ok(Printed::text(
                    concat!("ipam-delegated ", env!("CARGO_PKG_VERSION"), "\n").to_owned(),
                ));
            }
            Some(typed) => typed,
        };
        let verb = VERBS
            .iter()
            .find(|verb| verb.name == typed)
            .ok_or_else(|| Words::refusal(format!("{typed:?} is no verb")))?;
        self.words.only(&[verb.options, &FIND].concat())?;
        (verb.run)(self)
    }

    /// The host-wide settings, with the state folder that was typed.
    fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::load()?;
        if let Some(folder) = self.words.value("state-dir") {
            settings.state_dir = PathBuf::from(folder);
        }
        Ok(settings)
    }

    /// The host's state folder.
    fn state(&self) -> Result<StateDir> {
        Ok(StateDir::of_host(&self.settings()?))
    }

    /// The runtimes' result cache.
    fn cache(&self) -> ResultCache {
        ResultCache::new(self.words.value("cache-dir").unwrap_or(ResultCache::DEFAULT))
    }

    /// Warnings of the chain's rooms go to stderr, and all to the log where that is wanted.
    fn start_log(&self) {
        let settings = Settings::load().unwrap_or_default();
        let wanted = Wanted {
            name: "ipam-delegated",
            context: self.words.verb().unwrap_or("help").to_owned(),
            verbose: settings.verbose,
            debug: self.environment.text(Wanted::VARIABLE) == Some("debug"),
            folder: &settings.log_dir,
        };
        wanted.start();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chain::record::{AttemptHeader, Event, Granted, Held, RecordFile, Run, now};
    use ipam_kit::error::ErrorCode;

    fn run(words: &[&str]) -> Result<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let operator = Operator::parse(&[], PathBuf::new(), Environment::default(), &words)?;
        Ok(operator.run()?.text)
    }

    #[test]
    fn records_are_listed_and_forgotten() {
        let temp = tempfile::TempDir::new().unwrap();
        let root = temp.path().to_str().unwrap();
        let path = temp.path().join("attachments/net/c1/eth0");
        let mut file = RecordFile::open(&path).unwrap().file;
        let attempt = AttemptHeader {
            time: now() - 90_000,
            chain: vec!["a".to_owned(), "b".to_owned()],
            ..AttemptHeader::default()
        };
        let granted = Granted { ips: vec!["10.0.0.2/24".to_owned()], ..Granted::default() };
        for event in [
            Event::Attempt(attempt),
            Event::Running(Run { delegate: "b".to_owned(), ..Run::default() }),
            Event::Held(Held::default(), vec![granted]),
        ] {
            file.append(&event).unwrap();
        }
        assert!(run(&["attachments", "--state-dir", root]).unwrap().contains("busy"));
        drop(file);
        let text = run(&["attachments", "--state-dir", root]).unwrap();
        assert_eq!(
            text.lines().nth(1).unwrap(),
            "net      c1         eth0    10.0.0.2/24  a,b    1m   held"
        );
        let list: Value = serde_json::from_str(
            &run(&["attachments", "net", "--json", "--state-dir", root]).unwrap(),
        )
        .unwrap();
        assert_eq!(list[0]["addresses"], json!(["10.0.0.2/24"]));

        let dry = run(&["forget", "net", "c1", "--state-dir", root]).unwrap();
        assert!(dry.contains("b may still hold 10.0.0.2/24") && path.exists(), "{dry}");
        run(&["forget", "net", "c1", "eth0", "--yes", "--state-dir", root]).unwrap();
        assert!(!path.exists());
        assert_eq!(
            run(&["forget", "net", "c1", "--state-dir", root]).unwrap_err().code(),
            ErrorCode::UNKNOWN_CONTAINER
        );
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for words in [
            &["frob"][..],
            &["forget", "net"],
            &["attachments", "../x"],
            &["--frob"],
            &["list", "net", "--yes"],
            &["list"],
        ] {
            assert!(run(words).is_err(), "{words:?}");
        }
        assert!(run(&[]).unwrap().starts_with("ipam-delegated runs"));
    }
}
