//! `reap`: GC for runtimes that never call it. Releases, by the record and within GC's limits, the
//! addresses of attachments from an earlier boot or without a network namespace.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use super::attachments::{no_record, row_of_record, why_aside, why_unreadable};
use super::call::Operator;
use super::gone::Witnesses;
use super::options::TIMEOUT;
use super::other_identities::of_other_identities;
use super::printed::Printed;
use crate::chain::Chain;
use crate::chain::gc::{BUSY, Staleness, open_if_stale, protection};
use crate::chain::record::{
    Record, RecordFile, RecordPlace, SetAside, State, attachments, networks, now, set_aside,
};
use crate::chain::release::NetworkAttachment;
use crate::chain::session::Session;
use crate::chain::stale::{ReleaseRound, Tried, sort_oldest_first};
use crate::chain::unreachable::UnreachableStores;
use ipam_cli::{Column, Row, usage_error};
use ipam_kit::cni::{Attachment, NetworkName};
use ipam_kit::error::Result;
use ipam_kit::host::{Settings, StateDir, parse_duration};
use ipam_kit::presence::Presence;

/// The time for all records without `--timeout`.
const TIME: Duration = Duration::from_secs(300);

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let settings = operator.settings()?;
    let state = StateDir::of_host(&settings);
    let named = operator.arguments.operand(0).map(|typed| operator.name_of_network(typed));
    let named = named.transpose()?;
    let networks = match &named {
        None => networks(&state)?,
        Some(network) => vec![network.clone()],
    };
    let time = match operator.arguments.value(&TIMEOUT) {
        None => TIME,
        Some(text) => parse_duration(text).ok_or_else(|| {
            usage_error(format!(
                "--timeout: invalid duration {text:?}: expected one such as 90s or 5m"
            ))
        })?,
    };
    let witnesses = Witnesses::open(operator)?;
    let reaper =
        Reaper { operator, settings, began: now(), state, witnesses, unreachable: Rc::default() };
    let mut printed = Printed::default();
    let mut seen = Vec::new();
    for network in &networks {
        let folder = reaper.state.network(network);
        let found = printed.keep(attachments(&folder)).unwrap_or_default();
        seen.extend(found.into_iter().filter_map(|found| reaper.look(network, found)));
        let aside = printed.keep(set_aside(&folder)).unwrap_or_default();
        seen.extend(aside.into_iter().map(|aside| ReapEntry::aside(network, aside)));
    }
    if operator.does_it() {
        reaper.release_all(&mut seen, ReleaseRound::of(time), &mut printed);
    }
    printed.failed |= seen.iter().any(|entry| entry.outcome == FAILED);
    if seen.iter().any(|entry| entry.outcome == WOULD) {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    if seen.is_empty() {
        printed.warnings.extend(named.as_ref().map(no_record));
    }
    printed.warnings.extend(of_other_identities(&reaper.state));
    printed.set_rows(&operator.arguments, COLUMNS, seen.iter().map(ReapEntry::row).collect());
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

/// The outcome of a record.
type ReapOutcome = &'static str;

const KEPT: ReapOutcome = "kept";
const WOULD: ReapOutcome = "would release";
const RELEASED: ReapOutcome = "released";
/// A claim may still commit.
const TO_BE_REPEATED: ReapOutcome = "released, to be repeated";
const FAILED: ReapOutcome = "failed";
/// It was not tried, and stays for the next time.
const LEFT: ReapOutcome = "left";

/// It names no delegate to send a DEL to, but the allocator may hold a lease.
const NOTHING_IN_IT: &str = "it is empty, as after a loss of power: the runtime's DEL removes it, or ipam-delegated release";

/// Nothing in it tells whether the container is gone.
const FORGOTTEN: &str =
    "it was forgotten: the runtime's DEL removes it, or a second ipam-delegated forget";

struct Reaper<'a> {
    operator: &'a Operator,
    settings: Settings,
    /// When this call began, in milliseconds since 1970.
    began: u64,
    state: StateDir,
    witnesses: Witnesses,
    /// The stores that did not answer so far.
    unreachable: Rc<UnreachableStores>,
}

/// A record, and what becomes of it.
struct ReapEntry {
    network: NetworkName,
    attachment: Attachment,
    record: Record,
    state: &'static str,
    why: String,
    outcome: ReapOutcome,
}

