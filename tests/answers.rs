//! An answer that is less, more or other than what the pools ask for is error 112, and is undone.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::path::Path;

use ipam_testkit::world::{World, binary, host_local, names, with};
use serde_json::{Value, json};

/// A delegate that takes these addresses, `answer` being the rest of its answer, and gives them back
/// on DEL.
fn giving(world: &World, name: &str, addresses: &[&str], rest: &Value) {
    let held = world.path("held");
    fs::create_dir_all(&held).unwrap();
    let ips: Vec<Value> = addresses.iter().map(|address| json!({"address": address})).collect();
    let mut answer = rest.clone();
    answer["ips"] = json!(ips);
    let file = held.join(name);
    world.delegate(
        name,
        &format!(
            "case $CNI_COMMAND in ADD) : >'{0}'; printf '%s' '{answer}';; DEL) rm -f '{0}';; esac",
            file.display()
        ),
    );
}

/// ADD of this chain fails with 112; nothing stays held. The error's text.
#[track_caller]
fn refused(world: &World, network: &Value) -> String {
    let (code, text) = world.call("ADD", "c1", network).failure();
    assert_eq!(code, 112, "{text}");
    assert!(!text.contains("undo"), "{text}");
    assert!(names(&world.path("held")).is_empty(), "{text}");
    let last = world.take_calls().pop().unwrap();
    assert!(last.ends_with(" DEL"), "{last}");
    text
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// A standard plugin of the distribution.
fn standard(world: &World, name: &str) {
    let program = Path::new("/usr/lib/cni").join(name);
    assert!(program.exists(), "{name} is missing: apt-get install containernetworking-plugins");
    world.install(&program);
}

/// The addresses that host-local has leased on `net`.
fn leases(world: &World) -> Vec<String> {
    let mut names = names(&world.path("data/net"));
    names.retain(|name| name.starts_with("10."));
    names
}

#[test]
fn a_pool_without_ranges_is_not_served_out_of_a_standard_plugins_own_range() {
    let world = World::new();
    world.install(&host_local());
    let network = with(
        &world.network(json!(["ipam-ds-rack", "host-local"])),
        "ranges",
        json!([[{"subnet": "10.40.0.0/24"}]]),
    );
    // Two racks: before, both got addresses of one range.
    for (container, rack) in [("c1", "blue"), ("c2", "red")] {
        world.selector("ipam-ds-rack", &json!([{"name": rack}]));
        let (code, text) = world.call("ADD", container, &network).failure();
        assert_eq!(code, 112, "{text}");
        let entry = format!(r#"{{"type": "host-local", "serves": ["{rack}"]}}"#);
        has(&text, &["host-local: ", "10.40.0.", &format!("the pool \"{rack}\""), &entry]);
        assert!(leases(&world).is_empty(), "{text}");
    }
}

#[test]
fn a_standard_plugin_serves_the_one_pool_that_its_object_names() {
    let world = World::new();
    world.install(&host_local());
    let of = |pool: &str, third: u8| {
        json!({"type": "host-local", "serves": [pool],
               "ranges": [[{"subnet": format!("10.40.{third}.0/24")}]]})
    };
    let network = world.network(json!(["ipam-ds-rack", of("blue", 1), of("red", 2)]));
    for (container, rack, address) in
        [("c1", "blue", "10.40.1.2/24"), ("c2", "red", "10.40.2.2/24")]
    {
        world.selector("ipam-ds-rack", &json!([{"name": rack}]));
        assert_eq!(world.call("ADD", container, &network).ips(), [address]);
        world.call("DEL", container, &network).success();
    }
    assert!(leases(&world).is_empty());
}

#[test]
fn a_standard_plugin_gives_no_address_for_a_sticky_name() {
    let world = World::new();
    world.install(&host_local());
    let blue = json!({"name": "blue", "ranges": [{"subnet": "10.40.0.0/24"}], "sticky": "web-0"});
    world.selector("ipam-ds-rack", &json!([blue]));
    let network = with(
        &world.network(json!(["ipam-ds-rack", "host-local"])),
        "ranges",
        json!([[{"subnet": "10.40.0.0/24"}]]),
    );
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112, "{text}");
    has(&text, &["host-local: ", "the pool \"blue\" has a sticky name", "ipam-da-kube"]);
    assert!(leases(&world).is_empty(), "{text}");
}

#[test]
fn a_standard_plugin_that_serves_one_of_two_pools_gives_no_address_of_the_other() {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&host_local());
    let ranges = |third: u8| json!([{"subnet": format!("10.40.{third}.0/24")}]);
    let with_pools = |own: &dyn Fn(&str, u8) -> Value| {
        let network = world.network(json!(["ipam-ds-static", own("a", 1), own("b", 2)]));
        let pools = json!([{"name": "a", "ranges": ranges(1)}, {"name": "b", "ranges": ranges(2)}]);
        with(&network, "pools", pools)
    };
    // It would take an address of each range, for the first entry and again for the second.
    let network = with_pools(&|pool, _| json!({"type": "host-local", "serves": [pool]}));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112, "{text}");
    has(&text, &["host-local: ", "10.40.2.2", "the ranges of the pools that it serves"]);
    assert!(leases(&world).is_empty(), "{text}");
    let network = with_pools(
        &|pool, third| json!({"type": "host-local", "serves": [pool], "ranges": [ranges(third)]}),
    );
    // host-local has one lease a container and network, unless the folders differ.
    let mut network = network;
    network["ipam"]["delegates"][2]["dataDir"] = json!(world.path("other"));
    let given = world.call("ADD", "c2", &network).ips();
    assert!(given[0].starts_with("10.40.1.") && given[1].starts_with("10.40.2."), "{given:?}");
}

