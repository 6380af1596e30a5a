//! The entry that a killed ADD, GC or `release` leaves is released by a later call: a note names its
//! node and its time.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use ipam_testkit::world::{start, wait};
use serde_json::{Value, json};

use super::{ALONE, Before, Moment, Told};
use crate::common::node::change_note;
use crate::common::site::{On, Site};

/// Two hours in milliseconds: longer than `gcGrace`.
const LONG: u64 = 7_200_000;

/// The network of the first node, whose runtime needs no attachment.
fn network(site: &Site) -> Value {
    let mut network = site.network(On::First);
    network["cniVersion"] = "1.1.0".into();
    network["cni.dev/valid-attachments"] = json!([]);
    network
}

/// Makes all leases look older, also in the notes of the first node.
fn age(site: &Site) {
    site.desk.age(Duration::from_millis(LONG));
    let network = network(site);
    let notes = format!("state/kube/{}/owners", network["name"].as_str().unwrap());
    for note in fs::read_dir(site.worlds[0].path(&notes)).unwrap() {
        change_note(&note.unwrap().path(), |noted| {
            noted["confirmed"] = (noted["confirmed"].as_u64().unwrap() - LONG).into();
        });
    }
}

/// A site whose first node was killed in an ADD of `c1`: the pool has its entry, and the address has
/// no reservation.
fn half_added() -> Site {
    let site = Site::new(ALONE);
    site.prepare(Before::Pools);
    let command = site.command(On::First, "ADD", "c1");
    let network = site.network(On::First);
    let killed =
        site.kill_command_when(|ask| ask.method == "POST", Moment::Early, command, &network);
    assert_eq!(killed.exit, None);
    assert_entered(&site);
    site
}

#[track_caller]
fn assert_entered(site: &Site) {
    assert_eq!(site.desk.held(), ["10.1.0.0-24 2 c1"]);
}

/// A DEL of the chain's own: it releases what was taken between two times.
fn del_between(site: &Site, after: u64, before: u64) {
    let mut network = site.network(On::First);
    network["prevResult"] =
        json!({"cniVersion": "1.0.0", "ips": [], "fence": {"after": after, "before": before}});
    wait(start(site.command(On::First, "DEL", "c1"), &network)).ended_well();
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

#[test]
fn an_add_that_is_killed_before_its_reservation_is_released_by_a_del_of_its_time_alone() {
    let begin = now();
    let site = half_added();
    del_between(&site, begin - LONG, begin - LONG / 2);
    assert_entered(&site);
    del_between(&site, begin, now());
    site.assert_empty();
}

#[test]
fn an_add_that_is_killed_before_its_reservation_is_released_by_gc() {
    let site = half_added();
    let gc = || wait(start(site.command(On::First, "GC", ""), &network(&site))).ended_well();
    // As the ADD may still go on.
    gc();
    assert_entered(&site);
    age(&site);
    gc();
    site.assert_empty();
}

/// The node of a container, as its reservation names it.
fn node_of(site: &Site, container: &str) -> String {
    let reservations = site.desk.objects().reservations();
    let mut annotations = reservations.values().map(|object| &object["metadata"]["annotations"]);
    let its = annotations.find(|its| its["ipam-delegated/container"] == container).unwrap();
    its["ipam-delegated/node"].as_str().unwrap().to_owned()
}

/// Kills a command of the first node at each of its requests in turn, and runs it again. It releases
/// what this container holds, and nothing else. `command` gets the container's node.
fn assert_completes(released: &str, requests: usize, command: impl Fn(&Site, &str) -> Command) {
    for moment in [Moment::Early, Moment::Late] {
        let ended = (0..3 * requests).find(|number| {
            let _told = Told(format!("killed at request {number} ({moment:?})"));
            let site = Site::new(ALONE);
            let held = [("c1", On::First), ("c2", On::Second)]
                .map(|(container, on)| (container, site.call(on, "ADD", container).ips()));
            age(&site);
            let (node, network) = (node_of(&site, released), network(&site));
            let killed = site.kill_command_at(*number, moment, command(&site, &node), &network);
            wait(start(command(&site, &node), &network)).ended_well();
            for (container, addresses) in held {
                let left = if container == released { Vec::new() } else { addresses };
                site.assert_holds(container, &left);
            }
            killed.exit.is_some()
        });
        assert!(ended.is_some_and(|ended| ended >= requests), "{ended:?}");
    }
}

#[test]
fn a_gc() {
    assert_completes("c1", 3, |site, _| site.command(On::First, "GC", ""));
}

#[test]
fn a_release_of_another_node() {
    assert_completes("c2", 4, |_, node| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-da-kube"));
        command.args(["release", "--config", "-", "--yes", "--node", node]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
}
