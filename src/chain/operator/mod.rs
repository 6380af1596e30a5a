//! The verbs an operator types: `ipam-delegated attachments`, `forget`, `help`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::*;
use serde_json::{Value, json};

use super::record::{Record, RecordFile, attachments, networks, now};
use crate::cni::{Attachment, ContainerId, IfName, NetworkName};
use crate::error::{Error, ErrorCode, Result};
use crate::host::{Settings, StateDir};

const HELP: &str = "\
ipam-delegated runs a chain of IPAM delegates; container runtimes call it with CNI_COMMAND set.

usage:
  ipam-delegated attachments [NETWORK] [--json]
      lists what this node knows of its attachments
  ipam-delegated forget NETWORK CONTAINER [IFNAME] --yes
      drops the record of an attachment whose store is gone for ever; says what it leaves
  ipam-delegated help | version

options:
  --state-dir DIR   the state folder, where a network configuration sets ipam.stateDir
";

/// Runs an operator's verb and prints what it found: exit 0, or 1 with the error on stderr.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let answer = Words::parse(arguments).and_then(|words| words.run());
    let (text, exit) = match answer {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("ipam-delegated: {}", error.in_full());
            return ExitCode::FAILURE;
        }
    };
    // A reader that has seen enough closes the pipe.
    let _ = io::stdout().write_all(text.as_bytes());
    exit
}

/// What was typed.
#[derive(Debug, Default)]
struct Words {
    words: Vec<String>,
    json: bool,
    yes: bool,
    state_dir: Option<PathBuf>,
}

impl Words {
    fn parse(arguments: &[OsString]) -> Result<Self> {
        let mut this = Self::default();
        let mut parser = lexopt::Parser::from_args(arguments);
        let refuse = |error: lexopt::Error| usage(error.to_string());
        while let Some(argument) = parser.next().map_err(refuse)? {
            match argument {
                Long("json") => this.json = true,
                Long("yes") => this.yes = true,
                Long("state-dir") => this.state_dir = Some(parser.value().map_err(refuse)?.into()),
                Long("help") | Short('h') => this.words.insert(0, "help".to_owned()),
                Long("version") | Short('V') => this.words.insert(0, "version".to_owned()),
                Value(word) => this.words.push(word.string().map_err(refuse)?),
                other => return Err(refuse(other.unexpected())),
            }
        }
        Ok(this)
    }

    fn run(&self) -> Result<String> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        match words[..] {
            [] | ["help", ..] => Ok(HELP.to_owned()),
            ["version", ..] => {
                Ok(concat!("ipam-delegated ", env!("CARGO_PKG_VERSION"), "\n").to_owned())
            }
            ["attachments"] => self.attachments(None),
            ["attachments", network] => self.attachments(Some(NetworkName::parse(network)?)),
            ["forget", network, container] => self.forget(network, container, None),
            ["forget", network, container, ifname] => self.forget(network, container, Some(ifname)),
            _ => Err(usage(format!("{:?} is not understood", words.join(" ")))),
        }
    }

    fn state(&self) -> Result<StateDir> {
        let settings = Settings::load()?;
        let root = self.state_dir.clone().unwrap_or_else(|| settings.state_dir.clone());
        Ok(StateDir::of_host(&Settings { state_dir: root, ..settings }))
    }

    fn attachments(&self, network: Option<NetworkName>) -> Result<String> {
        let state = self.state()?;
        let networks = match network {
            Some(network) => vec![network],
            None => networks(&state)?,
        };
        let mut rows = Vec::new();
        for network in &networks {
            for attachment in attachments(&state.network(network))? {
                rows.extend(Row::read(&state, network, attachment));
            }
        }
        if self.json {
            let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
            return Ok(format!("{}\n", Value::from(rows)));
        }
        Ok(table(&rows))
    }

    fn forget(&self, network: &str, container: &str, ifname: Option<&str>) -> Result<String> {
        let state = self.state()?;
        let network = NetworkName::parse(network)?;
        let container = ContainerId::parse(container)?;
        let ifname = ifname.map(IfName::parse).transpose()?;
        let folder = state.network(&network);
        let found: Vec<Attachment> = attachments(&folder)?
            .into_iter()
            .filter(|a| {
                a.container == container && ifname.as_ref().is_none_or(|name| a.ifname == *name)
            })
            .collect();
        if found.is_empty() {
            return Err(Error::new(
                ErrorCode::UNKNOWN_CONTAINER,
                format!("no record of {container} on {network} in {}", folder.display()),
            )
            .advise("ipam-delegated attachments lists what there is"));
        }
        let mut text = String::new();
        for attachment in found {
            let path = state.record(&network, &attachment);
            let Some(opened) = RecordFile::open_existing(&path)? else {
                let _ = writeln!(text, "{attachment} on {network} could not be read: set aside");
                continue;
            };
            let left = leaves(&opened.record);
            if self.yes {
                opened.file.remove().map_err(|error| {
                    Error::io(format!("cannot remove {}", path.display()), error)
                })?;
                let _ = writeln!(text, "forgot {attachment} on {network}; {left}");
            } else {
                let _ = writeln!(
                    text,
                    "would forget {attachment} on {network}; {left}; add --yes to do it"
                );
            }
        }
        Ok(text)
    }
}

