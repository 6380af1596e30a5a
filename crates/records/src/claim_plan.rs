//! The plan of a claim: its address, and the records that its own one replaces.

use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::allocate::Owner;
use ipam_kit::allocate::ledger::Claim;

use crate::ledger::{RecordLedger, RecordToken, contradicts};
use crate::pools::SubnetPool;
use crate::server::{AddressRecord, RecordServer, Subnet};
use crate::sight::Marked;
use crate::unowned::is_of_other_interface;

/// The plan of a claim, by the view.
pub(crate) struct ClaimPlan {
    pub(crate) subnet: Subnet,
    /// `None` if the server chooses.
    pub(crate) address: Option<IpAddr>,
    /// The text of the record.
    pub(crate) text: String,
    /// The hash of the sticky name.
    pub(crate) name: Option<String>,
    /// Whether a list of the whole subnet shows the address as free.
    pub(crate) was_viewed_free: bool,
    /// The records of other owners that have the name, each with its subnet.
    pub(crate) held: Vec<(String, AddressRecord)>,
    /// The records that keep an address for the name, and one that keeps the address for another name
    /// whose time is over.
    pub(crate) kept: Vec<AddressRecord>,
    /// The records of an older program that have the address.
    pub(crate) unowned: Vec<AddressRecord>,
}

impl<S: RecordServer> RecordLedger<S> {
    /// The plan of a claim, by the view; `None` if all its candidates are taken.
    ///
    /// # Errors
    /// Code 4: the owner's mark does not fit into a record. Code 5: a cached result cannot be read.
    pub(crate) fn plan_claim(
        &self,
        owner: &Owner,
        token: &RecordToken,
        claim: &Claim<'_>,
        pool: &SubnetPool,
    ) -> Result<Option<ClaimPlan>> {
        let sticky = claim.request.sticky.as_ref().map(|sticky| &*sticky.name);
        let name = sticky.and_then(|name| Some((name, token.names.get(name)?)));
        let sights = token.sights.iter().filter(|sight| pool.has(&sight.subnet.id));
        let (mut held, mut kept) = (Vec::new(), Vec::new());
        for sight in sights.clone() {
            let named = name.into_iter().flat_map(|(_, mark)| sight.with_name(&mark.hash));
            for Marked { record, mark } in named {
                match mark.holder {
                    Some(_) => held.push((sight.subnet.id.clone(), record.clone())),
                    None => kept.push(record.clone()),
                }
            }
        }
        let old_name = self.old_name(claim.request);
        let unowned = sights.clone().flat_map(|sight| &sight.unowned);
        let mut unowned: Vec<AddressRecord> =
            unowned.filter(|record| Some(&*record.text) == old_name).cloned().collect();
        let is_free = |address: &&IpAddr| {
            let mut own = held.iter().map(|(_, record)| record).chain(&kept).chain(&unowned);
            let is_used = sights.clone().any(|sight| sight.used.contains(*address));
            !is_used || claim.replaces.is_some() || own.any(|record| record.address == **address)
        };
        let address = claim.candidates.iter().find(is_free).copied();
        if address.is_none() && !claim.candidates.is_empty() {
            return Ok(None);
        }
        let Some(subnet) = pool.subnet_of(address).cloned() else {
            return Err(contradicts::<S>("the claim is in no subnet of the pool".to_owned()));
        };
        let is_here = |record: &AddressRecord| Some(record.address) == address;
        unowned.retain(is_here);
        for record in &unowned {
            if is_of_other_interface(owner, record)? {
                return Ok(None);
            }
        }
        // An address stays kept for its name if another one is claimed. Of several, one is left.
        let returns = kept.iter().any(is_here);
        kept.retain(|kept| is_here(kept) || returns && claim.set.refusal(kept.address).is_none());
        let sight = token.sight(&subnet.id);
        kept.extend(address.and_then(|address| sight?.expired.get(&address).cloned()));
        Ok(Some(ClaimPlan {
            address,
            text: self.text(owner, name)?,
            name: name.map(|(_, mark)| mark.hash.clone()),
            was_viewed_free: sight.is_some_and(|sight| sight.is_whole),
            held,
            kept,
            unowned,
            subnet,
        }))
    }
}
