//! What tests rely on without a look: a cut is a cut, a lost answer is of a request that was
//! carried out, and a kubeconfig is one to the program that made the form.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::io::ErrorKind;
use std::net::TcpStream;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use ipam_testkit::consul::{self, Client, Consul, Cut, Fate, Relay};
use ipam_testkit::etcd;
use ipam_testkit::kube::{Key, Kube, Kubeconfig, Material, Node, Request, Style};
use ipam_testkit::servers::process;
use ipam_testkit::world::until;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_member_that_is_cut_off_is_silent() {
    let cluster = etcd::Cluster::start(3);
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

/// The status of a consistent read of the key `a`; 0 where none comes in time.
fn consistently(member: &Consul) -> u16 {
    let answer = member.patient_for(10 * SECOND).try_ask("GET", "kv/a?consistent", b"");
    answer.map_or(0, |answer| answer.status)
}

#[test]
fn a_member_that_has_lost_its_peers_still_answers_clients_with_what_it_has() {
    let cluster = consul::Cluster::start(3);
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
fn a_relay_spoils_an_answer_after_the_server_has_done_its_work() {
    let consul = Consul::start();
    let relay = Relay::to(&consul.endpoint());
    let client = Client::to(&relay.endpoint());
    let put = |value: &str| client.try_ask("PUT", "kv/a", value.as_bytes());
    relay.next([
        Fate::Refuse,
        Fate::Lose,
        Fate::Cut,
        Fate::Answer(500, "leadership lost while committing log".to_owned()),
        Fate::Delay(SECOND / 2),
    ]);
    assert_eq!(put("refused").unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(consul.get("a"), None);
    assert_eq!(put("lost").unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(consul.get("a").as_deref(), Some("lost"));
    assert!(put("cut").is_err());
    assert_eq!(consul.get("a").as_deref(), Some("cut"));
    let answer = put("told").unwrap();
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (500, "leadership lost while committing log")
    );
    assert_eq!(consul.get("a").as_deref(), Some("told"));
    let start = Instant::now();
    assert_eq!(put("late").unwrap().text(), "true");
    assert!(start.elapsed() >= SECOND / 2);
    assert_eq!(put("as ever").unwrap().text(), "true");
    assert_eq!(relay.requests().len(), 6);
}

/// What kubectl, who wrote the form, makes of a kubeconfig.
fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = process::plain(ipam_testkit::kube::kubectl());
    command.env("HOME", "/nonexistent").arg("--kubeconfig").arg(kubeconfig).args(arguments);
    command.output().unwrap()
}

#[test]
fn kubectl_reads_every_kubeconfig() {
    let kube = Kube::shared();
    kube.create_node(&Node::named("configured"));
    let folder = tempfile::tempdir().unwrap();
    let token = kube.user();
    let certificate = kube.certified("configured-user", &[], Key::RsaPkcs1);
    let _grants = [&token, &certificate].map(|l| kube.allow_reading_nodes(l, &["configured"]));
    let read = ["get", "--raw", "/api/v1/nodes/configured"];
    for login in [&token, &certificate] {
        for style in [Style::Block, Style::Flow, Style::Json] {
            for material in [Material::Inline, Material::Files, Material::RelativeFiles] {
                let path = folder.path().join(format!("{style:?}-{material:?}"));
                let config = Kubeconfig::of(kube, login).style(style).material(material);
                let output = kubectl(&config.write(&path), &read);
                assert!(output.status.success(), "{style:?} {material:?} {output:?}");
            }
        }
        let requests = kube.requests_of(&login.user);
        let read = |request: &&Request| request.line() == "get /api/v1/nodes/configured 200";
        assert_eq!(requests.iter().filter(read).count(), 9, "{requests:?}");
    }
}
