//! What a node notes of its attachments where the token lets us have no keys of our own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::process::{Command, Stdio};

use ipam_testkit::kills::strace;
use ipam_testkit::node::{addresses, given, subnets};
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use common::Node;
use common::layouts::{HOUR, age_notes, assert_books, on, told};
use common::rights::Rights::Theirs;
use common::rights::{POOR, each, node_of};

#[test]
fn a_node_that_has_lost_its_state_leaves_nothing_after_del() {
    each(&[Theirs], |old, etcd, rights| {
        // What the runtime remembers helps; else it is another address.
        for cached in [true, false] {
            let node = node_of(old, etcd, rights);
            assert_eq!(on(&node).address("c1"), "10.1.0.2");
            let node = node_of(old, etcd, rights);
            if cached {
                on(&node).remember("c1", &["10.1.0.2"]);
            }
            let expected = if cached { "10.1.0.2" } else { "10.1.0.3" };
            assert_eq!(on(&node).address("c1"), expected, "{old:?}");
            let other = on(&node).ifname("net1").address("c1");
            on(&node).del("c1");
            assert_books(old, etcd, &[&format!("{other} c1")]);
            // And without an ADD in between.
            let node = node_of(old, etcd, rights);
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
        assert_eq!(ipam_testkit::world::names(&notes), ["a", "b", "c", "d", "e"], "{old:?}");
    });
}

/// A call that cannot open a file.
fn without(file: &std::path::Path, command: &Command, network: &Value) -> Outcome {
    let mut faulty = Command::new(strace());
    faulty.args(["-f", "-o", "/dev/null", "-P"]).arg(file);
    faulty.args(["-e", "inject=?open,openat:error=EIO"]);
    faulty.arg(command.get_program()).env_clear();
    faulty.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    faulty.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(faulty, network))
}

#[test]
fn a_note_that_cannot_be_read_releases_no_address_of_another_attachment() {
    each(&[Theirs], |old, etcd, rights| {
        let node = node_of(old, etcd, rights);
        let notes = node.world.path("state/etcd/owners/c1/net");
        let cached = on(&node).ifname("net1").cache_file("c1");
        for file in [notes.join("net1"), notes.clone(), cached.clone()] {
            on(&node).add("c1");
            let other = on(&node).ifname("net1").address("c1");
            if file == cached {
                on(&node).ifname("net1").remember("c1", &[&other]);
                fs::remove_file(notes.join("net1")).unwrap();
            }
            let (command, network) = on(&node).command("DEL", "c1", &json!({}));
            let (code, text) = without(&file, &command, &network).failure();
            assert_eq!(code, 5, "{old:?} {file:?}: {text}");
            assert!(text.contains(file.to_str().unwrap()), "{file:?}: {text}");
            assert_eq!(old.books(etcd).len(), 2, "{old:?} {file:?}");
            on(&node).del("c1");
            assert_books(old, etcd, &[&format!("{other} c1")]);
            on(&node).ifname("net1").del("c1");
            let _ = fs::remove_file(&cached);
            assert_books(old, etcd, &[]);
        }
    });
}