#[test]
fn a_standard_plugin_whose_object_names_several_pools_serves_none_without_ranges() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
    giving(&world, "plain", &["10.0.0.2/24", "10.0.1.2/24"], &json!({}));
    let plain = json!({"type": "plain", "serves": ["blue", "red"]});
    let text = refused(&world, &world.network(json!(["ipam-ds-x", plain])));
    has(&text, &["plain: ", "the pool \"blue\"", "one entry for each pool"]);
}

#[test]
fn an_address_outside_the_pools_of_a_standard_plugin_is_refused_and_undone() {
    let world = World::new();
    standard(&world, "static");
    world.install(&binary("ipam-ds-static"));
    let mut network = world.network(json!(["ipam-ds-static", "static"]));
    network["ipam"]["ranges"] = json!([[{"subnet": "10.40.0.0/24"}], [{"subnet": "fd00:40::/64"}]]);
    network["ipam"]["addresses"] = json!([{"address": "10.41.0.9/24"}]);
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112, "{text}");
    let entry = r#"{"type": "static", "answers": "any"}"#;
    has(&text, &["static: ", "10.41.0.9", "10.40.0.1-10.40.0.254", entry]);

    // Half of what was asked is not enough either.
    network["ipam"]["addresses"] = json!([{"address": "10.40.0.9/24"}]);
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112, "{text}");
    has(&text, &["static: ", "10.40.0.9", "fd00:40::1-"]);

    network["ipam"]["addresses"] =
        json!([{"address": "fd00:40::9/64"}, {"address": "10.40.0.9/24"}]);
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["fd00:40::9/64", "10.40.0.9/24"]);
}

#[test]
fn a_delegate_whose_object_says_so_may_answer_anything() {
    let world = World::new();
    standard(&world, "static");
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"ranges": [{"subnet": "fd00::/64"}]}]));
    let any =
        json!({"type": "static", "answers": "any", "addresses": [{"address": "10.41.0.9/24"}]});
    let network = world.network(json!(["ipam-ds-x", any]));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.41.0.9/24"]);
    world.call("DEL", "c1", &network).success();
    // It gave no address at all: the pools stay.
    giving(&world, "none", &[], &json!({}));
    let network = world.network(json!(["ipam-ds-x", {"type": "none", "answers": "any"}]));
    has(&refused(&world, &network), &["no delegate served the pool \"blue\""]);
}

#[test]
fn answers_steers_the_chain_and_reaches_neither_delegate_nor_comparison_of_records() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let entry = |password: &str| json!({"type": "one", "answers": "any", "zone": "z", "password": password});
    let other = json!({"type": "one", "serves": ["none"], "password": "other"});
    world.selector("ipam-ds-x", &json!([{"name": "a"}, {"name": "b"}]));
    let network = world.network(json!(["ipam-ds-x", entry("old"), other]));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.2/24"]);
    let ipam = world.calls()[1]["stdin"]["ipam"].clone();
    assert_eq!((&ipam["zone"], ipam.get("answers")), (&json!("z"), None));
    world.take_calls();
    // The record fits the entry that it came from, whose password has changed since.
    let network = world.network(json!(["ipam-ds-x", entry("new"), other]));
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["password"], "new");

    for value in [json!("all"), json!(true), json!(null), json!(["any"])] {
        let entry = json!({"type": "one", "answers": value});
        let (code, text) =
            world.call("ADD", "c2", &world.network(json!(["ipam-ds-x", entry]))).failure();
        assert_eq!(code, 7, "{text}");
        has(&text, &["ipam.delegates[1].answers: ", "\"any\""]);
    }
}

