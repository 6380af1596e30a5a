//! Tokens that may do no more than the replaced plugins needed: everything works without our own keys, and goes on
//! with them once they are allowed.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::etcd::Etcd;
use common::layouts::{BOTH, Old, age_notes, all, on, told};
use common::rights::Rights::{All, None, Theirs, TheirsAndRead};
use common::rights::{Rights, calling_as, forget_refusal, grant_all, guarded, node_of, revoke_all};
use common::support::kills::strace;
use common::support::{start, wait};
use common::{Node, addresses, given, subnets};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);

/// A server with users of these rights in both layouts, where something is done in each.
fn each(rights: &[Rights], act: impl Fn(Old, &Etcd, Rights)) {
    let users = BOTH.into_iter().flat_map(|old| rights.iter().map(move |rights| (old, *rights)));
    let users: Vec<_> = users.collect();
    let etcd = guarded(&users);
    for (old, rights) in users {
        act(old, &etcd, rights);
        etcd.etcdctl(&["del", "--prefix", "/"]);
    }
}

/// Those whose token does not let us write keys of our own.
const POOR: [Rights; 2] = [Theirs, TheirsAndRead];

#[track_caller]
fn assert_books(old: Old, etcd: &Etcd, expected: &[&str]) {
    assert_eq!(told(&old.books(etcd)), expected, "{old:?}");
}

#[track_caller]
fn assert_no_key_of_ours(old: Old, etcd: &Etcd) {
    assert_eq!(etcd.keys(old.ours()), [""; 0], "{old:?}");
}

/// A node that has lost its state folder, and perhaps what the runtime remembers.
fn reborn(old: Old, etcd: &Etcd, rights: Rights) -> Node {
    node_of(old, etcd, rights)
}

#[test]
fn a_token_for_all_below_the_old_prefix_has_the_index() {
    each(&[All], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        node.call("STATUS", "").success();
        let result = on(&node).add("c1");
        on(&node).ifname("net1").add("c1");
        assert_books(old, etcd, &["10.1.0.2 node-1/net/c1/eth0", "10.1.0.3 node-1/net/c1/net1"]);
        node.check("c1", &result).success();
        node.gc(&["c1"]).success();
        on(&node).del_known("c1", &result);
        on(&node).ifname("net1").del("c1");
        assert_books(old, etcd, &[]);
        assert_eq!(node.listed(), []);
        assert!(!node.world.path("state/etcd/owners").exists());
    });
}

#[test]
fn a_token_of_the_old_plugin_gives_checks_and_releases() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        node.call("STATUS", "").success();
        let result = on(&node).add("c1");
        assert_eq!(addresses(&result), ["10.1.0.2"]);
        for _ in 0..2 {
            let again = on(&node).add("c1");
            assert_eq!(
                (addresses(&again)[0].as_str(), &again["leases"][0]["kept"]),
                ("10.1.0.2", &json!(true))
            );
        }
        let result = on(&node).add("c1");
        let second = on(&node).ifname("net1").add("c1");
        assert_eq!(addresses(&second), ["10.1.0.3"]);
        assert_eq!(on(&node).address("c2"), "10.1.0.4");
        assert_books(old, etcd, &["10.1.0.2 c1", "10.1.0.3 c1", "10.1.0.4 c2"]);
        node.check("c1", &result).success();
        on(&node).check_of("c1", &["10.1.0.2"]).success();
        assert_eq!(on(&node).check_of("c1", &["10.1.0.4"]).failure().0, 104, "{old:?}");
        assert_eq!(
            on(&node).check_of("c1", &["10.1.0.3"]).failure().0,
            104,
            "{old:?}: the other's"
        );
        on(&node).del_known("c1", &result);
        on(&node).del_known("c1", &result);
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.3 c1", "10.1.0.4 c2"]);
        on(&node).ifname("net1").check_of("c1", &["10.1.0.3"]).success();
        on(&node).ifname("net1").del("c1");
        on(&node).ifname("net1").del("c1");
        on(&node).del("c2");
        assert_books(old, etcd, &[]);
        node.call("STATUS", "").success();
        assert_no_key_of_ours(old, etcd);
        let notes = node.world.path("state/etcd/owners");
        assert_eq!(common::support::names(&notes), [""; 0], "{old:?}");
    });
}

