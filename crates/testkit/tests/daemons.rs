//! A daemon is the one that was started, and nothing is left of it when its test has ended.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use ipam_testkit::consul::{self, Consul};
use ipam_testkit::etcd::{self, Etcd};
use ipam_testkit::kube::Kube;
use ipam_testkit::leftovers::{assert_nothing_is_left_of_a_killed_test, traces};
use ipam_testkit::world::until;

#[test]
fn another_server_on_its_port_is_not_taken_for_it() {
    let etcd = Etcd::start();
    etcd.kill();
    let other = Etcd::builder().in_place_of(&etcd).start();
    assert_eq!((other.endpoint(), other.answers()), (etcd.endpoint(), Ok(())));
    let consul = Consul::start();
    consul.kill();
    let other = Consul::builder().in_place_of(&consul).start();
    assert_eq!((other.endpoint(), other.answers()), (consul.endpoint(), Ok(())));
    for reason in [etcd.answers().unwrap_err(), consul.answers().unwrap_err()] {
        assert!(reason.contains("another server has its port"), "{reason}");
    }
}

#[test]
fn a_restart_waits_for_a_port_that_another_program_has() {
    let consul = Consul::start();
    consul.kill();
    let other = TcpListener::bind(consul.endpoint()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| consul.restart());
        until("a start that finds the port taken", || consul.log().contains("already in use"));
        drop(other);
    });
    consul.put("a", "b");
}

#[test]
fn nothing_is_left_of_a_cluster_even_after_a_panic() {
    for panics in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let test = thread::spawn(move || {
            let cluster = etcd::Cluster::start(3);
            cluster.member(0).stop();
            sender.send(traces(&cluster)).unwrap();
            assert!(!panics, "as was asked for");
        });
        assert_eq!(test.join().is_err(), panics);
        let left: Vec<_> = receiver.recv().unwrap().into_iter().filter(|t| t.exists()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_killed_test_leaves_no_server_and_the_next_one_removes_the_rest() {
    let name = "a_killed_test_leaves_no_server_and_the_next_one_removes_the_rest";
    assert_nothing_is_left_of_a_killed_test(name, consul::Cluster::start);
}

/// It is its own child: the child shares a server, and ends or is killed.
#[test]
fn nothing_is_left_of_a_shared_server_when_its_tests_have_ended() {
    const CHILD: &str = "IPAM_DELEGATED_TEST_IS_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let kube = thread::spawn(Kube::shared).join().unwrap();
        assert_eq!(kube.pids(), Kube::shared().pids());
        let mut stdout = std::io::stdout();
        let processes = kube.pids().map(|pid| PathBuf::from(format!("/proc/{}", pid.unwrap())));
        for trace in [&processes[..], &kube.folders()].concat() {
            assert!(trace.exists(), "{trace:?}");
            writeln!(stdout, "trace {}", trace.display()).unwrap();
        }
        writeln!(stdout, "that is all").unwrap();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    for is_killed in [false, true] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let name = "nothing_is_left_of_a_shared_server_when_its_tests_have_ended";
        child.args(["--exact", name]).env(CHILD, "1");
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let told = lines.by_ref().take_while(|line| line != "that is all");
        let trace = |line: String| line.strip_prefix("trace ").map(PathBuf::from);
        let traces: Vec<PathBuf> = told.filter_map(trace).collect();
        assert_eq!(traces.len(), 5, "{traces:?}");
        if is_killed {
            child.kill().unwrap();
        }
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().success(), !is_killed);
        until("all of it has gone", || !traces.iter().any(|trace| trace.exists()));
    }
}
