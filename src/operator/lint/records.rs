//! Unsafe state of a node and of its records.

use std::collections::BTreeSet;
use std::path::Path;

use super::findings::Findings;
use crate::chain::program::is_allocator;
use crate::chain::record::{RecordFile, RecordPlace, attachments};
use crate::chain::refreshed_run::present_ipam;
use crate::chain::session::Session;
use crate::chain::store_access::changed_paths;
use crate::operator::other_identities::of_other_identities;
use ipam_kit::host::{transient_machine_id, volatile_filesystem};
use ipam_kit::presence::Presence;

impl Findings {
    /// Finds state that a reboot or a clone loses: a warning if other nodes share the ledger, else
    /// a note.
    pub(super) fn of_state(&mut self, session: &Session<'_>) {
        let level = if self.shared { "warning" } else { "note" };
        let root = session.state.root().display();
        if let Some(why) = volatile_filesystem(session.state.root()) {
            let message = format!(
                "the state folder {root} is on {why}: a reboot loses the records and the node's identity"
            );
            self.push(level, &message);
        }
        if session.request.settings.node.is_none()
            && let Some(why) = transient_machine_id(Path::new("/etc/machine-id"))
        {
            let message = format!(
                "/etc/machine-id {why}: a cloned machine looks like its original; set node in the \
                 host-wide settings"
            );
            self.push(level, &message);
        }
        for line in of_other_identities(&session.state) {
            self.push("note", &line);
        }
        if session.state.is_from_network() {
            let message = format!(
                "ipam.stateDir is set: if the runtime strips the configuration, DEL does not find \
                 {root}; set stateDir in the host-wide settings instead"
            );
            self.push("warning", &message);
        }
    }

    /// Finds records that name other servers or files of their store than the configuration.
    pub(super) fn of_records(&mut self, session: &Session<'_>) {
        let network = &session.request.network;
        let (mut count, mut example, mut keys) = (0_usize, None, BTreeSet::new());
        let found = attachments(&session.state.network(network.name()));
        if let Err(error) = &found {
            self.error(error);
        }
        for attachment in found.into_iter().flatten() {
            let place = RecordPlace::of(&session.state, network.name(), &attachment);
            let Presence::Held((record, _)) = RecordFile::look(&place) else { continue };
            let mut runs = record.runs();
            // If a selector named the store, the configuration has no key for it.
            runs.retain(|run| is_allocator(&run.delegate) && run.store_is_configured);
            let others: Vec<String> = runs
                .into_iter()
                .flat_map(|run| changed_paths(&run.ipam, &present_ipam(session, run, network)))
                .collect();
            if !others.is_empty() {
                count += 1;
                example.get_or_insert_with(|| attachment.to_string());
                keys.extend(others);
            }
        }
        if let Some(example) = example {
            let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
            let records = match count {
                1 => "1 record names".to_owned(),
                _ => format!("{count} records name"),
            };
            let message = format!(
                "{records} other servers or files than the configuration, such as {example} ({keys}): \
                 keep the recorded ones until these leases are released; DEL uses the configured ones only if \
                 they lead to the recorded store"
            );
            self.push("warning", &message);
        }
    }
}
