//! A record as text: one JSON line per event.

use super::{Event, Record};

/// Reads the lines; a line that a kill cut short is passed over.
pub(super) fn parse(bytes: &[u8]) -> Result<Record, String> {
    let mut record = Record::default();
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // What follows the last newline is empty, or was cut short.
    for (number, line) in lines[..lines.len() - 1].iter().enumerate() {
        match Event::parse(line) {
            Ok(event) => record.apply(event),
            Err(error) if error.is_eof() && !line.is_empty() => {}
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(record)
}

/// An event as a line, its newline included.
pub(super) fn write(event: &Event) -> String {
    serde_json::to_string(event).expect("events have text keys only") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::{Attempt, Failed, Gave, Held, Released, Run};
    use super::*;

    fn whole() -> Vec<Event> {
        let run = |name: &str| Run {
            delegate: name.to_owned(),
            program: format!("/opt/cni/bin/{name}"),
            ipam: serde_json::Map::from_iter([("type".to_owned(), name.into())]),
            pools: Some(vec![serde_json::json!({"name": "blue"})]),
            ..Run::default()
        };
        let gave = Gave {
            delegate: "a".to_owned(),
            ips: vec!["10.0.0.2/24".to_owned()],
            leases: vec![7.into()],
        };
        let result =
            serde_json::json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
        vec![
            Event::Attempt(Attempt::default()),
            Event::Running(run("a")),
            Event::Running(run("b")),
            Event::Failed(Failed { unsure: true, ..Failed::default() }),
            Event::Released(Released { time: 6, due: 7 }),
            Event::Attempt(Attempt::default()),
            Event::Running(run("a")),
            Event::Held(Held { time: 8, gave: vec![gave], result }),
            Event::Attempt(Attempt::default()),
        ]
    }

    fn written(events: &[Event]) -> Vec<u8> {
        events.iter().map(write).collect::<String>().into_bytes()
    }

    /// Whatever a record says, it is read, or an error, and compacting changes nothing in it.
    fn check(bytes: &[u8]) -> bool {
        let Ok(record) = parse(bytes) else { return false };
        let again = parse(&written(&record.compacted())).unwrap();
        assert_eq!((again.state(), again.is_unsure()), (record.state(), record.is_unsure()));
        assert_eq!(again.may_be_in_use(), record.may_be_in_use());
        assert_eq!(again.held().map(|(_, held)| held), record.held().map(|(_, held)| held));
        let runs = record.runs();
        assert_eq!(again.runs().len(), runs.len());
        for run in runs {
            // Of programs that took each other's place, either may be named.
            assert!(again.runs().iter().any(|known| known.owes_the_same(run)));
            assert_eq!(again.leases(run), record.leases(run));
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
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
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
}
