//! A record as text: one JSON line per event.
//!
//! Events are read and written by hand: what serde derives for them is several times as large.

use std::fmt::Write as _;

use serde::de::{DeserializeOwned, Error as _, Unexpected};
use serde_json::{Map, Value};

use super::super::program::ProgramSource;
use super::{AttemptHeader, Event, Failed, Granted, Held, LastRun, Record, Released, Run};

/// Reads the lines. A line that a kill cut short is skipped, and so is an empty one, which follows a
/// write of nothing that failed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Record, String> {
    let mut record = Record::default();
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // What follows the last newline is empty, or was cut short.
    for (number, line) in lines[..lines.len() - 1].iter().enumerate() {
        match read(line) {
            Ok(event) => record.apply(event),
            Err(error) if error.is_eof() => {}
            Err(error) => return Err(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(record)
}

/// An event as a line, its newline included.
pub(crate) fn write(event: &Event) -> String {
    if let Event::Unknown(line) = event {
        return [line, "\n"].concat();
    }
    let mut line = String::from("{");
    for (key, value) in members(event) {
        let comma = if line.len() > 1 { "," } else { "" };
        let _ = write!(line, "{comma}\"{key}\":{value}");
    }
    line + "}\n"
}

fn read(line: &[u8]) -> serde_json::Result<Event> {
    let mut of = Members(serde_json::from_slice(line)?);
    let name = of.0.remove("event");
    Ok(match name.as_ref().and_then(Value::as_str).unwrap_or_default() {
        "attempt" => Event::Attempt(AttemptHeader {
            time: of.scalar("time")?,
            since: of.optional("since").map(serde_json::from_value).transpose()?,
            pid: of.scalar("pid")?,
            boot: of.scalar("boot")?,
            node: of.scalar("node")?,
            netns: of.scalar("netns")?,
            cni_version: of.scalar("cniVersion")?,
            chain: of.scalar("chain")?,
            after_unreadable: of.flag("afterUnreadable")?,
            reasserted: of.flag("reasserted")?,
        }),
        "running" => Event::Running(Run {
            delegate: of.scalar("delegate")?,
            program: of.scalar("program")?,
            ipam: of.required("ipam").and_then(object)?,
            pools: of.optional("pools").map(array).transpose()?,
            args: of.optional("args"),
            ip_ranges: of.optional("ipRanges"),
            source: of.source()?,
            configured: of.flag("configured")?,
        }),
        "held" => {
            let time = of.scalar("time")?;
            let grants = of.grants()?;
            Event::Held(Held { time, result: of.required("result")? }, grants)
        }
        "failed" => {
            let failed = Failed { time: of.scalar("time")?, unsure: of.flag("unsure")? };
            let not_run = of.flag("notRun")?;
            let refused = of.flag("refused")?;
            let last_run = match (not_run, refused) {
                (true, _) => LastRun::NotRun,
                (false, true) => LastRun::Refused,
                (false, false) => LastRun::MayHold,
            };
            Event::Failed(failed, last_run)
        }
        "released" => {
            Event::Released(Released { time: of.scalar("time")?, due: of.scalar("due")? })
        }
        "forgotten" => Event::Forgotten,
        "" => return Err(serde_json::Error::custom("no event is named")),
        _ => Event::Unknown(String::from_utf8_lossy(line).into_owned()),
    })
}

/// The members of a line that was read, each to be taken out.
struct Members(Map<String, Value>);

impl Members {
    fn required(&mut self, key: &'static str) -> serde_json::Result<Value> {
        self.0.remove(key).ok_or_else(|| serde_json::Error::missing_field(key))
    }

    fn optional(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).filter(|value| !value.is_null())
    }

    /// A number, a text, or an array of texts.
    fn scalar<T: DeserializeOwned>(&mut self, key: &'static str) -> serde_json::Result<T> {
        self.required(key).and_then(serde_json::from_value)
    }

    /// False where it is missing.
    fn flag(&mut self, key: &str) -> serde_json::Result<bool> {
        self.0.remove(key).map_or(Ok(false), serde_json::from_value)
    }

    fn source(&mut self) -> serde_json::Result<ProgramSource> {
        let is_fixed = self.flag("fixed")?;
        Ok(if is_fixed { ProgramSource::HostFile } else { ProgramSource::CniPath })
    }

    fn grants(&mut self) -> serde_json::Result<Vec<Granted>> {
        let mut all = Vec::new();
        for value in array(self.required("gave")?)? {
            let Value::Object(members) = value else { return Err(wrong(&value, "struct Granted")) };
            let mut of = Self(members);
            all.push(Granted {
                delegate: of.scalar("delegate")?,
                ips: of.scalar("ips")?,
                leases: of.0.remove("leases").map_or(Ok(Vec::new()), array)?,
                unsure: of.flag("unsure")?,
            });
        }
        Ok(all)
    }
}

fn array(value: Value) -> serde_json::Result<Vec<Value>> {
    match value {
        Value::Array(array) => Ok(array),
        other => Err(wrong(&other, "a sequence")),
    }
}

fn object(value: Value) -> serde_json::Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        other => Err(wrong(&other, "a map")),
    }
}

