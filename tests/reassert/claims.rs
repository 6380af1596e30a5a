//! Which leases are claimed again, and with what.

use std::fs;

use ipam_testkit::world::{start, wait, with};
use serde_json::{Value, json};

use super::{NAME, Reasserting, fate, fates, network, world};

#[test]
fn what_is_held_is_claimed_again_and_then_the_store_is_accepted() {
    let world = world();
    let mut command = world.command("ADD", "c1");
    command.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;IP=10.0.0.9");
    wait(start(command, &network(&world))).success();
    world.take_calls();
    let record = fs::read(world.record("c1")).unwrap();

    let dry = world.reassert(&[]);
    assert!(dry.stderr.contains("nothing was claimed or accepted; add --yes"), "{dry:?}");
    assert!(dry.stderr.contains("run reassert --claim-only --yes on every node"), "{dry:?}");
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
    assert_eq!(
        fs::read_to_string(seen).unwrap(),
        "eth0 /run/netns/none <IgnoreUnknown=1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop>\n"
    );
    assert_eq!(world.accepted(), ["net a"]);
    assert_eq!(fs::read(world.record("c1")).unwrap(), record, "an answer is not recorded");
}

#[test]
fn leases_of_a_claim_are_recorded_and_reap_releases_them() {
    let world = world();
    world.add(&["c1"]);
    let before = world.lines("c1");
    let answer = r#"{"ips":[{"address":"10.0.0.2/24"}],"pools":[],"leases":["anew"]}"#;
    world.delegate("ipam-da-x.cni", &format!("printf '{answer}'"));
    world.reassert(&["--claim-only", "--yes"]).success();

    let lines = world.lines("c1");
    let [attempt, .., held] = &lines[before.len()..] else { panic!("{lines:?}") };
    assert_eq!(attempt, &before[0], "the ADD keeps its age");
    let claimed = held["time"].as_u64();

    world.edit_record("c1", |line| {
        if line["event"] == "attempt" {
            line["time"] = json!(1);
        }
    });
    world.take_calls();
    world.typed(&["reap", "--yes", "--no-cache", "--json"]).success();
    let calls = world.calls();
    let del = calls.iter().find(|call| call["stdin"]["prevResult"]["fence"].is_object()).unwrap();
    let taken = &del["stdin"]["prevResult"];
    assert_eq!(taken["leases"], json!(["anew"]));
    assert_eq!(taken["fence"]["before"].as_u64(), claimed, "the claim took them after the ADD");
    assert!(!world.record("c1").exists());
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
        assert!(why.starts_with("the record has 2 pools and 1 addresses:"), "{why}");
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
    fs::write(world.record("c2").with_file_name("c2:net1"), "not json\n").unwrap();
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
    assert!(why.contains("its settings are unknown while a selector fails"), "{why}");
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
    assert!(unknown.stderr.contains("network \"nets\" not found"), "{unknown:?}");
    assert_eq!(world.typed(&["reassert", "a", "b"]).exit, Some(1));
    assert_eq!(world.typed(&["reap", "--claim-only"]).exit, Some(1));
}

#[test]
fn a_static_address_is_not_taken_for_one_that_was_released() {
    let world = world();
    let ips = json!([{"address": "10.0.0.2/24"}, {"address": "192.0.2.9/24"}]);
    world.delegate("ipam-ds-x", "printf '{\"static\":[{\"address\":\"192.0.2.9/24\"}]}'");
    world.delegate("ipam-da-x.cni", &format!("printf '{{\"ips\":{ips}}}'"));
    world.add(&["c1"]);
    let told = world.reassert(&["--yes"]).success();
    assert_eq!(fates(&told), [fate("c1", "claimed"), fate("store", "accepted")]);
    assert_eq!(told[0]["addresses"], json!(["10.0.0.2/24"]));
    let claim = &world.claims()[0]["stdin"];
    assert_eq!(claim["args"]["cni"]["ips"], json!(["10.0.0.2/24"]), "no store holds the other");
}
