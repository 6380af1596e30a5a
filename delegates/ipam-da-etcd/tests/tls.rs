//! Secured stores: TLS, certificates of clients, users with passwords, and the token between calls.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use ipam_testkit::certificates::{CLIENT, Certificates};
use ipam_testkit::etcd::{Cluster, Etcd};
use ipam_testkit::node::{VERBS, at_once, given};
use ipam_testkit::world::{Host, start, wait};
use serde_json::json;

use common::store::holdings;
use common::{Node, PREFIX, PROGRAM, secured, tls};

const PASSWORD: &str = "word-that-nobody-may-see";

/// An attachment's life: every verb succeeds and nothing is left.
#[track_caller]
fn assert_works(node: &Node) {
    let result = node.add("c1");
    node.check("c1", &result).success();
    node.call("STATUS", "").success();
    node.del_known("c1", &result).success();
    node.add("c1");
    node.del("c1");
    assert!(node.listed().is_empty());
}

/// How often a password was checked while something was done.
fn authentications(etcd: &Etcd, done: impl FnOnce()) -> u64 {
    etcd.rpcs_during(done).get("Authenticate").copied().unwrap_or_default()
}

/// A node that is the user of a server that was started with [`PASSWORD`].
fn user(etcd: &Etcd) -> Node {
    let node = Node::of(etcd);
    let file = node.world.path("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    node.with("username", "ipam").with("passwordFile", file.to_str().unwrap())
}

/// As a restart does, but for tokens that are in the log which is replayed.
fn forget_tokens(etcd: &Etcd) {
    etcd.etcdctl(&["auth", "disable"]);
    etcd.etcdctl(&["auth", "enable"]);
}

fn token_file(node: &Node) -> PathBuf {
    let endpoint = node.store["etcd"]["endpoints"][0].as_str().unwrap().replace(':', "%3a");
    node.world.path(&format!("state/etcd/tokens/ipam%40http%3a%2f%2f{endpoint}"))
}

fn token(node: &Node) -> String {
    fs::read_to_string(token_file(node)).unwrap()
}

#[test]
fn tls_needs_no_more_than_the_authority() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, false)).start();
    // With and without a scheme, by address and by name.
    let port = etcd.endpoint().split(':').nth(1).unwrap().to_owned();
    for endpoint in [etcd.endpoint(), etcd.url(), format!("localhost:{port}")] {
        assert_works(&secured(Node::at(&[endpoint]), &certificates, None));
    }
}

#[test]
fn the_authorities_of_the_host_are_trusted_where_none_is_named_and_only_there() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, false)).start();
    let host = Host::new();
    host.shell("mount -t tmpfs tmpfs /etc/ssl/certs");
    let bundle = host.path("/etc/ssl/certs/ca-certificates.crt");
    fs::copy(certificates.authority(), bundle).unwrap();
    let call = |node: &Node| {
        let outside = node.command("ADD", "c1");
        let mut command = host.enter(PROGRAM);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, std::process::Stdio::piped());
        }
        wait(start(command, &node.network()))
    };
    let node = Node::at(&[etcd.url()]).with("timeout", "1s");
    call(&node).success();
    let other = certificates.other_authority();
    let node = node.with("trustedCaFile", other.to_str().unwrap());
    let (code, text) = call(&node).failure();
    assert!([103, 105].contains(&code) && text.contains("UnknownIssuer"), "{code}: {text}");
}

#[test]
fn clients_show_certificates_with_keys_of_any_kind() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).start();
    for pair in [certificates.client(), certificates.rsa_client()] {
        assert_works(&secured(Node::of(&etcd), &certificates, Some(&pair)));
    }
    // The key in the form that openssl's older commands write.
    let mut pair = certificates.client();
    let old = certificates.folder().join("sec1.key");
    let mut openssl = Command::new("openssl");
    openssl.args(["ec", "-in"]).arg(&pair.key).arg("-out").arg(&old);
    assert!(openssl.output().unwrap().status.success());
    assert!(fs::read_to_string(&old).unwrap().contains("BEGIN EC PRIVATE KEY"));
    pair.key = old;
    assert_works(&secured(Node::of(&etcd), &certificates, Some(&pair)));
}

#[test]
fn a_cluster_with_tls_and_users_is_served_at_any_endpoint() {
    let mut made = None;
    let cluster = Cluster::start_with(3, |addresses| {
        let addresses: Vec<IpAddr> = addresses.iter().copied().map(IpAddr::from).collect();
        let certificates = made.insert(Certificates::make_for(&addresses));
        Etcd::builder().tls(tls(certificates, true)).auth("user", PASSWORD, PREFIX)
    });
    let certificates = made.unwrap();
    let mut node =
        secured(Node::at(&cluster.endpoints()), &certificates, Some(&certificates.client()));
    let file = node.world.path("password");
    fs::write(&file, PASSWORD).unwrap();
    node = node.with("username", "user").with("passwordFile", file.to_str().unwrap());
    assert_works(&node);
    cluster.member(0).kill();
    assert_works(&node);
}

#[test]
fn the_name_in_a_certificate_is_a_user_without_a_password() {
    let certificates = Certificates::make();
    let etcd = Etcd::builder().tls(tls(&certificates, true)).auth(CLIENT, PASSWORD, PREFIX).start();
    let node = secured(Node::of(&etcd), &certificates, Some(&certificates.client()));
    assert_eq!(authentications(&etcd, || assert_works(&node)), 0);
    // It has that user's rights and no more.
    let elsewhere = node.with("prefix", "/elsewhere");
    assert!(elsewhere.call("ADD", "c1").failure().1.contains("permission denied"));
}

