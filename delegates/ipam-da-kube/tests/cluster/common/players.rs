//! Old nodes that work at random, and what they leave.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam_testkit::history::Verb;
use ipam_testkit::history::old_nodes::OldNode;
use ipam_testkit::old::whereabouts::Whereabouts;
use ipam_testkit::whereabouts::{POOLS, RESERVATIONS, Release};
use serde_json::json;

use super::beside::{IFNAME, Site};

/// An old node of a site.
pub struct Player<'a> {
    site: &'a Site,
    release: Release,
    old: Whereabouts,
}

impl<'a> Player<'a> {
    pub fn new(site: &'a Site, release: Release, range: &str) -> Self {
        Self { site, release, old: site.old(release, range) }
    }
}

impl OldNode for Player<'_> {
    fn name(&self) -> String {
        format!("{:?}-{}", self.release, self.site.objects.namespace()).to_lowercase()
    }

    /// Only ADDs are killed.
    fn call(
        &self,
        verb: Verb,
        container: &str,
        killed_after: Option<usize>,
    ) -> Option<Result<Vec<IpAddr>, String>> {
        let pod = format!("ns/{container}");
        let mut call = match verb {
            Verb::Add => self.old.add(container, IFNAME, &pod),
            Verb::Del => return Some(Ok(self.old.del(container, IFNAME, &pod).run().unwrap())),
        };
        match killed_after {
            Some(requests) => {
                let _ = call.by_ref().take(requests).count();
                None
            }
            None => Some(call.run()),
        }
    }
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