impl ReapEntry {
    fn aside(network: &NetworkName, aside: SetAside) -> Self {
        let why = why_aside(network, &aside);
        let (network, attachment) = (network.clone(), aside.attachment);
        let record = Record::default();
        Self { network, attachment, record, state: "unreadable", why, outcome: KEPT }
    }

    fn row(&self) -> Row {
        let mut row = row_of_record(&self.network, &self.attachment, &self.record);
        for (key, text) in [("state", self.state), ("outcome", self.outcome), ("why", &self.why)] {
            row.set_text(key, text);
        }
        row
    }
}

impl Reaper<'_> {
    /// Judges a record without its lock, so that a dry run changes nothing.
    fn look(&self, network: &NetworkName, attachment: Attachment) -> Option<ReapEntry> {
        let (record, state, why, outcome) =
            match RecordFile::look(&RecordPlace::of(&self.state, network, &attachment)) {
                Presence::Absent => return None,
                Presence::Unreadable(error) => {
                    let why = why_unreadable(network, &attachment, &error);
                    (Record::default(), "unreadable", why, KEPT)
                }
                Presence::Held((record, true)) => (record, "busy", BUSY.to_owned(), KEPT),
                Presence::Held((record, false)) => {
                    let (outcome, why) = match self.why_stale(&record, network, &attachment) {
                        Ok(why) => (WOULD, why),
                        Err(why) => (KEPT, why),
                    };
                    let state = record.state().as_str();
                    (record, state, why.to_owned(), outcome)
                }
            };
        Some(ReapEntry { network: network.clone(), attachment, record, state, why, outcome })
    }

    /// Says why a record is stale; `Err` says why it is kept.
    fn why_stale(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> Result<&'static str, &'static str> {
        match record.state() {
            State::Empty => return Err(NOTHING_IN_IT),
            State::Forgotten => return Err(FORGOTTEN),
            _ => {}
        }
        if let Some(why) = protection(record, &self.settings, self.began) {
            return Err(why);
        }
        if record.released().is_some() {
            return Ok("its DEL is due again");
        }
        self.witnesses.why_gone(record, network, attachment)
    }

    /// Releases the stale records, the oldest first, until the deadline.
    fn release_all(&self, seen: &mut [ReapEntry], mut round: ReleaseRound, printed: &mut Printed) {
        let mut due: Vec<&mut ReapEntry> =
            seen.iter_mut().filter(|it| it.outcome == WOULD).collect();
        sort_oldest_first(&mut due, |it| RecordPlace::of(&self.state, &it.network, &it.attachment));
        for seen in due {
            match self.release(seen, &mut round) {
                Ok((outcome, None)) => seen.outcome = outcome,
                Ok((outcome, Some(why))) => {
                    seen.outcome = outcome;
                    seen.why = why.to_owned();
                }
                Err(error) => {
                    seen.outcome = FAILED;
                    seen.why = format!("{}; {}", seen.why, error.in_full());
                }
            }
        }
        if let Some(left) = round.left() {
            let left = left.advise("run reap again; --timeout gives it more time");
            printed.warnings.push(left.in_full());
            printed.failed |= round.is_stuck();
        }
    }

    /// Judges once more, under the record's lock, and releases; returns the reason if it is new.
    fn release(
        &self,
        seen: &ReapEntry,
        round: &mut ReleaseRound,
    ) -> Result<(ReapOutcome, Option<&'static str>)> {
        let ReapEntry { network, attachment, .. } = seen;
        let request = self.operator.recorded_request(network, &seen.record)?;
        let chain = Chain::new(self.operator.names, Path::new("ipam-delegated"));
        let mut session = Session::open(&chain, &request)?;
        session.unreachable = Rc::clone(&self.unreachable);
        let opened = match open_if_stale(&session, network, attachment, self.began)? {
            Staleness::Gone => return Ok((RELEASED, None)),
            Staleness::Keep(why) => return Ok((KEPT, Some(why))),
            Staleness::Stale(opened) => opened,
        };
        if let Err(why) = self.why_stale(&opened.record, network, attachment) {
            return Ok((KEPT, Some(why)));
        }
        let target = NetworkAttachment { network: &session.request.network, attachment };
        // After a downgrade there may be a second record, which is another entry's.
        let path = opened.file.path().to_owned();
        Ok(match round.release(&session, target, *opened)? {
            Tried::No(why) => (LEFT, Some(why)),
            Tried::Released if path.exists() => (TO_BE_REPEATED, None),
            Tried::Released => (RELEASED, None),
        })
    }
}
