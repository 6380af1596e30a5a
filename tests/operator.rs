//! The verbs that ask the allocators of a network: list, who, release, pools; and explain.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use ipam_testkit::node_site::{by, without_override};
use ipam_testkit::world::{World, binary, start, wait, with};
use serde_json::{Value, json};

fn lease(address: &str, container: &str) -> Value {
    json!({"address": address, "pool": "blue", "containerID": container, "ifname": "eth0",
           "node": null, "ageSeconds": 60, "state": "held"})
}

/// A chain of a selector and an allocator that answers, on the network `net`.
fn world() -> World {
    let world = World::new();
    let answer = json!({"pools": [{"name": "blue"}], "ipam": {"rangeRules": "z"}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.answering("ipam-da-x", "10.0.0.2/24");
    world.conflist("10-net.conflist", &world.network(json!(["ipam-ds-x", "ipam-da-x"])));
    world
}

#[test]
fn list_asks_the_allocator_with_the_pools_and_says_what_the_records_say() {
    let world = world();
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    world.call("ADD", "c1", &network).success();
    let mut elsewhere = lease("10.0.0.9", "c9");
    elsewhere["node"] = json!("another-node");
    let mut other = lease("10.0.0.5", "c1");
    other["note"] = json!("no ifname");
    other["ifname"] = Value::Null;
    let rows = json!([lease("10.0.0.2", "c1"), lease("10.0.0.3", "leaked"), elsewhere, other]);
    world.answer("ipam-da-x", "list", &rows);

    let told = world.typed(&["list", "net", "--json"]).success();
    let words: Vec<&Value> = told.as_array().unwrap().iter().map(|row| &row["record"]).collect();
    assert_eq!(words, [&json!("held"), &json!("none"), &Value::Null, &json!("other")]);
    assert_eq!(told[0]["allocator"], "ipam-da-x");
    let text = world.typed(&["list", "net"]).stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "ADDRESS   POOL  CONTAINER  IFNAME  NODE          AGE  STATE  RECORD  NOTE",
            "10.0.0.2  blue  c1         eth0    -             1m   held   held    -",
            "10.0.0.3  blue  leaked     eth0    -             1m   held   none    -",
        ]
    );
    assert_eq!(
        lines[4],
        "10.0.0.5  blue  c1         -       -             1m   held   other   no ifname"
    );

    let asked = &world.asked()[0];
    assert_eq!(asked["asked"], "list --json --config -");
    assert_eq!(asked["stdin"]["prevResult"]["pools"], json!([{"name": "blue"}]));
    assert_eq!(asked["stdin"]["ipam"]["type"], "ipam-da-x");
    assert_eq!(asked["stdin"]["ipam"]["rangeRules"], "z", "a selector's setting");
    assert_eq!(asked["stdin"]["name"], "net");
    let node = std::fs::read_to_string(world.path("state/node")).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    assert_eq!(asked["stdin"]["ipam"]["node"], node["uuid"]);
}

#[test]
fn a_network_is_found_by_its_file_too_and_a_missing_one_is_an_error() {
    let world = world();
    world.answer("ipam-da-x", "list", &json!([]));
    let file = world.path("net.d/10-net.conflist");
    let told = world.typed(&["list", file.to_str().unwrap(), "--json"]).success();
    assert_eq!(told, json!([]));
    let missing = world.typed(&["list", "nets"]);
    assert_eq!(missing.exit, Some(1));
    assert!(missing.stderr.contains("networks there: net"), "{missing:?}");
    world.conflist("20-net.conf", &with(&world.network(json!(["x"])), "k", 1));
    let twice = world.typed(&["list", "net"]);
    assert!(twice.exit == Some(1) && twice.stderr.contains("20-net.conf"), "{twice:?}");
}

#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let world = world();
    world.answer("ipam-da-x", "list", &json!([]));
    let fifo = world.path("net.d/05-fifo.conflist");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    symlink(&fifo, world.path("net.d/06-link.conf")).unwrap();
    world.typed(&["list", "net"]).ended_well();
    let named = world.typed(&["lint", fifo.to_str().unwrap()]);
    assert_eq!(named.exit, Some(1));
    assert!(named.stderr.contains("05-fifo.conflist: not a regular file"), "{named:?}");
}

