//! A change of an owner: claims, then leases that stay, then leases to release.

use std::time::Instant;

use ipam_kit::allocate::ledger::{Change, Commit};
use ipam_kit::allocate::{Lease, Owner, Strategy};
use ipam_kit::{Error, Result};

use crate::claim::{Made, Refused};
use crate::confirm::REVIVAL;
use crate::ledger::{RecordLedger, RecordToken, Revision, contradicts};
use crate::owner_file::{Attempt, NotedRecord, OwnerFile, OwnerRecords, Target};
use crate::server::{RecordServer, Rewritten};

impl<S: RecordServer> RecordLedger<S> {
    /// Makes a change that claims or keeps.
    pub(crate) fn make_change(
        &mut self,
        owner: &Owner,
        mut token: RecordToken,
        change: &Change<'_>,
    ) -> Result<Commit<RecordToken>> {
        let before = token.turn.note().cloned();
        let (mut made, mut kept) = (Vec::new(), Vec::new());
        match self.change_all(owner, &mut token, change, &mut made, &mut kept) {
            Ok(None) => {}
            Err(error) => {
                let withdrawn = self.withdraw(owner, &mut token.turn, &made);
                if withdrawn.is_ok() {
                    restore(&mut token, before, self.has_unknown);
                }
                return Err(error.and(withdrawn.err()));
            }
            // The next view shows the records that were made: they are the owner's.
            Ok(Some(Refused::Unknown)) => return Ok(Commit::Unknown),
            Ok(Some(refused)) => {
                self.withdraw(owner, &mut token.turn, &made)?;
                restore(&mut token, before, self.has_unknown);
                return self.lost(owner, refused);
            }
        }
        let mut claimed = Vec::new();
        for (index, claim) in change.claim.iter().enumerate() {
            let made = made.iter().find(|made| made.claim == index);
            let made = made.ok_or_else(|| contradicts::<S>("a claim has no record".to_owned()))?;
            let revision = Revision::of(&made.record, &made.subnet.id).to_json();
            claimed.push(claim.lease(made.record.address, revision));
        }
        self.note_all(&mut token, before.as_ref(), change, &kept, &claimed, &made);
        Ok(Commit::Done { kept, claimed })
    }

