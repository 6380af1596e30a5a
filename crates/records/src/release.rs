//! Releases: a record is deleted by its id, after a read that shows whose it is.

use std::collections::BTreeSet;
use std::time::Instant;

use ipam_kit::allocate::ledger::{Change, Commit, Entry};
use ipam_kit::allocate::removal::{may_be_held, removed_unless_failed};
use ipam_kit::allocate::{Owner, Scope};
use ipam_kit::cni::{ContainerId, IfName};
use ipam_kit::{Error, Result};
use log::warn;

use crate::ledger::{RecordLedger, RecordToken, Revision};
use crate::mark::OwnerMark;
use crate::node_records::{node_records, turns_in_other_sites};
use crate::owner_file::{OwnerFile, OwnerRecords};
use crate::server::{AddressRecord, Deleted, RecordServer, Rewritten};
use crate::sight::Marked;

/// How often a deletion is sent.
const TRIES: u32 = 3;

impl<S: RecordServer> RecordLedger<S> {
    /// Makes a change that only releases.
    pub(crate) fn release(
        &mut self,
        owner: &Owner,
        mut token: RecordToken,
        change: &Change<'_>,
    ) -> Result<Commit<RecordToken>> {
        if !self.drop_all(owner, &mut token, change)? {
            self.trusts_notes = false;
            return Ok(Commit::Lost { taken: Vec::new(), view: None });
        }
        let left: BTreeSet<String> =
            change.leave.iter().filter_map(Revision::read).map(|revision| revision.id).collect();
        if let Some(note) = token.turn.note() {
            let mut records = note.records.clone();
            records.retain(|record| left.contains(&record.id));
            token.turn.leave(records, !left.is_empty());
        }
        Ok(Commit::Done { kept: Vec::new(), claimed: Vec::new() })
    }

