//! Takeovers: a requested address of another holder, whose lease is in the state that was seen.

use std::net::IpAddr;

use ipam_kit::allocate::ledger::Claim;
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::claim::{ChosenAddress, Claiming};
use crate::pools_token::HeldLease;
use crate::sticky_lease::StickyId;
use crate::store::Outcome;

impl Claiming<'_> {
    /// Takes a requested address from its holder, if the holder's lease is in the state that was
    /// seen.
    pub(crate) fn take_over(&mut self, choice: &ChosenAddress<'_>) -> Result<Outcome<()>> {
        let replaced = choice.claim.replaces.as_ref().and_then(HeldLease::of_entry);
        let seen = replaced.filter(|seen| !self.session.is_confirmed_since(seen));
        let Some(mut seen) = seen else { return Ok(Outcome::Lost) };
        if StickyId::parse(&seen.id).is_some() {
            return Err(not_for_names(choice.claim, choice.address));
        }
        if let Some(subnet) = self.held_elsewhere(choice, &seen) {
            let (address, pool) = (choice.address, self.session.pool_of(subnet));
            let message = format!("{address} is held in the pool {pool}, which overlaps");
            return Err(Error::new(ErrorCode::TAKEN, message)
                .at(&choice.claim.request.path)
                .advise(
                    "request another address, or release that one: a takeover is for one pool",
                ));
        }
        // While the holder has it: an address that another pool has given, too, stays with it.
        if let Some(own) = &seen.mark.reservation
            && !self.is_free_elsewhere(choice, own)?
        {
            return Ok(Outcome::Lost);
        }
        seen.lease.taken = None;
        let mark = match self.session.confirm(self.owner, &seen)? {
            Outcome::Done(mark) => mark,
            Outcome::Lost => return Ok(Outcome::Lost),
            Outcome::Missing => return Ok(Outcome::Missing),
            Outcome::Unknown => return Ok(Outcome::Unknown),
        };
        let made_anew = mark.reservation.clone().filter(|own| !seen.mark.has_reservation(own));
        self.note_held(choice, mark);
        match made_anew {
            Some(own) if !self.is_free_elsewhere(choice, &own)? => Ok(Outcome::Lost),
            _ => Ok(Outcome::Done(())),
        }
    }

    /// Returns another pool that has an entry of an address.
    fn held_elsewhere(&self, choice: &ChosenAddress<'_>, seen: &HeldLease) -> Option<IpNet> {
        if seen.subnet != choice.subnet {
            return Some(seen.subnet);
        }
        let mut shown = self.pools.values().chain(self.others.values());
        let other = shown.find(|pool| pool.subnet != choice.subnet && pool.has(choice.address));
        other.filter(|_| self.session.overlap_check).map(|pool| pool.subnet)
    }
}

/// The error of a takeover of an address that a sticky name has, or for a sticky name.
pub(crate) fn not_for_names(claim: &Claim<'_>, address: IpAddr) -> Error {
    let message = format!("{address} is in use, and takeover is not for sticky names");
    Error::new(ErrorCode::TAKEN, message)
        .at(&claim.request.path)
        .advise("request another address, or release that one")
}
