//! The verbs an operator types, in a call without `CNI_COMMAND`: one file for each verb.

mod about;
mod ask;
mod attachments;
mod call;
mod dry_run;
mod explain;
mod forget;
mod gone;
mod lint;
mod list;
mod lock_holder;
mod network;
mod options;
mod origins;
mod other_identities;
mod our_plugin;
mod pools;
pub(crate) mod preset_cli;
mod printed;
mod reap;
mod reassert;
mod recorded;
mod reference;
mod release;
mod verbs;
mod who;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::chain::Names;
use call::Operator;
use ipam_cli::CliRequest;
use ipam_kit::cni::Environment;
use ipam_kit::error::Result;
use ipam_kit::log::print_to_stderr;
use ipam_kit::text::visible;
use printed::Printed;

/// Runs an operator's verb and prints its output: exit 0, or 1 with the error on stderr.
pub(crate) fn main(
    names: Names,
    program: PathBuf,
    environment: Environment,
    arguments: &[OsString],
) -> ExitCode {
    let printed = answer(names, program, environment, arguments);
    let printed = printed.unwrap_or_else(|error| Printed {
        text: String::new(),
        warnings: vec![error.in_full()],
        failed: true,
    });
    for warning in &printed.warnings {
        print_to_stderr(&format!("ipam-delegated: {}\n", visible(warning)));
    }
    let mut stdout = io::stdout();
    let written = stdout.write_all(printed.text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        // A reader that has seen enough closes the pipe.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_to_stderr(&format!("ipam-delegated: cannot print: {error}\n"));
            ExitCode::FAILURE
        }
        _ if printed.failed => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn answer(
    names: Names,
    program: PathBuf,
    environment: Environment,
    arguments: &[OsString],
) -> Result<Printed> {
    match verbs::cli(names).parse(arguments)? {
        CliRequest::Text(text) => Ok(Printed::text(text)),
        CliRequest::Verb(run, arguments) => {
            let operator = Operator { names, program, environment, arguments };
            operator.start_log();
            run(&operator)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::chain::record::tests::attachment;
    use crate::chain::record::{
        AttemptHeader, Event, Granted, Held, RecordFile, RecordPlace, Run, now,
    };
    use ipam_kit::error::ErrorCode;

    fn run(words: &[&str]) -> Result<String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Ok(answer(Names::default(), PathBuf::new(), Environment::default(), &words)?.text)
    }

    #[test]
    fn records_are_listed_and_forgotten() {
        let temp = tempfile::TempDir::new().unwrap();
        let root = temp.path().to_str().unwrap();
        let folder = temp.path().join("attachments/net");
        let place = RecordPlace::below(&folder, &attachment("c1", "eth0"));
        let mut file = RecordFile::open(&place).unwrap().file;
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
        assert!(dry.contains("b may still hold 10.0.0.2/24") && place.path().exists(), "{dry}");
        run(&["forget", "net", "c1", "eth0", "--yes", "--state-dir", root]).unwrap();
        assert!(!place.path().exists());
        assert_eq!(
            run(&["forget", "net", "c1", "--state-dir", root]).unwrap_err().code(),
            ErrorCode::UNKNOWN_CONTAINER
        );
    }

    #[test]
    fn a_mistyped_call_is_an_error() {
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
