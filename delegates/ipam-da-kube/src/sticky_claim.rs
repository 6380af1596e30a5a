//! The claim of a sticky name: its object, before the entry and the reservation of the address.
//!
//! The object decides who has the name. The entry and the reservation name the object: so the next
//! ADD of the name completes the work of a call that was killed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam_kit::allocate::{Lease, Owner, PoolRequest};
use ipam_kit::{Error, ErrorCode, Result};

use crate::claim::{ChosenAddress, Claimed, Claiming};
use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::names::{ObjectNames, offset_of};
use crate::patch::Patch;
use crate::pools_token::HeldLease;
use crate::read_pool::ReadPool;
use crate::release::Removed;
use crate::session::LeaseSession;
use crate::stamp::{CONTAINER, NODE, label_value};
use crate::sticky_lease::{
    STICKY_GROUP, STICKY_LEASES, StickyHolder, StickyId, StickyLease, StickyMark, StickySpec,
    WantedSticky,
};
use crate::store::Outcome;
use crate::takeover::not_for_names;

/// The outcome of a claim of a sticky name.
pub(crate) enum Hold {
    /// The owner has the name. With what the object said before; `None` for a new one.
    Done(StickyMark, Option<Box<StickySpec>>),
    /// Nothing has changed: the object is another one than the view has shown.
    Outdated,
    Unknown,
}

impl LeaseSession {
    /// Returns the IPPool and the object that a request has for its sticky name; `None` without one.
    pub(crate) fn sticky_object(&self, request: &PoolRequest) -> Option<(String, String)> {
        let (sticky, set) = (request.sticky.as_ref()?, request.set.as_ref()?);
        let pool = self.pool_of(set.ranges().first()?.subnet());
        let object = ObjectNames::sticky(&pool, &sticky.name);
        Some((pool, object))
    }

    /// Returns whether the object of an id may exist, as far as this call has read objects.
    pub(crate) fn may_exist(&self, id: &StickyId) -> bool {
        match self.sticky.get(&id.object) {
            Some(known) => known.as_ref().is_some_and(|known| known.metadata.uid == id.uid),
            None => true,
        }
    }

    /// Takes a sticky name for an owner, if no other live one has it.
    ///
    /// # Errors
    /// Code 11: the holder is alive. The object was edited by hand, or cannot be read or changed; or
    /// the pod or the node of the holder cannot be read.
    pub(crate) fn take_name(&mut self, owner: &Owner, wanted: &WantedSticky) -> Result<Hold> {
        let spec = self.spec_of(owner, wanted);
        match (self.sticky.get(&wanted.object).cloned(), &wanted.entered) {
            (Some(Some(known)), _) => self.hold_known(owner, wanted, known, &spec),
            (None, Some(id)) => {
                let mut patch = Patch::default();
                patch.hold_sticky(id, &spec);
                patch.add_labels(&labels(&spec), false);
                let outcome = self.store.patch_sticky(&wanted.object, &patch)?;
                let before = match &outcome {
                    Outcome::Done(lease) => lease.before_holder(),
                    _ => None,
                };
                self.learn_hold(&wanted.object, outcome, &spec, before)
            }
            (None | Some(None), _) => {
                let outcome = self.store.create_sticky(&wanted.object, &labels(&spec), &spec)?;
                self.learn_hold(&wanted.object, outcome, &spec, None)
            }
        }
    }

