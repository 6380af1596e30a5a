//! A delegate in Rust dies with its chain, where the chain is its parent.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ipam_testkit::world::{World, binary, kill_now, start, until, wait};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Less than any deadline here.
const SOON: Duration = Duration::from_secs(10);

/// A pipe with a name, which a delegate waits for.
fn fifo(world: &World, name: &str) -> std::path::PathBuf {
    let path = world.path(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Waits until a delegate has the pipe open, and lets it wait for what comes.
fn held_open(path: &Path) -> File {
    let mut end = None;
    until("the delegate to open the pipe", || {
        end = rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
        end.is_some()
    });
    end.unwrap().into()
}

/// A network whose selector, the example in Rust, waits for its source for ever.
fn hanging(world: &World, source: &Path) -> Value {
    let mut network = world.network(json!(["ipam-ds-rack", "ipam-da-x"]));
    network["ipam"]["rackFile"] = json!(source);
    network["ipam"]["racks"] = json!({"r1": {"name": "blue"}});
    network
}

#[test]
fn a_delegate_in_rust_that_hangs_dies_with_its_chain() {
    let ours = binary("examples/ipam-ds-rack");
    let executing = format!("#!/bin/sh\nexec '{}'\n", ours.display());
    for wrapper in [None, Some(executing)] {
        let world = World::new();
        match &wrapper {
            None => world.install_as(&ours, "ipam-ds-rack"),
            Some(script) => world.program("ipam-ds-rack", script),
        };
        world.allocator("ipam-da-x", "10.1.0.2/24");
        let source = fifo(&world, "rack");
        let network = hanging(&world, &source);
        let mut chain = start(world.command("ADD", "c1"), &network);
        let end = held_open(&source);
        kill_now(&mut chain);
        assert!(world.is_quiet_within(SOON), "{wrapper:?}");
        // A process that ends loses its environment before its files.
        until("the record is unlocked", || world.is_unlocked("c1"));
        drop(end);
        fs::remove_file(&source).unwrap();
        fs::write(&source, "r1\n").unwrap();
        world.call("DEL", "c1", &network).success();
        assert!(world.held().is_empty());
    }
}

#[test]
fn the_signal_is_set_for_a_chain_alone_because_it_follows_the_parents_thread() {
    // A runtime in Go forks from threads that end, and may carry the mark of another chain.
    let other = format!("{}.0", std::os::unix::process::parent_id());
    let own = format!("{}.0", std::process::id());
    for (mark, survives) in [(None, true), (Some(other), true), (Some(own), false)] {
        let world = World::new();
        let source = fifo(&world, "rack");
        let ipam = json!({"rackFile": source, "racks": {"r1": {"name": "blue"}}});
        let network = json!({"cniVersion": "1.0.0", "name": "n", "ipam": ipam});
        let mut command = world.command_of(&binary("examples/ipam-ds-rack"), "ADD", "c1");
        command.env("IPAM_DELEGATED_DEADLINE_MS", "600000");
        mark.as_ref().map(|mark| command.env("IPAM_DELEGATED_CALL", mark));
        let starting = std::thread::spawn(move || {
            let child = start(command, &network);
            (child, held_open(&source))
        });
        let (child, mut end) = starting.join().unwrap();
        if survives {
            end.write_all(b"r1\n").unwrap();
            drop(end);
            assert_eq!(wait(child).success()["pools"], json!([{"name": "blue"}]), "{mark:?}");
        } else {
            assert_eq!(wait(child).exit, None, "{mark:?}");
        }
    }
}

#[test]
fn a_delegate_whose_chain_dies_before_the_signal_is_set_begins_nothing() {
    let world = World::new();
    let (stdin, trace) = (fifo(&world, "stdin"), world.path("trace"));
    // It stops once it has seen that the chain, which is the shell, is its parent. Stdin never
    // ends.
    let script = format!(
        "export IPAM_DELEGATED_CALL=$$.0 IPAM_DELEGATED_DEADLINE_MS=600000\n\
         strace -D -o '{}' -e trace=getppid,prctl,exit_group -e inject=getppid:signal=STOP:when=1 \
         '{}' <'{}' & wait",
        trace.display(),
        binary("examples/ipam-ds-rack").display(),
        stdin.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("CNI_COMMAND", "ADD").env("CNI_PATH", world.path("bin"));
    let mut chain = command.stdout(Stdio::piped()).spawn().unwrap();
    let _end = held_open(&stdin);
    let traced = || fs::read_to_string(&trace).unwrap_or_default();
    until("the delegate to stop", || traced().contains("stopped by SIGSTOP"));
    let is_delegate = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("ipam-ds-rack")
    };
    let delegate = world.processes().into_iter().find(is_delegate).unwrap();
    kill_now(&mut chain);
    let delegate = Pid::from_raw(i32::try_from(delegate).unwrap()).unwrap();
    kill_process(delegate, Signal::CONT).unwrap();
    assert!(world.is_quiet_within(SOON), "{}", traced());
    assert!(traced().contains("exit_group(1)"), "{}", traced());
}