    /// Releases the leases that a change drops; false, with nothing released, if one has changed since
    /// it was seen. In a turn that has seen the lease, only a person has changed it.
    ///
    /// # Errors
    /// The server did not confirm it, or refuses; a record changes again and again.
    pub(crate) fn drop_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
    ) -> Result<bool> {
        let mut records = Vec::new();
        for lease in &change.drop {
            let Some(revision) = Revision::read(lease) else { return Ok(false) };
            let is_seen = token.has_seen(&revision);
            if is_seen && lease.sticky.is_none() {
                let text = self.text(owner, None)?;
                records.push(AddressRecord { text, ..revision.record(lease) });
                continue;
            }
            match self.read_own_mark(owner, &revision.id)? {
                Some(marked) if is_seen || marked.record.stamp == revision.stamp => {
                    records.push(marked.record);
                }
                None if is_seen => {}
                _ => return Ok(false),
            }
        }
        let dropped: Vec<Revision> = change.drop.iter().filter_map(Revision::read).collect();
        for revision in &dropped {
            token.turn.begin_release(&revision.id, &revision.subnet);
        }
        for record in records {
            let turn = &token.turn;
            self.end_surely(owner, record, |this, record| this.end(&owner.scope, turn, record))?;
        }
        for revision in &dropped {
            token.turn.end_release(&revision.id);
        }
        Ok(true)
    }

    /// A record, if it is the owner's.
    pub(crate) fn read_own_mark(&mut self, owner: &Owner, id: &str) -> Result<Option<Marked>> {
        let Some(record) = self.server.read(id)? else { return Ok(None) };
        let mark = OwnerMark::parse(&record.text).and_then(Result::ok);
        let mark = mark.filter(|mark| mark.is_of(owner));
        Ok(mark.map(|mark| Marked { record, mark }))
    }

    /// Ends the hold of an owner in its turn, also if a person changes the record meanwhile.
    ///
    /// # Errors
    /// As of `end`; the record changes again and again.
    fn end_surely(
        &mut self,
        owner: &Owner,
        mut record: AddressRecord,
        mut end: impl FnMut(&mut Self, &AddressRecord) -> Result<bool>,
    ) -> Result<()> {
        for _ in 0..TRIES {
            if end(self, &record)? {
                return Ok(());
            }
            match self.read_own_mark(owner, &record.id)? {
                None => return Ok(()),
                Some(again) => record = again.record,
            }
        }
        Err(may_be_held([record.address]))
    }

    /// Ends the hold of a record's owner: the address stays with its name for the name's time, or is
    /// free. It is free, too, if an open write may give the record its owner back. False if the record
    /// has changed since it was read, and stays.
    fn end(&mut self, scope: &Scope, turn: &OwnerFile, record: &AddressRecord) -> Result<bool> {
        let mark = OwnerMark::parse(&record.text).and_then(std::result::Result::ok);
        let may_come_back = turn.note().is_some_and(|note| note.may_rewrite(&record.id));
        let is_named = |mark: &OwnerMark| mark.sticky.as_ref().is_some_and(|it| it.minutes > 0);
        let kept = mark
            .filter(|mark| is_named(mark) && !may_come_back)
            .and_then(|mark| mark.kept_text(scope, self.rules.longest_text));
        if let Some(text) = kept {
            let mut elsewhere = self.turns_elsewhere(record);
            match self.server.write(record, &text)? {
                Rewritten::Done(_) => {
                    elsewhere.iter_mut().for_each(|turn| turn.forget_record(&record.id));
                    return Ok(true);
                }
                Rewritten::Changed => return Ok(false),
                // The name may lose its address, and no owner is left behind.
                Rewritten::Refused | Rewritten::Unknown => {}
            }
        }
        self.delete_surely(record)
    }

    /// Deletes a record, and makes sure; false if it has changed since it was read, and stays.
    ///
    /// # Errors
    /// The server did not confirm it, or refuses.
    pub(crate) fn delete_surely(&mut self, record: &AddressRecord) -> Result<bool> {
        let elsewhere = self.turns_elsewhere(record);
        self.delete_in(elsewhere, record)
    }

    /// The turns of the owner at the node's other sites. Its own call may go on without one.
    fn turns_elsewhere(&self, record: &AddressRecord) -> Vec<OwnerFile> {
        let turns = turns_in_other_sites(&self.call.owners, record).into_iter();
        let unlocked = |error: &Error| warn!("goes on without a lock: {}", error.in_full());
        turns.filter_map(|turn| turn.inspect_err(unlocked).ok()).collect()
    }

    fn delete_in(&mut self, mut elsewhere: Vec<OwnerFile>, record: &AddressRecord) -> Result<bool> {
        for _ in 0..TRIES {
            match self.server.delete(record)? {
                Deleted::Changed => return Ok(false),
                Deleted::Unknown if self.server.read(&record.id)?.is_some() => {}
                Deleted::Done | Deleted::Unknown => {
                    elsewhere.iter_mut().for_each(|turn| turn.forget_record(&record.id));
                    return Ok(true);
                }
            }
        }
        Err(may_be_held([record.address]))
    }

    /// Deletes a record of an owner in its turn, also if a person changes it meanwhile. The owner's
    /// note says before that it may be gone, and after that it is.
    ///
    /// # Errors
    /// The server did not confirm it, or refuses; the record changes again and again.
    pub(crate) fn delete_own(
        &mut self,
        owner: &Owner,
        turn: &mut OwnerFile,
        subnet: &str,
        record: &AddressRecord,
    ) -> Result<()> {
        let mut is_noted = |note: &OwnerRecords| note.records.iter().any(|it| it.id == record.id);
        let (had_note, is_noted) = (turn.note().is_some(), turn.note().is_some_and(&mut is_noted));
        turn.begin_release(&record.id, subnet);
        self.end_surely(owner, record.clone(), |this, record| this.delete_surely(record))?;
        match (had_note, is_noted) {
            (false, _) => turn.forget(),
            (true, false) => turn.end_release(&record.id),
            (true, true) => turn.forget_record(&record.id),
        }
        Ok(())
    }

    /// Deletes a record that may be another owner's; false if it has changed. If the owner is of this
    /// node, no call of it is under way meanwhile, and its note says that the record is gone.
    ///
    /// # Errors
    /// Code 11: a call of the owner is under way. The server did not confirm it, or refuses.
    pub(crate) fn delete_others(&mut self, record: &AddressRecord) -> Result<bool> {
        let elsewhere = turns_in_other_sites(&self.call.owners, record).into_iter();
        let elsewhere = elsewhere.collect::<Result<_>>()?;
        let mut turn = self.turn_of_holder(record)?;
        let is_gone = self.delete_in(elsewhere, record)?;
        match (&mut turn, is_gone) {
            (Some(turn), true) => turn.forget_record(&record.id),
            (Some(turn), false) => turn.end_release(&record.id),
            (None, _) => {}
        }
        Ok(is_gone)
    }

    /// Waits for the turn of the owner on this node that has a record by its note, and notes there that
    /// the record may be gone.
    fn turn_of_holder(&self, record: &AddressRecord) -> Result<Option<OwnerFile>> {
        let noted = node_records(&self.call.owners);
        let Some(noted) = noted.into_iter().find(|noted| noted.is(record)) else {
            return Ok(None);
        };
        let give_up = Instant::now() + self.call.deadline.left() / 4;
        let mut turn = OwnerFile::take(&self.call.owners, &noted.owner, give_up, false)?;
        turn.begin_release(&record.id, &noted.record.subnet);
        Ok(Some(turn))
    }

    /// The record of an entry in the state of the scan.
    pub(crate) fn read_entry(&mut self, entry: &Entry) -> Result<Option<AddressRecord>> {
        let Some(revision) = Revision::read(&entry.lease) else { return Ok(None) };
        let record = self.server.read(&revision.id)?;
        Ok(record.filter(|record| record.stamp == revision.stamp))
    }

    pub(crate) fn remove_entries(&mut self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let (mut removed, mut failed): (Vec<Entry>, Vec<Error>) = (Vec::new(), Vec::new());
        for entry in entries {
            match self.remove_entry(entry) {
                Ok(true) => removed.push(entry.clone()),
                Ok(false) => {}
                Err(error) => failed.push(error),
            }
        }
        removed_unless_failed(removed, failed)
    }

    fn remove_entry(&mut self, entry: &Entry) -> Result<bool> {
        // A call of the same owner on this node does not come between the read and the deletion.
        let owner = self.owner_of(entry);
        let mut turn = match &owner {
            Some(owner) => Some(self.turn(owner)?),
            None => None,
        };
        let Some(record) = self.read_entry(entry)? else { return Ok(false) };
        let (Some(owner), Some(turn)) = (&owner, &mut turn) else {
            return self.delete_others(&record);
        };
        let subnet = Revision::read(&entry.lease).map(|revision| revision.subnet);
        let had_note = turn.note().is_some();
        turn.begin_release(&record.id, &subnet.unwrap_or_default());
        let is_released = self.end(&owner.scope, turn, &record)?;
        match (is_released, had_note) {
            (true, _) => turn.forget_record(&record.id),
            (false, true) => turn.end_release(&record.id),
            (false, false) => turn.forget(),
        }
        Ok(is_released)
    }

    /// The owner of an entry of this network, if it is one of this node.
    fn owner_of(&self, entry: &Entry) -> Option<Owner> {
        let holder = entry.holder.as_ref().filter(|holder| holder.network.is_none())?;
        let node = holder.node.clone()?;
        Some(Owner {
            scope: Scope { node, network: self.call.network.clone() },
            container: ContainerId::parse(&holder.container).ok()?,
            ifname: IfName::parse(holder.ifname.as_deref()?).ok()?,
        })
    }
}
