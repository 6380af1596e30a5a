//! The delegate at the head of a chain.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipam_testkit::world::{Host, World, binary, names, start, wait, without};
use serde_json::{Value, json};

use common::{ID, Nomad, PROGRAM, Reply, usual};

fn chain(nomad: &Nomad) -> (World, Value) {
    let world = World::new();
    world.install(Path::new(PROGRAM)).allocator("ipam-da-x", "10.0.21.100/23");
    let mut network = world.network(json!(["ipam-ds-nomad", "ipam-da-x"]));
    network["name"] = json!("example");
    network["ipam"]["nomad_servers"] = json!([nomad.url]);
    network["ipam"]["nomad"] = json!({"timeout": "500ms"});
    (world, network)
}

#[test]
fn the_allocator_sees_the_pool_of_the_job() {
    let nomad = Nomad::with(ID, &usual());
    let (world, network) = chain(&nomad);
    let result = world.call("ADD", ID, &network).success();
    assert_eq!(result, json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.21.100/23"}]}));
    let pools = &world.calls()[0]["stdin"]["prevResult"]["pools"];
    let pool =
        json!({"name": "pool-name", "requested-ip": "10.0.21.100", "requested_ip": "10.0.21.100"});
    assert_eq!(pools, &json!([pool]));
    world.call("CHECK", ID, &network).success();
    world.call("DEL", ID, &network).success();
    // CHECK and DEL went by the record.
    assert_eq!(nomad.requests().len(), 1);
}

#[test]
fn the_job_enriches_the_pool_of_its_name_and_stays_behind_the_others() {
    let nomad = Nomad::with(ID, &usual());
    let (world, mut network) = chain(&nomad);
    world.install(&binary("ipam-ds-static"));
    let other = json!({"name": "other"});
    let known =
        json!({"name": "pool-name", "ranges": [{"subnet": "10.0.20.0/23"}], "strategy": "lowest"});
    let mut enriched = known.clone();
    let wish =
        json!({"name": "pool-name", "requested-ip": "10.0.21.100", "requested_ip": "10.0.21.100"});
    enriched.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
    for (named, word, expected) in [
        (json!([known, other]), None, json!([enriched, other])),
        (json!([other]), None, json!([other, wish])),
        (json!([known, other]), Some("replace"), json!([wish])),
    ] {
        let mut own = json!({"type": "ipam-ds-nomad"});
        if let Some(word) = word {
            own["pools"] = json!(word);
        }
        let first = json!({"type": "ipam-ds-static", "pools": named});
        let last = json!({"type": "ipam-da-x", "answers": "any"});
        network["ipam"]["delegates"] = json!([first, own, last]);
        // DEL and CHECK without a record run the selectors, too.
        for verb in ["DEL", "CHECK", "ADD", "DEL"] {
            fs::write(world.path(&format!("held/ipam-da-x-{ID}-eth0")), "").unwrap();
            world.call(verb, ID, &network).ended_well();
            let calls = world.calls();
            let shown = &calls.last().unwrap()["stdin"]["prevResult"]["pools"];
            assert_eq!(shown, &expected, "{verb} {word:?}");
        }
    }
}

#[test]
fn what_nomad_has_forgotten_is_released() {
    let forgotten = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&forgotten);
    let nomad = Nomad::start(move |_, _| match gone.load(Ordering::SeqCst) {
        true => Reply::Say(404, "alloc not found".to_owned()),
        false => Reply::Say(200, usual().to_string()),
    });
    let (world, network) = chain(&nomad);
    world.call("ADD", ID, &network).success();
    forgotten.store(true, Ordering::SeqCst);
    let stripped = without(&network, &["nomad_servers", "nomad", "delegates"]);
    world.call("DEL", ID, &stripped).success();
    assert!(world.held().is_empty());
    // Without a record too: the allocator goes by the owner.
    let outcome = world.call("DEL", ID, &network);
    assert!(
        outcome.stderr.contains("unknown allocation: it belongs to another region"),
        "{}",
        outcome.stderr
    );
    outcome.success();
    assert_eq!(world.take_calls(), ["ipam-da-x ADD", "ipam-da-x DEL", "ipam-da-x DEL"]);
}

#[test]
fn an_add_that_reached_no_server_owes_nothing() {
    let nomad = Nomad::saying(200, "");
    let (world, mut network) = chain(&nomad);
    network["ipam"]["nomad_servers"] = json!(["http://127.0.0.1:1"]);
    let (code, text) = world.call("ADD", ID, &network).failure();
    assert_eq!(code, 105, "{text}");
    assert!(text.starts_with("ipam-ds-nomad: allocation "), "{text}");
    assert!(world.take_calls().is_empty());
}

#[test]
fn a_token_shows_in_no_log_and_no_error() {
    let nomad = Nomad::saying(403, "no permission for token s3cret");
    let (world, mut network) = chain(&nomad);
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    fs::write(world.path("token"), "s3cret\n").unwrap();
    for section in
        [json!({"token": "s3cret"}), json!({"tokenFile": world.path("token")}), Value::Null]
    {
        network["ipam"]["nomad"] = section;
        let mut add = host.command(&world, "ADD", ID);
        add.env("NOMAD_TOKEN", "s3cret");
        let outcome = wait(start(add, &network));
        assert!(outcome.stdout.contains("HTTP 403: no permission for token …"), "{outcome:?}");
        assert!(
            !outcome.stdout.contains("s3cret") && !outcome.stderr.contains("s3cret"),
            "{outcome:?}"
        );
    }
    assert_eq!(nomad.requests(), vec![format!("GET /v1/allocation/{ID} (s3cret)"); 3]);
    let folder = host.path("/var/log/cni");
    assert_eq!(names(&folder), ["ipam-delegated.log", "ipam-ds-nomad.log"]);
    for name in names(&folder) {
        let log = fs::read_to_string(folder.join(name)).unwrap();
        assert!(!log.contains("s3cret"), "{log}");
        // Of what the client is made of, no line.
        assert!(!log.contains("Resolved") && !log.contains("REDACTED"), "{log}");
    }
    let log = fs::read_to_string(folder.join("ipam-ds-nomad.log")).unwrap();
    assert!(log.contains(&format!("{}: GET v1/allocation/{ID}: 403 in ", nomad.url)), "{log}");
}
