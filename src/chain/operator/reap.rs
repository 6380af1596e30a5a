//! `reap`: GC for runtimes that never call it. Releases, by the record and through GC's fences,
//! what attachments of an earlier boot, or without a network namespace, have left.

use std::path::Path;

use super::super::Chain;
use super::super::del::release_stale;
use super::super::gc::{BUSY, Verdict, fence, judge};
use super::super::record::{AttemptState, Record, RecordFile, State, attachments, networks};
use super::super::session::{Owner, Session, boot_id};
use super::attachments::identified;
use super::{Operator, Printed};
use crate::cni::{Attachment, NetworkName};
use crate::delegate::Deadline;
use crate::error::Result;
use crate::host::{Netns, ResultCache, Settings, StateDir};
use crate::operate::{Column, Row, Words};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let settings = operator.settings()?;
    let state = StateDir::of_host(&settings);
    let networks = match operator.words.operands()[..] {
        [] => networks(&state)?,
        [network] => vec![NetworkName::parse(network)?],
        _ => return Err(Words::refusal("reap takes one network, or none")),
    };
    let reaper = Reaper { operator, settings, state, cache: operator.cache(), boot: boot_id() };
    let mut printed = Printed::default();
    let mut rows = Vec::new();
    for network in &networks {
        let found = printed.keep(attachments(&reaper.state.network(network)));
        for attachment in found.iter().flatten() {
            rows.extend(reaper.row(network, attachment));
        }
    }
    let any = |outcome: &str| rows.iter().any(|row: &Row| row.text_of("outcome") == outcome);
    printed.failed |= any(FAILED);
    if any(WOULD) {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    printed.set_rows(operator, COLUMNS, rows);
    Ok(printed)
}

const COLUMNS: &[Column] = &[
    Column::text("NETWORK", "network"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("ADDRESSES", "addresses"),
    Column::text("STATE", "state"),
    Column::text("OUTCOME", "outcome"),
    Column::text("WHY", "why"),
];

/// What became of a record.
type Outcome = &'static str;

const KEPT: Outcome = "kept";
const WOULD: Outcome = "would release";
const RELEASED: Outcome = "released";
/// A claim may still commit.
const TO_BE_REPEATED: Outcome = "released, to be repeated";
const FAILED: Outcome = "failed";

/// It names no delegate that a DEL could be given to, but a lease may stand.
const NOTHING_IN_IT: &str = "it is empty, as a loss of power leaves it: the runtime's DEL clears it, or ipam-delegated release";
const CLEARED_BY: &str = "the runtime's DEL clears it, or ipam-delegated release";

struct Reaper<'a> {
    operator: &'a Operator,
    settings: Settings,
    state: StateDir,
    cache: ResultCache,
    boot: String,
}

impl Reaper<'_> {
    /// Judges a record, and releases it where that was asked for.
    fn row(&self, network: &NetworkName, attachment: &Attachment) -> Option<Row> {
        let path = self.state.record(network, attachment);
        let (record, state, why, outcome) = match RecordFile::look(&path) {
            Ok(None) => return None,
            Err(why) => {
                (Record::default(), "unreadable", [&why, ": ", CLEARED_BY].concat(), Ok(KEPT))
            }
            Ok(Some((record, true))) => (record, "busy", BUSY.to_owned(), Ok(KEPT)),
            Ok(Some((record, false))) => {
                let (why, outcome) = self.judged(&record, network, attachment);
                let state = record.state().as_str();
                (record, state, why.to_owned(), outcome)
            }
        };
        let mut row = identified(network, attachment, &record);
        let (outcome, why) = match outcome {
            Ok(outcome) => (outcome, why),
            Err(error) => (FAILED, [why, error.in_full()].join("; ")),
        };
        for (key, text) in [("state", state), ("outcome", outcome), ("why", &why)] {
            row.text(key, text);
        }
        Some(row)
    }

    fn judged(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> (&'static str, Result<Outcome>) {
        match self.speaks_against(record, network, attachment) {
            Err(why) => (why, Ok(KEPT)),
            Ok(why) if !self.operator.words.has("yes") => (why, Ok(WOULD)),
            Ok(why) => match self.release(record, network, attachment) {
                Ok(Err(kept)) => (kept, Ok(KEPT)),
                Ok(Ok(outcome)) => (why, Ok(outcome)),
                Err(error) => (why, Err(error)),
            },
        }
    }

    /// Why a record is to be released; else why it is kept.
    fn speaks_against(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> Result<&'static str, &'static str> {
        if record.state() == State::Empty {
            return Err(NOTHING_IN_IT);
        }
        if let Some(why) = fence(record, &self.settings) {
            return Err(why);
        }
        if record.released().is_some() {
            return Ok("its DEL is to be repeated");
        }
        let of_this_boot = |attempt: &&AttemptState| {
            let boot = &attempt.attempt.boot;
            boot.is_empty() || self.boot.is_empty() || *boot == self.boot
        };
        if record.attempts.last().is_some_and(|last| !of_this_boot(&last)) {
            return Ok("it is of an earlier boot");
        }
        let standing = record.attempts.iter().filter(|attempt| attempt.released.is_none());
        for attempt in standing.filter(of_this_boot) {
            match Netns::at(&attempt.attempt.netns) {
                Netns::Stands => return Err("its network namespace stands"),
                Netns::Unknown => return Err("its network namespace cannot be looked at"),
                Netns::Gone => {}
            }
        }
        if self.cache.names(network, &attachment.container, &attachment.ifname) {
            return Err("its network namespace is gone, but the runtime's result cache names it");
        }
        Ok("its network namespace is gone")
    }

    /// Judges once more, now under the record's lock, and releases; or tells why it is kept.
    fn release(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> Result<Result<Outcome, &'static str>> {
        let request = self.operator.recorded_request(network, record)?;
        let chain = Chain::new(self.operator.presets, Path::new("ipam-delegated"));
        let session = Session::open(&chain, &request)?;
        let opened = match judge(&session, network, attachment)? {
            Verdict::Gone => return Ok(Ok(RELEASED)),
            Verdict::Keep(why) => return Ok(Err(why)),
            Verdict::Stale(opened) => opened,
        };
        if let Err(why) = self.speaks_against(&opened.record, network, attachment) {
            return Ok(Err(why));
        }
        let owner = Owner { network: &session.request.network, attachment };
        let path = self.state.record(network, attachment);
        release_stale(&session, &owner, *opened, Deadline::after(session.timeout()))?;
        Ok(Ok(if path.exists() { TO_BE_REPEATED } else { RELEASED }))
    }
}
