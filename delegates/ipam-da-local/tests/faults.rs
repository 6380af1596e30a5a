//! Disks, locks and links that fail: a clear error, nothing changed, and all is well afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use ipam_testkit::kills::strace;
use ipam_testkit::world::{Host, Outcome, start, until, wait, with};
use serde_json::Value;

use common::{C1, Place, Program, owned_by, until_open};

const SUBNET: &str = "10.5.0.0/24";

/// A place whose folders lie on disks of their own, in a mount namespace.
struct Disk {
    place: Place,
    host: Host,
}

impl Disk {
    /// Mounts a small disk as the folder `data`.
    fn new() -> Self {
        let this = Self { place: Place::new(&[SUBNET]), host: Host::new() };
        this.shell("mount -t tmpfs -o size=64k,nr_inodes=20 tmpfs DATA");
        this
    }

    /// Shell in the namespace; `DATA` and `STATE` stand for the folders.
    fn shell(&self, script: &str) {
        let path = |name: &str| self.place.world.path(name).display().to_string();
        self.host.shell(&script.replace("DATA", &path("data")).replace("STATE", &path("state")));
    }

    fn call(&self, program: Program, verb: &str, container: &str) -> Outcome {
        self.call_with(program, verb, container, &self.place.network(program))
    }

    fn call_with(&self, program: Program, verb: &str, container: &str, network: &Value) -> Outcome {
        let inside = self.place.command(program, verb, container);
        let mut command = self.host.enter(inside.get_program());
        command.env_clear();
        command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, network))
    }

    /// The lease files on the disk.
    fn leases(&self) -> Vec<String> {
        let folder = self.host.path(self.place.folder().to_str().unwrap());
        common::leases(&folder).into_keys().collect()
    }

    fn status(&self, program: Program) -> Outcome {
        let mut network = self.place.network(program);
        network["cniVersion"] = "1.1.0".into();
        self.call_with(program, "STATUS", "", &network)
    }
}