#[test]
fn every_allocator_gives_one_address_for_each_pool_that_it_serves() {
    let ranges = |subnet: &str| json!([{"subnet": subnet}]);
    let pools = json!([{"name": "a", "ranges": ranges("10.0.0.0/24")}, {"name": "b"}]);
    let done = json!({"pools": []});
    for (addresses, rest, parts) in [
        // Less, outside, and more.
        (&["10.0.0.2/24"][..], &done, &["the pool \"b\"", "10.0.0.2"][..]),
        (&["10.0.1.2/24"], &done, &["the pool \"a\"", "10.0.1.2"]),
        (&["10.0.1.2/24", "10.0.2.2/24"], &done, &["the pool \"a\" (10.0.0.1-10.0.0.254)"]),
        (&["10.0.0.2/24", "10.0.0.3/24", "10.0.0.4/24"], &done, &["10.0.0.4", "the pool \"b\""]),
        (&[], &done, &["the pool \"a\""]),
        // A pool that it says is left asks for nothing.
        (&["10.0.0.2/24", "10.0.9.2/24"], &json!({"pools": [{"name": "b"}]}), &["10.0.9.2"]),
        (&["10.0.0.2/24"], &json!({"pools": [{"name": "a"}, {"name": "b"}]}), &["10.0.0.2"]),
    ] {
        let world = World::new();
        world.selector("ipam-ds-x", &pools);
        giving(&world, "ipam-da-x", addresses, rest);
        let text = refused(&world, &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
        has(&text, &["ipam-da-x: "]);
        has(&text, parts);
    }
}

#[test]
fn what_a_standard_plugin_gives_beside_the_pools_is_refused_and_undone() {
    let world = World::new();
    let pools = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
    world.selector("ipam-ds-x", &pools);
    giving(&world, "plain", &["10.0.0.2/24", "10.0.0.3/24"], &json!({}));
    let text = refused(&world, &world.network(json!(["ipam-ds-x", "plain"])));
    has(&text, &["plain: ", "10.0.0.3", r#""answers": "any""#]);
    // The one before has served all.
    world.allocator("ipam-da-x", "10.0.0.7/24");
    let text = refused(&world, &world.network(json!(["ipam-ds-x", "ipam-da-x", "plain"])));
    has(&text, &["plain: ", "10.0.0.2", "ipam.delegates"]);
}

#[test]
fn pools_whose_ranges_overlap_are_compared_as_a_whole() {
    let world = World::new();
    let ranges = |subnet: &str| json!([{"subnet": subnet, "exclude": ["10.0.0.9"]}]);
    world.selector(
        "ipam-ds-x",
        &json!([{"name": "wide", "ranges": ranges("10.0.0.0/24")},
                {"name": "narrow", "ranges": ranges("10.0.0.0/28")}]),
    );
    let network = world.network(json!(["ipam-ds-x", "plain"]));
    for addresses in [
        ["10.0.0.5/24", "10.0.0.200/24"],
        ["10.0.0.200/24", "10.0.0.5/24"],
        ["10.0.0.5/24", "10.0.0.6/24"],
    ] {
        giving(&world, "plain", &addresses, &json!({}));
        assert_eq!(world.call("ADD", "c1", &network).ips(), addresses);
        world.call("DEL", "c1", &network).success();
    }
    world.take_calls();
    for addresses in [["10.0.0.100/24", "10.0.0.200/24"], ["10.0.0.9/24", "10.0.0.200/24"]] {
        giving(&world, "plain", &addresses, &json!({}));
        has(&refused(&world, &network), &["the pool \"narrow\""]);
    }
}

#[test]
fn an_answer_without_the_address_that_a_pool_asks_for_is_refused() {
    let world = World::new();
    let pool =
        json!({"name": "a", "ranges": [{"subnet": "10.0.0.0/24"}], "requested-ip": "10.0.0.42"});
    world.selector("ipam-ds-x", &json!([pool]));
    let network = world.network(json!(["ipam-ds-x", "plain"]));
    giving(&world, "plain", &["10.0.0.42/24"], &json!({}));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.42/24"]);
    world.call("DEL", "c1", &network).success();
    world.take_calls();
    giving(&world, "plain", &["10.0.0.43/24"], &json!({}));
    has(&refused(&world, &network), &["plain: ", "10.0.0.42", "10.0.0.43", "the pool \"a\""]);
}

#[test]
fn an_allocator_by_name_serves_a_pool_without_ranges_whatever_it_answers_in_pools() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "a"}]));
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    giving(&world, "ipam-da-x", &["10.0.0.2/24"], &json!({}));
    assert_eq!(world.call("ADD", "c1", &network).ips(), ["10.0.0.2/24"]);
    world.call("DEL", "c1", &network).success();
    giving(&world, "ipam-da-x", &["10.0.0.2/24", "10.0.0.3/24"], &json!({}));
    has(&refused(&world, &network), &["ipam-da-x: ", "10.0.0.3"]);
}