#[test]
fn who_tells_the_owner_of_one_address_and_where_it_came_from() {
    let world = world();
    world.call("ADD", "c1", &world.network(json!(["ipam-ds-x", "ipam-da-x"]))).success();
    let rows = json!([lease("10.0.0.2", "c1"), lease("10.0.0.3", "c2")]);
    world.answer("ipam-da-x", "list", &rows);
    let told = world.typed(&["who", "net", "10.0.0.2/24", "--json"]).success();
    assert_eq!(told.as_array().unwrap().len(), 1);
    assert_eq!(told[0]["netns"], "/run/netns/none");
    assert_eq!(told[0]["chain"], json!(["ipam-ds-x", "ipam-da-x"]));
    let text = world.typed(&["who", "net", "10.0.0.2"]).stdout;
    assert!(text.contains("\nnetns /run/netns/none, chain ipam-ds-x, ipam-da-x"), "{text}");
    assert_eq!([&told[0]["pod"], &told[0]["namespace"]], [&Value::Null, &Value::Null]);

    let mut command = world.command("ADD", "c1");
    command.env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
    wait(start(command, &world.network(json!(["ipam-ds-x", "ipam-da-x"])))).success();
    let told = world.typed(&["who", "net", "10.0.0.2", "--json"]).success();
    assert_eq!([&told[0]["pod"], &told[0]["namespace"]], ["web-0", "shop"]);
    let text = world.typed(&["who", "net", "10.0.0.2"]).stdout;
    assert!(text.contains("\npod shop/web-0, netns /run/netns/none, chain "), "{text}");
    let not_held = world.typed(&["who", "net", "10.0.0.4"]);
    assert_eq!(not_held.exit, Some(1));
    assert!(not_held.stderr.contains("no owner holds 10.0.0.4 on net"), "{not_held:?}");
    assert_eq!(world.typed(&["who", "net", "ten"]).exit, Some(1));

    let pool = json!({"pool": "blue", "ranges": "10.0.0.1-10.0.0.9", "size": 8, "held": 2, "free": 6,
        "blocks": [{"from": "10.0.0.1", "to": "10.0.0.9", "size": 8, "held": 2}]});
    world.answer("ipam-da-x", "pools", &json!([pool]));
    for (address, place) in [
        ("10.0.0.4", "10.0.0.4 is free in pool blue (10.0.0.1-10.0.0.9), or its gateway"),
        ("10.0.1.4", "10.0.1.4 is in no pool of net: its pools are 10.0.0.1-10.0.0.9"),
    ] {
        let not_held = world.typed(&["who", "net", address]);
        assert!(not_held.exit == Some(1) && not_held.stderr.contains(place), "{not_held:?}");
    }
    // The pools of a plugin that cannot be asked may have the address.
    world.allocator("host-local", "10.0.1.2/24");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x", "host-local"]));
    world.conflist("10-net.conflist", &network);
    let not_held = world.typed(&["who", "net", "10.0.1.4"]).stderr;
    assert!(not_held.contains("host-local is a standard plugin"), "{not_held}");
    assert!(not_held.contains("10.0.1.4 is in no pool of net"), "{not_held}");
}

#[test]
fn release_passes_on_what_was_typed_and_warns_of_what_may_be_in_use() {
    let world = world();
    world.call("ADD", "c1", &world.network(json!(["ipam-ds-x", "ipam-da-x"]))).success();
    world.answer("ipam-da-x", "release", &json!([lease("10.0.0.2", "c1")]));
    let dry = world.typed(&["release", "net", "10.0.0.2", "10.0.0.2/24"]);
    assert!(dry.stdout.contains("10.0.0.2"), "{dry:?}");
    assert!(dry.stderr.contains("nothing was released; add --yes"), "{dry:?}");
    assert!(dry.stderr.contains("the container may be running"), "{dry:?}");
    assert!(!dry.stdout.contains("released"), "{dry:?}");
    dry.ended_well();
    let done = world.typed(&["release", "net", "--owner", "c1/eth0", "--yes"]);
    assert!(done.stdout.ends_with("\nreleased\n"), "{done:?}");
    done.ended_well();
    world.typed(&["release", "net", "--node", "n1", "--yes"]).ended_well();
    let asked: Vec<Value> = world.asked().into_iter().map(|call| call["asked"].clone()).collect();
    assert_eq!(
        asked,
        [
            "release --json --config - 10.0.0.2",
            "release --json --config - --owner c1/eth0 --yes",
            "release --json --config - --node n1 --yes",
        ]
    );
    for words in [
        &["release", "net"][..],
        &["release", "net", "10.0.0.2", "--node", "n1"],
        &["release", "net", "--owner", "c1", "--node", "n1"],
        &["release", "net", "--owner", ""],
        &["release", "net", "x"],
    ] {
        assert_eq!(world.typed(words).exit, Some(1), "{words:?}");
    }
    assert_eq!(world.asked().len(), 3, "nothing of that reached the allocator");
}

