//! A record as text: one JSON line per event.

use std::borrow::Cow;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, from_value};

use super::{Event, Failed, FailureReason, Granted, Held, LastRun, Record, Run};
use ipam_kit::error::ErrorCode;

/// The newest format that this program reads. A record of format 1 does not name it.
pub(super) const FORMAT: u64 = 1;

/// Why a record is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// A newer program wrote it. This is its format, as JSON.
    NewerFormat(String),
    /// A line is not an event.
    Invalid(String),
}

/// Reads the lines. A line that a kill cut short is skipped, and so is an empty one, which follows a
/// write of nothing that failed.
pub(super) fn parse(bytes: &[u8]) -> Result<Record, ParseError> {
    let mut record = Record::default();
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    // What follows the last newline is empty, or was cut short.
    for (number, line) in lines[..lines.len() - 1].iter().enumerate() {
        let invalid = |error| ParseError::Invalid(format!("line {}: {error}", number + 1));
        let members = match serde_json::from_slice::<Map<String, Value>>(line) {
            Err(error) if error.is_eof() => continue,
            members => members.map_err(invalid)?,
        };
        refuse_newer(&members)?;
        record.apply(read(line, members).map_err(invalid)?);
    }
    Ok(record)
}

/// An event as a line, its newline included.
pub(super) fn write(event: &Event) -> serde_json::Result<String> {
    let mut line = match event {
        Event::Attempt(header) => serde_json::to_string(header),
        Event::Running(run) => return write_running(run),
        Event::Held(held, grants) => serde_json::to_string(&HeldLine::new(held, grants)),
        Event::Failed(failed, last_run) => {
            serde_json::to_string(&FailedLine::new(failed, *last_run))
        }
        Event::Released(released) => serde_json::to_string(released),
        Event::Forgotten(extra) => serde_json::to_string(&ForgottenLine { extra: extra.clone() }),
        Event::Unknown(line) => Ok(line.clone()),
    }?;
    line.push('\n');
    Ok(line)
}

/// [`Event::Running`] as a line.
pub(super) fn write_running(run: &Run) -> serde_json::Result<String> {
    let mut line = serde_json::to_string(run)?;
    line.push('\n');
    Ok(line)
}

/// Fails for a line of a format that this program does not know: older programs must not skip what is in it.
fn refuse_newer(members: &Map<String, Value>) -> Result<(), ParseError> {
    match members.get("format") {
        Some(format) if format.as_u64().is_none_or(|format| format > FORMAT) => {
            Err(ParseError::NewerFormat(format.to_string()))
        }
        _ => Ok(()),
    }
}

fn read(line: &[u8], mut members: Map<String, Value>) -> serde_json::Result<Event> {
    let name = members.remove("event");
    let members = Value::Object(members);
    Ok(match name.as_ref().and_then(Value::as_str).unwrap_or_default() {
        "attempt" => Event::Attempt(from_value(members)?),
        "running" => Event::Running(from_value(members)?),
        "held" => from_value::<HeldLine<'_>>(members)?.into(),
        "failed" => from_value::<FailedLine>(members)?.into(),
        "released" => Event::Released(from_value(members)?),
        "forgotten" => Event::Forgotten(from_value(members)?),
        "" => return Err(serde::de::Error::custom("missing event")),
        _ => Event::Unknown(String::from_utf8_lossy(line).into_owned()),
    })
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "event", rename = "held")]
struct HeldLine<'a> {
    time: u64,
    /// One for each `running` of the attempt, in order.
    gave: Cow<'a, [Granted]>,
    result: Cow<'a, Value>,
    #[serde(flatten)]
    extra: Cow<'a, Map<String, Value>>,
}

impl<'a> HeldLine<'a> {
    fn new(held: &'a Held, grants: &'a [Granted]) -> Self {
        let Held { time, result, extra } = held;
        let (result, extra) = (Cow::Borrowed(result), Cow::Borrowed(extra));
        Self { time: *time, gave: Cow::Borrowed(grants), result, extra }
    }
}

impl From<HeldLine<'_>> for Event {
    fn from(line: HeldLine<'_>) -> Self {
        let HeldLine { time, gave, result, extra } = line;
        let (result, extra) = (result.into_owned(), extra.into_owned());
        Self::Held(Held { time, result, extra }, gave.into_owned())
    }
}

#[derive(Deserialize, Serialize)]
#[serde(tag = "event", rename = "failed", rename_all = "camelCase")]
struct FailedLine {
    time: u64,
    #[serde(default, skip_serializing_if = "Not::not")]
    unsure: bool,
    #[serde(default, skip_serializing_if = "Not::not")]
    not_run: bool,
    #[serde(default, skip_serializing_if = "Not::not")]
    refused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl FailedLine {
    fn new(failed: &Failed, last_run: LastRun) -> Self {
        let Failed { time, unsure, reason, extra } = failed.clone();
        let (code, message) = reason.map(|it| (it.code.number(), it.message)).unzip();
        let not_run = last_run == LastRun::NotRun;
        let refused = last_run == LastRun::Refused;
        Self { time, unsure, not_run, refused, code, message, extra }
    }
}

impl From<FailedLine> for Event {
    fn from(line: FailedLine) -> Self {
        let FailedLine { time, unsure, not_run, refused, code, message, extra } = line;
        let reason = code.map(ErrorCode::new).zip(message);
        let reason = reason.map(|(code, message)| FailureReason { code, message });
        let last_run = match (not_run, refused) {
            (true, _) => LastRun::NotRun,
            (false, true) => LastRun::Refused,
            (false, false) => LastRun::MayHold,
        };
        Self::Failed(Failed { time, unsure, reason, extra }, last_run)
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename = "forgotten")]
struct ForgottenLine {
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[cfg(test)]
mod tests;
