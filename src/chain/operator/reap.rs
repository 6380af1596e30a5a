//! `reap`: GC for runtimes that never call it. Releases, by the record and through GC's fences,
//! what attachments of an earlier boot, or without a network namespace, have left.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::super::Chain;
use super::super::del::{recorded_network, release_stale};
use super::super::gc::{BUSY, Verdict, fence, judge};
use super::super::record::{AttemptState, Record, RecordFile, State, attachments, networks};
use super::super::session::{Owner, Session, boot_id};
use super::{Operator, Printed};
use crate::cni::{Attachment, NetworkName};
use crate::delegate::Deadline;
use crate::error::Result;
use crate::host::{Netns, Settings, StateDir};
use crate::operate::{Column, Words, table};

/// Where libcni keeps the result of each ADD until its DEL.
const CACHE: &str = "/var/lib/cni/results";

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let settings = operator.settings()?;
    let state = StateDir::of_host(&settings);
    let networks = match operator.words.operands()[..] {
        [] => networks(&state)?,
        [network] => vec![NetworkName::parse(network)?],
        _ => return Err(Words::refusal("reap takes one network, or none")),
    };
    let reaper = Reaper {
        operator,
        settings,
        state,
        cache: operator.words.value("cache-dir").unwrap_or(CACHE).into(),
        boot: boot_id(),
    };
    let mut printed = Printed::default();
    let mut rows = Vec::new();
    for network in &networks {
        match attachments(&reaper.state.network(network)) {
            Ok(found) => rows.extend(found.iter().filter_map(|found| reaper.row(network, found))),
            Err(error) => {
                printed.warnings.push(error.in_full());
                printed.failed = true;
            }
        }
    }
    printed.failed |= rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_)));
    if rows.iter().any(|row| matches!(row.outcome, Outcome::Would)) {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    printed.text = if operator.words.has("json") {
        format!("{}\n", rows.iter().map(Row::to_json).collect::<Value>())
    } else {
        let heads = ["NETWORK", "CONTAINER", "IFNAME", "ADDRESSES", "STATE", "OUTCOME", "WHY"];
        let rows: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
        table(&heads.map(Column::Text), &rows)
    };
    Ok(printed)
}

struct Reaper<'a> {
    operator: &'a Operator,
    settings: Settings,
    state: StateDir,
    cache: PathBuf,
    boot: String,
}

/// One record, and what became of it.
struct Row {
    network: NetworkName,
    attachment: Attachment,
    addresses: Vec<String>,
    state: &'static str,
    why: String,
    outcome: Outcome,
}

enum Outcome {
    Kept,
    /// A dry run: it would be released.
    Would,
    Released,
    /// Released, but a claim may still commit.
    ToBeRepeated,
    SetAside,
    Failed(String),
}

