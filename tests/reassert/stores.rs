//! Which stores are accepted, and what is claimed where the store is another by now.

use std::fs;

use ipam_testkit::world::with;
use serde_json::{Value, json};

use super::{NAME, Reasserting, fate, fates, network, world};

#[test]
fn stores_of_this_node_and_standard_plugins_are_left_alone() {
    let world = world();
    world.answer(NAME, "about", &json!({"reach": "node"}));
    world.add(&["c1"]);
    let standard = world.network(json!(["ipam-ds-x", "host-local"]));
    world.allocator("host-local", "10.0.0.3/24");
    world.call("ADD", "c2", &standard).success();
    world.take_calls();
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "kept"), fate("c2", "kept")]);
    assert_eq!(told[0]["why"], "its store belongs to this node alone");
    assert_eq!(told[1]["why"], "it is a standard plugin");
    assert_eq!(world.take_calls(), ["ipam-ds-x STATUS"]);
    assert_eq!(world.accepted(), [""; 0]);
}

#[test]
fn an_allocator_that_does_not_say_whose_its_store_is_fails() {
    let world = world();
    world.add(&["c1"]);
    fs::remove_file(world.path("ipam-da-x.about")).unwrap();
    let outcome = world.reassert(&["--yes"]);
    assert_eq!(outcome.exit, Some(1));
    let told = outcome.json();
    assert_eq!(fates(&told), [fate("c1", "failed"), fate("store", "failed")]);
    let why = told[0]["why"].as_str().unwrap();
    assert!(why.contains("its answer to about --json has no reach"), "{why}");
    assert_eq!(
        (world.take_calls(), world.accepted()),
        (vec!["ipam-ds-x STATUS".to_owned()], vec![])
    );
}

#[test]
fn claims_come_first_on_every_node() {
    let world = world();
    world.add(&["c1"]);
    let outcome = world.reassert(&["--claim-only", "--yes"]);
    assert!(outcome.stderr.contains("no store was accepted: when every node"), "{outcome:?}");
    assert_eq!(fates(&outcome.success()), [fate("c1", "claimed")]);
    assert_eq!(world.take_calls(), ["ipam-ds-x STATUS", "ipam-da-x.cni ADD"]);
    assert_eq!(world.accepted(), [""; 0]);
    assert_eq!(fates(&world.reassert(&["--claim-only"]).success()), [fate("c1", "would claim")]);
}

#[test]
fn each_store_is_accepted_once_be_it_recorded_or_configured() {
    let world = world();
    world.add(&["c1", "c2"]);
    // There are networks that nobody is on.
    let mut other = network(&world);
    other["name"] = json!("other");
    world.conflist("20-other.conflist", &with(&other, "store", "c"));
    let red = json!({"type": NAME, "serves": ["red"], "store": "d"});
    let mut third = with(&other, "delegates", json!(["ipam-ds-x", red]));
    third["name"] = json!("third");
    world.conflist("30-third.conflist", &third);
    world.config("40-foreign.conf", &json!({"name": "foreign", "ipam": {"type": "dhcp"}}));
    world.reassert(&["--yes"]).success();
    assert_eq!(world.accepted(), ["net a", "other c", "third d"]);

    fs::remove_file(world.path("asked")).unwrap();
    world.answer(NAME, "accept", &json!({"accepted": false}));
    let told = world.reassert(&["other", "--yes"]).success();
    assert_eq!(fates(&told), [fate("store", "kept")]);
    assert_eq!(told[0]["why"], "its store has no identity that could change");
    assert_eq!(
        (&told[0]["network"], world.accepted()),
        (&json!("other"), vec!["other c".to_owned()])
    );

    world.answer(NAME, "accept", &json!({"code": 103, "msg": "no leader"}));
    let outcome = world.reassert(&["other", "--yes"]);
    assert_eq!(outcome.exit, Some(1));
    assert_eq!(outcome.json()[0]["why"], "ipam-da-x: no leader");
    world.answer(NAME, "accept", &json!([]));
    let outcome = world.reassert(&["other", "--yes"]);
    assert_eq!(outcome.json()[0]["why"], "ipam-da-x: its answer: expected an object");
}

fn without_members(line: &Value, members: &[&str]) -> Value {
    let mut line = line.clone();
    members.iter().for_each(|member| drop(line.as_object_mut().unwrap().remove(*member)));
    line
}