fn wrong(value: &Value, expected: &str) -> serde_json::Error {
    let found = match value {
        Value::Object(_) => Unexpected::Map,
        Value::Array(_) => Unexpected::Seq,
        Value::String(text) => Unexpected::Str(text),
        Value::Bool(flag) => Unexpected::Bool(*flag),
        Value::Null => Unexpected::Unit,
        Value::Number(number) => match number.as_u64() {
            Some(number) => Unexpected::Unsigned(number),
            None => Unexpected::Other("number"),
        },
    };
    serde_json::Error::invalid_type(found, &expected)
}

/// What a line has, in order.
fn members(event: &Event) -> Vec<(&'static str, Value)> {
    let name = |name: &str| ("event", name.into());
    let flag = |key, set: bool| set.then(|| (key, true.into()));
    match event {
        Event::Attempt(attempt) => {
            let mut members = vec![
                name("attempt"),
                ("time", attempt.time.into()),
                ("pid", attempt.pid.into()),
                ("boot", attempt.boot.clone().into()),
                ("node", attempt.node.clone().into()),
                ("netns", attempt.netns.clone().into()),
                ("cniVersion", attempt.cni_version.clone().into()),
                ("chain", attempt.chain.clone().into()),
            ];
            members.extend(attempt.since.map(|since| ("since", since.into())));
            members.extend(flag("afterUnreadable", attempt.after_unreadable));
            members.extend(flag("reasserted", attempt.reasserted));
            members
        }
        Event::Running(run) => {
            let mut members = vec![
                name("running"),
                ("delegate", run.delegate.clone().into()),
                ("program", run.program.clone().into()),
                ("ipam", run.ipam.clone().into()),
            ];
            members.extend(run.pools.clone().map(|pools| ("pools", pools.into())));
            members.extend(run.args.clone().map(|args| ("args", args)));
            members.extend(run.ip_ranges.clone().map(|ranges| ("ipRanges", ranges)));
            members.extend(flag("fixed", run.source == ProgramSource::HostFile));
            members.extend(flag("configured", run.configured));
            members
        }
        Event::Held(held, grants) => {
            let gave: Vec<Value> = grants.iter().map(grant_to_json).collect();
            vec![
                name("held"),
                ("time", held.time.into()),
                ("gave", gave.into()),
                ("result", held.result.clone()),
            ]
        }
        Event::Failed(failed, last_run) => {
            let mut members = vec![name("failed"), ("time", failed.time.into())];
            members.extend(flag("unsure", failed.unsure));
            members.extend(flag("notRun", *last_run == LastRun::NotRun));
            members.extend(flag("refused", *last_run == LastRun::Refused));
            members
        }
        Event::Released(released) => {
            vec![name("released"), ("time", released.time.into()), ("due", released.due.into())]
        }
        Event::Forgotten => vec![name("forgotten")],
        // It is written as it came.
        Event::Unknown(_) => Vec::new(),
    }
}

fn grant_to_json(granted: &Granted) -> Value {
    let mut members = Map::new();
    members.insert("delegate".to_owned(), granted.delegate.clone().into());
    members.insert("ips".to_owned(), granted.ips.clone().into());
    if !granted.leases.is_empty() {
        members.insert("leases".to_owned(), granted.leases.clone().into());
    }
    if granted.unsure {
        members.insert("unsure".to_owned(), true.into());
    }
    Value::Object(members)
}

#[cfg(test)]
mod tests;
