//! Several selectors in one chain: whose pools an allocator is shown.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;

use ipam_testkit::world::{World, binary, host_local, names, with};
use serde_json::{Value, json};

const FIRST: &str = "10.210.1.0/24";
const SECOND: &str = "10.210.2.0/24";

/// An object of `ipam-ds-static` with one range set.
fn of(subnet: &str) -> Value {
    json!({"type": "ipam-ds-static", "ranges": [[{"subnet": subnet}]]})
}

/// A world with `ipam-ds-static` and the rack's selector, which is to name the pool `blue`.
fn world() -> World {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
    world.install(&binary("examples/ipam-ds-rack"));
    fs::write(world.path("rack"), "r1").unwrap();
    world
}

fn network(world: &World, delegates: Value) -> Value {
    let network = with(&world.network(delegates), "rackFile", json!(world.path("rack")));
    with(&network, "racks", json!({"r1": {"name": "blue"}}))
}

/// The pools that a delegate was shown last.
fn shown(world: &World, delegate: &str) -> Value {
    let calls = world.calls();
    let call = calls.iter().rfind(|call| call["delegate"] == delegate).unwrap();
    call["stdin"]["prevResult"]["pools"].clone()
}

/// The names of the pools that an allocator in shell is shown after these selectors.
fn named(world: &World, selectors: &[Value]) -> Vec<String> {
    world.allocator("ipam-da-x", "10.210.1.2/24");
    let mut delegates = selectors.to_vec();
    delegates.push(json!({"type": "ipam-da-x", "answers": "any"}));
    world.call("ADD", "c1", &network(world, delegates.into())).success();
    let pools = shown(world, "ipam-da-x");
    pools.as_array().unwrap().iter().map(|pool| pool["name"].as_str().unwrap().into()).collect()
}

#[test]
fn a_selector_keeps_the_pools_that_are_there_and_adds_its_own_behind() {
    let world = world();
    let red = json!({"type": "ipam-ds-static", "pools": [{"name": "red"}]});
    assert_eq!(named(&world, &[red.clone(), json!("ipam-ds-rack")]), ["red", "blue"]);
    assert_eq!(named(&world, &[json!("ipam-ds-rack"), red]), ["blue", "red"]);
}

#[test]
fn two_selectors_give_two_addresses_each_with_a_cursor_of_its_own() {
    let world = world();
    let network = network(&world, json!([of(FIRST), of(SECOND), "ipam-da-local"]));
    for (container, host) in [("c1", 2), ("c2", 3)] {
        let expected = [1, 2].map(|net| format!("10.210.{net}.{host}/24"));
        // The second time it is the same ADD once more.
        for _ in 0..2 {
            assert_eq!(world.call("ADD", container, &network).ips(), expected);
        }
    }
    let files = names(&world.path("data/net"));
    let cursors: Vec<&String> = files.iter().filter(|it| it.starts_with("last")).collect();
    assert_eq!(cursors, ["last_reserved_ip.0", "last_reserved_ip.1"]);
    world.call("CHECK", "c1", &network).ended_well();
    for container in ["c1", "c2"] {
        world.call("DEL", container, &network).ended_well();
    }
    let left = names(&world.path("data/net"));
    assert!(!left.iter().any(|file| file.starts_with("10.")), "{left:?}");
}

#[test]
fn a_version_without_room_for_two_addresses_of_a_family_fails_and_keeps_none() {
    let world = world();
    let mut network = network(&world, json!([of(FIRST), of(SECOND), "ipam-da-local"]));
    network["cniVersion"] = json!("0.2.0");
    let (code, error) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 1, "{error}");
    let left = names(&world.path("data/net"));
    assert!(!left.iter().any(|file| file.starts_with("10.")), "{left:?}");
}

#[test]
fn a_plain_host_local_gets_the_ranges_of_all_selectors() {
    let world = world();
    world.install(&host_local());
    let network = network(&world, json!([of(FIRST), of(SECOND), "host-local"]));
    let ips = world.call("ADD", "c1", &network).ips();
    assert_eq!(ips, ["10.210.1.2/24", "10.210.2.2/24"]);
    world.call("DEL", "c1", &network).ended_well();
}