#[test]
fn what_was_moved_to_another_store_is_claimed_there_and_only_that_one_is_accepted() {
    let world = world();
    world.add(&["c1"]);
    world.edit_record("c1", |line| {
        if line["event"] == "running" {
            line["ipam"]["node"] = json!("recorded");
        }
    });
    let before = world.lines("c1");
    world.conflist("10-net.conflist", &with(&network(&world), "store", "b"));

    let dry = world.reassert(&[]).success();
    assert_eq!(fates(&dry), [fate("c1", "would claim"), fate("store", "would accept")]);
    assert_eq!(world.lines("c1"), before);

    world.take_calls();
    let told = world.reassert(&["--claim-only", "--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "claimed")]);
    let claims = world.claims();
    let [claim] = &claims[..] else { panic!("{claims:?}") };
    let (asked, pools) = (&claim["stdin"]["ipam"], &claim["stdin"]["prevResult"]["pools"]);
    assert_eq!((&asked["store"], &asked["node"]), (&json!("b"), &json!("recorded")));
    assert_eq!(
        (&pools[0]["name"], &pools[0]["requested-ip"]),
        (&json!("blue"), &json!("10.0.0.2"))
    );
    assert_eq!(claim["stdin"]["prevResult"].get("leases"), None, "those are of the old store");

    // Both stores are owed a DEL.
    let lines = world.lines("c1");
    assert_eq!(lines[..before.len()], before);
    let [attempt, running, held] = &lines[before.len()..] else { panic!("{lines:?}") };
    for (new, old, changed) in [
        (attempt, &before[0], &["time", "reasserted"][..]),
        (running, &before[1], &["ipam"]),
        (held, &before[2], &["time"]),
    ] {
        assert_eq!(without_members(new, changed), without_members(old, changed));
    }
    assert_eq!(&running["ipam"], asked);
    assert!(attempt["time"].as_u64() >= before[0]["time"].as_u64());

    // Once recorded, it is claimed again as any other.
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "claimed"), fate("store", "accepted")]);
    assert_eq!(world.accepted(), ["net b"]);
    assert_eq!(world.lines("c1"), lines);

    world.take_calls();
    world.call("DEL", "c1", &network(&world)).success();
    let stores: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["store"].clone()).collect();
    assert_eq!(stores, ["b", "a"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn what_cannot_be_claimed_in_the_present_store_is_not_recorded_there() {
    let world = world();
    world.add(&["c1"]);
    let record = fs::read(world.record("c1")).unwrap();
    world.conflist("10-net.conflist", &with(&network(&world), "store", "b"));
    world.delegate("ipam-da-x.cni", "printf '{\"code\":103,\"msg\":\"no leader\"}'; exit 1");
    let outcome = world.reassert(&["--yes"]);
    assert_eq!(outcome.exit, Some(1));
    // An ADD would give the address to another container.
    assert_eq!(fates(&outcome.json()), [fate("c1", "failed")]);
    assert_eq!(world.accepted(), [""; 0]);
    assert_eq!(fs::read(world.record("c1")).unwrap(), record);
}

#[test]
fn the_one_of_two_allocators_that_was_moved_is_recorded_anew() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
    world.shared("ipam-da-y", "10.0.1.2/24");
    world.delegate(
        "ipam-da-x.cni",
        "printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}],\"pools\":[],\"leases\":[\"%s\"]}' \
         \"$(printf '%s' \"$in\" | sed 's/.*\"store\":\"\\(.\\)\".*/\\1/')\"",
    );
    let chain = |store: &str| {
        let blue = json!({"type": NAME, "serves": ["blue"], "store": store});
        let red = json!({"type": "ipam-da-y", "serves": ["red"], "store": "y"});
        world.network(json!(["ipam-ds-x", blue, red]))
    };
    world.call("ADD", "c1", &chain("a")).success();
    world.conflist("10-net.conflist", &chain("b"));
    world.reassert(&["--yes"]).success();
    let lines = world.lines("c1");
    let stores: Vec<&Value> = lines
        .iter()
        .filter(|line| line["event"] == "running")
        .map(|line| &line["ipam"]["store"])
        .collect();
    // The list of delegates is a part of what the second is given.
    assert_eq!(stores, ["a", "y", "b", "y"]);
    let gave = &lines.last().unwrap()["gave"];
    assert_eq!(
        (&gave[0]["leases"], &gave[1]["leases"]),
        (&json!(["b"]), &json!(["ipam-da-y.cni"]))
    );
    assert_eq!(gave[1]["ips"], json!(["10.0.1.2/24"]));
    assert_eq!(world.accepted(), ["net b", "net y"]);
}

#[test]
fn what_is_not_configured_any_more_is_claimed_and_accepted_as_recorded() {
    let world = world();
    world.add(&["c1"]);
    let record = fs::read(world.record("c1")).unwrap();
    world.shared("ipam-da-y", "10.0.1.2/24");
    // First its allocator is another, then the network is gone.
    let other = with(&world.network(json!(["ipam-ds-x", "ipam-da-y"])), "store", "y");
    world.conflist("10-net.conflist", &other);
    for accepted in [&["net a", "net y"][..], &["net a"]] {
        world.take_calls();
        world.reassert(&["--yes"]).success();
        assert_eq!(world.claims()[0]["stdin"]["ipam"]["store"], "a");
        assert_eq!(world.accepted(), accepted, "the present one last");
        assert_eq!(fs::read(world.record("c1")).unwrap(), record);
        fs::remove_file(world.path("asked")).unwrap();
        fs::remove_dir_all(world.path("net.d")).unwrap();
        fs::create_dir(world.path("net.d")).unwrap();
    }
}

#[test]
fn where_several_stores_may_be_meant_nothing_is_claimed_or_accepted() {
    let world = world();
    world.add(&["c1"]);
    let chain = |entries: &[(&str, &str)]| {
        let entry = |(serves, store): &(&str, &str)| json!({"type": NAME, "serves": [serves], "store": store});
        let delegates = [vec![json!("ipam-ds-x")], entries.iter().map(entry).collect()].concat();
        world.network(delegates.into())
    };
    let mut other = with(&network(&world), "store", "c");
    other["name"] = json!("other");
    world.conflist("20-other.conflist", &other);
    world.conflist("10-net.conflist", &chain(&[("blue", "b"), ("red", "d")]));
    for (words, outcome, accepted) in
        [(&[][..], "would accept", &[][..]), (&["--yes"], "accepted", &["other c"])]
    {
        world.take_calls();
        let told = world.reassert(words);
        assert_eq!(told.exit, Some(1));
        let told = told.json();
        assert_eq!(fates(&told), [fate("c1", "failed"), fate("store", outcome)]);
        let why = told[0]["why"].as_str().unwrap();
        assert!(why.contains("several entries of ipam.delegates may be the recorded one"), "{why}");
        assert_eq!(
            (world.claims(), world.accepted()),
            (vec![], accepted.iter().map(|s| (*s).to_owned()).collect())
        );
    }
    // Only one of the name: it is meant, whatever it serves.
    world.conflist("10-net.conflist", &chain(&[("blue", "b")]));
    world.take_calls();
    world.reassert(&["net", "--yes"]).success();
    assert_eq!(world.claims()[0]["stdin"]["ipam"]["store"], "b");
    // By now the record names what it serves.
    world.conflist("10-net.conflist", &chain(&[("red", "d"), ("blue", "e")]));
    world.take_calls();
    world.reassert(&["net", "--yes"]).success();
    assert_eq!(world.claims()[0]["stdin"]["ipam"]["store"], "e");
}

#[test]
fn a_delegate_that_stands_in_the_chain_twice_is_known_by_its_settings() {
    let world = world();
    let entry = |store: &str| json!({"type": NAME, "store": store});
    let network = world.network(json!(["ipam-ds-x", entry("a"), entry("b")]));
    world.conflist("10-net.conflist", &network);
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(
        fates(&told),
        [fate("c1", "claimed"), fate("store", "accepted"), fate("store", "accepted")]
    );
    assert_eq!(world.claims()[0]["stdin"]["ipam"]["store"], "a");
    assert_eq!(world.accepted(), ["net a", "net b"]);
}

#[test]
fn a_store_that_reassert_has_left_does_not_fail_a_del_and_stays_to_reap() {
    let world = world();
    world.add(&["c1"]);
    world.conflist("10-net.conflist", &with(&network(&world), "store", "b"));
    world.reassert(&["--yes"]).success();
    // From now on the store `a` does not answer.
    let away = r#"case "$in" in *'"store":"a"'*) printf '{"code":11,"msg":"no server answers"}'; exit 1;; esac"#;
    world.delegate(NAME, away);
    world.take_calls();
    let del = world.call("DEL", "c1", &with(&network(&world), "store", "b"));
    assert!(del.stderr.contains("no server answers"), "{del:?}");
    del.success();
    let stores = |calls: Vec<Value>| {
        let dels = calls
            .into_iter()
            .filter(|call| call["verb"] == "DEL" && call["stdin"]["ipam"]["store"].is_string());
        dels.map(|call| call["stdin"]["ipam"]["store"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(stores(world.calls()), ["b", "a"]);
    assert!(world.record("c1").exists());
    // The next ADD of the node is not held up by it.
    world.take_calls();
    world.shared("ipam-da-y", "10.0.1.2/24");
    world.call("ADD", "c2", &world.network(json!(["ipam-da-y"]))).success();
    assert_eq!(stores(world.calls()), [""; 0]);
    // It answers again.
    world.shared(NAME, "10.0.0.2/24");
    world.take_calls();
    world.typed(&["reap", "--yes", "--no-cache", "--json"]).success();
    assert!(stores(world.calls()).contains(&"a".to_owned()), "{:?}", world.calls());
    assert!(!world.record("c1").exists());
}