#[test]
fn release_of_an_address_without_a_record_warns_as_well() {
    let world = world();
    world.answer("ipam-da-x", "release", &json!([lease("10.0.0.3", "c9")]));
    let dry = world.typed(&["release", "net", "10.0.0.3"]);
    assert!(dry.stderr.contains("c9 holds 10.0.0.3 without a record"), "{dry:?}");
    assert!(dry.stderr.contains("check whether it runs"), "{dry:?}");
}

/// A world with two networks that share a pool; the record of the other one has the address.
fn sharing(state: &str) -> World {
    let world = world();
    let mut network = world.network(json!(["ipam-ds-x", "ipam-da-x"]));
    network["ipam"]["stateDir"] = json!(world.path(state));
    world.conflist("10-net.conflist", &network);
    network["name"] = "shares-the-pool".into();
    world.call("ADD", "c1", &network).success();
    let rows = json!([lease("10.0.0.2", "c1")]);
    world.answer("ipam-da-x", "list", &rows);
    world.answer("ipam-da-x", "release", &rows);
    world
}

#[test]
fn a_lease_in_the_record_of_another_network_is_released_there_alone() {
    // The second folder is not the one of the host.
    for state in ["state", "own-state"] {
        let world = sharing(state);
        assert_eq!(world.typed(&["list", "net", "--json"]).success()[0]["record"], "elsewhere");
        let before = world.asked().len();
        for yes in [&[][..], &["--yes"]] {
            let outcome = world.typed(&[&["release", "net", "10.0.0.2"], yes].concat());
            let named = "the record of c1 on the network shares-the-pool may have 10.0.0.2";
            assert!(outcome.stderr.contains(named), "{outcome:?}");
            assert_eq!(outcome.exit == Some(0), yes.is_empty(), "{outcome:?}");
        }
        for asked in &world.asked()[before..] {
            assert_eq!(asked["asked"], "release --json --config - 10.0.0.2");
        }
    }
}

