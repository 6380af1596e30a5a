//! The release of a sticky name: its object first. An entry and a reservation of an object that is
//! gone can be removed by any call.

use std::net::IpAddr;
use std::time::Duration;

use ipam_kit::allocate::LONGEST_KEEP;
use ipam_kit::allocate::removal::may_be_held;
use ipam_kit::{Error, ErrorCode, Result};
use ipam_kube::Moment;
use ipnet::IpNet;

use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::patch::Patch;
use crate::pools_token::HeldLease;
use crate::release::{EndedHold, Removed};
use crate::session::LeaseSession;
use crate::sticky_lease::{StickyId, StickyMark};
use crate::store::Outcome;

/// How often a change is sent again at most, while its outcome is unknown.
const TRIES: usize = 4;

impl LeaseSession {
    /// Ends the hold of a name that is in the state that was seen.
    ///
    /// # Errors
    /// The server does not answer or refuses, or the outcome is unknown.
    pub(crate) fn end_hold(&mut self, address: IpAddr, seen: &StickyMark) -> Result<EndedHold> {
        if seen.keep_seconds == 0 {
            return Ok(match self.delete_sticky(seen)? {
                Removed::Done | Removed::Gone => EndedHold::Over,
                Removed::Changed => EndedHold::Changed,
            });
        }
        let mut patch = Patch::default();
        // A person may have written any number, and no object has a year of five digits.
        let keep = Duration::from_secs(seen.keep_seconds).min(LONGEST_KEEP);
        patch.keep_sticky(seen, Moment::now().after(keep));
        self.sticky.remove(&seen.object);
        for _ in 0..TRIES {
            match self.store.patch_sticky(&seen.object, &patch)? {
                Outcome::Done(_) => return Ok(EndedHold::Kept),
                Outcome::Missing => return Ok(EndedHold::Over),
                Outcome::Lost | Outcome::Unknown => {}
            }
            match self.store.read_sticky(&seen.object)? {
                Some(present) if seen.is_state_of(&present) => {}
                Some(present) if present.metadata.uid == seen.uid => {
                    let is_kept = present.is_kept();
                    return Ok(if is_kept { EndedHold::Kept } else { EndedHold::Changed });
                }
                _ => return Ok(EndedHold::Over),
            }
        }
        Err(may_be_held([address]))
    }

    /// Deletes an object that is in the state that was seen.
    ///
    /// # Errors
    /// The server does not answer or refuses, the outcome is unknown, or finalizers keep the object.
    pub(crate) fn delete_sticky(&mut self, seen: &StickyMark) -> Result<Removed> {
        self.sticky.remove(&seen.object);
        for _ in 0..TRIES {
            match self.store.delete_sticky(seen)? {
                Outcome::Done(left) if left.metadata.deletion_timestamp.is_some() => {
                    return Err(kept_by_finalizers(&seen.object));
                }
                Outcome::Done(_) => return Ok(Removed::Done),
                Outcome::Missing => return Ok(Removed::Gone),
                Outcome::Lost | Outcome::Unknown => {}
            }
            match self.store.read_sticky(&seen.object)? {
                Some(present) if seen.is_state_of(&present) => {}
                Some(present) if present.metadata.uid == seen.uid => return Ok(Removed::Changed),
                _ => return Ok(Removed::Gone),
            }
        }
        let message = format!("outcome unknown: the StickyLease {} may exist", seen.object);
        Err(Error::new(ErrorCode::TRY_AGAIN, message).advise("call again"))
    }

    /// Removes the entry and the reservation of an object that is gone, in the turn at its pool.
    ///
    /// # Errors
    /// The server does not answer or refuses, or the outcome is unknown.
    pub(crate) fn remove_rest(
        &mut self,
        id: &StickyId,
        range: IpNet,
        address: IpAddr,
    ) -> Result<()> {
        let reservation = self.read_reservation(address)?;
        let own = reservation.filter(|it| it.has_id(&id.to_string()));
        let mark = LeaseMark {
            namespace: self.store.namespace().to_owned(),
            reservation: own.as_ref().map(ReservationMark::of),
            ..LeaseMark::default()
        };
        let rest = HeldLease {
            lease: mark.lease(range, address),
            mark,
            subnet: range,
            id: id.to_string(),
            ifname: None,
            in_pool: true,
        };
        self.release_in_turn(rest)
    }
}

fn kept_by_finalizers(object: &str) -> Error {
    let message = format!("the StickyLease {object} is deleted, and its finalizers keep it");
    Error::new(ErrorCode::TRY_AGAIN, message)
        .advise("its address is free once metadata.finalizers is empty: put no finalizer there")
}