/// One record, as shown.
struct Row {
    network: NetworkName,
    attachment: Attachment,
    /// `None` while a call works on it, or when it cannot be read.
    record: Option<Record>,
    state: &'static str,
}

impl Row {
    fn read(state: &StateDir, network: &NetworkName, attachment: Attachment) -> Option<Self> {
        let path = state.record(network, &attachment);
        let (record, state) = match RecordFile::look(&path) {
            Ok(None) => return None,
            Ok(Some((record, true))) => (Some(record), "busy"),
            Ok(Some((record, false))) => {
                let state = record.state().as_str();
                (Some(record), state)
            }
            Err(_) => (None, "unreadable"),
        };
        Some(Self { network: network.clone(), attachment, record, state })
    }

    fn addresses(&self) -> Vec<String> {
        let held = self.record.as_ref().and_then(Record::held);
        held.map(|(_, held)| held.ips()).unwrap_or_default()
    }

    fn chain(&self) -> Vec<String> {
        self.record
            .as_ref()
            .and_then(|r| r.attempts.last())
            .map(|a| a.attempt.chain.clone())
            .unwrap_or_default()
    }

    fn age(&self) -> Option<u64> {
        Some(now().saturating_sub(self.record.as_ref()?.last_attempt()?) / 1000)
    }

    fn to_json(&self) -> Value {
        json!({
            "network": self.network.as_str(),
            "containerID": self.attachment.container.as_str(),
            "ifname": self.attachment.ifname.as_str(),
            "addresses": self.addresses(),
            "chain": self.chain(),
            "ageSeconds": self.age(),
            "state": self.state,
        })
    }
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![
        ["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "CHAIN", "AGE", "STATE"].map(str::to_owned),
    ];
    for row in rows {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        lines.push([
            row.network.to_string(),
            row.attachment.container.to_string(),
            row.attachment.ifname.to_string(),
            or_dash(row.addresses().join(",")),
            or_dash(row.chain().join(",")),
            row.age().map_or("-".to_owned(), age),
            row.state.to_owned(),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// What stays behind in the stores when a record is dropped.
fn leaves(record: &Record) -> String {
    let delegates: Vec<&str> = record.runs().iter().map(|run| run.delegate.as_str()).collect();
    if delegates.is_empty() {
        return "no delegate had run for it".to_owned();
    }
    let what = match record.held() {
        Some((_, held)) => held.ips().join(", "),
        None => "an address for it".to_owned(),
    };
    format!("{} may still hold {what}", delegates.join(", "))
}

fn usage(message: String) -> Error {
    Error::new(ErrorCode::INVALID_ENVIRONMENT, message).advise("see ipam-delegated help")
}

#[cfg(test)]
mod tests {
    use super::super::record::{Attempt, Event, Gave, Held, Run};
    use super::*;

    fn run(words: &[&str]) -> Result<String> {
        Words::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())?.run()
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
        for words in [&["frob"][..], &["forget", "net"], &["attachments", "../x"], &["--frob"]] {
            assert!(run(words).is_err(), "{words:?}");
        }
        assert!(run(&[]).unwrap().starts_with("ipam-delegated runs"));
    }
}
