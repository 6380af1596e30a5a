//! Whether the server was restored from a backup: it lacks records that owners of this node have by
//! their notes. A restore loses the latest records first.

use std::cmp::Reverse;

use ipam_kit::Result;
use log::warn;

use crate::ledger::RecordLedger;
use crate::mark::NotedOwner;
use crate::memory::MissingRecord;
use crate::node_records::{NodeRecord, node_records};
use crate::owner_file::{NotedRecord, peek, place};
use crate::server::RecordServer;
use crate::sight::SubnetSight;

impl<S: RecordServer> RecordLedger<S> {
    /// Fails on ADD and STATUS if the server was seen to be restored. A record whose owner has released
    /// it since is not missing.
    pub(crate) fn check_not_restored(&mut self) -> Result<()> {
        if self
            .memory
            .missing()
            .is_some_and(|it| !self.has_noted(&it.owner, |has| has.address == it.address))
        {
            self.memory.explain_missing();
        }
        self.memory.check_not_restored(S::NAME)
    }

    /// The records that this node's owners have by their notes, the latest first.
    pub(crate) fn noted(&self) -> Vec<NodeRecord> {
        let accepted = self.memory.accepted();
        let mut noted = node_records(&self.call.owners);
        noted.retain(|NodeRecord { record, .. }| record.taken >= accepted && !record.ending);
        noted.sort_by_key(|noted| Reverse(noted.record.taken));
        noted
    }

    /// Fails if a list lacks the latest records that were noted before it.
    pub(crate) fn check_latest(&mut self, sight: &SubnetSight) -> Result<()> {
        if !sight.is_whole {
            return Ok(());
        }
        let mut replaced: Vec<&NodeRecord> = Vec::new();
        for noted in sight.noted() {
            let NotedRecord { id, address, .. } = &noted.record;
            if sight.confirms(noted) {
                break;
            }
            // A release of another call says so before it is sent.
            if !self.has_noted(&noted.owner, |has| has.id == *id) {
                continue;
            }
            if sight.has_record(*address) {
                replaced.push(noted);
            } else if !self.memory.is_replaced(id) {
                // A restored server may give the id to another record.
                if self.server.read(id)?.is_some_and(|it| noted.owner.has_mark(&it.text)) {
                    break;
                }
                return self.miss(noted, format!("the record {id} of {address}, the latest of this node in its subnet ({}), is missing", noted.owner));
            }
        }
        if let [first, second, ..] = replaced[..] {
            let held = |noted: &NodeRecord| format!("{} of {}", noted.record.address, noted.owner);
            let what = format!(
                "others have the addresses of this node's latest records in their subnet, {} and {}",
                held(first),
                held(second)
            );
            return self.miss(first, what);
        }
        if let [noted] = replaced[..] {
            let NotedRecord { id, address, .. } = &noted.record;
            warn!(
                "another owner has {address} of {}: its record {id} was taken over, or {} was restored from a backup",
                noted.owner,
                S::NAME
            );
            if !self.memory.is_replaced(id) {
                let known = node_records(&self.call.owners);
                self.memory.remember_replaced(id, |id| known.iter().any(|it| it.record.id == id));
            }
        }
        Ok(())
    }

    fn miss(&mut self, noted: &NodeRecord, sight: String) -> Result<()> {
        let (address, owner) = (noted.record.address, noted.owner.clone());
        let missing = MissingRecord { address, owner, sight, is_certain: false };
        self.memory.miss(S::NAME, missing)
    }

    /// Whether an owner may have such a record by its note, and does not release it.
    fn has_noted(&self, owner: &NotedOwner, is_such: impl Fn(&NotedRecord) -> bool) -> bool {
        match peek(&place(&self.call.owners, owner).1) {
            Ok(None) => false,
            Ok(Some(note)) => note.records.iter().any(|it| is_such(it) && !it.ending),
            // A note that cannot be read may have it.
            Err(_) => true,
        }
    }
}