    /// Confirms the name of a lease that its holder keeps: a DEL of an earlier call frees nothing.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn hold_again(
        &mut self,
        owner: &Owner,
        seen: &StickyMark,
    ) -> Result<Outcome<StickyMark>> {
        let mut patch = Patch::default();
        let holder = StickyHolder::of(owner, &self.pod);
        let keep = self.keep.get(&seen.object).copied();
        patch.rehold_sticky(seen, &holder, keep.unwrap_or(seen.keep_seconds));
        self.sticky.remove(&seen.object);
        let outcome = self.store.patch_sticky(&seen.object, &patch)?;
        Ok(outcome.map(|lease| lease.mark()))
    }

    /// Gives a name back as it was before a claim that was not completed.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn hold_as_before(&mut self, taken: &StickyMark, before: &StickySpec) -> Result<()> {
        let mut patch = Patch::default();
        patch.write_sticky(taken, before);
        // The claim wrote them, so the object has some.
        patch.add_labels(&labels(before), false);
        self.sticky.remove(&taken.object);
        // Another outcome leaves a holder that the next ADD of the name judges.
        self.store.patch_sticky(&taken.object, &patch).map(drop)
    }

    /// Takes the name of an object that this call has read.
    fn hold_known(
        &mut self,
        owner: &Owner,
        wanted: &WantedSticky,
        known: StickyLease,
        spec: &StickySpec,
    ) -> Result<Hold> {
        let present = sound(&known, &wanted.pool, &wanted.sticky.name)?.clone();
        // The owner's own hold is of another address: views show any other as its lease.
        if let Some(holder) = present.holder.as_ref().filter(|holder| !holder.is(owner)) {
            self.refuse_live_holder(owner, wanted, &present, holder)?;
        }
        if present.address == wanted.address && present.range == wanted.range {
            let mut patch = Patch::default();
            patch.write_sticky(&known.mark(), spec);
            patch.add_labels(&labels(spec), known.metadata.labels.is_empty());
            let outcome = self.store.patch_sticky(&wanted.object, &patch)?;
            return self.learn_hold(&wanted.object, outcome, spec, Some(present));
        }
        // Another address is another object: what is left of this one can then be removed.
        if self.delete_sticky(&known.mark())? == Removed::Changed {
            return Ok(Hold::Outdated);
        }
        self.remove_rest(&known.id(), present.range, present.address)?;
        self.sticky.insert(wanted.object.clone(), None);
        Ok(Hold::Outdated)
    }

    /// Learns from the answer to a claim of a name.
    fn learn_hold(
        &mut self,
        object: &str,
        outcome: Outcome<StickyLease>,
        spec: &StickySpec,
        before: Option<StickySpec>,
    ) -> Result<Hold> {
        self.sticky.remove(object);
        match outcome {
            Outcome::Done(lease) if lease.spec.as_ref().is_ok_and(|it| it.is_as_written(spec)) => {
                self.memory.remember_sticky();
                Ok(Hold::Done(lease.mark(), before.map(Box::new)))
            }
            Outcome::Done(lease) => {
                let undone = match before {
                    Some(before) => self.hold_as_before(&lease.mark(), &before),
                    None => self.delete_sticky(&lease.mark()).map(drop),
                };
                Err(other_definition(object).and(undone.err()))
            }
            Outcome::Unknown => Ok(Hold::Unknown),
            Outcome::Lost | Outcome::Missing => {
                let present = self.store.read_sticky(object)?;
                self.sticky.insert(object.to_owned(), present);
                Ok(Hold::Outdated)
            }
        }
    }

    fn spec_of(&self, owner: &Owner, wanted: &WantedSticky) -> StickySpec {
        let WantedSticky { pool, sticky, address, range, .. } = wanted.clone();
        StickySpec {
            name: sticky.name,
            pool,
            address,
            range,
            keep_seconds: sticky.keep.as_secs(),
            holder: Some(StickyHolder::of(owner, &self.pod)),
            kept_until: None,
        }
    }
}

impl Claiming<'_> {
    /// Takes the sticky names of the choices. Returns the outcome if a name was not taken.
    ///
    /// # Errors
    /// Another pod has a name; an object was edited by hand; the server does not answer, or refuses.
    pub(crate) fn hold_names(
        &mut self,
        choices: &mut [ChosenAddress<'_>],
    ) -> Result<Option<Claimed>> {
        let doubted: Vec<Lease> =
            choices.iter().filter_map(|choice| self.doubted(choice)).collect();
        if !doubted.is_empty() {
            // A DEL after a kill looks for the object.
            self.doubt(doubted);
        }
        for choice in choices {
            let Some(wanted) = &choice.wanted else { continue };
            if choice.claim.replaces.is_some() {
                return Err(not_for_names(choice.claim, choice.address));
            }
            let (mark, before) = match self.session.take_name(self.owner, wanted)? {
                Hold::Done(mark, before) => (mark, before),
                Hold::Outdated => return Ok(Some(Claimed::Outdated)),
                Hold::Unknown => return Ok(Some(Claimed::Unknown)),
            };
            choice.stamp.container = mark.id().to_string();
            choice.sticky = Some(mark.clone());
            if let Some(before) = before {
                self.renewed.insert(choice.index, (mark, *before));
                continue;
            }
            self.note_held(choice, self.mark(choice));
            if let Some(held) = self.held.get_mut(&choice.index) {
                held.in_pool = false;
            }
        }
        Ok(None)
    }

    /// Completes a sticky lease whose entry exists: its reservation names the new holder.
    ///
    /// # Errors
    /// The address is reserved for another owner, or taken in a pool that overlaps; the server does
    /// not answer, or refuses.
    pub(crate) fn complete(&mut self, choice: &ChosenAddress<'_>) -> Result<Option<Claimed>> {
        let key = offset_of(choice.subnet, choice.address).unwrap_or_default().to_string();
        let pool = self.pools.get(&self.session.pool_of(choice.subnet));
        let entry = pool.and_then(|pool| pool.object.as_ref()?.allocation(&key)).cloned();
        let Some(entry) = entry else { return Ok(Some(Claimed::Outdated)) };
        let reservation = self.session.read_reservation(choice.address)?;
        if let Some(other) = reservation.as_ref().filter(|it| !it.is_of(&entry)) {
            let other = self.session.reserved_entry(choice.subnet, choice.address, other);
            return Err(in_use(choice, &format!("is reserved for {}", other.held_by())));
        }
        let mark = LeaseMark {
            ifname: entry.ifname.is_some(),
            reservation: reservation.as_ref().map(ReservationMark::of),
            ..self.mark(choice)
        };
        self.note_held(choice, mark);
        let seen = self.held[&choice.index].clone();
        let mark = match self.session.confirm(self.owner, &seen)? {
            Outcome::Done(mark) => mark,
            Outcome::Lost | Outcome::Missing => return Ok(Some(Claimed::Outdated)),
            Outcome::Unknown => return Ok(Some(Claimed::Unknown)),
        };
        // A call that was killed may have left pools that overlap unchanged.
        if !self.hold_alone(choice, mark)? {
            return Err(in_use(choice, "is in use in a pool that overlaps"));
        }
        Ok(None)
    }

    /// Returns the leases that the claims have made, for their release: without those of objects that
    /// were there. Their entries and reservations stay with them, since another call may count on it.
    pub(crate) fn take_made(&mut self) -> impl Iterator<Item = HeldLease> {
        let Self { held, renewed, .. } = self;
        let made =
            std::mem::take(held).into_iter().filter(|(index, _)| !renewed.contains_key(index));
        made.map(|(_, mut held)| {
            if let Some(sticky) = &mut held.mark.sticky {
                sticky.keep_seconds = 0;
            }
            held
        })
    }

    /// Returns the entry of an address, with its id, if that is the one of a sticky name's object.
    pub(crate) fn entry_of_name(&self, object: &str, address: IpAddr) -> Option<StickyId> {
        let mut entries = self.pools.values().flat_map(ReadPool::entries);
        entries.find_map(|(_, shown, entry)| {
            let id = StickyId::parse(entry.id.as_deref()?).filter(|_| shown == Some(address))?;
            (id.object == object && self.session.may_exist(&id)).then_some(id)
        })
    }

    /// Returns the lease of a sticky name that is about to be taken.
    fn doubted(&self, choice: &ChosenAddress<'_>) -> Option<Lease> {
        let WantedSticky { object, sticky, .. } = choice.wanted.as_ref()?;
        let sticky = StickyMark {
            object: object.clone(),
            uid: String::new(),
            version: String::new(),
            keep_seconds: sticky.keep.as_secs(),
        };
        Some(self.lease(choice, &LeaseMark { sticky: Some(sticky), ..self.mark(choice) }))
    }
}