#[test]
fn networks_that_cannot_be_listed_may_have_a_lease_in_their_records() {
    let world = sharing("state");
    let folder = world.path("state/attachments");
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o311)).unwrap();
    let typed = |words: &[&str]| {
        let typed = by(without_override(), &world.typing(words)).spawn().unwrap();
        wait(typed)
    };
    let listed = typed(&["list", "net", "--json"]).success();
    assert_eq!(listed[0]["record"], "unreadable", "{listed}");
    let before = world.asked().len();
    let dry = typed(&["release", "net", "10.0.0.2"]);
    assert!(dry.stderr.contains("the records of c1 cannot be read"), "{dry:?}");
    let refused = typed(&["release", "net", "10.0.0.2", "--yes"]);
    assert_eq!(refused.exit, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("cannot list "), "{refused:?}");
    for asked in &world.asked()[before..] {
        assert_eq!(asked["asked"], "release --json --config - 10.0.0.2");
    }
    fs::set_permissions(&folder, PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn release_of_an_address_without_an_owner_is_an_error() {
    let world = world();
    world.answer("ipam-da-x", "release", &json!([]));
    for more in [&[][..], &["--yes"], &["--json"]] {
        let nobody = world.typed(&[&["release", "net", "fd00::0:1"], more].concat());
        assert_eq!((nobody.exit, nobody.stdout.as_str()), (Some(1), ""), "{nobody:?}");
        assert!(nobody.stderr.contains("no owner holds fd00::1 on net"), "{nobody:?}");
    }
    world.answer("ipam-da-x", "release", &json!([lease("10.0.0.2", "c1")]));
    let one = world.typed(&["release", "net", "10.0.0.2", "10.0.0.3", "--yes"]);
    assert_eq!(one.exit, Some(1));
    assert!(one.stdout.contains("10.0.0.2") && one.stdout.ends_with("released\n"), "{one:?}");
    assert!(one.stderr.contains("no owner holds 10.0.0.3 on net"), "{one:?}");
    world.answer("ipam-da-x", "release", &json!([]));
    let nothing = world.typed(&["release", "net", "--node", "n7", "--yes"]);
    assert!(nothing.stdout.ends_with("nothing to release\n"), "{nothing:?}");
    assert!(nothing.stderr.contains("no lease names the node n7: list shows"), "{nothing:?}");
    nothing.ended_well();
    let nobody = world.typed(&["release", "net", "--owner", "c7", "--yes"]);
    assert_eq!((nobody.exit, nobody.stdout.as_str()), (Some(1), ""), "{nobody:?}");
    assert!(nobody.stderr.contains("c7 holds no address: write the whole container"), "{nobody:?}");
}

#[test]
fn release_says_nothing_of_leases_that_the_store_does_not_show() {
    let world = world();
    let error = json!({"cniVersion": "1.0.0", "code": 11, "msg": "no server answers"});
    world.answer("ipam-da-x", "release", &error);
    for question in [&["--node", "n7"][..], &["--owner", "c7"], &["10.0.0.2"]] {
        let outcome = world.typed(&[&["release", "net"], question, &["--yes"]].concat());
        assert_eq!((outcome.exit, &*outcome.stdout), (Some(1), ""), "{outcome:?}");
        assert!(outcome.stderr.contains("no server answers"), "{outcome:?}");
        assert!(!outcome.stderr.contains("no lease names"), "{outcome:?}");
    }
}

#[test]
fn release_and_who_refuse_a_subnet() {
    let world = world();
    world.answer("ipam-da-x", "release", &json!([lease("10.0.0.0", "c1")]));
    for words in [["release", "net", "10.0.0.0/24"], ["who", "net", "fd00::/64"]] {
        let refused = world.typed(&words);
        assert!(
            refused.exit == Some(1) && refused.stderr.contains(" is a subnet: name each"),
            "{refused:?}"
        );
    }
    assert_eq!(world.asked().len(), 0);
    world.typed(&["release", "net", "10.0.0.0/32"]).ended_well();
    world.typed(&["release", "net", "10.0.0.0"]).ended_well();
}

#[test]
fn forget_names_a_delegate_that_holds_in_two_stores_once() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    for server in ["one", "two"] {
        let mut network = world.network(json!(["a"]));
        network["ipam"]["server"] = json!(server);
        world.call("ADD", "c1", &network).success();
    }
    let dry = world.typed(&["forget", "net", "c1"]);
    assert!(dry.stdout.contains("on net; a may still hold 10.0.0.2/24;"), "{dry:?}");
}

#[test]
fn pools_are_a_table_and_a_map() {
    let world = world();
    let block = |n: u32, held: u32| {
        let (from, to) = (format!("10.0.0.{}", 4 * n), format!("10.0.0.{}", 4 * n + 3));
        json!({"from": from, "to": to, "size": 4, "held": held})
    };
    let row = json!({"pool": "blue", "ranges": "10.0.0.0-10.0.0.11", "size": 12, "held": 5, "free": 7,
                     "blocks": [block(0, 4), block(1, 1), block(2, 0)]});
    world.answer("ipam-da-x", "pools", &json!([row]));
    let mut command = world.typing(&["pools", "net"]);
    command.env("LANG", "C.UTF-8");
    let text = ipam_testkit::world::wait(command.spawn().unwrap()).stdout;
    assert_eq!(
        text,
        "POOL  RANGES              SIZE  HELD  FREE  USE%\n\
         blue  10.0.0.0-10.0.0.11    12     5     7    42\n\n\
         blue\n  10.0.0.0  █░·\n  one cell is 4 addresses: · free  ░ below a third  \
         ▒ below two thirds  ▓ above  █ full\n"
    );
    assert!(world.typed(&["pools", "net", "--ascii"]).stdout.contains("  10.0.0.0  #-.\n"));
    let told = world.typed(&["pools", "net", "--json"]).success();
    assert_eq!(told[0]["blocks"], row["blocks"]);
}