#[test]
fn a_selector_names_no_pools_anew_that_one_before_it_made_of_ranges() {
    let world = world();
    let other = json!({"type": "ipam-ds-static", "pools": [{"name": "red"}]});
    world.allocator("ipam-da-x", "10.210.1.2/24");
    let allocator = json!({"type": "ipam-da-x", "answers": "any"});
    let network = network(&world, json!([of(FIRST), other, allocator]));
    world.call("ADD", "c1", &network).success();
    let pools = shown(&world, "ipam-da-x");
    assert_eq!(pools[0]["ranges"][0]["subnet"], FIRST);
    assert_eq!(pools[1], json!({"name": "red"}));
}

#[test]
fn a_selector_behind_an_allocator_names_pools_for_the_next_one() {
    let world = world();
    world.allocator("ipam-da-x", "10.210.1.2/24").allocator("ipam-da-y", "10.210.2.2/24");
    let red = json!({"type": "ipam-ds-static", "pools": [{"name": "red"}]});
    let network = network(&world, json!([red, "ipam-da-x", "ipam-ds-rack", "ipam-da-y"]));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.210.1.2/24", "10.210.2.2/24"]);
    assert_eq!(shown(&world, "ipam-da-x"), json!([{"name": "red"}]));
    assert_eq!(shown(&world, "ipam-da-y"), json!([{"name": "blue"}]));
}

#[test]
fn one_allocator_behind_each_of_two_selectors_holds_the_addresses_of_both() {
    let world = world();
    let network = network(&world, json!([of(FIRST), "ipam-da-local", of(SECOND), "ipam-da-local"]));
    let held = || {
        let mut files = names(&world.path("data/net"));
        files.retain(|name| name.starts_with("10."));
        files
    };
    for (container, host) in [("c1", 2), ("c2", 3)] {
        let expected = [1, 2].map(|net| format!("10.210.{net}.{host}/24"));
        for _ in 0..2 {
            assert_eq!(world.call("ADD", container, &network).ips(), expected);
        }
    }
    assert_eq!(held(), ["10.210.1.2", "10.210.1.3", "10.210.2.2", "10.210.2.3"]);
    let result = json!({"cniVersion": "1.0.0",
        "ips": [{"address": "10.210.1.2/24"}, {"address": "10.210.2.2/24"}]});
    world.call("CHECK", "c1", &with(&network, "prevResult", result.clone())).ended_well();
    world.call("DEL", "c1", &network).success();
    assert_eq!(held(), ["10.210.1.3", "10.210.2.3"]);
    world.call("DEL", "c2", &network).success();
    assert_eq!(held(), [""; 0]);
}

#[test]
fn a_preset_in_a_list_hands_the_word_to_its_selector() {
    let world = world();
    world.install_as(&binary("ipam-delegated"), "host-local");
    let red = json!({"type": "ipam-ds-static", "ranges": [[{"subnet": FIRST}]]});
    let preset =
        json!({"type": "host-local", "pools": "replace", "ranges": [[{"subnet": SECOND}]]});
    let network = network(&world, json!([red, preset]));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.210.2.2/24"]);
    world.call("DEL", "c1", &network).ended_well();
}

#[test]
fn a_pool_of_the_same_name_is_enriched() {
    let world = world();
    let ranges = json!([{"subnet": FIRST}]);
    let pools = json!([{"name": "blue", "ranges": ranges}]);
    let first = json!({"type": "ipam-ds-static", "pools": pools});
    let second = json!({"type": "ipam-ds-static", "pools": [{"name": "blue", "requested-ip": "10.210.1.77"}]});
    for chain in [[&first, &second], [&second, &first]] {
        let network = network(&world, json!([chain[0], chain[1], "ipam-da-local"]));
        assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.210.1.77/24"]);
        world.call("DEL", "c1", &network).ended_well();
    }
}

#[test]
fn a_selector_of_others_is_shown_the_pools_and_its_answer_is_taken_as_it_is() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "green"}]));
    assert_eq!(named(&world, &[json!("ipam-ds-rack"), json!("ipam-ds-x")]), ["green"]);
    assert_eq!(shown(&world, "ipam-ds-x"), json!([{"name": "blue"}]));
    assert_eq!(named(&world, &[json!("ipam-ds-x"), json!("ipam-ds-rack")]), ["green", "blue"]);
}