#[test]
fn del_of_one_interface_leaves_the_other_whatever_is_known() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        for [first, second] in [["eth0", "net1"], ["net1", "eth0"]] {
            on(&node).ifname(first).add("c1");
            let kept = addresses(&on(&node).ifname(second).add("c1"));
            on(&node).ifname(first).del("c1");
            on(&node).ifname(first).del("c1");
            let rest: Vec<String> = kept.iter().map(|address| format!("{address} c1")).collect();
            assert_eq!(told(&old.books(etcd)), rest, "{old:?}");
            assert_eq!(addresses(&on(&node).ifname(second).add("c1")), kept, "{old:?}");
            on(&node).ifname(second).del("c1");
            assert_books(old, etcd, &[]);
        }
    });
}

#[test]
fn networks_side_by_side_leave_each_others_addresses() {
    let old = Old::HostEtcd;
    let etcd = guarded(&[(old, Theirs)]);
    let mut node = node_of(old, &etcd, Theirs);
    on(&node).network("a").add("c1");
    on(&node).network("b").add("c1");
    assert_books(old, &etcd, &["10.1.0.2 c1", "10.1.0.3 c1"]);
    on(&node).network("a").del("c1");
    on(&node).network("a").del("c1");
    assert_books(old, &etcd, &["10.1.0.3 c1"]);
    node.pools = subnets(&["10.0.0.0/8"]);
    on(&node).network("c").del("c1");
    assert_books(old, &etcd, &["10.1.0.3 c1"]);
    on(&node).network("b").del("c1");
    assert_books(old, &etcd, &[]);
}

#[test]
fn a_node_that_has_lost_its_state_leaves_nothing_after_del() {
    each(&[Theirs], |old, etcd, rights| {
        // What the runtime remembers helps; else it is another address.
        for cached in [true, false] {
            let node = node_of(old, etcd, rights);
            assert_eq!(on(&node).address("c1"), "10.1.0.2");
            let node = reborn(old, etcd, rights);
            if cached {
                on(&node).remember("c1", &["10.1.0.2"]);
            }
            let expected = if cached { "10.1.0.2" } else { "10.1.0.3" };
            assert_eq!(on(&node).address("c1"), expected, "{old:?}");
            let other = on(&node).ifname("net1").address("c1");
            on(&node).del("c1");
            assert_books(old, etcd, &[&format!("{other} c1")]);
            // And without an ADD in between.
            let node = reborn(old, etcd, rights);
            on(&node).ifname("net1").del("c1");
            assert_books(old, etcd, &[]);
            etcd.etcdctl(&["del", "--prefix", "/"]);
        }
    });
}

#[test]
fn gc_releases_what_this_node_has_noted() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let other = node_of(old, etcd, rights).named("node-2");
        for container in ["kept", "stale", "taken", "young"] {
            on(&node).add(container);
        }
        on(&node).ifname("net1").add("kept");
        on(&other).add("stale");
        old.give(etcd, "10.1.0.100", "stale");
        old.give(etcd, "10.1.0.4", "thief");
        let before = told(&old.books(etcd));
        node.gc(&["kept", "young"]).success();
        assert_eq!(told(&old.books(etcd)), before, "{old:?}: young ones stay");
        age_notes(&node, HOUR);
        on(&node).add("young");
        node.gc(&["kept"]).success();
        let rest = [
            "10.1.0.2 kept",
            "10.1.0.4 thief",
            "10.1.0.5 young",
            "10.1.0.7 stale",
            "10.1.0.100 stale",
        ];
        assert_books(old, etcd, &rest);
        on(&node).del("taken");
        assert_books(old, etcd, &rest);
    });
}

#[test]
fn people_see_and_release_what_the_container_ids_tell() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("c1");
        on(&node).ifname("net1").add("c1");
        old.give(etcd, "10.1.0.9", "theirs");
        let listed = [("10.1.0.2", "c1"), ("10.1.0.3", "c1"), ("10.1.0.9", "theirs")];
        assert_eq!(node.listed(), listed.map(|(a, c)| (a.to_owned(), c.to_owned())));
        let who = node.typed(&["who", "10.1.0.9", "--json"]).success();
        assert_eq!(who[0]["containerID"], "theirs");
        let pools = node.typed(&["pools", "--json"]).success();
        assert_eq!(pools[0]["held"], 3);
        node.told(&["release", "10.1.0.2", "--yes"]);
        assert_books(old, etcd, &["10.1.0.3 c1", "10.1.0.9 theirs"]);
        // The note of it is worth nothing.
        assert_eq!(on(&node).address("c1"), "10.1.0.4");
        node.told(&["release", "--owner", "c1", "--yes"]);
        assert_books(old, etcd, &["10.1.0.9 theirs"]);
    });
}