#[test]
fn a_standard_plugin_is_named_as_one_that_cannot_be_asked() {
    let world = world();
    world.allocator("host-local", "10.0.1.2/24");
    world.answer("ipam-da-x", "list", &json!([lease("10.0.0.2", "c1")]));
    world.conflist("10-net.conflist", &world.network(json!(["ipam-da-x", "host-local"])));
    let told = world.typed(&["list", "net"]);
    assert!(told.stdout.contains("10.0.0.2"), "{told:?}");
    assert!(told.stderr.contains("host-local is a standard plugin"), "{told:?}");
    told.ended_well();
    world.conflist("10-net.conflist", &world.network(json!(["host-local"])));
    let alone = world.typed(&["list", "net"]);
    assert_eq!((alone.exit, alone.stdout.as_str()), (Some(1), ""));
    assert!(alone.stderr.contains("host-local is a standard plugin"), "{alone:?}");
}

#[test]
fn an_allocator_that_fails_is_told_and_the_others_are_asked() {
    let world = world();
    world.answering("ipam-da-y", "10.0.1.2/24");
    world.conflist("10-net.conflist", &world.network(json!(["ipam-da-x", "ipam-da-y"])));
    world.answer("ipam-da-y", "list", &json!([lease("10.0.1.2", "c1")]));
    let cases = [
        (json!({"cniVersion": "1.0.0", "code": 103, "msg": "no leader"}), "ipam-da-x: no leader"),
        (json!({"rows": []}), "ipam-da-x: its answer: expected an array"),
    ];
    for (answer, words) in cases {
        world.answer("ipam-da-x", "list", &answer);
        let told = world.typed(&["list", "net"]);
        assert_eq!(told.exit, Some(1));
        assert!(told.stdout.contains("10.0.1.2") && told.stderr.contains(words), "{told:?}");
    }
    world.answer("ipam-da-x", "list", &json!([{"address": "ten", "state": "held"}]));
    let told = world.typed(&["list", "net"]);
    assert!(
        told.stderr.contains("ipam-da-x: its answer[0].address: expected an address"),
        "{told:?}"
    );
    std::fs::remove_file(world.path("ipam-da-x.list")).unwrap();
    let told = world.typed(&["list", "net"]);
    assert_eq!(told.exit, Some(1));
    assert!(told.stderr.contains("ipam-da-x: it does not answer list in JSON"), "{told:?}");
}

#[test]
fn every_plugin_of_ours_counts_and_what_two_name_stands_once() {
    let world = world();
    world.install_as(&binary("ipam-delegated"), "host-local");
    world.selector("ipam-ds-static", &json!([{"name": "a"}]));
    world.answering("ipam-da-local", "10.0.3.2/24").answering("ipam-da-y", "10.0.1.2/24");
    let ipam = |kind: &str| json!({"type": "bridge", "ipam": {"type": kind}});
    world.config(
        "10-net.conflist",
        &json!({"cniVersion": "0.3.1", "name": "net", "plugins": [
            ipam("ipam-da-y"), ipam("ipam-da-y"), ipam("host-local"), ipam("dhcp"), {"type": "tuning"},
        ]}),
    );
    world.answer("ipam-da-y", "list", &json!([lease("10.0.1.2", "c1")]));
    world.answer("ipam-da-local", "list", &json!([lease("10.0.3.2", "c1")]));
    let told = world.typed(&["list", "net", "--json"]).success();
    let addresses: Vec<&Value> =
        told.as_array().unwrap().iter().map(|row| &row["address"]).collect();
    assert_eq!(addresses, ["10.0.1.2", "10.0.3.2"]);
    let asked = world.asked();
    assert_eq!(asked[2]["stdin"]["ipam"]["rangeRules"], "host-local", "the preset's setting");
    assert_eq!(asked[2]["stdin"]["prevResult"]["pools"], json!([{"name": "a"}]));

    world.config(
        "20-b.conf",
        &json!({"cniVersion": "1.0.0", "name": "b", "type": "x", "ipam": {"type": "dhcp"}}),
    );
    let foreign = world.typed(&["list", "b"]);
    assert!(
        foreign.exit == Some(1)
            && foreign
                .stderr
                .contains("net.d/20-b.conf does not use ipam-delegated: its ipam.type is \"dhcp\"")
    );
}

