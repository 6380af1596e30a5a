//! The node's memory of lists: their length, and whether the server refuses an export.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, is_refusal_recent};
use serde::{Deserialize, Serialize};

/// The memory of lists.
#[derive(Debug)]
pub(crate) struct ListHints(StoreMemory<ListRecord>);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct ListRecord {
    /// The number of records of subnets with more than one page.
    long: BTreeMap<String, usize>,
    /// When an export was refused, in milliseconds since 1970.
    refused: Option<u64>,
}

impl ListHints {
    pub(crate) fn read(path: PathBuf) -> Self {
        Self(StoreMemory::read(path))
    }

    /// Whether a subnet has more records than a page.
    pub(crate) fn is_long(&self, subnet: &str) -> bool {
        self.0.record().long.contains_key(subnet)
    }

    pub(crate) fn remember_length(&mut self, subnet: &str, count: usize, page: usize) {
        if count <= page && self.is_long(subnet) {
            self.0.remember_hint(|record| {
                record.long.remove(subnet);
            });
        } else if count > page && !self.is_long(subnet) {
            self.0.remember_hint(|record| {
                record.long.insert(subnet.to_owned(), count);
            });
        }
    }

    /// Whether the user may export, as far as the server has not refused it lately.
    pub(crate) fn may_export(&self) -> bool {
        !self.0.record().refused.is_some_and(is_refusal_recent)
    }

    pub(crate) fn remember_refusal(&mut self) {
        self.0.remember_hint(|record| record.refused = Some(now()));
    }
}
