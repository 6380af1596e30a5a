//! Many processes at once on one pool of a store.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;

use crate::node::{Node, Store, addresses, at_once};

pub const WORKERS: usize = 20;
pub const ADDS: usize = 100;

/// ADDs by all workers at once, each on a node of its own or all on one; the addresses, of which
/// each must get all that it asked for.
#[track_caller]
pub fn adds(nodes: &[Node<impl Store>]) -> Vec<IpAddr> {
    let given = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let node = &nodes[worker % nodes.len()];
        for round in 0..ADDS / WORKERS {
            let result = node.add(&format!("c{worker}-{round}"));
            let addresses = addresses(&result).into_iter().map(|a| a.parse::<IpAddr>().unwrap());
            given.lock().unwrap().extend(addresses);
        }
    });
    let given: Vec<IpAddr> = given.into_inner().unwrap();
    assert_eq!(given.len(), ADDS * nodes[0].pools.as_array().unwrap().len());
    assert!(are_distinct(&given), "{given:?}");
    given
}

/// The DELs of all that [`adds`] has taken.
#[track_caller]
pub fn dels(nodes: &[Node<impl Store>]) {
    at_once(WORKERS, |worker| {
        let node = &nodes[worker % nodes.len()];
        (0..ADDS / WORKERS).for_each(|round| node.del(&format!("c{worker}-{round}")));
    });
}

/// All of the pool is held by now: one more ADD fails and leaves nothing.
#[track_caller]
pub fn assert_exhausted(node: &Node<impl Store>, holdings: impl Fn() -> Vec<String>) {
    let before = holdings();
    let (code, text) = node.call("ADD", "one-more").failure();
    assert_eq!(code, 100, "{text}");
    assert!(text.contains("no IP addresses available in range set"), "{text}");
    assert!(holdings() == before);
}

/// Calls of one owner at once agree on its addresses, one of each pool.
#[track_caller]
pub fn assert_agreed(node: &Node<impl Store>, held: impl Fn() -> usize) {
    let given = Mutex::new(Vec::new());
    at_once(10, |_| given.lock().unwrap().push(addresses(&node.add("c1"))));
    let given = given.into_inner().unwrap();
    assert!(given.iter().all(|addresses| *addresses == given[0]), "{given:?}");
    assert_eq!(held(), node.pools.as_array().unwrap().len());
    at_once(10, |_| node.del("c1"));
}

/// So many of some addresses, chosen at random but always the same.
pub fn some(mut addresses: Vec<IpAddr>, count: usize) -> Vec<IpAddr> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
    };
    for place in 0..count {
        let other = place + next(addresses.len() - place);
        addresses.swap(place, other);
    }
    addresses.truncate(count);
    addresses
}

/// Whether all of them are different.
pub fn are_distinct<T: Ord>(items: impl IntoIterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    items.into_iter().all(|item| seen.insert(item))
}
