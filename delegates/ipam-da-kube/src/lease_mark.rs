//! The revision of a lease: the state of its objects, as it travels with the lease.

use std::net::IpAddr;

use ipam_kit::allocate::Lease;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::objects::{Metadata, Reservation};
use crate::sticky_lease::StickyMark;

/// [`Lease::revision`]: where the lease is recorded, and the state that guards its release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeaseMark {
    /// The namespace of the objects.
    pub(crate) namespace: String,
    /// Whether the CRD keeps the interface of an entry.
    #[serde(default)]
    pub(crate) ifname: bool,
    /// The reservation; `None` if the lease has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reservation: Option<ReservationMark>,
    /// The object of the sticky name that the address is of; `None` if it is a container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sticky: Option<StickyMark>,
    /// This delegate's member of the entry, for a lease without a reservation: another text each
    /// time; `None` if another program wrote the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// Whether the CRD keeps that member.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) kept: bool,
}

/// The state of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReservationMark {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl LeaseMark {
    /// Whether it names this reservation, in any of its states.
    pub(crate) fn has_reservation(&self, reservation: &ReservationMark) -> bool {
        self.reservation.as_ref().is_some_and(|own| own.uid == reservation.uid)
    }

    /// Reads the mark that came back with a lease.
    pub(crate) fn of(lease: &Lease) -> Option<Self> {
        Self::deserialize(&lease.revision).ok()
    }

    /// Returns the lease of an address of a pool, in this state.
    pub(crate) fn lease(&self, subnet: IpNet, address: IpAddr) -> Lease {
        let with_prefix = IpNet::new(address, subnet.prefix_len());
        Lease::bare(with_prefix.unwrap_or(IpNet::from(address)), self.to_json())
    }

    /// Returns the id of the entry: that of its sticky lease, else the owner's container.
    pub(crate) fn id(&self, container: &str) -> String {
        self.sticky.as_ref().map_or_else(|| container.to_owned(), |sticky| sticky.id().to_string())
    }

    /// Returns the interface of the entry, if the CRD keeps it. The entry of a sticky lease names
    /// none: it stays while one holder comes after the other.
    pub(crate) fn ifname(&self, ifname: &str) -> Option<String> {
        (self.ifname && self.sticky.is_none()).then(|| ifname.to_owned())
    }

    /// Writes the mark as it travels with a lease.
    pub(crate) fn to_json(&self) -> Value {
        // The members are plain, so writing cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl ReservationMark {
    pub(crate) fn of(reservation: &Reservation) -> Self {
        Self::of_metadata(&reservation.metadata)
    }

    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        let Metadata { uid, resource_version, .. } = metadata.clone();
        Self { uid, resource_version }
    }
}
