//! The player of passcod's ipam-da-consul does what the program was recorded to do.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use ipam_testkit::consul::Consul;
use ipam_testkit::old::passcod::{Call, NO_ANSWER, Passcod, given};
use ipam_testkit::vectors::{Fixture, Step, Vector};
use serde_json::{Value, json};

const POOL: &str = r#"[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.1"}]"#;

/// A server with the pool `p` and the folders that the program needs.
fn site() -> Consul {
    let consul = Consul::start();
    for (key, value) in [("ipam/", ""), ("ipam/p", POOL), ("ipam/p/", "")] {
        consul.put(key, value);
    }
    consul
}

fn passcod(consul: &Consul) -> Passcod {
    Passcod::new(&[consul.endpoint()], "p")
}

/// The rest of a call's requests, without the indexes of keys.
fn requests(call: &mut Call) -> Vec<String> {
    call.map(|line| without_indexes(&line)).collect()
}

fn without_indexes(line: &str) -> String {
    let mut pieces = line.split(r#""Index":"#);
    let mut plain = pieces.next().unwrap().to_owned();
    pieces.for_each(|piece| plain.push_str(piece.split_once(',').unwrap().1));
    plain
}

/// A step as it was recorded, and what the player does.
fn play(step: &Step, vector: &Vector, consul: &Consul) -> [Value; 2] {
    let config = &vector.config;
    let servers: Vec<String> =
        serde_json::from_value(config["ipam"]["consul_servers"].clone()).unwrap();
    let plain = |url: &String| url.replace("${CONSUL}", &consul.url()).replace("http://", "");
    let servers: Vec<String> = servers.iter().map(plain).collect();
    let pools = config.pointer("/prevResult/pools").cloned().unwrap_or(json!([]));
    let player = Passcod::with_pools(&servers, &pools);
    let mut call = match step.command.as_str() {
        "ADD" => player.add(&step.container_id),
        "DEL" => player.del(&step.container_id),
        other => panic!("{other}"),
    };
    let sent = requests(&mut call).into_iter().filter(|line| !line.ends_with(NO_ANSWER));
    let sent: Vec<_> = sent.collect();
    let outcome = match call.run() {
        Ok(mut result) => {
            result["cniVersion"] = config["cniVersion"].clone();
            result
        }
        Err(error) => {
            let text = |key: &str| error[key].as_str().unwrap();
            json!([error["code"], format!("{}: {}", text("msg"), text("details"))])
        }
    };
    let recorded = match &step.error {
        Some(error) => json!([error.code, error.msg]),
        None => step.stdout.clone(),
    };
    [json!({"sent": step.requests, "outcome": recorded}), json!({"sent": sent, "outcome": outcome})]
}

#[test]
fn it_sends_answers_and_leaves_what_was_recorded() {
    let fixture = Fixture::parse(include_str!("vectors/passcod-consul.json"));
    let consul = Consul::start();
    for vector in &fixture.vectors {
        consul.delete_all("");
        consul.put_all(vector.before.clone());
        for step in &vector.steps {
            let [recorded, played] = play(step, vector, &consul);
            assert_eq!(played, recorded, "{} ({})", vector.id, vector.about);
        }
        let after: BTreeMap<String, String> =
            consul.list("").into_iter().map(|entry| (entry.key, entry.value)).collect();
        assert_eq!(after, vector.after, "{} ({})", vector.id, vector.about);
    }
    assert_eq!(fixture.vectors.len(), 15);
}

#[test]
fn a_call_that_is_dropped_sends_no_more_and_one_that_goes_on_ends_as_ever() {
    let consul = site();
    let old = passcod(&consul);
    let verbs: [fn(&Passcod) -> Call; 2] = [|old| old.add("c1"), |old| old.del("c1")];
    for verb in verbs {
        let whole = requests(&mut verb(&old)).len();
        assert!(whole >= 3);
        for steps in 0..=whole {
            let mut call = verb(&old);
            assert_eq!(call.by_ref().take(steps).count(), steps);
            let before = consul.list("");
            drop(call);
            thread::sleep(Duration::from_millis(20));
            assert_eq!(consul.list(""), before, "after {steps} of {whole}");

            let mut call = verb(&old);
            assert_eq!(call.by_ref().take(steps).count(), steps);
            assert!(call.run().is_ok());
        }
    }
}

#[test]
fn of_twenty_at_once_those_that_lose_a_race_fail_and_the_others_get_addresses_of_their_own() {
    let consul = site();
    let old = passcod(&consul);
    let calls: Vec<_> = (0..20)
        .map(|number| {
            let mut call = old.add(&format!("c{number}"));
            // All have seen the same free address.
            assert_eq!(call.by_ref().take(3).count(), 3);
            call
        })
        .collect();
    let (winners, failed): (Vec<_>, Vec<_>) =
        calls.into_iter().map(Call::run).partition(Result::is_ok);
    assert_eq!((winners.len(), failed.len()), (1, 19));
    assert!(failed.iter().all(|error| error.as_ref().unwrap_err()["code"] == 125));

    let old = old.delay(Duration::from_millis(1));
    let call = |number| old.add(&format!("d{number}"));
    let given: BTreeSet<_> = thread::scope(|scope| {
        let threads = (0..20).map(|number| scope.spawn(move || call(number).run()));
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.flatten().map(|result| given(&result)).collect()
    });
    let held = consul.keys("ipam/p/").len() - 1;
    assert_eq!(held, given.len() + 1);
}

#[test]
fn a_del_that_loses_a_race_fails_and_removes_nothing() {
    let consul = site();
    let old = passcod(&consul);
    for _ in 0..2 {
        old.add("c1").run().unwrap();
    }
    let mut del = old.del("c1");
    assert_eq!(del.by_ref().take(2).count(), 2);
    consul.put("ipam/p/10.1.0.2", r#"{"target":"c2"}"#);
    assert_eq!(del.run().unwrap_err()["code"], 125);
    assert_eq!(consul.keys("ipam/p/").len(), 3);
    old.del("c1").run().unwrap();
    assert_eq!(consul.keys("ipam/p/"), ["ipam/p/", "ipam/p/10.1.0.2"]);
}

#[test]
fn without_a_server_or_without_the_folder_it_fails() {
    let consul = Consul::start();
    let code = |old: Passcod| old.add("c1").run().unwrap_err()["code"].clone();
    assert_eq!(code(passcod(&consul)), 100);
    assert_eq!(code(Passcod::new(&[], "p")), 107);
    consul.kill();
    assert_eq!(code(passcod(&consul)), 111);
}
