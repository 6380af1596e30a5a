//! The reservation of a claimed address.

use ipam_kit::Result;

use crate::claim::{ChosenAddress, Claiming, Reserved};
use crate::lease_mark::{LeaseMark, ReservationMark};
use crate::stamp::OwnerStamp;
use crate::store::Outcome;

/// How often the reservation of an address is tried at most, while others make and delete it.
const TRIES: usize = 4;

impl Claiming<'_> {
    /// Makes the reservation of an address, or finds the owner's own.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub(crate) fn reserve(&mut self, choice: &ChosenAddress<'_>) -> Result<Reserved> {
        let name = self.session.names.reservation(choice.address);
        let podref = self.session.pod.podref.clone();
        for _ in 0..TRIES {
            let outcome = self.session.store.create_reservation(&name, &podref, &choice.stamp)?;
            if let Outcome::Done(head) = outcome {
                return Ok(Reserved::Own(ReservationMark::of_metadata(&head.metadata)));
            }
            let Some(present) = self.session.read_reservation(choice.address)? else { continue };
            let stamp = OwnerStamp::of_reservation(&present);
            let stamp = stamp.filter(|stamp| {
                stamp.is_of(self.owner) || stamp.container == choice.stamp.container
            });
            if stamp.is_some() && choice.sticky.is_none() {
                return Ok(Reserved::Own(ReservationMark::of(&present)));
            }
            if stamp.is_some() {
                // That of a sticky lease may name an earlier holder.
                let reservation = Some(ReservationMark::of(&present));
                self.note_held(choice, LeaseMark { reservation, ..self.mark(choice) });
                let seen = self.held[&choice.index].clone();
                match self.session.confirm(self.owner, &seen)? {
                    Outcome::Done(LeaseMark { reservation: Some(own), .. }) => {
                        return Ok(Reserved::Own(own));
                    }
                    Outcome::Unknown => return Ok(Reserved::Unknown),
                    _ => continue,
                }
            }
            let entry = self.session.reserved_entry(choice.subnet, choice.address, &present);
            return Ok(Reserved::Foreign(Box::new(entry)));
        }
        Ok(Reserved::Unknown)
    }
}
