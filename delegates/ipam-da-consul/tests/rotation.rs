//! A token that is exchanged between ADD and DEL.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;

use ipam_testkit::consul::{Consul, Relay};
use ipam_testkit::node::named;
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use common::PROGRAM;
use common::rights::{ALL, guarded};
use common::store::holdings;

/// A node on a host whose settings say where its state is, and a server that asks who calls.
struct Site {
    consul: Consul,
    world: World,
    host: Host,
}

impl Site {
    fn new() -> Self {
        let (consul, world, host) = (guarded(), World::new(), Host::new());
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        host.settings(&json!({"stateDir": world.path("state")}));
        Self { consul, world, host }
    }

    /// A network with this section `consul`, on these servers.
    fn network(&self, section: &Value, servers: &[&str]) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "net", "type": "bridge",
            "ipam": {
                "type": "ipam-delegated", "delegates": ["ipam-ds-static", "ipam-da-consul"],
                "pools": named(&["blue"]), "consul": section, "consul_servers": servers,
            },
        })
    }

    fn by_token(&self, token: &str) -> Value {
        self.network(&json!({"token": token}), &[&self.consul.url()])
    }

    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        wait(start(self.host.command(&self.world, verb, container), network))
    }

    #[track_caller]
    fn release(&self, container: &str, network: &Value) {
        self.call("DEL", container, network).success();
        assert!(!self.world.record(container).exists());
        let left: Vec<String> = holdings(&self.consul);
        assert!(left.iter().all(|key| !key.contains(container)), "{left:?}");
    }

    fn token(&self) -> ipam_testkit::consul::Token {
        self.consul.create_token(ALL)
    }
}

/// What a runtime sends that keeps no more than the type.
fn stripped() -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": "ipam-delegated"}})
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
        site.call("ADD", container, &added).success();
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
        site.call("ADD", container, &site.by_token(&before.secret)).success();
    }
    site.release("container-a", &stripped());
    site.consul.revoke(&before);
    let outcome = site.call("DEL", "container-b", &stripped());
    assert!(!outcome.stdout.contains(&before.secret) && !outcome.stderr.contains(&before.secret));
    let (code, text) = outcome.failure();
    assert!(code == 103 && text.contains("ACL not found"), "{code} {text}");
    assert!(site.world.record("container-b").exists());
    site.release("container-b", &site.by_token(&now.secret));
}

#[test]
fn a_stripped_del_reads_the_token_file_as_it_is_now() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    let file = site.world.path("token");
    fs::write(&file, &before.secret).unwrap();
    let network = site.network(&json!({"tokenFile": file}), &[&site.consul.url()]);
    for container in ["container-a", "container-b"] {
        site.call("ADD", container, &network).success();
    }
    site.consul.revoke(&before);
    fs::write(&file, &now.secret).unwrap();
    site.release("container-a", &stripped());
    // By a link that leads to another file, as a Secret's volume has it.
    let other = site.world.path("other");
    fs::rename(&file, &other).unwrap();
    std::os::unix::fs::symlink(&other, &file).unwrap();
    site.release("container-b", &network);
}

#[test]
fn a_token_that_becomes_a_file_or_the_reverse_releases() {
    let site = Site::new();
    let (before, now) = (site.token(), site.token());
    let file = site.world.path("token");
    fs::write(&file, &before.secret).unwrap();
    let url = site.consul.url();
    let by_file = |file: &Path| site.network(&json!({"tokenFile": file}), &[&url]);
    site.call("ADD", "container-a", &by_file(&file)).success();
    site.call("ADD", "container-b", &site.by_token(&before.secret)).success();
    site.consul.revoke(&before);
    let moved = site.world.path("moved");
    fs::write(&moved, &now.secret).unwrap();
    fs::remove_file(&file).unwrap();
    site.release("container-b", &by_file(&moved));
    site.release("container-a", &site.by_token(&now.secret));
}