#[test]
fn a_note_is_worth_what_the_store_says() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("c1");
        old.give(etcd, "10.1.0.2", "thief");
        assert_eq!(on(&node).address("c1"), "10.1.0.3", "{old:?}");
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.2 thief"]);
        etcd.del(&old.lease("10.1.0.2"));
        on(&node).add("c1");
        let notes = node.world.path("state/etcd/owners/c1/net");
        for garbage in ["", "garbage", "{}", "[\"10.1.0.300\"]"] {
            fs::write(notes.join("eth0"), garbage).unwrap();
            on(&node).call("DEL", "c1", &json!({})).success();
            assert_books(old, etcd, &[]);
            on(&node).add("c1");
        }
        on(&node).del("c1");
        // Interfaces whose names end alike have notes of their own.
        on(&node).ifname("eth0.new").add("c1");
        on(&node).ifname("eth0.1").add("c1");
        let second = on(&node).ifname("eth0.2").address("c1");
        on(&node).ifname("eth0.1").del("c1");
        on(&node).ifname("eth0.new").del("c1");
        assert_books(old, etcd, &[&format!("{second} c1")]);
    });
}

/// A call that is killed before it renames a file for the so many'th time.
fn killed_at_rename(number: usize, command: &Command, network: &Value) {
    let mut killed = Command::new(strace());
    killed.args(["-f", "-o", "/dev/null", "-e", "trace=?rename,renameat,renameat2", "-e"]);
    killed.arg(format!("inject=?rename,renameat,renameat2:signal=SIGKILL:when={number}"));
    killed.arg(command.get_program()).env_clear();
    killed.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    killed.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = wait(start(killed, network));
    assert_eq!(outcome.exit, Option::None, "{outcome:?}");
}

#[test]
fn a_process_that_is_killed_while_it_notes_leaves_nothing_after_del() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        // The token is kept, the refusal known: notes are all that is renamed, before the claim and after it.
        on(&node).add("c0");
        let second = on(&node).ifname("net1").address("c1");
        for (number, held) in [(1, 2), (2, 3)] {
            for again in [false, true] {
                let (command, network) = on(&node).command("ADD", "c1", &json!({}));
                killed_at_rename(number, &command, &network);
                assert_eq!(old.books(etcd).len(), held, "{old:?} {number}");
                if again {
                    on(&node).add("c1");
                    assert_eq!(old.books(etcd).len(), 3, "{old:?} {number}: it is found");
                }
                on(&node).del("c1");
                assert_books(old, etcd, &["10.1.0.2 c0", &format!("{second} c1")]);
            }
        }
    });
}

#[test]
fn a_state_folder_that_cannot_be_written_costs_the_notes_alone() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("c0");
        on(&node).del("c0");
        fs::write(node.world.path("state/etcd/owners/c1"), "no folder").unwrap();
        let outcome = on(&node).call("ADD", "c1", &json!({}));
        assert!(outcome.stderr.contains("a repeated ADD takes another address"), "{outcome:?}");
        let first = outcome.success();
        let second = on(&node).add("c1");
        assert_ne!(addresses(&first), addresses(&second), "{old:?}");
        on(&node).del("c1");
        assert_books(old, etcd, &[]);
    });
}

#[test]
fn an_interface_is_not_given_what_another_has_noted() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        on(&node).add("c1");
        let asking = node.with_in_pools("requested-ip", "10.1.0.2");
        for _ in 0..2 {
            let (code, text) = on(&asking).ifname("net1").call("ADD", "c1", &json!({})).failure();
            assert_eq!(code, 102, "{old:?} {text}");
        }
        // Its own it may ask for.
        assert_eq!(on(&asking).address("c1"), "10.1.0.2");
        on(&asking).ifname("net1").del("c1");
        assert_books(old, etcd, &["10.1.0.2 c1"]);
    });
}

#[test]
fn a_late_del_frees_nothing_that_another_interface_has_noted() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights).with_in_pools("strategy", "lowest");
        let first = on(&node).add("c1");
        on(&node).del_known("c1", &first);
        let second = on(&node).ifname("net1").add("c1");
        assert_eq!(addresses(&second), addresses(&first));
        on(&node).del_known("c1", &first);
        on(&node).del("c1");
        assert_books(old, etcd, &["10.1.0.2 c1"]);
    });
}