#[test]
fn without_pools_nothing_is_compared() {
    let world = World::new();
    giving(&world, "one", &["10.0.0.2/24", "10.0.0.3/24"], &json!({}));
    giving(&world, "two", &["10.0.1.2/24"], &json!({}));
    let network = world.network(json!(["one", "two"]));
    assert_eq!(world.call("ADD", "c1", &network).ips().len(), 3);
}

#[test]
fn an_add_that_is_repeated_gives_the_same_through_two_allocators() {
    let world = World::new();
    world
        .install(&binary("ipam-ds-static"))
        .install(&binary("ipam-da-local"))
        .install(&host_local());
    let ranges = |subnet: &str| json!([{"subnet": subnet}]);
    let mut network = world.network(json!([
        "ipam-ds-static",
        {"type": "ipam-da-local", "serves": ["ours"]},
        {"type": "ipam-da-local", "serves": ["named", "six"], "dataDir": world.path("other")},
    ]));
    network["ipam"]["pools"] = json!([
        {"name": "six", "ranges": ranges("fd00::/64")},
        {"name": "ours", "ranges": ranges("10.1.0.0/24"), "requested-ip": "10.1.0.77"},
        {"name": "named", "ranges": ranges("10.2.0.0/24")},
    ]);
    let first = world.call("ADD", "c1", &network).ips();
    assert_eq!(first, ["10.1.0.77/24", "fd00::2/64", "10.2.0.2/24"]);
    assert_eq!(world.call("ADD", "c1", &network).ips(), first);
}

#[test]
fn status_fails_for_a_chain_without_an_allocator() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}])).delegate("plain", "");
    let mut network = world.network(json!(["ipam-ds-x"]));
    network["cniVersion"] = json!("1.1.0");
    let (code, text) = world.status(&network).failure();
    assert_eq!(code, 112, "as ADD: {text}");
    has(&text, &["ipam.delegates", "ipam-ds-x", "allocator"]);
    // A standard plugin is one.
    network["ipam"]["delegates"] = json!(["ipam-ds-x", "plain"]);
    world.status(&network).success();
}

#[test]
fn a_pool_that_is_left_over_says_what_is_wrong_with_the_chain() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "red"}]));
    giving(&world, "ipam-da-x", &["10.0.0.2/24"], &json!({"pools": []}));
    // The allocator stands before the selector.
    let text = refused(&world, &world.network(json!(["ipam-da-x", "ipam-ds-x"])));
    has(&text, &["the pool \"red\"", "put ipam-da-x after ipam-ds-x in ipam.delegates"]);
    // `serves` names a pool that no selector answers.
    let entry = json!({"type": "ipam-da-x", "serves": ["rad"]});
    let network = world.network(json!(["ipam-ds-x", entry]));
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 112, "{text}");
    has(&text, &["the pool \"red\"", "serves of ipam-da-x names \"rad\"", "correct"]);
    assert!(!text.contains("add an allocator for it to"), "{text}");
    // A pool without a name is not for a delegate with `serves`.
    world.selector("ipam-ds-x", &json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]));
    let (_, text) = world.call("ADD", "c2", &network).failure();
    has(&text, &["the pool 10.0.0.0/24", "serves of ipam-da-x", "a name"]);
    // A pool is shown by its ends, where it has both.
    let range =
        json!({"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.10", "rangeEnd": "10.77.0.15"});
    world.selector("ipam-ds-x", &json!([{"ranges": [range]}]));
    let (_, text) = world.call("ADD", "c3", &world.network(json!(["ipam-ds-x"]))).failure();
    has(&text, &["no delegate served the pool 10.77.0.10-10.77.0.15"]);
}

