//! The values of addresses' keys, in each layout.

use std::borrow::Cow;
use std::net::IpAddr;

use etcd_client::KeyValue;
use ipam_kit::allocate::ledger::{Entry, Fault, Holder};
use ipam_kit::allocate::{Lease, Owner};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::document::{Item, OwnerDocument, Revision, now, time, to_text};
use crate::layout::Codec;

/// The value of an address's key in our own layout.
#[derive(Debug, Serialize, Deserialize)]
struct LeaseDocument<'a> {
    network: Cow<'a, str>,
    node: Cow<'a, str>,
    container: Cow<'a, str>,
    ifname: Cow<'a, str>,
    generation: u64,
    confirmed: u64,
    /// [`Revision::leases`].
    leases: usize,
    #[serde(flatten)]
    item: Cow<'a, Item>,
}

impl Codec {
    /// The value of the key of one of an owner's addresses.
    pub(crate) fn value(self, document: &OwnerDocument, item: &Item) -> String {
        match self {
            Self::ContainerId { .. } => document.container.clone(),
            Self::Document => to_text(&LeaseDocument {
                network: (&document.network).into(),
                node: (&document.node).into(),
                container: (&document.container).into(),
                ifname: (&document.ifname).into(),
                generation: document.generation,
                confirmed: document.confirmed,
                leases: document.together(),
                item: Cow::Borrowed(item),
            }),
        }
    }

    /// A lease that is this owner's, or its container's where the value does not tell more, by the answer
    /// about the key of its address alone.
    pub(crate) fn left_to(
        self,
        owner: &Owner,
        address: IpAddr,
        found: &KeyValue,
    ) -> Option<(Lease, Item)> {
        let Self::Document = self else {
            let since = Revision { revision: found.mod_revision(), leases: 0 };
            let item = Item {
                address: IpNet::from(address),
                gateway: None,
                pool: None,
                taken: now(),
                since: Some(since),
            };
            let its = self.container(found) == Some(owner.container.as_str());
            return its.then(|| (Lease { taken: None, ..item.lease(since) }, item));
        };
        let document: LeaseDocument<'_> = serde_json::from_slice(found.value()).ok()?;
        let its = document.node == owner.scope.node
            && document.container == owner.container.as_str()
            && document.ifname == owner.ifname.as_str()
            && document.item.address.addr() == address;
        let since = Revision { revision: found.mod_revision(), leases: document.leases };
        let item = Item { since: Some(since), ..document.item.into_owned() };
        its.then(|| (item.lease(since), item))
    }

    /// Reads the answer about the key of an address.
    pub(crate) fn entry(self, address: IpAddr, found: &KeyValue) -> Entry {
        let revision = |leases| Revision { revision: found.mod_revision(), leases };
        let (holder, why) = match self {
            Self::Document => match serde_json::from_slice::<LeaseDocument<'_>>(found.value()) {
                Ok(document) if document.item.address.addr() == address => {
                    return Entry {
                        lease: document.item.lease(revision(document.leases)),
                        holder: Some(Holder {
                            node: Some(document.node.into_owned()),
                            container: document.container.into_owned(),
                            ifname: Some(document.ifname.into_owned()),
                            network: None,
                        }),
                        since: Some(time(document.confirmed)),
                        fault: None,
                    };
                }
                Ok(_) => (None, "it is about another address".to_owned()),
                Err(error) => (None, error.to_string()),
            },
            Self::ContainerId { .. } => {
                let of = |container: &str| Holder {
                    node: None,
                    container: container.to_owned(),
                    ifname: None,
                    network: None,
                };
                (self.container(found).map(of), "it names no container".to_owned())
            }
        };
        let key = String::from_utf8_lossy(found.key());
        let fault = Fault::Unreadable(format!("the value of the key {key} is not ours: {why}"));
        Entry {
            lease: Lease {
                pool: None,
                address: IpNet::from(address),
                gateway: None,
                revision: revision(0).to_json(),
                kept: false,
                unsure: false,
                taken: None,
            },
            fault: holder.is_none().then_some(fault),
            holder,
            since: None,
        }
    }

    /// The container that a bare value names.
    pub(crate) fn container(self, found: &KeyValue) -> Option<&str> {
        let text = std::str::from_utf8(found.value()).ok()?;
        let text = if self == (Self::ContainerId { trimmed: true }) { text.trim() } else { text };
        Some(text).filter(|text| !text.is_empty())
    }
}
