//! The repetition of a DEL that is due: a claim of the ADD before it may have committed late.

use std::fs;
use std::time::Duration;

use log::{debug, warn};
use serde_json::{Map, Value};

use super::record::{Opened, Record, RecordFile, RecordPlace, RepeatEntry, RepeatList, now};
use super::release::NetworkAttachment;
use super::session::Session;
use super::settle::{Coverage, mark_unsure, release_taken, remove};
use ipam_kit::cni::{Network, NetworkName};
use ipam_kit::delegate::Deadline;
use ipam_kit::error::Result;
use ipam_kit::presence::Presence;

/// Repeats the DEL of one record that is due. Records that other calls work on are skipped.
pub(crate) fn repeat_one_due(session: &Session<'_>, time: Duration) {
    let due = RepeatList::of(&session.state).due(now()).unwrap_or_else(|error| {
        warn!("cannot read the list of DELs to repeat: {error}");
        Vec::new()
    });
    for due in due {
        let place = RecordPlace::of(&session.state, &due.network, &due.attachment);
        match RecordFile::open_existing(&place, Duration::ZERO).and_then(Presence::known) {
            // A call works on it, or it cannot be read now; another ADD will find it.
            Err(error) => {
                debug!("{}", error.in_full());
                continue;
            }
            Ok(Some(opened)) if opened.record.released().is_some_and(|it| it.is_due(now())) => {
                debug!("repeats the DEL of {}", due.attachment);
                repeat(session, &due, opened, Deadline::after(time));
                // Only now: a kill before this repeats it.
                return due.remove();
            }
            // The attachment was added again, or its DEL is due later: then another entry names it.
            Ok(Some(_)) => {}
            // Released for good, but perhaps killed before its folder was removed.
            Ok(None) => drop(fs::remove_dir(place.folder())),
        }
        due.remove();
    }
}

fn repeat(session: &Session<'_>, due: &RepeatEntry, opened: Opened, deadline: Deadline) {
    let RepeatEntry { network, attachment, .. } = due;
    let Opened { file, record } = opened;
    let configured = &session.request.network;
    // Secrets of another network are not this one's.
    let ipam = if configured.name() == network { configured.ipam().clone() } else { Map::new() };
    let released = recorded_network(network, &record, ipam).and_then(|network| {
        let target = NetworkAttachment { network: &network, attachment };
        release_taken(session, target, &record, deadline)
    });
    match released {
        Ok(Coverage::All) => remove(file),
        // GC and reap go on with it.
        Ok(Coverage::AllButSuperseded) => {}
        Err(error) => {
            warn!(
                "the DEL of {attachment} on {network} failed and will be repeated: {}",
                error.in_full()
            );
            mark_unsure(session, network, attachment, file);
        }
    }
}

/// The network configuration of a record, with this section `ipam`.
pub(crate) fn recorded_network(
    network: &NetworkName,
    record: &Record,
    ipam: Map<String, Value>,
) -> Result<Network> {
    let version = record.attempts.last().map(|attempt| attempt.header.cni_version.clone());
    let mut config = Map::new();
    config.insert("cniVersion".to_owned(), version.unwrap_or_default().into());
    config.insert("name".to_owned(), network.as_str().into());
    config.insert("ipam".to_owned(), Value::Object(ipam));
    Network::new(config)
}
