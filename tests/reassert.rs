//! `reassert`: what it claims again in a store that was restored, and which stores it accepts.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;

use ipam_testkit::world::{Outcome, World, with};
use serde_json::{Value, json};

const NAME: &str = "ipam-da-x";

/// A selector, and an allocator whose store the cluster shares, on the network `net`.
fn world() -> World {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue", "takeover": true, "colour": 1}]));
    world.shared(NAME, "10.0.0.2/24");
    world.conflist("10-net.conflist", &network(&world));
    world
}

fn network(world: &World) -> Value {
    with(&world.network(json!(["ipam-ds-x", NAME])), "store", "a")
}

trait Reasserting {
    fn shared(&self, name: &str, address: &str) -> &Self;
    fn add(&self, containers: &[&str]);
    fn reassert(&self, words: &[&str]) -> Outcome;
    fn ended_well(&self, words: &[&str]);
    /// The calls of ADD.
    fn claims(&self) -> Vec<Value>;
    /// The stores that were accepted: network and `ipam.store` of each.
    fn accepted(&self) -> Vec<String>;
}

impl Reasserting for World {
    fn shared(&self, name: &str, address: &str) -> &Self {
        self.answering(name, address)
            .answer(name, "about", &json!({"name": name, "reach": "cluster"}))
            .answer(name, "accept", &json!({"accepted": true}))
    }

    fn add(&self, containers: &[&str]) {
        for container in containers {
            self.call("ADD", container, &network(self)).success();
        }
        self.take_calls();
    }

    fn reassert(&self, words: &[&str]) -> Outcome {
        self.typed(&[&["reassert", "--json"], words].concat())
    }

    fn ended_well(&self, words: &[&str]) {
        let outcome = self.typed(words);
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    }

    fn claims(&self) -> Vec<Value> {
        self.calls().into_iter().filter(|call| call["verb"] == "ADD").collect()
    }

    fn accepted(&self) -> Vec<String> {
        let asked =
            self.asked().into_iter().filter(|call| call["asked"] == "accept --json --config -");
        asked
            .map(|call| {
                let (network, store) = (&call["stdin"]["name"], &call["stdin"]["ipam"]["store"]);
                format!("{} {}", network.as_str().unwrap(), store.as_str().unwrap())
            })
            .collect()
    }
}

/// Container and outcome of each row; an accepted store has no container.
fn fates(told: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("store").to_owned();
    let rows = told.as_array().unwrap().iter();
    rows.map(|row| (text(row, "containerID"), text(row, "outcome"))).collect()
}

fn without_members(line: &Value, members: &[&str]) -> Value {
    let mut line = line.clone();
    members.iter().for_each(|member| drop(line.as_object_mut().unwrap().remove(*member)));
    line
}

fn fate(container: &str, outcome: &str) -> (String, String) {
    (container.to_owned(), outcome.to_owned())
}