#[test]
fn explain_shows_what_each_delegate_would_get_and_takes_nothing() {
    let world = World::new();
    let answer = json!({"pools": [{"name": "blue"}], "routes": [{"dst": "0.0.0.0/0"}],
                        "ipam": {"ranges": [], "apiToken": "hush"}});
    world.delegate("ipam-ds-x", &format!("printf '%s' '{answer}'"));
    world.allocator("ipam-da-x", "10.0.0.2/24").allocator("ipam-da-red", "10.0.0.3/24");
    let red = json!({"type": "ipam-da-red", "serves": ["red"]});
    let selector = json!({"type": "ipam-ds-x", "sets": ["apiToken"]});
    let network = world.network(json!([selector, "ipam-da-x", red]));
    world.conflist("10-net.conflist", &with(&network, "dbPassword", "hush"));

    let outcome =
        world.typed(&["explain", "net", "--container", "c7", "--ifname", "net1", "--args", "A=1"]);
    let text = &outcome.stdout;
    assert_eq!(outcome.exit, Some(0));
    for line in [
        "net, bridge: ipam-delegated",
        "    pools = [{\"name\":\"blue\"}]",
        "    routes = [{\"dst\":\"0.0.0.0/0\"}]",
        "    ipam.dbPassword = \"…\"",
        "  is skipped: it serves none of the pools",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let (selector, rest) = text.split_once("- ipam-da-x  ").unwrap();
    assert!(selector.contains("  gets\n    ipam.dataDir = "), "{text}");
    let (_, gets) = rest.split_once('\n').unwrap();
    let (gets, _) = gets.split_once("- ipam-da-red").unwrap();
    assert_eq!(
        gets,
        "  is not run now; ADD would give it\n    prevResult.pools = [{\"name\":\"blue\"}]\n    \
         ipam.apiToken = \"…\"\n    ipam.ranges = []\n",
        "what the step before did not get"
    );
    assert!(!text.contains("hush"), "{text}");
    assert_eq!(world.take_calls(), ["ipam-ds-x ADD"]);
    assert!(world.held().is_empty() && !world.path("state/attachments").exists());

    let told = world.typed(&["explain", "net", "--json", "--container", "c7"]).success();
    let delegates = &told[0]["delegates"];
    assert_eq!(delegates[0]["output"]["pools"], json!([{"name": "blue"}]));
    assert_eq!(delegates[1]["input"]["prevResult"]["pools"], json!([{"name": "blue"}]));
    assert_eq!(delegates[1]["input"]["ipam"]["apiToken"], "…");
    assert_eq!(delegates[2]["input"], Value::Null);
    assert!(!told.to_string().contains("hush"));
    assert_eq!(world.calls()[0]["container"], "c7");
}

#[test]
fn explain_ends_at_a_selector_that_fails() {
    let world = world();
    world.delegate("ipam-ds-x", "printf '{\"code\":100,\"msg\":\"no such rack\"}'; exit 1");
    let outcome = world.typed(&["explain", "net"]);
    assert_eq!(outcome.exit, Some(1));
    assert!(outcome.stdout.contains("fails, so ADD fails: ipam-ds-x: no such rack"), "{outcome:?}");
    assert!(!outcome.stdout.contains("ipam-da-x"), "{outcome:?}");
}

#[test]
fn help_has_every_verb_and_options_of_others_are_refused() {
    let world = World::new();
    let help = world.typed(&["help"]).stdout;
    for verb in [
        "list",
        "who",
        "pools",
        "release",
        "attachments",
        "reap",
        "reassert",
        "forget",
        "lint",
        "explain",
    ] {
        let lines = help.lines().filter(|line| line.starts_with(&format!("  {verb} ")));
        assert_eq!(lines.count(), 1, "{verb}: {help}");
    }
    for words in [&["help", "release"], &["release", "--help"]] {
        let help = world.typed(words).stdout;
        assert!(help.contains("usage: ipam-delegated release NETWORK [ADDRESS…] "), "{help}");
        assert!(help.contains("--owner OWNER") && !help.contains("--pinned"), "{help}");
    }
    for words in [&["list"][..], &["list", "net", "--yes"], &["frob"], &["explain", "a", "b"]] {
        let refused = world.typed(words);
        assert_eq!(refused.exit, Some(1), "{refused:?}");
        let usage = "usage: ipam-delegated ";
        let helps =
            [usage, "the verb help lists verbs"].iter().any(|it| refused.stderr.contains(it));
        assert!(helps, "{refused:?}");
    }
    let extra = world.typed(&["help", "release", "net"]);
    assert_eq!(extra.exit, Some(1));
    assert!(extra.stderr.contains("unexpected word \"net\""), "{extra:?}");
    let nothing = world.typed(&["release"]).stderr;
    assert!(nothing.contains("[--owner OWNER] [--node NODE]"), "{nothing}");
}

#[test]
fn a_verb_whose_output_cannot_be_written_fails_unless_its_reader_has_gone() {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24");
    world.call("ADD", "c1", &world.network(json!(["ipam-da-x"]))).success();
    for words in [&["attachments", "--json"][..], &["attachments"], &["help"]] {
        let mut command = world.typing(words);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let outcome = ipam_testkit::world::wait(command.stdout(full).spawn().unwrap());
        assert_eq!(outcome.exit, Some(1), "{words:?}: {outcome:?}");
        assert!(outcome.stderr.contains("cannot print: No space left"), "{outcome:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome =
            ipam_testkit::world::wait(world.typing(words).stdout(writer).spawn().unwrap());
        assert_eq!((outcome.exit, outcome.stderr.as_str()), (Some(0), ""), "{words:?}");
    }
}

#[test]
fn a_full_disk_behind_stderr_changes_neither_exit_nor_output() {
    for program in ["ipam-delegated", "ipam-da-local"] {
        for words in [&[][..], &["lst"], &["lst", "--json"]] {
            let run = |stderr: Stdio| {
                let mut command = Command::new(binary(program));
                command.env_clear().args(words).stderr(stderr).output().unwrap()
            };
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let [read, unread] = [Stdio::piped(), full.into()].map(run);
            assert!(read.status.code().is_some_and(|exit| exit < 2), "{read:?}");
            assert_eq!((unread.status, unread.stdout), (read.status, read.stdout));
        }
    }
}

#[test]
fn the_network_of_records_is_typed_by_its_name_or_its_file() {
    let world = World::new();
    world.allocator("ipam-da-x", "10.0.0.2/24");
    let network = world.network(json!(["ipam-da-x"]));
    world.call("ADD", "c1", &network).success();
    let file = world.path("apart.json");
    std::fs::write(&file, network.to_string()).unwrap();
    let file = file.to_str().unwrap();
    for typed in ["net", file] {
        for words in [&["attachments"][..], &["reap", "--no-cache"], &["reassert"]] {
            let outcome = world.typed(&[words, &[typed]].concat());
            assert!(outcome.stdout.contains("c1"), "{outcome:?}");
        }
        let forgotten = world.typed(&["forget", typed, "c1"]);
        assert!(forgotten.stdout.contains("c1/eth0 on net"), "{forgotten:?}");
    }
    for words in [&["attachments", "nett"][..], &["reap", "nett", "--no-cache"]] {
        let outcome = world.typed(words);
        assert!(outcome.stderr.contains("no attachment of the network nett"), "{outcome:?}");
    }
}

#[test]
fn a_record_that_a_call_works_on_is_busy_for_every_verb() {
    let world = world();
    world.gated_allocator("gated", "10.0.0.3/24");
    let network = world.network(json!(["ipam-ds-x", "ipam-da-x", "gated"]));
    world.conflist("10-net.conflist", &network);
    world.answer("ipam-da-x", "list", &json!([lease("10.0.0.2", "c1")]));
    let adding = start(world.command("ADD", "c1"), &network);
    world.at_gate("gated");
    assert_eq!(world.state_of("c1"), "busy");
    for verb in [&["list", "net"][..], &["who", "net", "10.0.0.2"]] {
        let told = world.typed(&[verb, &["--json"]].concat());
        let rows: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(rows[0]["record"], "busy", "{told:?}");
    }
    let rows = world.typed(&["attachments", "--json"]).success();
    let why = format!("process {} (ipam-delegated) works on it", adding.id());
    assert_eq!((&rows[0]["state"], &rows[0]["why"]), (&json!("busy"), &json!(why)));
    world.open_gate("gated");
    wait(adding);
}