#[track_caller]
fn fails(outcome: Outcome, code: u64, texts: &[&str]) {
    let (got, text) = outcome.failure();
    assert_eq!(got, code, "{text}");
    for part in texts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_full_disk_is_an_error_that_names_the_folder_and_changes_nothing() {
    // Full of bytes, then of files.
    for (fill, drain) in [
        ("cat /dev/zero >DATA/fill 2>/dev/null || true", "rm DATA/fill"),
        ("n=0; while touch DATA/fill$n 2>/dev/null; do n=$((n+1)); done", "rm DATA/fill*"),
    ] {
        for program in Program::OURS {
            let disk = Disk::new();
            disk.call(program, "ADD", "other").success();
            disk.shell(fill);
            let folder = disk.place.folder();
            let folder = folder.to_str().unwrap();
            fails(disk.call(program, "ADD", C1), 5, &[folder, "free space on that disk"]);
            assert_eq!(disk.leases(), ["10.5.0.2"]);
            fails(disk.status(program), 50, &[folder]);
            // What is held stays so, and can be released.
            disk.call(program, "ADD", "other").success();
            disk.call(program, "DEL", "other").success();
            assert!(disk.leases().is_empty(), "{program:?}");
            disk.shell(drain);
            assert_eq!(disk.call(program, "ADD", C1).ips().len(), 1);
            disk.status(program).success();
        }
    }
}

#[test]
fn a_full_disk_without_hard_links_keeps_no_half_written_lease() {
    let place = Place::new(&[SUBNET]);
    let log = place.world.path("log");
    let outcome = under_strace(
        &place,
        &["-e", "inject=linkat:error=EXDEV", "-e", "inject=write:error=ENOSPC:when=2"],
        &log,
    );
    fails(outcome, 5, &["free space on that disk"]);
    assert!(place.leases().is_empty(), "{:?}", place.leases());
}

#[test]
fn a_read_only_folder_is_an_error_that_names_it() {
    for program in Program::OURS {
        let disk = Disk::new();
        disk.call(program, "ADD", C1).success();
        disk.shell("mount -o remount,ro DATA");
        let folder = disk.place.folder();
        let folder = folder.to_str().unwrap();
        for (verb, container) in [("ADD", "other"), ("DEL", C1)] {
            fails(disk.call(program, verb, container), 5, &[folder, "mount the disk writable"]);
            assert_eq!(disk.leases(), ["10.5.0.2"], "{program:?}");
        }
        fails(disk.status(program), 50, &[folder]);
        disk.shell("mount -o remount,rw DATA");
        disk.call(program, "DEL", C1).success();
        assert!(disk.leases().is_empty());
    }
}

#[test]
fn a_state_folder_that_cannot_be_written_fails_status_but_holds_up_no_del() {
    let disk = Disk::new();
    let program = Program::Allocator;
    for container in [C1, "other"] {
        disk.call(program, "ADD", container).success();
    }
    disk.shell("mount --bind STATE STATE; mount -o remount,bind,ro STATE");
    fails(disk.status(program), 50, &[disk.place.world.path("state").to_str().unwrap()]);
    disk.call(program, "DEL", C1).success();
    assert_eq!(disk.leases(), ["10.5.0.3"]);
    // The same with an index that is out of date.
    assert_eq!(disk.call(program, "ADD", "other").ips(), ["10.5.0.3/24"]);
    assert_eq!(disk.call(program, "ADD", "third").ips(), ["10.5.0.4/24"]);
    disk.shell("mount -o remount,bind,rw STATE");
    for container in ["other", "third"] {
        disk.call(program, "DEL", container).success();
    }
    assert!(disk.leases().is_empty(), "{:?}", disk.leases());
}

#[test]
fn a_file_in_place_of_a_folder_is_an_error_that_names_it() {
    for program in Program::OURS {
        for (file, data_dir) in [("file", "file"), ("data/net", "data")] {
            let place = Place::new(&[SUBNET]);
            fs::write(place.world.path(file), "text").unwrap();
            let data_dir = place.world.path(data_dir);
            let network = with(&place.network(program), "dataDir", data_dir.to_str().unwrap());
            let path = data_dir.join("net");
            let texts = [path.to_str().unwrap(), "must be a folder, but a file has this name"];
            for verb in ["ADD", "DEL"] {
                fails(place.call_with(program, verb, C1, &network), 5, &texts);
            }
            assert_eq!(fs::read_to_string(place.world.path(file)).unwrap(), "text");
        }
    }
}

#[test]
fn a_folder_behind_a_link_that_leads_nowhere_is_not_taken_for_empty() {
    // Of the folder, links are followed; of the lock, none is.
    for (link, told) in [("data", "does not exist"), ("data/net/lock", "is a symbolic link")] {
        let place = Place::new(&[SUBNET]);
        place.add(Program::Chain, C1);
        let link = place.world.path(link);
        let aside = place.world.path("aside");
        fs::rename(&link, &aside).unwrap();
        std::os::unix::fs::symlink("/nowhere/to/be/found", &link).unwrap();
        for verb in ["ADD", "DEL"] {
            let (code, text) = place.call(Program::Chain, verb, C1).failure();
            assert_eq!(code, 5, "{told} {verb}: {text}");
            assert!(text.contains(told), "{text}");
        }
        fs::remove_file(&link).unwrap();
        fs::rename(&aside, &link).unwrap();
        place.del(Program::Chain, C1);
        assert!(place.leases().is_empty());
    }
}

#[test]
fn an_address_that_is_taken_over_is_at_no_time_free() {
    let calls = ["linkat", "rename", "unlink", "symlink", "pwrite64"];
    let mut killed = 0;
    for (call, nth) in calls.iter().flat_map(|call| (1..=3).map(move |nth| (call, nth))) {
        let place = Place::new(&[SUBNET]);
        place.put("10.5.0.9", owned_by("victim"));
        let mut network = place.network(Program::Allocator);
        network["prevResult"]["pools"][0]["requested-ip"] = "10.5.0.9".into();
        network["ipam"]["takeover"] = true.into();
        let mut command = place.world.command_of(&strace(), "ADD", C1);
        command.args([
            "-o",
            "/dev/null",
            "-e",
            &format!("inject={call}:signal=SIGKILL:when={nth}"),
        ]);
        command.arg(place.file(Program::Allocator));
        killed += usize::from(wait(start(command, &network)).exit.is_none());
        let holder = place.leases().get("10.5.0.9").cloned();
        assert!(
            [Some(owned_by("victim")), Some(owned_by(C1))].contains(&holder),
            "{call} {nth}: {holder:?}"
        );
        place.call_with(Program::Allocator, "ADD", C1, &network).success();
        assert_eq!(place.leases()["10.5.0.9"], owned_by(C1));
        assert_eq!(place.leases().len(), 1);
    }
    assert!(killed >= 4, "{killed}");
}

#[test]
fn an_undo_of_two_allocators_gives_back_what_both_took() {
    let mut place = Place::new(&[SUBNET]);
    place.world.delegate(
        "bad",
        "case $CNI_COMMAND in ADD) printf '{\"code\":100,\"msg\":\"full\"}'; exit 1;; esac",
    );
    place.ipam = serde_json::json!({
        "ranges": null,
        "pools": [
            {"name": "a", "ranges": [{"subnet": "10.6.0.0/24"}]},
            {"name": "b", "ranges": [{"subnet": "10.7.0.0/24"}]},
        ],
        "delegates": [
            "ipam-ds-static",
            {"type": "ipam-da-local", "serves": ["a"]},
            {"type": "ipam-da-local", "serves": ["b"]},
            "bad",
        ],
    });
    assert_eq!(place.call(Program::Chain, "ADD", C1).failure().0, 100);
    assert!(place.leases().is_empty(), "{:?}", place.leases());
}

#[test]
fn an_add_that_was_refused_does_not_hold_up_a_later_del() {
    let place = Place::new(&[SUBNET]);
    fs::write(place.world.path("file"), "text").unwrap();
    let file = place.world.path("file");
    let wrong = with(&place.network(Program::Chain), "dataDir", file.to_str().unwrap());
    assert_eq!(place.call_with(Program::Chain, "ADD", C1, &wrong).failure().0, 5);
    place.add(Program::Chain, C1);
    place.del(Program::Chain, C1);
    assert!(place.leases().is_empty() && !place.world.record(C1).exists());
}

/// A process that holds host-local's lock, and is stopped.
struct Stopped(std::process::Child);

impl Stopped {
    fn new(place: &Place) -> Self {
        fs::create_dir_all(place.folder()).unwrap();
        let lock = place.folder().join("lock");
        let child = Command::new("flock")
            .arg(&lock)
            .args(["sh", "-c", "kill -STOP $$"])
            .spawn()
            .expect("flock of util-linux is needed");
        until("the lock to be held", || {
            File::open(&lock).is_ok_and(|file| file.try_lock().is_err())
        });
        Self(child)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let children = format!("/proc/{0}/task/{0}/children", self.0.id());
        for child in fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            let _ = Command::new("kill").args(["-9", child]).status();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lock_that_a_stopped_process_holds_is_waited_for_a_bounded_time() {
    let place = Place::new(&[SUBNET]);
    let result = place.call(Program::Allocator, "ADD", C1).success();
    let before = place.everything();
    let stopped = Stopped::new(&place);
    let lock = place.folder().join("lock");
    for verb in ["ADD", "DEL", "CHECK"] {
        let mut network = place.network(Program::Allocator);
        network["prevResult"]["ips"] = result["ips"].clone();
        let mut command = place.command(Program::Allocator, verb, C1);
        command.env("IPAM_DELEGATED_DEADLINE_MS", "300");
        let outcome = wait(start(command, &network));
        fails(outcome, 11, &[lock.to_str().unwrap(), "fuser -v"]);
    }
    let mut network = place.network(Program::Chain);
    network["ipam"]["timeout"] = "1s".into();
    fails(place.call_with(Program::Chain, "ADD", "other", &network), 11, &["ipam-da-local: "]);
    drop(stopped);
    assert_eq!(place.everything(), before);
    place.del(Program::Allocator, C1);
    place.add(Program::Chain, "other");
}

#[test]
fn a_folder_that_is_emptied_while_calls_wait_gets_leases_and_a_lock_again() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        place.add(program, "other");
        let path = place.folder().join("lock");
        let old = File::open(&path).unwrap();
        old.lock().unwrap();
        let calls: Vec<_> = (0..4)
            .map(|n| {
                let command = place.command(program, "ADD", &format!("c{n}"));
                start(command, &place.network(program))
            })
            .collect();
        until_open(&place.world, &path, calls.len());
        fs::remove_dir_all(place.folder()).unwrap();
        drop(old);
        let mut given: Vec<String> = calls.into_iter().flat_map(|call| wait(call).ips()).collect();
        given.sort();
        given.dedup();
        assert_eq!(given.len(), 4, "{program:?}: {given:?}");
        assert_eq!(place.leases().len(), 4, "{program:?}");
    }
}

fn under_strace(place: &Place, arguments: &[&str], log: &Path) -> Outcome {
    let mut command = place.world.command_of(&strace(), "ADD", C1);
    command
        .arg("-o")
        .arg(log)
        .args(["-y", "-e", "trace=?open,openat,linkat,write"])
        .args(arguments);
    command.arg(place.file(Program::Allocator));
    wait(start(command, &place.network(Program::Allocator)))
}

#[test]
fn where_hard_links_fail_a_lease_file_is_created_and_written() {
    let links = ["EXDEV", "EPERM", "EOPNOTSUPP", "ENOENT"]
        .map(|error| (format!("inject=linkat:error={error}"), false));
    // What file systems without nameless files say.
    let nameless = ["EOPNOTSUPP", "EISDIR", "EINVAL"]
        .map(|error| (format!("inject=?open,openat:error={error}"), true));
    for (inject, only_folder) in links.into_iter().chain(nameless) {
        let place = Place::new(&[SUBNET]);
        place.add(Program::Allocator, "other");
        let log = place.world.path("log");
        let folder = place.folder();
        let mut arguments = vec!["-e", &inject];
        if only_folder {
            // Opening the folder itself, as a nameless file is.
            arguments.extend(["-P", folder.to_str().unwrap()]);
        }
        assert_eq!(under_strace(&place, &arguments, &log).ips(), ["10.5.0.3/24"], "{inject}");
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("(INJECTED)") && log.contains("O_TMPFILE"), "{log}");
        assert_eq!(place.leases()["10.5.0.3"], owned_by(C1), "{inject}");
        assert_eq!(place.leases().len(), 2, "{inject}");
        place.del(Program::HostLocal, C1);
        assert_eq!(place.leases().len(), 1, "{inject}");
    }
}

#[test]
fn an_error_of_the_link_that_means_something_else_fails_the_add() {
    let place = Place::new(&[SUBNET]);
    let log = place.world.path("log");
    let outcome = under_strace(&place, &["-e", "inject=linkat:error=EIO"], &log);
    fails(outcome, 5, &[place.folder().to_str().unwrap()]);
    assert!(place.leases().is_empty());
}