#[test]
fn an_undo_takes_back_what_its_add_took() {
    each(&[Theirs], |old, etcd, rights| {
        let mut node = node_of(old, etcd, rights).with_subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        let undo = |node: &Node, result: &Value| {
            let mut undo = given(result);
            undo["undo"] = true.into();
            on(node).call("DEL", "c1", &undo).success();
        };
        on(&node).ifname("net1").add("c1");
        let result = on(&node).add("c1");
        let again = on(&node).add("c1");
        undo(&node, &again);
        node.check("c1", &again).success();
        undo(&node, &result);
        node.check("c1", &again).success();
        on(&node).del("c1");
        let result = on(&node).add("c1");
        undo(&node, &result);
        assert_books(old, etcd, &["10.1.0.2 c1", "fd00:1::2 c1"]);
        // Of an ADD that took one address beside another.
        node.pools = subnets(&["10.1.0.0/24"]);
        on(&node).add("c1");
        node.pools = subnets(&["10.1.0.0/24", "fd00:1::/64"]);
        let result = on(&node).add("c1");
        let before = old.books(etcd).len();
        undo(&node, &result);
        assert_eq!(old.books(etcd).len(), before - 1, "{old:?}");
        on(&node).del("c1");
        on(&node).ifname("net1").del("c1");
        assert_books(old, etcd, &[]);
    });
}

#[test]
fn an_add_that_fails_leaves_no_note() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights).with_subnets(&["10.1.0.0/29"]);
        for container in ["a", "b", "c", "d", "e"] {
            on(&node).add(container);
        }
        assert_eq!(on(&node).call("ADD", "f", &json!({})).failure().0, 100);
        let asking = node.with_in_pools("requested-ip", "10.1.0.3");
        assert_eq!(on(&asking).call("ADD", "f", &json!({})).failure().0, 102);
        let notes = asking.world.path("state/etcd/owners");
        assert_eq!(common::support::names(&notes), ["a", "b", "c", "d", "e"], "{old:?}");
    });
}

#[test]
fn what_was_given_without_the_index_goes_on_with_it() {
    each(&POOR, |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let names = ["again", "known", "unknown", "gc"];
        let results = names.map(|name| on(&node).add(name));
        on(&node).ifname("net1").add("again");
        grant_all(etcd, old, rights);
        // The refusal counts for a while.
        on(&node).add("early");
        assert_no_key_of_ours(old, etcd);
        forget_refusal(&node);
        node.call("STATUS", "").success();
        for (name, result) in names.iter().zip(&results) {
            node.check(name, result).success();
        }
        let again = on(&node).add("again");
        assert_eq!(addresses(&again), addresses(&results[0]), "{old:?}");
        assert_books(
            old,
            etcd,
            &[
                "10.1.0.2 node-1/net/again/eth0",
                "10.1.0.3 known",
                "10.1.0.4 unknown",
                "10.1.0.5 gc",
                "10.1.0.6 again",
                "10.1.0.7 early",
            ],
        );
        assert_eq!(on(&node).ifname("net1").address("again"), "10.1.0.6", "{old:?}");
        on(&node).del_known("known", &results[1]);
        on(&node).del("unknown");
        age_notes(&node, HOUR);
        node.gc(&["early"]).success();
        let rest =
            ["10.1.0.2 node-1/net/again/eth0", "10.1.0.6 node-1/net/again/net1", "10.1.0.7 early"];
        assert_books(old, etcd, &rest);
        on(&node).add("new");
        node.call("STATUS", "").success();
        on(&node).del("again");
        on(&node).ifname("net1").del("again");
        on(&node).del("new");
        on(&node).del("early");
        assert_books(old, etcd, &[]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0], "{old:?}");
        revoke_all(etcd, old, rights);
    });
}