#[test]
fn a_word_in_the_object_says_whether_a_selector_adds_or_replaces() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "green"}]));
    let with_word = |name: &str, word: &str| json!({"type": name, "pools": word});
    let rack = json!("ipam-ds-rack");
    for (second, expected) in [
        (with_word("ipam-ds-x", "add"), &["blue", "green"][..]),
        (with_word("ipam-ds-x", "replace"), &["green"]),
    ] {
        assert_eq!(named(&world, &[rack.clone(), second.clone()]), expected, "{second}");
        let calls = world.calls();
        let call = calls.iter().rfind(|call| call["delegate"] == "ipam-ds-x").unwrap();
        assert!(call["stdin"]["ipam"].get("pools").is_none(), "it steers the chain: {call}");
        assert!(call["stdin"]["prevResult"].get("pools").is_none(), "{call}");
    }
    for (word, expected) in [("add", &["green", "blue"][..]), ("replace", &["blue"])] {
        let chain = [json!("ipam-ds-x"), with_word("ipam-ds-rack", word)];
        assert_eq!(named(&world, &chain), expected);
    }
}

#[test]
fn a_selector_that_names_no_pools_leaves_those_that_are_there() {
    let world = world();
    world.delegate("ipam-ds-x", "printf '{\"cniVersion\": \"1.0.0\"}'");
    for word in ["add", "replace"] {
        let silent = json!({"type": "ipam-ds-x", "pools": word});
        assert_eq!(named(&world, &[json!("ipam-ds-rack"), silent]), ["blue"]);
    }
}

#[test]
fn a_word_that_is_unknown_or_not_a_selectors_is_an_error() {
    let world = world();
    world.allocator("ipam-da-x", "10.210.1.2/24");
    for (delegates, start) in [
        (
            json!([{"type": "ipam-ds-rack", "pools": "merge"}, "ipam-da-x"]),
            "ipam.delegates[0].pools: expected \"add\", \"replace\" or an array of pools",
        ),
        (
            json!(["ipam-ds-rack", {"type": "ipam-da-x", "pools": "replace"}]),
            "ipam.delegates[1].pools: only a selector may have this key, and ipam-da-x is not one",
        ),
    ] {
        let (code, error) = world.call("ADD", "c1", &network(&world, delegates)).failure();
        assert_eq!(code, 7, "{error}");
        assert!(error.starts_with(start), "{error}");
    }
    assert_eq!(world.take_calls(), [""; 0]);
}

#[test]
fn pools_of_the_runtimes_previous_result_reach_no_delegate() {
    let world = world();
    world.allocator("ipam-da-x", "10.210.1.2/24");
    let mut network = network(&world, json!(["ipam-ds-rack", "ipam-da-x"]));
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.210.1.2/24"}],
                        "pools": [{"name": "foreign"}]});
    network["prevResult"] = result;
    for recorded in [false, true] {
        for verb in ["CHECK", "DEL"] {
            if recorded && verb == "CHECK" {
                world.call("ADD", "c1", &network).success();
            }
            world.take_calls();
            fs::write(world.path("held/ipam-da-x-c1-eth0"), "").unwrap();
            world.call(verb, "c1", &network).ended_well();
            assert_eq!(shown(&world, "ipam-da-x"), json!([{"name": "blue"}]), "{verb} {recorded}");
        }
    }
    network["ipam"]["delegates"] = json!(["ipam-da-x"]);
    world.call("DEL", "c2", &network).ended_well();
    assert_eq!(shown(&world, "ipam-da-x"), Value::Null);
}

#[test]
fn explain_tells_whose_each_pool_is() {
    let world = world();
    let pools = json!([{"name": "blue", "ranges": [{"subnet": FIRST}]}, {"name": "red"}]);
    let first = json!({"type": "ipam-ds-static", "pools": pools});
    let second = json!({"type": "ipam-ds-static", "pools": [{"name": "blue", "requested-ip": "10.210.1.9"}]});
    world.selector("ipam-ds-x", &json!([{"name": "green", "password": "hush"}]));
    let third = json!({"type": "ipam-ds-x", "pools": "add"});
    let chain = json!([first, second, third, "ipam-da-local"]);
    world.conflist("10-net.conflist", &network(&world, chain));
    let text = world.typed(&["explain", "net"]).stdout;
    let told: Vec<&str> = text.split("  where the pools come from\n").skip(1).collect();
    let red = "    the pool \"red\": ipam-ds-static (delegate 1)\n";
    let blue = "    the pool \"blue\": ipam-ds-static (delegate 1), changed by ipam-ds-static (delegate 2)\n";
    assert!(told.len() == 2 && told[0].starts_with(&[blue, red, "- "].concat()), "{text}");
    let green = "    the pool \"green\": ipam-ds-x\n";
    assert!(told[1].starts_with(&[blue, red, green, "- "].concat()), "{text}");

    let told = world.typed(&["explain", "net", "--json"]).success();
    let pools = told[0]["delegates"][2]["pools"].as_array().unwrap();
    let of = |pool: &Value| json!([pool["pool"]["name"], pool["namedBy"], pool["changedBy"]]);
    let found: Vec<Value> = pools.iter().map(of).collect();
    assert_eq!(found, [json!(["blue", 0, [1]]), json!(["red", 0, []]), json!(["green", 2, []])]);
    assert!(!told.to_string().contains("hush"), "{told}");
    assert!(told[0]["delegates"][3].get("pools").is_none(), "an allocator names none: {told}");
}

