//! The configuration names the server otherwise than at the ADD.

use std::path::Path;

use ipam_testkit::openwisp::Relay;
use ipam_testkit::servers::silent::Silent;
use serde_json::{Value, json};

use crate::site::Site;

/// The network with another URL of its server.
fn at(network: &Value, url: &str) -> Value {
    let mut network = network.clone();
    network["ipam"]["openwisp"]["urls"] = json!([url]);
    network
}

#[test]
fn a_release_by_another_url_of_the_server_is_known_under_the_first_one() {
    let site = Site::new();
    let relay = Relay::to(&site.server.endpoint());
    let (world, first) = site.chain();
    let second = at(&first, &format!("http://{}", relay.endpoint()));
    // Later ADDs under the second URL leave the record of the first.
    for later_adds in [&[][..], &["c1"], &["other"], &["c1", "other"]] {
        world.call("ADD", "c1", &first).success();
        for container in later_adds {
            world.call("ADD", container, &second).success();
        }
        let requests = relay.during(|| drop(world.call("DEL", "c1", &second).success()));
        if !later_adds.contains(&"c1") {
            assert!(requests.iter().any(|line| line.starts_with("DELETE ")), "{requests:?}");
        }
        assert_eq!(owner_files(&world.path("state/openwisp"), "c1"), 0, "{later_adds:?}");
        world.call("DEL", "other", &second).success();
        site.assert_empty();
        // Under neither URL is a latest record missing.
        for network in [&first, &second] {
            world.call("ADD", "after", network).success();
            world.call("DEL", "after", network).success();
        }
    }
}

/// How many files of an owner a folder has.
fn owner_files(folder: &Path, container: &str) -> usize {
    let count = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => owner_files(&entry.path(), container),
        false => usize::from(entry.file_name() == *format!("{container}:eth0")),
    };
    folder.read_dir().unwrap().map(|entry| count(entry.unwrap())).sum()
}

#[test]
fn a_release_ends_in_time_if_the_present_server_is_silent() {
    let site = Site::new();
    let (world, mut network) = site.chain();
    network["ipam"]["timeout"] = json!("12s");
    world.call("ADD", "c1", &network).success();
    let silent = Silent::listen();
    let moved = at(&network, &format!("http://{}", silent.endpoint()));
    world.call("DEL", "c1", &moved).success();
    assert!(silent.connections() > 0);
    site.assert_empty();
}
