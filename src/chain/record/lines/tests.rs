use super::super::super::program::ProgramSource;
use super::super::{AttemptHeader, Released, Run, Workload};
use super::*;
use ipam_kit::cni::Args;

fn read_line(line: &str) -> serde_json::Result<Event> {
    read(line.as_bytes(), serde_json::from_str(line)?)
}

fn whole() -> Vec<Event> {
    let run = |name: &str| Run {
        delegate: name.to_owned(),
        program: format!("/opt/cni/bin/{name}"),
        ipam: serde_json::Map::from_iter([("type".to_owned(), name.into())]),
        pools: Some(vec![serde_json::json!({"name": "blue"})]),
        ..Run::default()
    };
    let granted = Granted {
        delegate: "a".to_owned(),
        ips: vec!["10.0.0.2/24".to_owned()],
        leases: vec![7.into()],
        ..Granted::default()
    };
    let result = serde_json::json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    vec![
        Event::Attempt(AttemptHeader::default()),
        Event::Running(run("a")),
        Event::Running(run("b")),
        Event::Failed(Failed { unsure: true, ..Failed::default() }, LastRun::MayHold),
        Event::Released(Released { time: 6, due: 7, ..Released::default() }),
        Event::Unknown(r#"{"event":"later"}"#.to_owned()),
        Event::Attempt(AttemptHeader::default()),
        Event::Running(run("a")),
        Event::Held(Held { time: 8, result, ..Held::default() }, vec![granted]),
        Event::Attempt(AttemptHeader::default()),
    ]
}

#[test]
fn every_event_is_one_line_that_is_read_back() {
    let some = Some(serde_json::json!({"a": 1}));
    let run = Run {
        delegate: "d".to_owned(),
        program: "/bin/d".to_owned(),
        ipam: serde_json::Map::from_iter([("x".to_owned(), "\n".into())]),
        pools: Some(vec![serde_json::json!({"name": "blue"})]),
        args: some.clone(),
        ip_ranges: some,
        source: ProgramSource::HostFile,
        store_is_configured: true,
        ..Run::default()
    };
    let full = AttemptHeader {
        time: 1,
        since: Some(0),
        pid: 2,
        boot: "b".to_owned(),
        node: "n".to_owned(),
        netns: "/n".to_owned(),
        cni_version: "1.0.0".to_owned(),
        chain: vec!["d".to_owned(), "e".to_owned()],
        workload: Workload::of(&Args::parse("K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop;A=1")),
        after_unreadable: true,
        reasserted: true,
        ..AttemptHeader::default()
    };
    let message = "d: full".to_owned();
    let reason = Some(FailureReason { code: ErrorCode::EXHAUSTED, message });
    let granted = Granted {
        delegate: "d".to_owned(),
        ips: vec!["fd00::2/64".to_owned()],
        leases: vec![7.into()],
        unsure: true,
        ..Granted::default()
    };
    let bare = Granted { delegate: "e".to_owned(), ..Granted::default() };
    let static_ips = vec!["192.0.2.9/24".to_owned()];
    let answered = Granted { delegate: "f".to_owned(), static_ips, ..Granted::default() };
    let failed = |unsure| Failed { time: 1, unsure, ..Failed::default() };
    let later = r#"{ "event":"moved", "to":[1.50] }"#;
    for (event, line) in [
        (Event::Unknown(later.to_owned()), later),
        (Event::Forgotten(Map::new()), r#"{"event":"forgotten"}"#),
        (
            Event::Attempt(full),
            r#"{"event":"attempt","time":1,"pid":2,"boot":"b","node":"n","netns":"/n","cniVersion":"1.0.0","chain":["d","e"],"cniArgs":{"K8S_POD_NAME":"web","K8S_POD_NAMESPACE":"shop"},"since":0,"afterUnreadable":true,"reasserted":true}"#,
        ),
        (
            Event::Attempt(AttemptHeader::default()),
            r#"{"event":"attempt","time":0,"pid":0,"boot":"","node":"","netns":"","cniVersion":"","chain":[]}"#,
        ),
        (
            Event::Running(run),
            r#"{"event":"running","delegate":"d","program":"/bin/d","ipam":{"x":"\n"},"pools":[{"name":"blue"}],"args":{"a":1},"ipRanges":{"a":1},"fixed":true,"configured":true}"#,
        ),
        (
            Event::Running(Run::default()),
            r#"{"event":"running","delegate":"","program":"","ipam":{}}"#,
        ),
        (
            Event::Held(
                Held { time: 1, result: serde_json::json!({"ips": []}), ..Held::default() },
                vec![granted, bare, answered],
            ),
            r#"{"event":"held","time":1,"gave":[{"delegate":"d","ips":["fd00::2/64"],"leases":[7],"unsure":true},{"delegate":"e","ips":[]},{"delegate":"f","ips":[],"static":["192.0.2.9/24"]}],"result":{"ips":[]}}"#,
        ),
        (
            Event::Failed(failed(true), LastRun::NotRun),
            r#"{"event":"failed","time":1,"unsure":true,"notRun":true}"#,
        ),
        (
            Event::Failed(Failed { reason, ..failed(false) }, LastRun::Refused),
            r#"{"event":"failed","time":1,"refused":true,"code":100,"message":"d: full"}"#,
        ),
        (
            Event::Failed(failed(false), LastRun::Refused),
            r#"{"event":"failed","time":1,"refused":true}"#,
        ),
        (Event::Failed(Failed::default(), LastRun::MayHold), r#"{"event":"failed","time":0}"#),
        (
            Event::Released(Released { time: 1, due: u64::MAX, ..Released::default() }),
            r#"{"event":"released","time":1,"due":18446744073709551615}"#,
        ),
    ] {
        assert_eq!(write(&event).unwrap(), format!("{line}\n"));
        assert_eq!(read_line(line).unwrap(), event);
    }
}

#[test]
fn a_line_that_is_no_event_says_why() {
    for (line, why) in [
        ("[]", "invalid type: sequence, expected a map"),
        ("{}", "missing event"),
        (r#"{"event":1}"#, "missing event"),
        (r#"{"event":""}"#, "missing event"),
        (r#"{"event":"released","time":1}"#, "missing field `due`"),
        (r#"{"event":"held","time":1,"gave":[]}"#, "missing field `result`"),
        (
            r#"{"event":"held","time":1,"gave":[{"delegate":"d"}],"result":{}}"#,
            "missing field `ips`",
        ),
        (
            r#"{"event":"held","time":1,"gave":[1],"result":{}}"#,
            "invalid type: integer `1`, expected struct Granted",
        ),
        (
            r#"{"event":"held","time":1,"gave":{},"result":{}}"#,
            "invalid type: map, expected a sequence",
        ),
        (r#"{"event":"released","time":"1","due":1}"#, "invalid type: string \"1\", expected u64"),
        (r#"{"event":"released","time":-1,"due":1}"#, "invalid value: integer `-1`, expected u64"),
        (
            r#"{"event":"failed","time":1,"unsure":1}"#,
            "invalid type: integer `1`, expected a boolean",
        ),
        (
            r#"{"event":"running","delegate":1,"program":"","ipam":{}}"#,
            "invalid type: integer `1`, expected a string",
        ),
        (
            r#"{"event":"running","delegate":"","program":"","ipam":[]}"#,
            "invalid type: sequence, expected a map",
        ),
        (
            r#"{"event":"running","delegate":"","program":"","ipam":{},"pools":{}}"#,
            "invalid type: map, expected a sequence",
        ),
        (
            r#"{"event":"attempt","time":1,"pid":4294967296,"boot":"","node":"","netns":"","cniVersion":"","chain":[]}"#,
            "invalid value: integer `4294967296`, expected u32",
        ),
        (
            r#"{"event":"attempt","time":1,"pid":1,"boot":"","node":"","netns":"","cniVersion":"","chain":[1]}"#,
            "invalid type: integer `1`, expected a string",
        ),
    ] {
        let error = read_line(line).unwrap_err();
        assert!(error.to_string().starts_with(why), "{line}: {error}");
        assert!(!error.is_eof());
    }
    let null = r#"{"event":"running","delegate":"","program":"","ipam":{},"pools":null,"args":null,"later":1}"#;
    let extra = Map::from_iter([("later".to_owned(), 1.into())]);
    assert_eq!(read_line(null).unwrap(), Event::Running(Run { extra, ..Run::default() }));
}

fn written(events: &[Event]) -> Vec<u8> {
    let lines = events.iter().map(|event| write(event).unwrap());
    lines.collect::<String>().into_bytes()
}

/// The lines of newer programs, sorted.
fn unknown(record: &Record) -> Vec<Event> {
    let mut lines: Vec<Event> = record.compacted();
    lines.retain(|event| matches!(event, Event::Unknown(_)));
    lines.sort_by_key(|event| write(event).unwrap());
    lines
}

/// Whatever a record says, it is read, or an error, and compacting changes nothing in it.
fn check(bytes: &[u8]) -> bool {
    let Ok(record) = parse(bytes) else { return false };
    let again = parse(&written(&record.compacted())).unwrap();
    assert_eq!((again.state(), again.is_unsure()), (record.state(), record.is_unsure()));
    assert_eq!(again.may_be_in_use(), record.may_be_in_use());
    assert_eq!(unknown(&again), unknown(&record));
    assert_eq!(again.held().map(|(_, held)| held), record.held().map(|(_, held)| held));
    let runs = record.runs();
    assert_eq!(again.runs().len(), runs.len());
    for run in runs {
        // Of programs that took each other's place, either may be named.
        assert!(again.runs().iter().any(|known| known.owes_the_same(run)));
        assert_eq!(again.granted(run), record.granted(run));
    }
    true
}

#[test]
fn a_record_is_read_wherever_a_kill_cut_it() {
    let bytes = written(&whole());
    for cut in 0..=bytes.len() {
        assert!(check(&bytes[..cut]), "cut at {cut}");
    }
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let whole = written(&whole());
    let mut state = 1_u64;
    let mut below = |bound: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    let mut read = 0;
    for _ in 0..5_000 {
        let mut lines: Vec<Vec<u8>> =
            whole.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        for _ in 0..=below(6) {
            let (at, other) = (below(lines.len()), below(lines.len()));
            match below(8) {
                0..=2 => lines.swap(at, other),
                3 => lines.push(lines[at].clone()),
                4 if lines.len() > 1 => drop(lines.remove(at)),
                5 if !lines[at].is_empty() => {
                    let byte = below(lines[at].len());
                    lines[at][byte] ^= 1 << below(8);
                }
                6 => {
                    let cut = below(lines[at].len() + 1);
                    lines[at].truncate(cut);
                }
                _ => {
                    let mut digits =
                        lines[at].iter_mut().filter(|b| b.is_ascii_digit()).collect::<Vec<_>>();
                    if !digits.is_empty() {
                        let digit = below(digits.len());
                        *digits[digit] = b'0' + u8::try_from(below(10)).unwrap();
                    }
                }
            }
        }
        read += usize::from(check(&lines.concat()));
    }
    assert!(read > 500, "only {read} could be read");
}

#[test]
fn a_member_of_a_newer_program_is_kept_in_its_line() {
    for line in [
        r#"{"event":"attempt","time":1,"pid":2,"boot":"b","node":"n","netns":"/n","cniVersion":"1.0.0","chain":["d"],"since":0,"reasserted":true,"later":{"a":1}}"#,
        r#"{"event":"running","delegate":"d","program":"/bin/d","ipam":{},"fixed":true,"later":[1.5]}"#,
        r#"{"event":"held","time":1,"gave":[{"delegate":"d","ips":[],"unsure":true,"later":true},{"delegate":"e","ips":[],"later":1}],"result":{"later":1},"later":"x"}"#,
        r#"{"event":"failed","time":1,"unsure":true,"refused":true,"later":{}}"#,
        r#"{"event":"released","time":1,"due":2,"later":0}"#,
        r#"{"event":"forgotten","later":[]}"#,
        r#"{"event":"attempt","time":0,"pid":0,"boot":"","node":"","netns":"","cniVersion":"","chain":[],"format":1}"#,
    ] {
        assert_eq!(write(&read_line(line).unwrap()).unwrap(), format!("{line}\n"));
    }
}

#[test]
fn a_higher_format_is_told_whatever_its_line_says_else() {
    let whole = String::from_utf8(written(&whole())).unwrap();
    for (line, format) in [
        (r#"{"event":"attempt","format":2}"#, "2"),
        (r#"{"event":"attempt","time":[],"format":3}"#, "3"),
        (r#"{"event":"begun","format":"2b"}"#, "\"2b\""),
        (r#"{"format":1.5}"#, "1.5"),
    ] {
        let newer = Err(ParseError::NewerFormat(format.to_owned()));
        assert_eq!(parse(format!("{line}\n").as_bytes()), newer);
        // Of an ADD after an upgrade, in the record of an older program.
        assert_eq!(parse(format!("{whole}{line}\nrubbish\n").as_bytes()), newer);
        // A line that was cut short announced nothing.
        assert!(parse(format!("{whole}{}", &line[..line.len() - 1]).as_bytes()).is_ok());
    }
    let first = r#"{"event":"attempt","time":0,"pid":0,"boot":"","node":"","netns":"","cniVersion":"","chain":[],"format":1}"#;
    assert!(parse(format!("{first}\n{whole}").as_bytes()).is_ok());
}