#[test]
fn what_was_given_with_the_index_goes_on_without_it() {
    each(&[Theirs, TheirsAndRead], |old, etcd, rights| {
        grant_all(etcd, old, rights);
        let node = node_of(old, etcd, rights);
        let names = ["again", "known", "unknown"];
        let results = names.map(|name| on(&node).add(name));
        revoke_all(etcd, old, rights);
        let restored = match rights {
            TheirsAndRead => vec![old.ours()],
            _ => vec![],
        };
        for key in restored {
            let role = format!("{}-{rights:?}", old.name());
            etcd.etcdctl(&["role", "grant-permission", "--prefix=true", &role, "read", key]);
        }
        node.check("known", &results[1]).success();
        on(&node).del_known("known", &results[1]);
        on(&node).del("unknown");
        assert_eq!(etcd.keys(old.leases()), [old.lease("10.1.0.2")], "{old:?} {rights:?}");
        // Nobody tells what it had but the container id: another address, or the same where reading is allowed.
        let again = on(&node).address("again");
        on(&node).del("again");
        assert_eq!(etcd.keys(old.leases()), [""; 0], "{old:?} {rights:?} {again}");
        // Once it is allowed again, what is left of the index is in nobody's way.
        grant_all(etcd, old, rights);
        forget_refusal(&node);
        for name in names {
            on(&node).add(name);
            on(&node).del(name);
        }
        assert_books(old, etcd, &[]);
        assert_eq!(etcd.keys(&format!("{}owners/", old.ours())), [""; 0], "{old:?}");
        revoke_all(etcd, old, rights);
    });
}

#[test]
fn a_token_without_rights_is_told_so_by_every_verb() {
    each(&[None], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        old.give(etcd, "10.1.0.2", "c1");
        let before = all(etcd);
        let leases = json!({"ips": [{"address": "10.1.0.2/24"}]});
        for (verb, known, expected) in [
            ("ADD", json!({}), 103),
            ("CHECK", leases, 103),
            ("DEL", json!({}), 103),
            ("STATUS", json!({}), 50),
        ] {
            for _ in 0..2 {
                let (code, text) = on(&node).call(verb, "c1", &known).failure();
                assert_eq!(code, expected, "{old:?} {verb} {text}");
                for word in ["permission denied", "grant-permission", &etcd.url()] {
                    assert!(text.contains(word), "{old:?} {verb}: {text}");
                }
            }
        }
        for words in [&["list"][..], &["who", "10.1.0.2"], &["release", "10.1.0.2", "--yes"]] {
            let outcome = node.typed(words);
            assert_ne!(outcome.exit, Some(0), "{old:?} {outcome:?}");
            assert!(format!("{outcome:?}").contains("permission denied"), "{old:?} {outcome:?}");
        }
        assert_eq!(all(etcd), before);
        // It is not taken for a token that may have no index.
        grant_all(etcd, old, rights);
        on(&node).add("c2");
        assert_books(old, etcd, &["10.1.0.2 c1", "10.1.0.3 node-1/net/c2/eth0"]);
    });
}

#[test]
fn the_refusal_is_remembered_for_ten_minutes() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let adds = |expected: u64, container: &str| {
            let calls = etcd.rpcs_during(|| drop(on(&node).add(container)));
            let calls: u64 =
                calls.iter().filter(|(name, _)| *name != "Authenticate").map(|(_, n)| n).sum();
            assert_eq!(calls, expected, "{old:?} {container}");
        };
        // A look that is refused, one without the index, and the claim.
        adds(3, "c1");
        adds(1, "c2");
        adds(2, "c2");
        forget_refusal(&node);
        adds(2, "c3");
        adds(1, "c4");
    });
}

#[test]
fn a_refused_request_changes_nothing_and_is_not_noted() {
    // The servers ask for a user, and the node names none.
    let etcd = guarded(&[]);
    for old in BOTH {
        let node = old.node(&etcd).with("timeout", "1s");
        let (code, text) = on(&node).call("ADD", "c1", &json!({})).failure();
        assert_eq!(code, 103, "{text}");
        assert!(text.contains("user name is empty"), "{text}");
        assert_eq!(etcd.keys(""), [""; 0]);
        let memory: Value = fs::read(node.memory())
            .map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
        assert_eq!(memory[""]["unindexed"], Value::Null);
    }
}

#[test]
fn two_users_of_one_store_respect_each_other() {
    each(&[Theirs], |old, etcd, rights| {
        grant_all(etcd, old, rights);
        let rich = node_of(old, etcd, rights).named("node-1");
        let held = on(&rich).add("c1");
        revoke_all(etcd, old, rights);
        let poor = calling_as(old.node(etcd).named("node-2"), old, rights);
        let other = on(&poor).add("c2");
        assert_ne!(addresses(&held), addresses(&other));
        on(&poor).del_known("c1", &json!({"ips": [], "leases": []}));
        let leases = given(&other);
        assert_eq!(leases["leases"][0]["kept"], Value::Null);
        on(&poor).del_known("c2", &other);
        grant_all(etcd, old, rights);
        revoke_all(etcd, old, rights);
    });
}
