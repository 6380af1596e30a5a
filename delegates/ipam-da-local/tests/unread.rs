//! One system call that fails while a folder or a lease file is read: what could not be read is not taken
//! to be absent.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::thread;

use ipam_testkit::kills::strace;
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use common::{C1, LONG, Place, Program, owned_by, plain, set_age};

const SUBNET: &str = "10.5.0.0/24";

/// What reads, each with an error that it may end with.
const READS: [(&str, &str); 7] = [
    ("?open", "EMFILE"),
    ("openat", "EMFILE"),
    ("read", "EIO"),
    ("getdents64", "EIO"),
    ("readlinkat", "EIO"),
    ("statx", "ENOMEM"),
    ("newfstatat", "ENOMEM"),
];

/// A folder with a lease of `other` and one of [`C1`].
struct Scene {
    place: Place,
    /// Whether somebody else changes the folder before each call, so that the index is made anew.
    changes: bool,
    /// What the ADD of [`C1`] answered.
    result: Value,
}

impl Scene {
    fn new(changes: bool) -> Self {
        let place = Place::new(&[SUBNET]);
        place.add(Program::Allocator, "other");
        Self { place, changes, result: Value::Null }
    }

    fn address(&self) -> String {
        plain(vec![self.result["ips"][0]["address"].as_str().unwrap().to_owned()]).remove(0)
    }

    /// Gives [`C1`] a lease, where it has none.
    fn prepare(&mut self) {
        self.result = self.place.call(Program::Allocator, "ADD", C1).success();
        if self.changes {
            // host-local's own write: the lease is new to the index.
            let path = self.place.folder().join(self.address());
            fs::remove_file(&path).unwrap();
            fs::write(&path, owned_by(C1)).unwrap();
        }
    }

    /// A call whose Nth system call of a name fails, and whether it has come to that.
    fn call(&self, verb: &str, prev_result: &Value, inject: &str) -> (Outcome, bool) {
        let mut network = self.place.network(Program::Allocator);
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        let log = self.place.world.path("strace");
        let mut command = self.place.world.command_of(&strace(), verb, C1);
        command.arg("-o").arg(&log).args(["-e", &format!("inject={inject}")]);
        command.arg(self.place.file(Program::Allocator));
        let outcome = wait(start(command, &network));
        (outcome, fs::read_to_string(log).unwrap().contains("(INJECTED)"))
    }

    #[track_caller]
    fn assert_others_stay(&self, what: &str) {
        assert_eq!(self.place.leases().get("10.5.0.2"), Some(&owned_by("other")), "{what}");
    }
}

/// Does something for each kind of read and for an index that is whole or out of date.
fn each(work: impl Fn(&mut Scene, &str, &str) -> usize + Sync) {
    let of_scene = |changes: bool| {
        let mut scene = Scene::new(changes);
        READS.map(|(call, error)| work(&mut scene, call, error)).iter().sum::<usize>()
    };
    let failed: Vec<usize> = thread::scope(|scope| {
        let scenes = [true, false].map(|changes| scope.spawn(move || of_scene(changes)));
        scenes.into_iter().map(|scene| scene.join().unwrap()).collect()
    });
    assert!(failed.iter().all(|failed| *failed >= 5), "calls that have failed: {failed:?}");
}

#[test]
fn a_del_that_could_not_read_does_not_say_that_it_has_released() {
    each(|scene, call, error| {
        let mut failed = 0;
        for known in [false, true] {
            for nth in 1.. {
                scene.prepare();
                let leases = if known { scene.result["leases"].clone() } else { json!([]) };
                let prev_result = json!({"leases": leases});
                let inject = format!("{call}:error={error}:when={nth}");
                let (outcome, injected) = scene.call("DEL", &prev_result, &inject);
                let what = format!("{inject}, known {known}, {}: {outcome:?}", scene.changes);
                let held = scene.place.leases().values().any(|holder| *holder == owned_by(C1));
                assert!(outcome.exit != Some(0) || !held, "{what}");
                scene.assert_others_stay(&what);
                failed += usize::from(outcome.exit != Some(0));
                // It may be repeated.
                scene.place.del(Program::Allocator, C1);
                assert_eq!(scene.place.leases().len(), 1, "{what}");
                if !injected {
                    break;
                }
            }
        }
        failed
    });
}