#[test]
fn what_is_held_is_claimed_again_and_then_the_store_is_accepted() {
    let world = world();
    world.add(&["c1"]);
    let record = fs::read(world.record("c1")).unwrap();

    let dry = world.reassert(&[]);
    assert!(dry.stderr.contains("nothing was claimed or accepted; add --yes"), "{dry:?}");
    let told = dry.success();
    assert_eq!(fates(&told), [fate("c1", "would claim"), fate("store", "would accept")]);
    assert_eq!(
        (world.take_calls(), world.accepted()),
        (vec!["ipam-ds-x STATUS".to_owned()], vec![])
    );

    // Whatever has become of the source of the pools.
    world.delegate("ipam-ds-x", "printf '{\"code\":100,\"msg\":\"gone\"}'; exit 1");
    let seen = world.path("seen");
    world.delegate(
        "ipam-da-x.cni",
        &format!(
            "echo \"$CNI_IFNAME $CNI_NETNS <$CNI_ARGS>\" >'{}'\n\
             printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}],\"pools\":[]}}'",
            seen.display()
        ),
    );
    let told = world.reassert(&["net", "--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "claimed"), fate("store", "accepted")]);
    assert_eq!(
        (&told[0]["addresses"], &told[0]["allocator"], &told[0]["state"]),
        (&json!(["10.0.0.2/24"]), &json!(NAME), &json!("held"))
    );
    let calls = world.calls();
    let claims: Vec<&Value> = calls.iter().filter(|call| call["verb"] == "ADD").collect();
    let [claim] = claims[..] else { panic!("{calls:?}") };
    assert_eq!(claim["container"], "c1");
    assert_eq!(
        claim["stdin"]["prevResult"],
        json!({
            "cniVersion": "1.0.0",
            "ips": [],
            "pools": [{"name": "blue", "colour": 1, "requested-ip": "10.0.0.2", "requested_ip": "10.0.0.2"}],
            "leases": ["ipam-da-x.cni"],
            "reassert": true,
        }),
        "without takeover: whoever holds the address by now keeps it"
    );
    let recorded = world.lines("c1").into_iter().find(|line| line["event"] == "running").unwrap();
    assert_eq!(claim["stdin"]["ipam"], recorded["ipam"]);
    assert_eq!(fs::read_to_string(seen).unwrap(), "eth0 /run/netns/none <>\n");
    assert_eq!(world.accepted(), ["net a"]);
    assert_eq!(fs::read(world.record("c1")).unwrap(), record, "an answer is not recorded");
}

#[test]
fn what_cannot_be_claimed_is_told_and_stops_nothing() {
    let world = world();
    world.add(&["c1", "c2", "c3"]);
    world.delegate(
        "ipam-da-x.cni",
        "case $CNI_CONTAINERID in\n\
         c1) printf '{\"code\":102,\"msg\":\"10.0.0.2 is held by c9\"}'; exit 1;;\n\
         c2) printf '{\"ips\":[{\"address\":\"10.0.0.7/24\"}],\"pools\":[]}';;\n\
         *) printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}],\"pools\":[]}';;\nesac",
    );
    let outcome = world.reassert(&["--yes"]);
    assert_eq!(outcome.exit, Some(1));
    let told = outcome.json();
    assert_eq!(
        fates(&told),
        [
            fate("c1", "failed"),
            fate("c2", "failed"),
            fate("c3", "claimed"),
            fate("store", "accepted")
        ]
    );
    assert_eq!(told[0]["why"], "ipam-da-x: 10.0.0.2 is held by c9");
    assert_eq!(told[1]["why"], "ipam-da-x: it gave 10.0.0.7/24 instead of 10.0.0.2/24");
    assert_eq!(world.accepted(), ["net a"]);
}

#[test]
fn which_address_is_of_which_pool_is_not_guessed() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
    let any = json!(["ipam-ds-x", {"type": NAME, "answers": "any"}]);
    world.call("ADD", "c1", &with(&network(&world), "delegates", any)).success();
    world.take_calls();
    for words in [&[][..], &["--yes"]] {
        let outcome = world.reassert(words);
        assert_eq!(outcome.exit, Some(1));
        let told = outcome.json();
        assert_eq!(fates(&told)[0], fate("c1", "failed"));
        let why = told[0]["why"].as_str().unwrap();
        assert!(why.starts_with("pools it was shown: 2, addresses it gave: 1;"), "{why}");
    }
    assert!(!world.take_calls().contains(&"ipam-da-x.cni ADD".to_owned()));
}

/// A row of an address that `release` took back from `c1`.
fn released(address: &str) -> Value {
    json!({"address": address, "containerID": "c1", "ifname": "eth0"})
}

#[test]
fn what_release_took_back_is_not_claimed_again() {
    let world = world();
    world.add(&["c1", "c2"]);
    world.answer(NAME, "release", &json!([released("10.0.0.2")]));
    world.ended_well(&["release", "net", "--owner", "c1"]);
    assert_eq!(world.events("c1").len(), 3, "a dry run notes nothing");
    world.ended_well(&["release", "net", "--owner", "c1", "--yes"]);
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(fates(&told), [fate("c2", "claimed"), fate("store", "accepted")]);
    let claims = world.claims();
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0]["container"], "c2");
    // The delegate is still owed its DEL, once.
    world.take_calls();
    world.call("DEL", "c1", &network(&world)).success();
    assert_eq!(world.take_calls(), ["ipam-da-x.cni DEL"]);
    assert!(!world.record("c1").exists());
}