#[test]
fn an_error_about_many_pools_names_ten_and_says_how_many_more() {
    let world = World::new();
    let names: Vec<String> = (0..100).map(|i| format!("pool-{i}")).collect();
    let pools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    world.selector("ipam-ds-x", &json!(pools));
    giving(&world, "ipam-da-x", &[], &json!({"pools": pools}));
    let text = refused(&world, &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
    has(&text, &["\"pool-0\", ", "\"pool-9\", and 90 more"]);
    // One address too many.
    let given: Vec<String> = (0..=100).map(|i| format!("10.0.0.{i}/24")).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    giving(&world, "ipam-da-x", &given, &json!({"pools": []}));
    let text = refused(&world, &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
    has(
        &text,
        &[
            "10.0.0.100 in addition to one address for each pool",
            "\"pool-0\", ",
            "\"pool-9\", and 90 more",
        ],
    );
    // And one too few.
    giving(&world, "ipam-da-x", &given[..99], &json!({"pools": []}));
    let text = refused(&world, &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
    has(&text, &["no address for the pool \"pool-99\"", "10.0.0.9, and 89 more"]);
}

/// What `lint` finds, as `level: message`, and its exit status.
fn lint(world: &World, delegates: Value) -> (Option<i32>, Vec<String>) {
    let network = ipam_testkit::world::without(&world.network(delegates), &["stateDir"]);
    world.conflist("10-net.conflist", &network);
    let cache = format!("--cache-dir={}", world.path("results").display());
    let outcome = world.typed(&["lint", "net", "--json", &cache]);
    let reports = outcome.json();
    let findings = reports[0]["findings"].as_array().unwrap().iter();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    (outcome.exit, findings.map(|it| text(it, "level") + ": " + &text(it, "message")).collect())
}

#[test]
fn lint_tells_before_the_switch_which_answers_an_add_refuses() {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue"}, {"name": "red"}]));
    world.delegate("host-local", "").delegate("static", "").delegate("dhcp", "");
    world.allocator("ipam-da-x", "10.0.0.2/24");
    let find = |delegates: Value, start: &str, parts: &[&str]| {
        let (exit, found) = lint(&world, delegates);
        let fits = |it: &&String| it.starts_with(start) && parts.iter().all(|p| it.contains(p));
        assert!(found.iter().any(|it| fits(&it)), "{start} {parts:?} is not in {found:#?}");
        assert_eq!(exit, Some(i32::from(start.starts_with("error"))), "{found:#?}");
    };
    find(json!(["ipam-ds-x"]), "error: ", &["ipam.delegates", "allocator"]);
    find(
        json!(["ipam-ds-x", "host-local"]),
        "error: host-local: ",
        &["the pool \"blue\"", r#"{"type": "host-local", "serves": ["blue"]}"#],
    );
    let several = json!({"type": "host-local", "serves": ["blue", "red"]});
    find(json!(["ipam-ds-x", several]), "error: host-local: ", &["one entry for each pool"]);

    find(
        json!(["ipam-da-x", "ipam-ds-x"]),
        "error: ",
        &["\"red\"", "put ipam-da-x after ipam-ds-x"],
    );
    let misspelt = json!({"type": "ipam-da-x", "serves": ["rad"]});
    find(
        json!(["ipam-ds-x", misspelt]),
        "error: ",
        &["\"red\"", "serves of ipam-da-x names \"rad\""],
    );

    world.selector("ipam-ds-x", &json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]));
    for name in ["static", "dhcp"] {
        let any = format!(r#"{{"type": "{name}", "answers": "any"}}"#);
        find(json!(["ipam-ds-x", name]), "warning: ", &[name, "112", &any]);
    }
    // What is in order is not found.
    for delegates in [
        json!(["ipam-ds-x", "host-local"]),
        json!(["ipam-ds-x", "ipam-da-x"]),
        json!(["ipam-ds-x", {"type": "static", "answers": "any"}]),
        json!(["static"]),
    ] {
        let (exit, found) = lint(&world, delegates.clone());
        assert_eq!(exit, Some(0), "{delegates}: {found:#?}");
        assert!(!found.iter().any(|it| it.contains("answers")), "{delegates}: {found:#?}");
    }
}