#[test]
fn an_add_again_that_could_not_read_moves_no_container() {
    each(|scene, call, error| {
        let mut failed = 0;
        for nth in 1.. {
            scene.prepare();
            let inject = format!("{call}:error={error}:when={nth}");
            let (outcome, injected) = scene.call("ADD", &json!({}), &inject);
            let what = format!("{inject}, {}: {outcome:?}", scene.changes);
            let its =
                scene.place.leases().into_iter().filter(|(_, holder)| *holder == owned_by(C1));
            let its: Vec<String> = its.map(|(address, _)| address).collect();
            assert_eq!(its, [scene.address()], "{what}");
            match outcome.exit {
                Some(0) => assert_eq!(plain(outcome.ips()), its, "{what}"),
                _ => failed += 1,
            }
            scene.assert_others_stay(&what);
            if !injected {
                break;
            }
        }
        failed
    });
}

#[test]
fn the_error_of_a_lease_file_that_could_not_be_read_names_it_and_says_what_to_do() {
    let mut scene = Scene::new(false);
    for (cause, advice) in
        [("EMFILE", "raise the limit of open files"), ("EACCES", "run it as root")]
    {
        let mut told = 0;
        for nth in 1.. {
            scene.prepare();
            let inject = format!("?open,openat:error={cause}:when={nth}");
            let (outcome, injected) = scene.call("DEL", &json!({}), &inject);
            if outcome.stdout.contains("cannot read the lease file") {
                told += 1;
                let (code, text) = outcome.failure();
                assert_eq!(code, 5, "{text}");
                let path = scene.place.folder().display().to_string();
                assert!(text.contains(&path) && text.contains(advice), "{text}");
                assert!(!text.contains("remove the file"), "{text}");
            }
            scene.place.del(Program::Allocator, C1);
            if !injected {
                break;
            }
        }
        assert!(told > 0, "{cause}");
    }
}

#[test]
fn a_gc_that_could_not_read_a_lease_releases_the_others_and_fails() {
    let place = Place::new(&[SUBNET]);
    place.add(Program::Allocator, "other");
    for name in ["10.5.0.30", "10.5.0.31", "10.5.0.32"] {
        set_age(&place.put(name, owned_by(&format!("stale-{name}"))), LONG);
    }
    let unread = place.folder().join("10.5.0.31");
    let mut network = place.network(Program::Allocator);
    network["cniVersion"] = "1.1.0".into();
    network["cni.dev/valid-attachments"] = json!([{"containerID": "other", "ifname": "eth0"}]);
    for (call, error) in [("?open,openat", "EIO"), ("read", "EIO"), ("read", "ENOMEM")] {
        let mut command = place.world.command_of(&strace(), "GC", "");
        command.env("CNI_IFNAME", "").env("CNI_NETNS", "").args(["-o", "/dev/null"]);
        command.arg("-P").arg(&unread).args(["-e", &format!("inject={call}:error={error}")]);
        command.arg(place.file(Program::Allocator));
        let (code, text) = wait(start(command, &network)).failure();
        assert!(code == 5 && text.contains(unread.to_str().unwrap()), "{call}: {code} {text}");
        let left: Vec<String> = place.leases().into_keys().collect();
        assert_eq!(left, ["10.5.0.2", "10.5.0.31"], "{call} {error}");
        // A person is shown what is there.
        let mut command = place.world.command_of(&strace(), "", "");
        command.env_remove("CNI_COMMAND").args(["-o", "/dev/null", "-P"]).arg(&unread);
        command.args(["-e", &format!("inject={call}:error={error}")]);
        let file = place.world.path("typed.json");
        fs::write(&file, network.to_string()).unwrap();
        command.arg(place.file(Program::Allocator)).args(["list", "--json", "--config"]).arg(file);
        let rows = wait(command.spawn().unwrap()).success();
        let row = rows.as_array().unwrap().iter().find(|row| row["address"] == "10.5.0.31");
        assert!(row.unwrap()["note"].as_str().unwrap().contains("cannot read"), "{rows}");
    }
    place.gc(Program::Allocator, &["other"]).success();
    assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.5.0.2"]);
}