#[test]
fn of_two_addresses_the_one_that_was_not_released_is_claimed_again_for_its_pool() {
    for has_pools in [true, false] {
        let world = world();
        let ips = json!([{"address": "10.0.0.2/24"}, {"address": "10.0.1.2/24"}]);
        world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
        world.delegate(
            "ipam-da-x.cni",
            &format!("printf '%s' '{}'", json!({"ips": ips, "pools": []})),
        );
        world.add(&["c1"]);
        if !has_pools {
            world.edit_record("c1", |line| drop(line.as_object_mut().unwrap().remove("pools")));
        }
        world.answer(NAME, "release", &json!([released("10.0.0.2")]));
        world.ended_well(&["release", "net", "10.0.0.2", "--yes"]);
        let outcome = world.reassert(&["--yes"]);
        let told = outcome.json();
        assert_eq!(told[0]["addresses"], json!(["10.0.1.2/24"]));
        if has_pools {
            assert_eq!(fates(&told)[0], fate("c1", "claimed"));
            let pools = &world.claims()[0]["stdin"]["prevResult"]["pools"];
            assert_eq!(
                (pools[0]["name"].as_str(), pools.as_array().unwrap().len()),
                (Some("red"), 1)
            );
        } else {
            // An allocator would take another address for the pool that is left out.
            assert_eq!(fates(&told)[0], fate("c1", "failed"));
            assert_eq!(world.claims(), [] as [Value; 0]);
        }
    }
}

#[test]
fn a_record_that_a_call_works_on_is_kept() {
    let world = world();
    world.add(&["c1", "c2"]);
    let lock = fs::File::open(world.record("c1")).unwrap();
    lock.lock().unwrap();
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(
        fates(&told),
        [fate("c1", "kept"), fate("c2", "claimed"), fate("store", "accepted")]
    );
    assert_eq!(
        (&told[0]["state"], &told[0]["why"]),
        (&json!("busy"), &json!("a call works on it"))
    );
}

