//! Notes of when addresses were freed: annotations of their IPPool, which every node reads.
//!
//! A note replaces an earlier one in the slot of its address. So a release writes it without a
//! read, and the notes stay far below the server's limit of 256 KiB.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ipam_kit::allocate::is_resting;
use ipam_kit::allocate::owner_index::{now, time};
use ipam_kit::host::show_duration;

use crate::names::address_at;
use crate::objects::{IpPool, Metadata};
use crate::patch::Patch;
use crate::read_pool::ReadPool;

/// How many notes a pool has at most.
const SLOTS: u64 = 1024;
/// The name of a note, before its slot.
const FREED: &str = "ipam-delegated/freed-";
/// An annotation that only makes sure that a release finds the map of annotations.
const COOLDOWN: &str = "ipam-delegated/cooldown";
/// How many notes of rested addresses an ADD removes at most.
const MOST: usize = 16;

/// Returns the note that the address of an entry's key was freed now: its name and its text.
pub(crate) fn note_of(key: &str) -> (String, String) {
    let slot = key.parse::<u64>().unwrap_or_default() % SLOTS;
    (format!("{FREED}{slot}"), format!("{key} {}", now()))
}

/// Returns the annotation of a pool that an ADD with a cooldown makes.
pub(crate) fn annotation(cooldown: Duration) -> (&'static str, String) {
    (COOLDOWN, show_duration(cooldown))
}

/// Adds to the patch of an ADD what makes room for notes: the map of annotations if it is missing,
/// else the removal of the notes of taken keys and of some that no longer count. Returns whether it
/// has added anything.
pub(crate) fn tidy(patch: &mut Patch, pool: &IpPool, taken: &[u64], cooldown: Duration) -> bool {
    if pool.metadata.annotations.is_empty() {
        let (name, text) = annotation(cooldown);
        patch.annotate(&pool.metadata, name, &text);
        return true;
    }
    let is_taken = |key: &str| taken.iter().any(|taken| taken.to_string() == key);
    let (mut doomed, mut rested): (Vec<_>, Vec<_>) = notes(&pool.metadata)
        .filter(|(_, text)| {
            parse(text).is_none_or(|(key, freed)| is_taken(key) || !is_resting(freed, cooldown))
        })
        .partition(|(_, text)| parse(text).is_some_and(|(key, _)| is_taken(key)));
    // Calls at the same time begin anywhere, so that they seldom remove the same notes.
    let random = RandomState::new().build_hasher().finish();
    let start = random.checked_rem(rested.len() as u64).unwrap_or_default();
    rested.rotate_left(usize::try_from(start).unwrap_or_default());
    doomed.extend(rested.into_iter().take(MOST));
    doomed.iter().for_each(|(name, text)| patch.remove_annotation(name, text));
    !doomed.is_empty()
}

/// Removes all notes that were seen. Returns whether there were any.
pub(crate) fn remove_notes(patch: &mut Patch, pool: &IpPool) -> bool {
    let mut seen = notes(&pool.metadata).peekable();
    let has_notes = seen.peek().is_some();
    seen.for_each(|(name, text)| patch.remove_annotation(name, text));
    has_notes
}

impl ReadPool {
    /// Returns the addresses that were freed less than the cooldown ago, each with the time.
    pub(crate) fn resting(
        &self,
        cooldown: Duration,
    ) -> impl Iterator<Item = (IpAddr, SystemTime)> + '_ {
        let metadata = self.object.iter().map(|object| &object.metadata);
        let read = metadata.flat_map(notes).filter_map(|(_, text)| {
            let (key, freed) = parse(text)?;
            Some((address_at(self.subnet, key)?, freed))
        });
        read.filter(move |(_, freed)| is_resting(*freed, cooldown))
    }
}

fn notes(metadata: &Metadata) -> impl Iterator<Item = (&str, &str)> {
    let all = metadata.annotations.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    all.filter(|(name, _)| name.starts_with(FREED))
}

/// Reads the key and the time of a note.
fn parse(text: &str) -> Option<(&str, SystemTime)> {
    let (key, freed) = text.split_once(' ')?;
    Some((key, time(freed.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::PoolNote;
    use serde_json::{Value, json};

    const HOUR: Duration = Duration::from_secs(3600);

    fn pool(annotations: Value) -> IpPool {
        let metadata = json!({"name": "10.0.0.0-24", "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"range": "10.0.0.0/24"}}))
            .unwrap()
    }

    fn operations(pool: &IpPool, taken: &[u64]) -> Vec<Value> {
        let mut patch = Patch::default();
        let tidied = tidy(&mut patch, pool, taken, HOUR);
        let operations: Vec<Value> = serde_json::from_slice(&patch.to_bytes()).unwrap();
        assert_eq!(tidied, !operations.is_empty());
        operations
    }

    #[test]
    fn an_address_rests_by_its_note() {
        let hours_ago = |hours: u64| now() - hours * 3_600_000;
        let read = ReadPool {
            subnet: "10.0.0.0/24".parse().unwrap(),
            object: Some(pool(json!({
                "ipam-delegated/freed-7": format!("7 {}", now()),
                "ipam-delegated/freed-8": format!("8 {}", hours_ago(2)),
                "ipam-delegated/freed-9": "9 soon",
                "ipam-delegated/freed-10": "10",
                "ipam-delegated/freed-11": format!("x {}", now()),
                "ipam-delegated/freed-12": format!("12 {}", u64::MAX),
                "other/freed-13": format!("13 {}", now()),
            }))),
            noted: PoolNote::default(),
        };
        let resting: Vec<IpAddr> = read.resting(HOUR).map(|(address, _)| address).collect();
        assert_eq!(resting, [IpAddr::from([10, 0, 0, 7])]);
    }

    #[test]
    fn a_note_replaces_another_one_of_its_slot_alone() {
        let names = ["7", "1031", "1032"].map(|key| note_of(key).0);
        assert_eq!(names[0], "ipam-delegated/freed-7");
        assert!(names[0] == names[1] && names[1] != names[2]);
        let (name, text) = note_of("9223372036854775807");
        assert!(name.len() - "ipam-delegated/".len() <= 63 && parse(&text).is_some());
        let largest = (name.len() + text.len()) as u64;
        assert!(largest * SLOTS < 100 * 1024, "{largest} bytes each");
    }

    #[test]
    fn an_add_makes_the_map_or_removes_some_notes() {
        let made = operations(&pool(json!({})), &[7]);
        assert_eq!(made[1]["value"], json!({"ipam-delegated/cooldown": "3600s"}));
        assert!(operations(&pool(json!({"a": "b"})), &[7]).is_empty());
        let resting = json!({"ipam-delegated/freed-7": format!("7 {}", now())});
        assert!(operations(&pool(resting.clone()), &[8]).is_empty());
        let removed = operations(&pool(resting.clone()), &[7]);
        let path = "/metadata/annotations/ipam-delegated~1freed-7";
        let text = &resting["ipam-delegated/freed-7"];
        assert_eq!(removed[0], json!({"op": "test", "path": path, "value": text}));
        assert_eq!(removed[1], json!({"op": "remove", "path": path}));
        let many: serde_json::Map<String, Value> =
            (0..99).map(|slot| (format!("{FREED}{slot}"), json!(format!("{slot} 1")))).collect();
        assert_eq!(operations(&pool(many.into()), &[7]).len(), 2 * (MOST + 1));
    }
}
