//! What an owner holds, by what was read of its keys.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use etcd_client::KeyValue;
use ipam_kit::allocate::document::Seen;
use ipam_kit::allocate::{Lease, Owner};
use ipam_kit::{Error, Result};
use log::warn;

use crate::document::{Holding, Item, OwnerDocument, Revision, holding};
use crate::ledger::Etcd;
use crate::page::below;

/// What was read about an owner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read<'a> {
    /// The owner's key.
    pub(crate) own: Option<&'a KeyValue>,
    /// The keys of other owners of the same container, where these may share addresses by name.
    pub(crate) siblings: &'a [KeyValue],
    /// The keys of the addresses that were asked for.
    pub(crate) leases: &'a [KeyValue],
}

impl Etcd {
    /// What the owner holds by its own key, as far as the keys of the addresses that were `asked` for
    /// are still its own. What that key does not tell, because it was deleted by hand or a replaced plugin
    /// gave the address, those of the addresses do.
    pub(crate) fn holding(
        &self,
        owner: &Owner,
        read: Read<'_>,
        asked: &BTreeSet<IpAddr>,
    ) -> Result<(Vec<Lease>, Seen)> {
        let mut seen =
            Seen { revision: None, document: Some(OwnerDocument::written(owner, 0, Vec::new())) };
        let mut held = Vec::new();
        if let Some(found) = read.own {
            let holding = holding(found)?;
            let is_its = |lease: &Lease| {
                let key = self.keys.lease(lease.address.addr());
                let found = read.leases.iter().find(|found| found.key() == key.as_bytes());
                let seen = Revision::read(&lease.revision).map(|seen| seen.revision);
                let its = found.map(KeyValue::mod_revision) == seen;
                if let Some(found) = found.filter(|_| !its && !self.keys.is_native()) {
                    warn_of_overwritten(owner, found);
                }
                its
            };
            held = holding.leases();
            held.retain(|lease| !asked.contains(&lease.address.addr()) || is_its(lease));
            let Holding { revision, mut document } = holding;
            let stays = |item: &Item| held.iter().any(|lease| lease.address == item.address);
            document.leases.retain(stays);
            seen = Seen { revision: Some(revision), document: Some(document) };
        }
        if read.own.is_none() || !self.keys.is_native() {
            let others = self.held_by_siblings(read.siblings);
            let indexed = held.len();
            let mut noted = None;
            for found in read.leases {
                let Some(address) = self.keys.address(found.key()) else { continue };
                let known = held.iter().any(|lease| lease.address.addr() == address);
                if known || others.contains(&(address, found.mod_revision())) {
                    continue;
                }
                let Some((lease, item)) = self.keys.codec().left_to(owner, address, found) else {
                    continue;
                };
                let of_others = match &noted {
                    Some(noted) => noted,
                    None => noted.insert(self.of_others(owner)?),
                };
                if !of_others.contains(&address) {
                    held.push(lease);
                    seen.add(item);
                }
            }
            if self.keys.old().is_some() {
                count_together(&mut held[indexed..], seen.document.as_mut(), indexed);
            }
        }
        Ok((held, seen))
    }

    /// What a replaced plugin, or one of ours without an index, has left to the owner beside what is known
    /// to be `held`: a look at every address. Those are not its that are known to be another attachment's.
    pub(crate) fn left_behind(
        &self,
        owner: &Owner,
        siblings: &[KeyValue],
        (mut held, mut seen): (Vec<Lease>, Seen),
    ) -> Result<(Vec<Lease>, Seen)> {
        let others = self.held_by_siblings(siblings);
        let of_others = self.hints.of_others(owner)?;
        let known: BTreeSet<IpAddr> = held.iter().map(|lease| lease.address.addr()).collect();
        let homeless = self.keys.is_flat() && self.home.is_empty();
        let judge = |answer: &_| self.judge(answer);
        below(&self.client, self.keys.leases(), judge, &mut |found| {
            let address = self.keys.address(found.key()).filter(|address| {
                (self.is_home_of(*address) || homeless)
                    && !known.contains(address)
                    && !others.contains(&(*address, found.mod_revision()))
                    && !of_others.contains(address)
            });
            let left = address.and_then(|address| self.keys.codec().left_to(owner, address, found));
            if let Some((lease, item)) = left {
                held.push(lease);
                seen.add(item);
            }
            ControlFlow::Continue(())
        })?;
        if homeless && held.len() > known.len() {
            return Err(Error::config(
                "ipam.ranges",
                "missing or wrong: it cannot be told which addresses of the container are this network's",
            )
            .advise(
                "correct the ranges and call again, or take the addresses back by `ipam-delegated release`",
            ));
        }
        count_together(&mut held, seen.document.as_mut(), 0);
        Ok((held, seen))
    }

    /// Forgets what was noted of an owner unless it holds something, or is about to.
    pub(crate) fn forget_unless(&self, owner: &Owner, holds: bool) {
        if !holds && !self.keys.is_native() {
            self.hints.forget(owner);
        }
    }

    /// What this node knows other attachments of the container to have been given, where the keys of addresses
    /// do not tell.
    fn of_others(&self, owner: &Owner) -> Result<BTreeSet<IpAddr>> {
        match self.keys.old() {
            Some(_) => self.hints.of_others(owner),
            None => Ok(BTreeSet::new()),
        }
    }

    /// Whether an address can be of this network: where those of all stand side by side, its ranges tell.
    fn is_home_of(&self, address: IpAddr) -> bool {
        !self.keys.is_flat() || self.home.iter().any(|set| set.find(address).is_some())
    }

    /// The addresses of other owners by their keys, with the revisions of those of the addresses.
    fn held_by_siblings(&self, siblings: &[KeyValue]) -> BTreeSet<(IpAddr, i64)> {
        let holdings = siblings.iter().filter_map(|found| holding(found).ok());
        let of = |holding: Holding| {
            let keys = |item: &Item| (item.address.addr(), holding.revision_of(item).revision);
            holding.document.leases.iter().map(keys).collect::<Vec<_>>()
        };
        holdings.flat_map(of).collect()
    }
}

/// Says of leases, which are those of a document from this one on, how many were written at once: their
/// keys tell no more than their revision. So they are known again as those that a claim gave.
fn count_together(held: &mut [Lease], document: Option<&mut OwnerDocument>, from: usize) {
    let Some(items) = document.and_then(|document| document.leases.get_mut(from..)) else { return };
    let revision = |item: &Item| item.since.map_or(0, |since| since.revision);
    let all: Vec<i64> = items.iter().map(revision).collect();
    for (lease, item) in held.iter_mut().zip(items) {
        let revision = revision(item);
        let leases = all.iter().filter(|other| **other == revision).count();
        let since = Revision { revision, leases };
        lease.revision = since.to_json();
        item.since = Some(since);
    }
}

fn warn_of_overwritten(owner: &Owner, found: &KeyValue) {
    let (key, value) =
        (String::from_utf8_lossy(found.key()), String::from_utf8_lossy(found.value()));
    warn!(
        "{owner} was given the address of {}, which now says {}: the replaced plugin has given it again, or somebody has written it",
        key.escape_debug(),
        value.escape_debug()
    );
}