    /// Claims, then confirms, then writes the leases that stay again, then releases.
    fn change_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
        made: &mut Vec<Made>,
        kept: &mut Vec<Lease>,
    ) -> Result<Option<Refused>> {
        if let Some(refused) = self.claim_all(owner, token, change, made)? {
            return Ok(Some(refused));
        }
        if let Some(refused) = self.confirm_all(owner, token, change, made)? {
            return Ok(Some(refused));
        }
        if let Some(refused) = self.keep_all(owner, token, change, kept)? {
            return Ok(Some(refused));
        }
        if let Some(refused) = self.confirm_replaced(owner, token, made, kept)? {
            return Ok(Some(refused));
        }
        Ok((!self.drop_all(owner, token, change)?).then_some(Refused::Outdated))
    }

    /// Writes the leases that stay again.
    fn keep_all(
        &mut self,
        owner: &Owner,
        token: &mut RecordToken,
        change: &Change<'_>,
        kept: &mut Vec<Lease>,
    ) -> Result<Option<Refused>> {
        for lease in &change.keep {
            let Some(revision) = Revision::read(lease) else {
                return Ok(Some(Refused::Outdated));
            };
            let name = lease.sticky.as_deref();
            let name = name.and_then(|name| Some((name, token.names.get(name)?)));
            let text = self.text(owner, name)?;
            let record = revision.clone().record(lease);
            let target = Target::Rewrites(record.id.clone());
            let attempt = Attempt::on(target, &revision.subnet, Some(record.address));
            token.turn.begin_attempt(attempt.clone());
            let begun = Instant::now();
            let outcome = self.server.write(&record, &text);
            let is_known = !matches!(outcome, Ok(Rewritten::Unknown));
            let may_revive = self.rules.revives
                && !matches!(outcome, Err(_) | Ok(Rewritten::Refused))
                && begun.elapsed() > REVIVAL;
            if is_known && !may_revive {
                token.turn.end_attempt(&attempt);
            }
            let written = match outcome? {
                Rewritten::Done(written) => Some(written),
                Rewritten::Changed => None,
                // The owner has it, and a claim of another one is withdrawn.
                Rewritten::Refused => {
                    let read = self.read_own_mark(owner, &revision.id)?;
                    read.map(|marked| marked.record).filter(|read| read.stamp == record.stamp)
                }
                Rewritten::Unknown => {
                    self.has_unknown = true;
                    let read = self.server.read(&revision.id)?;
                    // The text may be as before, and the request may come later.
                    if read.as_ref().is_some_and(|read| read.stamp == record.stamp) {
                        return Ok(Some(Refused::Unknown));
                    }
                    read.filter(|read| read.text == text)
                }
            };
            let Some(written) = written.filter(|written| written.address == record.address) else {
                return Ok(Some(Refused::Outdated));
            };
            if may_revive {
                let had_unknown = std::mem::replace(&mut self.has_unknown, true);
                self.confirm_written(owner, &mut token.turn, &revision.subnet, &written)?;
                self.has_unknown = had_unknown;
                if is_known {
                    token.turn.end_attempt(&attempt);
                }
            }
            let revision = Revision::of(&written, &revision.subnet).to_json();
            kept.push(Lease { revision, ..lease.clone() });
        }
        Ok(None)
    }

    /// Deletes the records that this change has made.
    ///
    /// # Errors
    /// The server did not confirm it.
    fn withdraw(&mut self, owner: &Owner, turn: &mut OwnerFile, made: &[Made]) -> Result<()> {
        let failed = made
            .iter()
            .filter_map(|made| self.delete_own(owner, turn, &made.subnet.id, &made.record).err());
        Error::join(failed.collect::<Vec<_>>())
    }

    fn note_all(
        &mut self,
        token: &mut RecordToken,
        before: Option<&OwnerRecords>,
        change: &Change<'_>,
        kept: &[Lease],
        claimed: &[Lease],
        made: &[Made],
    ) {
        let noted = |lease: &Lease, taken: Option<u64>| {
            let revision = Revision::read(lease)?;
            let known = before.and_then(|note| note.records.iter().find(|it| it.id == revision.id));
            Some(NotedRecord {
                taken: taken.or(known.map(|known| known.taken)).unwrap_or_default(),
                sticky: lease.sticky.clone(),
                address: lease.address.addr(),
                id: revision.id,
                subnet: revision.subnet,
                ending: false,
            })
        };
        let taken = |lease: &Lease| lease.taken.and_then(milliseconds);
        let stay = change.keep.iter().zip(kept).map(|(seen, kept)| noted(kept, taken(seen)));
        let leave = change.leave.iter().map(|lease| noted(lease, taken(lease)));
        let new = claimed.iter().zip(&change.claim).enumerate().map(|(index, (lease, _))| {
            let made = made.iter().find(|made| made.claim == index);
            noted(lease, made.map(|made| made.taken))
        });
        let records: Vec<NotedRecord> = stay.chain(leave).chain(new).flatten().collect();
        let is_settled = before.is_none_or(|note| {
            let has_attempts = !note.attempts.is_empty();
            let is_over = |it: &Attempt| it.is_settled() || it.makes_room();
            note.sure || has_attempts && note.attempts.iter().all(is_over)
        });
        let sure = is_settled && !self.has_unknown;
        let mut attempts = match sure {
            true => Vec::new(),
            false => token.turn.note().map(|note| note.attempts.clone()).unwrap_or_default(),
        };
        attempts.retain(|it| match &it.target {
            None => made.iter().all(|made| made.taken != it.at),
            Some(target) => !matches!(target, Target::Returns(_)),
        });
        if let Some(record) = records.first().filter(|_| !sure && attempts.is_empty()) {
            // The requests that left the note unsure are over when this one is.
            attempts.push(Attempt::new(&record.subnet, Some(record.address)));
        }
        for (lease, claim) in claimed.iter().zip(&change.claim) {
            if claim.request.strategy == Strategy::RoundRobin
                && let Some(pool) = token.pools.get(&claim.request.path)
            {
                let key = pool.key(self.call.network.as_str());
                self.memory.remember_cursor(&key, lease.address.addr());
            }
        }
        let note = OwnerRecords { sure, records, attempts, ..OwnerRecords::default() };
        if token.turn.note() != Some(&note) {
            token.turn.write(note);
        }
    }
}

/// Notes that a change has left nothing. Records whose release has begun may be gone, their releases
/// may be open, records that it replaced may come back, and addresses that were kept for a name are the
/// name's without a record.
fn restore(token: &mut RecordToken, before: Option<OwnerRecords>, has_unknown: bool) {
    if has_unknown || token.turn.note() == before.as_ref() {
        return;
    }
    let mut note = token.turn.note().cloned().unwrap_or_default();
    let earlier = before.as_ref().map(|before| &*before.attempts).unwrap_or_default();
    let stays = |it: &Attempt| it.makes_room() || matches!(it.target, Some(Target::Ends(_)));
    note.attempts.retain(|attempt| stays(attempt) || earlier.contains(attempt));
    note.sure = before.as_ref().is_some_and(|before| before.sure);
    if before.is_none() && note.attempts.is_empty() {
        return token.turn.forget();
    }
    token.turn.write(note);
}

fn milliseconds(time: std::time::SystemTime) -> Option<u64> {
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}