#[test]
fn a_password_is_checked_once_and_the_token_kept() {
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).start();
    let node = user(&etcd);
    assert_eq!(authentications(&etcd, || drop(node.add("c1"))), 1);
    let mode = fs::metadata(token_file(&node)).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let folder = fs::metadata(node.world.path("state/etcd")).unwrap().permissions().mode();
    assert_eq!(folder & 0o7777, 0o700);
    let kept = token(&node);
    assert_eq!(authentications(&etcd, || assert_works(&node)), 0);
    assert_eq!(token(&node), kept);
}

#[test]
fn a_token_that_the_server_forgot_is_asked_for_anew() {
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).start();
    let node = user(&etcd);
    let result = node.add("c1");
    let mut before = token(&node);
    for verb in VERBS {
        forget_tokens(&etcd);
        let call = || drop(node.call_with(verb, "c1", &given(&result)).success());
        assert_eq!(authentications(&etcd, call), 1, "{verb}");
        let after = token(&node);
        assert_ne!(after, before, "{verb}");
        before = after;
    }
    for garbage in ["garbage", "two\nlines", "\u{e9}", ""] {
        fs::write(token_file(&node), garbage).unwrap();
        node.add("c2");
        assert_ne!(token(&node), garbage);
    }
    assert_eq!(etcd.keys("/ipam-delegated/networks/net/owners/").len(), 1);
}

#[test]
fn a_token_that_cannot_be_kept_is_asked_for_each_time() {
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).start();
    let node = user(&etcd);
    // A folder in its place cannot be written, by root neither.
    fs::create_dir_all(token_file(&node)).unwrap();
    assert_eq!(authentications(&etcd, || drop(node.add("c1"))), 1);
    assert_eq!(authentications(&etcd, || node.del("c1")), 1);
}

#[test]
fn a_signed_token_is_renewed_when_rights_have_changed() {
    let certificates = Certificates::make();
    let key = certificates.rsa_client().key;
    let public = certificates.folder().join("public.pem");
    let mut openssl = Command::new("openssl");
    openssl.args(["rsa", "-pubout", "-in"]).arg(&key).arg("-out").arg(&public);
    assert!(openssl.output().unwrap().status.success());
    let (key, public) = (key.display(), public.display());
    let flag = format!("--auth-token=jwt,pub-key={public},priv-key={key},sign-method=RS256,ttl=1h");
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).flag(flag).start();
    let node = user(&etcd);
    assert_works(&node);
    // The token names the revision of the rights, and there is a newer one now.
    etcd.etcdctl(&["role", "add", "another"]);
    assert_eq!(authentications(&etcd, || drop(node.add("c1"))), 1);
    assert_eq!(authentications(&etcd, || node.del("c1")), 0);
}

#[test]
fn many_calls_with_one_user_at_once_all_succeed() {
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).start();
    let node = user(&etcd);
    at_once(20, |number| drop(node.add(&format!("c{number}"))));
    forget_tokens(&etcd);
    at_once(20, |number| node.del(&format!("c{number}")));
    assert_eq!(holdings(&etcd), [""; 0]);
}

#[test]
fn a_user_is_given_where_the_store_asks_for_none() {
    let etcd = Etcd::start();
    let node = user(&etcd);
    assert_works(&node);
    assert!(!token_file(&node).exists());
    // Nor does a token of another store matter.
    fs::create_dir_all(token_file(&node).parent().unwrap()).unwrap();
    fs::write(token_file(&node), "abc.7").unwrap();
    assert_works(&node);
}

#[test]
fn a_password_and_a_token_are_in_no_output() {
    let host = Host::new();
    host.settings(&json!({"verbose": true}));
    let etcd = Etcd::builder().auth("ipam", PASSWORD, PREFIX).start();
    let mut node = user(&etcd);
    node.add("held");
    let secret = token(&node);
    let mut told = String::new();
    let mut call = |node: &Node, verb: &str| {
        let outside = node.command(verb, "c1");
        let mut command = host.enter(PROGRAM);
        command.env_clear().env("IPAM_DELEGATED_LOG", "debug");
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        for stream in [std::process::Command::stdout, std::process::Command::stderr] {
            stream(&mut command, std::process::Stdio::piped());
        }
        command.stdin(std::process::Stdio::piped());
        let outcome = wait(start(command, &node.network()));
        told.push_str(&outcome.stdout);
        told.push_str(&outcome.stderr);
        outcome.exit
    };
    for verb in ["ADD", "STATUS", "DEL"] {
        assert_eq!(call(&node, verb), Some(0), "{verb}");
    }
    // Where something goes wrong, more is told.
    forget_tokens(&etcd);
    assert_eq!(call(&node, "STATUS"), Some(0));
    node.store["etcd"]["prefix"] = "/elsewhere".into();
    node.store["etcd"]["timeout"] = "1s".into();
    let renewed = token(&node);
    VERBS.iter().for_each(|verb| assert_eq!(call(&node, verb), Some(1), "{verb}"));
    fs::write(node.world.path("password"), format!("{PASSWORD}-but-wrong")).unwrap();
    fs::remove_file(token_file(&node)).unwrap();
    VERBS.iter().for_each(|verb| assert_eq!(call(&node, verb), Some(1), "{verb}"));
    etcd.kill();
    VERBS.iter().for_each(|verb| assert_eq!(call(&node, verb), Some(1), "{verb}"));
    let log = fs::read_to_string(host.path("/var/log/cni/ipam-da-etcd.log")).unwrap();
    assert!(log.contains("permission denied") && told.contains("permission denied"));
    for shown in [&log, &told] {
        for secret in [PASSWORD, &secret, &renewed] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    assert_ne!(secret, renewed);
}