fn in_use(choice: &ChosenAddress<'_>, how: &str) -> Error {
    let name = choice.wanted.as_ref().map_or("", |wanted| &wanted.sticky.name);
    let message = format!("{} of the sticky name {name:?} {how}", choice.address);
    Error::new(ErrorCode::TAKEN, message).at(&choice.claim.request.path).advise(
        "release the other owner's lease, or delete the StickyLease after its holder has ended",
    )
}

/// Returns what an object says, if it is the one of a name and as this program writes it.
pub(crate) fn sound<'l>(lease: &'l StickyLease, pool: &str, name: &str) -> Result<&'l StickySpec> {
    let fault = match (&lease.spec, lease.sound()) {
        (Ok(spec), _) if spec.name != name => {
            format!("spec.name is {:?}: expected {name:?}", spec.name)
        }
        (Ok(spec), _) if spec.pool != pool => {
            format!("spec.pool is {:?}: expected {pool:?}", spec.pool)
        }
        (_, Ok(spec)) => return Ok(spec),
        (_, Err(fault)) => fault,
    };
    Err(edited(lease, &fault))
}

/// The error of an object that a person has edited.
pub(crate) fn edited(lease: &StickyLease, fault: &str) -> Error {
    let message = format!("{STICKY_LEASES}.{STICKY_GROUP}/{}: {fault}", lease.metadata.name);
    Error::new(ErrorCode::BACKEND, message).advise(
        "correct the object, or make sure that its address is not in use and delete the object",
    )
}

/// The labels by which the names of a node and of a container are listed. Those of the last holder
/// stay while the address is kept.
fn labels(spec: &StickySpec) -> BTreeMap<String, String> {
    let labels = |StickyHolder { node, container, .. }: &StickyHolder| {
        [(NODE, node), (CONTAINER, container)]
            .map(|(label, text)| (label.to_owned(), label_value(text)))
            .into()
    };
    spec.holder.as_ref().map(labels).unwrap_or_default()
}

/// Returns the selector of the names of a container.
pub(crate) fn sticky_of_container(container: &str) -> String {
    format!("{CONTAINER}={}", label_value(container))
}

/// Returns the selector of the names of a node.
pub(crate) fn sticky_of_node(node: &str) -> String {
    format!("{NODE}={}", label_value(node))
}

fn other_definition(object: &str) -> Error {
    let message = format!(
        "{STICKY_LEASES}.{STICKY_GROUP}/{object}: the definition of the kind does not keep what this program writes"
    );
    Error::new(ErrorCode::BACKEND, message)
        .advise("apply delegates/ipam-da-kube/deploy/sticky.yaml of this release, or of the newest release in the cluster")
}