impl Reaper<'_> {
    /// Judges a record, and releases it where that was asked for.
    fn row(&self, network: &NetworkName, attachment: &Attachment) -> Option<Row> {
        let row = |record: &Record, state, why: &str, outcome| Row {
            network: network.clone(),
            attachment: attachment.clone(),
            addresses: record.held().map(|(_, held)| held.ips()).unwrap_or_default(),
            state,
            why: why.to_owned(),
            outcome,
        };
        let yes = self.operator.words.has("yes");
        let path = self.state.record(network, attachment);
        let record = match RecordFile::look(&path) {
            Ok(None) => return None,
            Ok(Some((record, true))) => return Some(row(&record, "busy", BUSY, Outcome::Kept)),
            Ok(Some((record, false))) => record,
            Err(why) => {
                let outcome = if yes { self.set_aside(&path) } else { Outcome::Kept };
                return Some(row(&Record::default(), "unreadable", &why, outcome));
            }
        };
        let state = record.state().as_str();
        Some(match self.speaks_against(&record, network, attachment) {
            Err(why) => row(&record, state, why, Outcome::Kept),
            Ok(why) if !yes => row(&record, state, why, Outcome::Would),
            Ok(why) => match self.release(&record, network, attachment) {
                Ok(Ok(outcome)) => row(&record, state, why, outcome),
                Ok(Err(kept)) => row(&record, state, kept, Outcome::Kept),
                Err(error) => row(&record, state, why, Outcome::Failed(error.in_full())),
            },
        })
    }

    /// Why a record is to be released; else why it is kept.
    fn speaks_against(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> Result<&'static str, &'static str> {
        if record.state() == State::Empty {
            return Ok("it says nothing");
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
        let (container, ifname) = (&attachment.container, &attachment.ifname);
        let cached = self.cache.join(format!("{network}-{container}-{ifname}"));
        if cached.try_exists().unwrap_or(true) {
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
        let newer = self.present_ipam(network);
        let request =
            self.operator.request(recorded_network(network, record, newer)?, &self.path(record))?;
        let chain = Chain::new(self.operator.presets, Path::new("ipam-delegated"));
        let session = Session::open(&chain, &request)?;
        let opened = match judge(&session, network, attachment)? {
            Verdict::Gone => return Ok(Ok(Outcome::Released)),
            Verdict::Keep(why) => return Ok(Err(why)),
            Verdict::Stale(opened) => opened,
        };
        if let Err(why) = self.speaks_against(&opened.record, network, attachment) {
            return Ok(Err(why));
        }
        let owner = Owner { network: &session.request.network, attachment };
        let path = self.state.record(network, attachment);
        release_stale(&session, &owner, *opened, Deadline::after(session.timeout()))?;
        Ok(Ok(if path.exists() { Outcome::ToBeRepeated } else { Outcome::Released }))
    }

    /// An unreadable record is kept under another name, as every call does that meets one.
    fn set_aside(&self, path: &Path) -> Outcome {
        match RecordFile::open_existing(path) {
            Ok(_) => Outcome::SetAside,
            Err(error) => Outcome::Failed(error.in_full()),
        }
    }

    /// The plugin folders: those of the record's programs before the usual ones, for the ADD found
    /// its delegates there.
    fn path(&self, record: &Record) -> Vec<PathBuf> {
        let mut path = self.operator.cni_path();
        if self.operator.words.value("cni-path").is_none() {
            for run in record.runs() {
                let folder = Path::new(&run.program).parent().map(Path::to_owned);
                path.splice(0..0, folder);
            }
        }
        path
    }

    /// The section `ipam` of the network as it is configured now, for secrets that have rotated;
    /// empty where it is not configured any more.
    fn present_ipam(&self, network: &NetworkName) -> Map<String, Value> {
        let found = super::network::find(network.as_str(), self.operator.words.value("conf-dir"));
        let ours = found.and_then(|found| self.operator.ours(&found)).unwrap_or_default();
        ours.first().map(|ours| ours.network.ipam().clone()).unwrap_or_default()
    }
}

impl Row {
    fn to_json(&self) -> Value {
        let mut row = json!({
            "network": self.network.as_str(),
            "containerID": self.attachment.container.as_str(),
            "ifname": self.attachment.ifname.as_str(),
            "addresses": self.addresses,
            "state": self.state,
            "outcome": self.outcome.as_str(),
            "why": self.why,
        });
        if let Outcome::Failed(error) = &self.outcome {
            row["error"] = error.as_str().into();
        }
        row
    }

    fn cells(&self) -> Vec<String> {
        let why = match &self.outcome {
            Outcome::Failed(error) => [self.why.as_str(), error].join("; "),
            _ => self.why.clone(),
        };
        vec![
            self.network.to_string(),
            self.attachment.container.to_string(),
            self.attachment.ifname.to_string(),
            self.addresses.join(","),
            self.state.to_owned(),
            self.outcome.as_str().to_owned(),
            why,
        ]
    }
}

impl Outcome {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Would => "would release",
            Self::Released => "released",
            Self::ToBeRepeated => "released, to be repeated",
            Self::SetAside => "set aside",
            Self::Failed(_) => "failed",
        }
    }
}
