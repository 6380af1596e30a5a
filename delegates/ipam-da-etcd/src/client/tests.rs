use std::fs;

use ipam_servers::ConfigFile;
use ipam_testkit::etcd::{Silent, saying};
use ipam_testkit::fake_grpc::{Fake, Reply, fake};
use ipam_testkit::node::within;
use ipam_testkit::world::until;
use serde_json::json;

use super::*;
use crate::config::{EtcdConfig, EtcdPassword};

/// What is left of a call's time, and what a request to one of several servers may take of it.
const LONG: Duration = Duration::from_secs(60);
const BOUND: Duration = Duration::from_secs(15);

/// The message of an answer, to a transaction or about an etcd lease: the header with the cluster
/// and the revision, and that it was done or the lease's id.
pub(crate) fn answer() -> Reply {
    Reply::Say(vec![0x0a, 4, 0x08, 7, 0x18, 9, 0x10, 42])
}

/// A server without a leader does nothing, and says so over a connection that stays as it is.
fn no_leader() -> Reply {
    Reply::Refuse(14, "etcdserver: no leader".to_owned())
}

fn client_for(servers: &[&str], timeout: &str, credentials: Option<EtcdCredentials>) -> EtcdClient {
    let settings = json!({"etcd": {"endpoints": servers, "timeout": timeout}});
    let store = serde_json::from_value::<EtcdConfig>(settings).unwrap().store().unwrap();
    EtcdClient::new(&store, credentials, ErrorCode::TRY_AGAIN, Deadline::after(LONG)).unwrap()
}

pub(crate) fn client(servers: &[&Fake]) -> EtcdClient {
    let urls: Vec<&str> = servers.iter().map(|server| &*server.url).collect();
    client_for(&urls, "60s", None)
}

/// How many connections and requests have come to a server.
fn came(server: &Fake) -> (usize, usize) {
    (server.connections(), server.requests())
}

#[test]
fn an_answer_is_given_with_its_cluster_and_revision() {
    let server = fake(|_| answer());
    let mut client = client(&[&server]);
    let answer = client.read(&Txn::new()).unwrap();
    assert_eq!((answer.cluster, answer.revision), (7, 9));
    assert!(answer.response.succeeded());
}

#[test]
fn a_connection_is_kept_alive_while_a_call_waits() {
    let server = fake(|_| answer());
    let mut client = client(&[&server]);
    client.read(&Txn::new()).unwrap();
    server.ping();
    until("the ping is answered", || {
        client.pause(Duration::from_millis(5));
        server.pongs() == 1
    });
}

#[test]
fn an_etcd_lease_is_asked_of_the_server_that_answered_last_and_no_other() {
    let first = fake(|_| no_leader());
    let second = fake(|number| if number < 3 { answer() } else { Reply::Silence });
    let mut client = client(&[&first, &second]);
    client.read(&Txn::new()).unwrap();
    assert_eq!(client.grant(10).unwrap(), 42);
    client.revoke(42).unwrap();
    let granted = within(BOUND, || client.grant(10).map(drop));
    let revoked = within(BOUND, || client.revoke(42));
    for refused in [granted, revoked] {
        let error = refused.unwrap_err();
        assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
        assert_eq!(error.to_string(), "cannot get, renew or end an etcd lease: no answer in time");
    }
    assert_eq!((came(&first), came(&second)), ((1, 1), (1, 5)));
}

#[test]
fn an_etcd_lease_makes_no_connection() {
    let server = fake(|_| answer());
    let mut client = client(&[&server]);
    assert_eq!(client.grant(10).unwrap_err().to_string(), "the connection to etcd has ended");
    assert_eq!(client.revoke(42).unwrap_err().to_string(), "the connection to etcd has ended");
    assert_eq!(came(&server), (0, 0));
}

#[test]
fn a_timeout_forgets_the_login_where_the_request_was_sent() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("token");
    let is_kept_after_a_timeout_of = |server: &str| {
        fs::write(&cache, "abc.7").unwrap();
        let password = ConfigFile { path: "p".to_owned(), file: folder.path().join("password") };
        let password = EtcdPassword::File(password);
        let credentials = EtcdCredentials::new("ipam".to_owned(), password, cache.clone());
        let mut client = client_for(&[server], "300ms", Some(credentials));
        let error = client.read(&Txn::new()).unwrap_err();
        assert!(error.to_string().contains("no answer within"), "{error}");
        cache.exists()
    };
    assert!(!is_kept_after_a_timeout_of(&fake(|_| Reply::Silence).url));
    // Without its settings no request is sent.
    let silent = Silent::listen();
    assert!(is_kept_after_a_timeout_of(&silent.endpoint()));
}

#[test]
fn a_connection_is_of_one_server() {
    let [first, second] = [(); 2].map(|()| fake(|_| answer()));
    let mut client = client(&[&first, &second]);
    client.read(&Txn::new()).unwrap();
    client.prefer(&second.url);
    client.read(&Txn::new()).unwrap();
    assert_eq!((came(&first), came(&second)), ((1, 1), (1, 1)));
    client.prefer(&first.url);
    client.read(&Txn::new()).unwrap();
    assert_eq!((came(&first), came(&second)), ((2, 2), (1, 1)));
}

#[test]
fn after_trouble_a_server_is_connected_to_anew() {
    let server = fake(|number| if number == 1 { no_leader() } else { answer() });
    let mut client = client(&[&server]);
    for _ in 0..2 {
        client.read(&Txn::new()).unwrap();
    }
    assert_eq!(came(&server), (2, 3));
}

#[test]
fn after_failover_no_request_takes_the_old_connection() {
    let first = fake(|number| if number == 0 { answer() } else { no_leader() });
    let second = fake(|number| if number == 1 { no_leader() } else { answer() });
    let mut client = client(&[&first, &second]);
    client.read(&Txn::new()).unwrap();
    client.read(&Txn::new()).unwrap();
    assert_eq!((came(&first), came(&second)), ((1, 2), (1, 1)));
    // Back and forth.
    client.read(&Txn::new()).unwrap();
    assert_eq!((came(&first), came(&second)), ((2, 3), (2, 3)));
}

#[test]
fn a_server_that_does_not_do_one_request_is_asked_for_the_next() {
    let rejected = || Reply::Refuse(12, "unknown service".to_owned());
    let server = fake(move |number| if number == 0 { rejected() } else { answer() });
    let mut client = client(&[&server]);
    let error = client.read(&Txn::new()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BACKEND);
    assert!(error.to_string().starts_with("every etcd server rejected the request; "), "{error}");
    client.read(&Txn::new()).unwrap();
}

#[test]
fn a_server_that_is_away_is_not_waited_for_to_the_end_where_another_refuses() {
    let stranger = saying(b"HTTP/1.1 404 Not Found\r\n\r\n");
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut client = client_for(&[&stranger, &away.to_string()], "60s", None);
    let error = within(BOUND, || client.read(&Txn::new())).unwrap_err();
    assert!(error.to_string().contains("it is not etcd"), "{error}");
    assert!(error.to_string().contains("Connection refused"), "{error}");
}

#[test]
fn a_server_that_was_not_asked_is_named_with_the_others() {
    let [first, second] = [(); 2].map(|()| fake(|_| Reply::Silence));
    let mut client = client_for(&[&first.url, &second.url], "300ms", None);
    let error = client.read(&Txn::new()).unwrap_err();
    let told = format!("; {}: not asked: deadline exceeded", second.url);
    assert!(error.to_string().ends_with(&told), "{error}");
}
