//! The support for tests with clusters of etcd does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::process::Output;
use std::thread;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::etcd::{Cluster, Cut, Etcd, Tls};
use ipam_testkit::leftovers::{assert_nothing_is_left_of_a_killed_test, traces};
use ipam_testkit::waiting::{SECOND, until};

/// What a run said that failed.
#[track_caller]
fn refused(output: Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A call that is given up soon: a server that refuses a client lets etcdctl try again.
const HASTY_GET: [&str; 4] = ["--dial-timeout=2s", "--command-timeout=2s", "get", "a"];

#[test]
fn another_member_leads_when_the_leader_is_killed() {
    let cluster = Cluster::start(3);
    let first = cluster.leader();
    cluster.member(first).put("a", "b");
    cluster.member(first).kill();
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.member(second).put("a", "c");
    cluster.member(first).restart();
    assert!(cluster.members().iter().all(|member| member.get("a").as_deref() == Some("c")));
}

#[test]
fn a_member_that_has_lost_its_peers_still_hears_clients() {
    let cluster = Cluster::start(3);
    let lost = cluster.leader();
    let member = cluster.member(lost);
    member.put("a", "old");
    cluster.partition(lost, Cut::Peers);
    let leader = cluster.leader();
    assert_ne!(leader, lost);
    cluster.member(leader).put("a", "new");
    let stale = member.etcdctl(&["get", "--consistency=s", "a"]);
    assert_eq!(stale, "a\nold\n");
    refused(member.try_etcdctl(&HASTY_GET));
    cluster.heal(lost);
    until("the member has found its peers", || member.try_etcdctl(&HASTY_GET).status.success());
    assert_eq!(member.get("a").as_deref(), Some("new"));
}

#[test]
fn a_member_that_is_cut_off_is_silent() {
    let cluster = Cluster::start(3);
    let lost = cluster.leader();
    cluster.partition(lost, Cut::All);
    let leader = cluster.leader();
    assert_ne!(leader, lost);
    cluster.member(leader).put("a", "b");
    // Longer than it takes to find that a neighbour does not answer.
    let kind = |endpoint: String| {
        let connected = TcpStream::connect_timeout(&endpoint.parse().unwrap(), 5 * SECOND);
        connected.unwrap_err().kind()
    };
    thread::scope(|scope| {
        let others = scope.spawn(|| kind(cluster.blackhole()));
        assert_eq!(kind(cluster.member(lost).endpoint()), ErrorKind::TimedOut);
        assert_eq!(others.join().unwrap(), ErrorKind::TimedOut);
    });
    cluster.heal(lost);
    cluster.member(lost).until_ready();
    assert_eq!(cluster.member(lost).get("a").as_deref(), Some("b"));
}

#[test]
fn a_cluster_may_have_tls_and_authentication() {
    let mut certificates = None;
    let cluster = Cluster::start_with(3, |addresses| {
        let addresses: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
        let made = certificates.insert(Certificates::make_for(&addresses));
        let (server, client) = (made.server(), made.client());
        let tls = Tls {
            authority: made.authority(),
            certificate: server.certificate,
            key: server.key,
            client_authority: Some(made.authority()),
            client: Some((client.certificate, client.key)),
        };
        Etcd::builder().tls(tls).auth("ipam", "secret", "/ipam/")
    });
    cluster.member(0).put("/ipam/a", "b");
    assert_eq!(cluster.member(2).get("/ipam/a").as_deref(), Some("b"));
    let client = certificates.as_ref().unwrap().client();
    let shown =
        ["--cert", client.certificate.to_str().unwrap(), "--key", client.key.to_str().unwrap()];
    // The certificate names a user, who has no right there.
    let told = refused(cluster.member(1).etcdctl_as(&shown, &["get", "/other"]));
    assert!(told.contains("permission denied"), "{told}");
}

#[test]
fn nothing_is_left_of_a_cluster_even_after_a_panic() {
    for panics in [false, true] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let test = thread::spawn(move || {
            let cluster = Cluster::start(3);
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
    assert_nothing_is_left_of_a_killed_test(name, Cluster::start);
}