#[test]
fn a_pool_that_is_replaced_is_of_the_last_selector_alone() {
    let world = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}]));
    let last = json!({"type": "ipam-ds-rack", "pools": "replace"});
    world
        .conflist("10-net.conflist", &network(&world, json!(["ipam-ds-x", last, "ipam-da-local"])));
    let told = world.typed(&["explain", "net", "--json"]).success();
    let expected = json!([{"pool": {"name": "blue"}, "namedBy": 1, "changedBy": []}]);
    assert_eq!(told[0]["delegates"][1]["pools"], expected);
}

/// What `lint` says of two selectors.
fn of_two_selectors(world: &World, delegates: Value) -> Vec<String> {
    world.conflist("10-net.conflist", &network(world, delegates));
    let cache = format!("--cache-dir={}", world.path("results").display());
    let text = world.typed(&["lint", "net", &cache]).stdout;
    text.lines().filter(|line| line.contains(" each choose ")).map(str::to_owned).collect()
}

#[test]
fn lint_warns_where_two_selectors_choose_pools_of_one_family() {
    let world = world();
    let six = of("fd00:210::/64");
    let chain = |delegates: &[Value]| {
        of_two_selectors(&world, json!([delegates, &[json!("ipam-da-local")]].concat()))
    };
    let warnings = chain(&[of(FIRST), of(SECOND)]);
    assert_eq!(
        warnings,
        [
            "warning: ipam-ds-static (delegate 1) and ipam-ds-static (delegate 2) each choose an IPv4 pool (the pool \
          10.210.1.1-10.210.1.254, the pool 10.210.2.1-10.210.2.254), and a container gets an address of each; if \
          one is enough, write {\"type\": \"ipam-ds-static\", \"pools\": \"replace\"} in ipam.delegates"
        ]
    );
    for silent in [vec![of(FIRST), six.clone()], vec![of(FIRST)]] {
        assert_eq!(chain(&silent), [""; 0], "{silent:?}");
    }
    let mut replacing = of(SECOND);
    replacing["pools"] = json!("replace");
    assert_eq!(chain(&[of(FIRST), replacing]), [""; 0]);
    // Which family a name is of, the store knows.
    let notes = chain(&[of(FIRST), six, json!("ipam-ds-rack")]);
    assert!(notes.len() == 2 && notes.iter().all(|it| it.starts_with("note: ")), "{notes:?}");
    assert!(notes[0].contains("and ipam-ds-rack each choose a pool (the pool "), "{notes:?}");
}

#[test]
fn what_a_selector_remembers_is_shown_by_explain_and_goes_no_further() {
    let world = World::new();
    let answer = json!({"cniVersion": "1.0.0", "pools": [{"name": "blue"}], "remembered": "rack 7, 35s ago"});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.allocator("ipam-da-x", "10.210.1.2/24");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    world.conflist("10-net.conflist", &network);
    let text = world.typed(&["explain", "net"]).stdout;
    assert!(text.contains("\n    remembered = \"rack 7, 35s ago\"\n"), "{text}");
    let result = world.call("ADD", "c1", &network).success();
    let record = fs::read_to_string(world.record("c1")).unwrap();
    let calls = world.calls();
    let shown = &calls.iter().rfind(|call| call["delegate"] == "ipam-da-x").unwrap()["stdin"];
    for seen in [result.to_string(), record, shown.to_string()] {
        assert!(!seen.contains("remembered"), "{seen}");
    }
}
