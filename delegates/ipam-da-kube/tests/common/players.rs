//! Old nodes that work at random, and write down what they saw.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Mutex;

use ipam_testkit::history::workload::{Random, now};
use ipam_testkit::history::{Call, Outcome, Verb};
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{POOLS, RESERVATIONS, Release};
use serde_json::json;

use super::beside::{IFNAME, Site};

/// How many containers an old node has.
const CONTAINERS: u64 = 4;

/// What old nodes saw.
#[derive(Default)]
pub struct Plays {
    pub calls: Vec<Call>,
    /// What ADDs that failed said.
    pub failures: Vec<String>,
    pub killed: usize,
    /// How many nodes have ended.
    pub lanes: usize,
}

impl fmt::Display for Plays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, failures, killed, .. } = self;
        let full = failures.iter().filter(|text| text.contains("Could not allocate")).count();
        write!(f, "{} ADDs and DELs, {killed} killed, {full} ADDs in a full pool, ", calls.len())?;
        write!(f, "{} failed in another way", failures.len() - full)?;
        let other = failures.iter().find(|text| !text.contains("Could not allocate"));
        other.map_or(Ok(()), |text| write!(f, ", as {text}"))
    }
}

/// An old node: so many calls for containers of its own. A container whose ADD failed gets a DEL, as
/// from a runtime.
pub fn play(
    site: &Site,
    old: &Whereabouts,
    release: Release,
    count: usize,
    mut random: Random,
    plays: &Mutex<Plays>,
    note: impl Fn() -> usize,
) {
    let mut may_hold = [false; CONTAINERS as usize];
    for _ in 0..count {
        let place = random.below(CONTAINERS) as usize;
        let container = format!("{release:?}-{place}").to_lowercase();
        let owner = format!("{container} of {}", site.objects.namespace());
        let pod = format!("ns/{container}");
        let is_add = !may_hold[place];
        let mut call = match is_add {
            true => old.add(&container, IFNAME, &pod),
            false => old.del(&container, IFNAME, &pod),
        };
        let began = now();
        let (verb, outcome) = if is_add && random.below(100) == 0 {
            let _ = call.by_ref().take(random.below(12) as usize).count();
            drop(call);
            plays.lock().unwrap().killed += 1;
            (Verb::Add, Outcome::Unknown)
        } else if is_add {
            (Verb::Add, call.run().map_or_else(|error| failed(plays, error), done))
        } else {
            call.run().unwrap();
            (Verb::Del, Outcome::Done(BTreeSet::new()))
        };
        may_hold[place] = is_add;
        note();
        plays.lock().unwrap().calls.push(Call { owner, verb, began, ended: now(), outcome });
    }
    plays.lock().unwrap().lanes += 1;
}

fn done(addresses: Vec<IpAddr>) -> Outcome {
    Outcome::Done(addresses.into_iter().collect())
}

fn failed(plays: &Mutex<Plays>, error: String) -> Outcome {
    plays.lock().unwrap().failures.push(error);
    Outcome::Unknown
}

/// Removes what is left of the containers of old nodes, whose DELs may have met no server.
pub fn release_all(site: &Site) {
    for held in site.objects.held() {
        if held.entry.id.starts_with('v') {
            let path = format!("/spec/allocations/{}", held.offset);
            let remove = json!([{"op": "remove", "path": path}]);
            site.client.patch(&site.objects.path(POOLS, &held.pool), &remove);
        }
    }
}

/// Removes reservations that an old DEL has left: those without an entry, of others than ours.
pub fn sweep(site: &Site) {
    let reservations = site.objects.reservations();
    let held: BTreeSet<String> =
        site.objects.held().iter().map(|held| held.address.to_string()).collect();
    for (name, object) in reservations {
        if object["metadata"]["annotations"].is_null() && !held.contains(&name) {
            site.client.delete(&site.objects.path(RESERVATIONS, &name));
        }
    }
}
