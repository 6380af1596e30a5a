//! The support for tests with clusters of Consul does what it says, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::thread;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::consul::{Cluster, Consul, Cut, Tls};
use ipam_testkit::leftovers::assert_nothing_is_left_of_a_killed_test;
use ipam_testkit::waiting::{SECOND, until};

/// The status of a consistent read of the key `a`; 0 where none comes in time.
fn consistently(member: &Consul) -> u16 {
    let answer = member.patient_for(10 * SECOND).try_ask("GET", "kv/a?consistent", b"");
    answer.map_or(0, |answer| answer.status)
}

#[test]
fn another_member_leads_when_the_leader_is_killed() {
    let cluster = Cluster::start(3);
    let first = cluster.leader();
    assert_ne!(cluster.follower(), first);
    cluster.member(first).put("a", "b");
    cluster.member(first).kill();
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.member(second).put("a", "c");
    cluster.member(first).restart();
    assert!(cluster.members().iter().all(|member| consistently(member) == 200));
    assert_eq!(cluster.member(first).get("a").as_deref(), Some("c"));
}

#[test]
fn another_member_leads_while_the_leader_is_stopped() {
    let cluster = Cluster::start(3);
    let first = cluster.leader();
    cluster.member(first).stop();
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.member(second).put("a", "b");
    cluster.member(first).cont();
    until("the member follows", || consistently(cluster.member(first)) == 200);
}

#[test]
fn a_member_that_has_lost_its_peers_still_answers_clients_with_what_it_has() {
    let cluster = Cluster::start(3);
    let lost = cluster.leader();
    let member = cluster.member(lost);
    member.put("a", "old");
    cluster.partition(lost, Cut::Peers);
    let leader = cluster.leader();
    assert_ne!(leader, lost);
    cluster.member(leader).put("a", "new");
    let stale = member.ask("GET", "kv/a?raw&stale", b"");
    assert_eq!(stale.success().text(), "old");
    assert_ne!(consistently(member), 200);
    cluster.heal(lost);
    until("the member has found its peers", || consistently(member) == 200);
    assert_eq!(member.get("a").as_deref(), Some("new"));
}

#[test]
fn a_write_whose_leader_loses_its_peers_is_answered_with_an_error_in_the_end() {
    let cluster = Cluster::start(3);
    let lost = cluster.leader();
    cluster.partition(lost, Cut::Peers);
    let answer = cluster.member(lost).patient_for(60 * SECOND).try_ask("PUT", "kv/a", b"b");
    assert_eq!(answer.unwrap().status, 500);
}

#[test]
fn a_member_that_is_cut_off_is_silent() {
    let cluster = Cluster::start(3);
    let lost = cluster.leader();
    cluster.partition(lost, Cut::All);
    let leader = cluster.leader();
    assert_ne!(leader, lost);
    cluster.member(leader).put("a", "b");
    let kind = |endpoint: String| {
        let connected = TcpStream::connect_timeout(&endpoint.parse().unwrap(), 3 * SECOND);
        connected.unwrap_err().kind()
    };
    thread::scope(|scope| {
        let others = scope.spawn(|| kind(cluster.blackhole()));
        assert_eq!(kind(cluster.member(lost).endpoint()), ErrorKind::TimedOut);
        assert_eq!(others.join().unwrap(), ErrorKind::TimedOut);
    });
    cluster.heal(lost);
    until("the member follows", || consistently(cluster.member(lost)) == 200);
    assert_eq!(cluster.member(lost).answers(), Ok(()));
}

#[test]
fn a_cluster_may_have_acls() {
    let cluster = Cluster::start_with(3, |_| Consul::builder().acl());
    cluster.member(0).put("ipam/a", "b");
    let token = cluster.member(1).create_token(r#"key_prefix "ipam/" { policy = "write" }"#);
    let client = cluster.member(2).with_token(Some(&token.secret));
    until("the token is known", || client.ask("GET", "kv/ipam/a", b"").status == 200);
    assert_eq!(client.ask("GET", "kv/other", b"").status, 403);
    cluster.member(2).restart();
    assert_eq!(client.get("ipam/a").as_deref(), Some("b"));
}

#[test]
fn a_cluster_may_have_tls() {
    let mut certificates = None;
    let cluster = Cluster::start_with(3, |addresses| {
        let addresses: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
        let made = certificates.insert(Certificates::make_for(&addresses));
        let server = made.server();
        Consul::builder().tls(Tls {
            authority: made.authority(),
            certificate: server.certificate,
            key: server.key,
            verify_incoming: true,
        })
    });
    cluster.member(0).put("a", "b");
    assert!(cluster.members().iter().all(|member| consistently(member) == 200));
    assert!(cluster.member(2).url().starts_with("https://"));
}

#[test]
fn a_killed_test_leaves_no_server_and_the_next_one_removes_the_rest() {
    let name = "a_killed_test_leaves_no_server_and_the_next_one_removes_the_rest";
    assert_nothing_is_left_of_a_killed_test(name, Cluster::start);
}
