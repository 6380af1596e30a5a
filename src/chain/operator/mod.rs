//! The verbs an operator types, in a call without `CNI_COMMAND`: one file a verb.

mod ask;
mod attachments;
mod dry_run;
mod explain;
mod findings;
mod forget;
mod lint;
mod list;
mod network;
mod ours;
mod pools;
mod reap;
mod release;
mod who;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use super::preset::Preset;
use crate::cni::Environment;
use crate::error::{Error, Result};
use crate::host::{Settings, StateDir};
use crate::log::Wanted;
use crate::operate::{Column, Known, Row, Words, table};

/// A verb, as the help shows it.
struct Verb {
    name: &'static str,
    operands: &'static str,
    about: &'static str,
    options: &'static [&'static str],
    run: fn(&Operator) -> Result<Printed>,
}

/// Options that find a network and its programs.
const FIND: [&str; 3] = ["conf-dir", "cni-path", "state-dir"];

const VERBS: &[Verb] = &[
    Verb {
        name: "list",
        operands: "NETWORK",
        about: "who holds which address, and what this node's records say of it",
        options: &["json"],
        run: list::run,
    },
    Verb {
        name: "who",
        operands: "NETWORK ADDRESS",
        about: "who holds one address",
        options: &["json"],
        run: who::run,
    },
    Verb {
        name: "pools",
        operands: "NETWORK",
        about: "how full the pools are, with a map of each",
        options: &["json", "ascii"],
        run: pools::run,
    },
    Verb {
        name: "release",
        operands: "NETWORK (ADDRESS… | --owner OWNER | --node NODE)",
        about: "takes addresses back into their pools; a dry run unless --yes",
        options: &["json", "yes", "owner", "node"],
        run: release::run,
    },
    Verb {
        name: "attachments",
        operands: "[NETWORK]",
        about: "what this node's records say of its attachments",
        options: &["json"],
        run: attachments::run,
    },
    Verb {
        name: "reap",
        operands: "[NETWORK]",
        about: "releases what containers that are gone have left; a dry run unless --yes",
        options: &["json", "yes", "cache-dir"],
        run: reap::run,
    },
    Verb {
        name: "forget",
        operands: "NETWORK CONTAINER [IFNAME]",
        about: "drops a record whose store is gone for ever; a dry run unless --yes",
        options: &["yes"],
        run: forget::run,
    },
    Verb {
        name: "lint",
        operands: "NETWORK",
        about: "which chain a network runs on which state, and what is unsafe about it",
        options: &["json"],
        run: lint::run,
    },
    Verb {
        name: "explain",
        operands: "NETWORK",
        about: "a dry run of ADD: what each delegate would get, and what selectors answer",
        options: &["json", "container", "ifname", "args"],
        run: explain::run,
    },
];

const KNOWN: &[(Known, &str)] = &[
    (alone("json"), "for programs"),
    (alone("yes"), "do it; without, the verb only shows what it would do"),
    (alone("ascii"), "draw the map without Unicode blocks"),
    (with("owner", "OWNER"), "CONTAINER or CONTAINER/IFNAME"),
    (with("node", "NODE"), "all that a node holds"),
    (with("container", "ID"), "the container id of the dry run"),
    (with("ifname", "IFNAME"), "the interface of the dry run"),
    (
        with("args", "CNI_ARGS"),
        "the CNI_ARGS of the dry run, as in K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop",
    ),
    (
        with("conf-dir", "DIR"),
        "where networks are configured, instead of /etc/cni/net.d and /opt/cni/config",
    ),
    (with("cni-path", "DIRS"), "the plugin folders, with : between them"),
    (
        with("state-dir", "DIR"),
        "the state folder, where a network configuration sets ipam.stateDir",
    ),
    (with("cache-dir", "DIR"), "the runtimes' result cache, instead of /var/lib/cni/results"),
];

const fn alone(name: &'static str) -> Known {
    Known { name, value: None }
}

const fn with(name: &'static str, value: &'static str) -> Known {
    Known { name, value: Some(value) }
}

/// Runs an operator's verb and prints what it found: exit 0, or 1 with the error on stderr.
pub(super) fn main(
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
        eprintln!("ipam-delegated: {warning}");
    }
    // A reader that has seen enough closes the pipe.
    let _ = io::stdout().write_all(printed.text.as_bytes());
    if printed.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

/// A member of the configuration, on a line of its own.
fn line(section: &str, key: &str, value: &Value, text: &mut String) {
    say(text, &["  ", section, key, " = ", &value.to_string(), "\n"]);
}

/// Adds to a text.
fn say(text: &mut String, parts: &[&str]) {
    for part in parts {
        text.push_str(part);
    }
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
            None | Some("help") => return Ok(Printed::text(help())),
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

    /// Warnings of the chain's rooms go to stderr, and all to the log where that is wanted.
    fn start_log(&self) {
        let settings = Settings::load().unwrap_or_default();
        let wanted = Wanted {
            name: "ipam-delegated",
            context: self.words.verb().unwrap_or("help").to_owned(),
            verbose: settings.verbose,
            by_hand: self.environment.text(Wanted::VARIABLE) == Some("debug"),
            folder: &settings.log_dir,
        };
        wanted.start();
    }
}

fn help() -> String {
    let mut text = String::from(
        "ipam-delegated runs a chain of IPAM delegates; container runtimes call it with \
         CNI_COMMAND set.\n\nusage:\n",
    );
    for verb in VERBS {
        say(
            &mut text,
            &["  ipam-delegated ", verb.name, " ", verb.operands, "\n      ", verb.about, "\n"],
        );
    }
    text.push_str("  ipam-delegated help | version\n\n");
    text.push_str(
        "NETWORK is a network's name, or the path of its configuration file.\n\noptions:\n",
    );
    for (known, about) in KNOWN {
        let left = [known.name, known.value.unwrap_or_default()].join(" ");
        let verbs: Vec<&str> = VERBS
            .iter()
            .filter(|verb| verb.options.contains(&known.name))
            .map(|verb| verb.name)
            .collect();
        let blanks = " ".repeat(18_usize.saturating_sub(left.len()));
        say(&mut text, &["  --", &left, &blanks, about]);
        if !verbs.is_empty() && verbs.len() < VERBS.len() / 2 {
            say(&mut text, &[" (", &verbs.join(", "), ")"]);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::{Attempt, Event, Gave, Held, RecordFile, Run, now};
    use super::*;
    use crate::error::ErrorCode;

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
        let attempt = Attempt {
            time: now() - 90_000,
            chain: vec!["a".to_owned(), "b".to_owned()],
            ..Attempt::default()
        };
        let gave = Gave { ips: vec!["10.0.0.2/24".to_owned()], ..Gave::default() };
        for event in [
            Event::Attempt(attempt),
            Event::Running(Run { delegate: "b".to_owned(), ..Run::default() }),
            Event::Held(Held { gave: vec![gave], ..Held::default() }),
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
