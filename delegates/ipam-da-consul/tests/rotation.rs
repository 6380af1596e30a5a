//! A token that is exchanged between ADD and DEL.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::node::named;
use ipam_testkit::outlasting::{Rotation, stripped};
use serde_json::{Value, json};

use common::rights::{ALL, guarded};
use common::store::holdings;

/// A node of a server that asks who calls.
struct Site {
    consul: Consul,
    node: Rotation,
}

impl Site {
    fn new() -> Self {
        Self { consul: guarded(), node: Rotation::new("ipam-da-consul") }
    }

    /// A network with this section `consul`, on these servers.
    fn network(&self, section: &Value, servers: &[&str]) -> Value {
        self.node.network(json!({
            "pools": named(&["blue"]), "consul": section, "consul_servers": servers,
        }))
    }

    fn by_token(&self, token: &str) -> Value {
        self.network(&json!({"token": token}), &[&self.consul.url()])
    }

    #[track_caller]
    fn release(&self, container: &str, network: &Value) {
        self.node.release(container, network, || holdings(&self.consul));
    }

    fn token(&self) -> ipam_testkit::consul::Token {
        self.consul.create_token(ALL)
    }
}

#[test]
fn a_del_calls_with_the_token_of_now_however_its_servers_are_listed() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    let relay = Relay::to(&site.consul.endpoint());
    let further = Relay::to(&site.consul.endpoint());
    let (own, other) = (site.consul.url(), format!("http://{}", relay.endpoint()));
    let third = format!("http://{}", further.endpoint());
    let lists: [&[&str]; 3] = [&[&own, &other], &[&other, &own], &[&third, &other, &own]];
    let names = ["container-a", "container-b", "container-c"];
    let added = site.network(&json!({"token": before.secret}), lists[0]);
    for container in names {
        site.node.call("ADD", container, &added).success();
    }
    site.consul.revoke(&before);
    for (container, list) in names.into_iter().zip(lists) {
        site.release(container, &site.network(&json!({"token": now.secret}), list));
    }
    assert_eq!(holdings(&site.consul), [""; 0]);
}

#[test]
fn a_stripped_del_calls_with_the_recorded_token_and_fails_when_that_has_ended() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    for container in ["container-a", "container-b"] {
        site.node.call("ADD", container, &site.by_token(&before.secret)).success();
    }
    site.release("container-a", &stripped());
    site.consul.revoke(&before);
    let outcome = site.node.call("DEL", "container-b", &stripped());
    assert!(!outcome.stdout.contains(&before.secret) && !outcome.stderr.contains(&before.secret));
    let (code, text) = outcome.failure();
    assert!(code == 103 && text.contains("ACL not found"), "{code} {text}");
    assert!(site.node.world.record("container-b").exists());
    site.release("container-b", &site.by_token(&now.secret));
}

#[test]
fn a_stripped_del_reads_the_token_file_as_it_is_now() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    let file = site.node.world.path("token");
    fs::write(&file, &before.secret).unwrap();
    let network = site.network(&json!({"tokenFile": file}), &[&site.consul.url()]);
    for container in ["container-a", "container-b"] {
        site.node.call("ADD", container, &network).success();
    }
    site.consul.revoke(&before);
    fs::write(&file, &now.secret).unwrap();
    site.release("container-a", &stripped());
    // By a link that leads to another file, as a Secret's volume has it.
    let other = site.node.world.path("other");
    fs::rename(&file, &other).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    site.release("container-b", &network);
}

#[test]
fn a_token_that_becomes_a_file_or_the_reverse_releases() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    let file = site.node.world.path("token");
    fs::write(&file, &before.secret).unwrap();
    let url = site.consul.url();
    let by_file = |file: &Path| site.network(&json!({"tokenFile": file}), &[&url]);
    site.node.call("ADD", "container-a", &by_file(&file)).success();
    site.node.call("ADD", "container-b", &site.by_token(&before.secret)).success();
    site.consul.revoke(&before);
    let moved = site.node.world.path("moved");
    fs::write(&moved, &now.secret).unwrap();
    fs::remove_file(&file).unwrap();
    site.release("container-b", &by_file(&moved));
    site.release("container-a", &site.by_token(&now.secret));
}