#[test]
fn what_is_not_held_is_not_claimed_but_its_store_is_accepted() {
    let world = world();
    world.add(&["c1"]);
    world.full("ipam-da-x.cni");
    world.call("ADD", "c2", &with(&network(&world), "store", "b")).failure();
    world.call("DEL", "c1", &network(&world)).success();
    fs::write(world.record("c2").with_file_name("net1"), "not json\n").unwrap();
    fs::remove_dir_all(world.path("net.d")).unwrap();
    // The refused ADD owes nothing, so that nothing tells of its store.
    let outcome = world.reassert(&["--yes"]);
    assert_eq!((outcome.exit, fates(&outcome.json())), (Some(1), vec![fate("c2", "failed")]));
    assert_eq!(outcome.json()[0]["state"], "unreadable");

    world.delegate("ipam-da-x.cni", "case $CNI_COMMAND in ADD) kill -9 $$;; esac");
    world.call("ADD", "c3", &with(&network(&world), "store", "c")).failure();
    let outcome = world.reassert(&["--yes"]);
    assert_eq!(fates(&outcome.json()), [fate("c2", "failed"), fate("store", "accepted")]);
    assert_eq!(world.accepted(), ["net c"], "what was killed is owed a DEL there");
}

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
    assert_eq!(told[0]["why"], "its store is this node's");
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
    assert!(why.contains("does not say whose its store is"), "{why}");
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
    assert_eq!(told[0]["why"], "its store has no identity");
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
    assert_eq!(outcome.json()[0]["why"], "ipam-da-x: its answer is no object");
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
    assert_eq!(fates(&outcome.json()), [fate("c1", "failed"), fate("store", "accepted")]);
    assert_eq!(world.accepted(), ["net b"]);
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
fn addresses_are_claimed_with_the_ranges_that_are_configured_now() {
    let world = world();
    let ranges = |first: &str| with(&network(&world), "ranges", json!([[{"subnet": first}]]));
    world.call("ADD", "c1", &ranges("10.0.0.0/24")).success();
    world.conflist("10-net.conflist", &ranges("10.9.0.0/24"));
    world.take_calls();
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "claimed"), fate("store", "accepted")]);
    let claim = world.claims().swap_remove(0);
    assert_eq!(claim["stdin"]["ipam"]["ranges"], json!([[{"subnet": "10.9.0.0/24"}]]));
    assert_eq!(claim["stdin"]["prevResult"]["pools"][0]["requested-ip"], "10.0.0.2");
    assert_eq!(world.events("c1"), ["attempt", "running", "held", "attempt", "running", "held"]);
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
fn settings_that_a_failing_selector_may_change_are_not_guessed() {
    let world = world();
    let answer = json!({"pools": [{"name": "blue"}], "ipam": {"gateway": "p"}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.add(&["c1"]);
    world.delegate("ipam-ds-x", "printf '{\"code\":100,\"msg\":\"gone\"}'; exit 1");
    let outcome = world.reassert(&["--yes"]);
    assert_eq!(outcome.exit, Some(1));
    let told = outcome.json();
    assert_eq!(fates(&told), [fate("c1", "failed")]);
    let why = told[0]["why"].as_str().unwrap();
    assert!(why.contains("not known while a selector fails"), "{why}");
    assert_eq!((world.claims(), world.accepted()), (vec![], vec![]));
}

#[test]
fn secrets_come_from_the_network_as_it_is_configured_now() {
    let world = world();
    world.call("ADD", "c1", &with(&network(&world), "dbPassword", "old")).success();
    world.conflist("10-net.conflist", &with(&network(&world), "dbPassword", "new"));
    world.take_calls();
    let record = fs::read(world.record("c1")).unwrap();
    world.reassert(&["--yes"]).success();
    assert_eq!(world.claims()[0]["stdin"]["ipam"]["dbPassword"], "new");
    assert_eq!(fs::read(world.record("c1")).unwrap(), record, "it is the recorded store");
    assert_eq!(world.accepted(), ["net a"], "one store, whatever its password was");
    let accept = world.asked().into_iter().find(|call| call["asked"] != "about --json").unwrap();
    assert_eq!(accept["stdin"]["ipam"]["dbPassword"], "new");
}

#[test]
fn a_runtime_cannot_say_that_it_reasserts() {
    let world = world();
    world.add(&["c1"]);
    let mut network = network(&world);
    network["prevResult"] = json!({"ips": [{"address": "10.0.0.2/24"}], "reassert": true});
    for verb in ["ADD", "CHECK", "DEL", "DEL"] {
        world.call(verb, "c1", &network).success();
    }
    for call in world.calls() {
        assert!(call["stdin"]["prevResult"].get("reassert").is_none(), "{call}");
    }
    // An allocator that hands on all that it got.
    world.delegate(
        "ipam-da-x.cni",
        "printf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}],\"pools\":[],\"reassert\":true}'",
    );
    network["prevResult"] = Value::Null;
    let result = world.call("ADD", "c1", &network).success();
    assert_eq!(result, json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}));
}

#[test]
fn the_table_has_a_line_for_each_and_typing_errors_are_refused() {
    let world = world();
    world.add(&["c1"]);
    assert_eq!(
        world.typed(&["reassert", "--yes"]).stdout,
        "NETWORK  CONTAINER  IFNAME  ADDRESSES    ALLOCATOR  STATE  OUTCOME   WHY\n\
         net      c1         eth0    10.0.0.2/24  ipam-da-x  held   claimed   -\n\
         net      -          -       -            ipam-da-x  -      accepted  -\n"
    );
    let unknown = world.typed(&["reassert", "nets"]);
    assert_eq!(unknown.exit, Some(1));
    assert!(unknown.stderr.contains("no network \"nets\""), "{unknown:?}");
    assert_eq!(world.typed(&["reassert", "a", "b"]).exit, Some(1));
    assert_eq!(world.typed(&["reap", "--claim-only"]).exit, Some(1));
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
