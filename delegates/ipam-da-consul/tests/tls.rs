//! Consul over https: whom a node trusts, as whom it calls, and what it is told where that fails.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io, thread};

use ipam_testkit::certificates::{Certificates, Pair};
use ipam_testkit::consul::{Cluster, Consul, Tls};
use ipam_testkit::node::{VERBS, at_once, within};
use ipam_testkit::pages::Page;
use ipam_testkit::world::{Host, start, wait};
use serde_json::json;

use common::rights::assert_works;
use common::store::{everything, holdings};
use common::{Node, POOL, PROGRAM, SUBNET, define, stocked};

/// `ipam.consul.timeout` of what fails is 1 s; a machine under load may need some more.
const BOUND: Duration = Duration::from_secs(6);

fn tls(certificates: &Certificates, verify_incoming: bool) -> Tls {
    let Pair { certificate, key } = certificates.server();
    Tls { authority: certificates.authority(), certificate, key, verify_incoming }
}

fn secure(certificates: &Certificates, verify_incoming: bool) -> Consul {
    let consul = Consul::builder().tls(tls(certificates, verify_incoming)).start();
    define(&consul, POOL, SUBNET);
    consul
}

/// An endpoint on another address of this machine whose connections go on to a server as they come.
fn piped(address: Ipv4Addr, endpoint: &str) -> SocketAddr {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let (own, endpoint) = (listener.local_addr().unwrap(), endpoint.to_owned());
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&endpoint).unwrap();
            let ways = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, to) in ways {
                thread::spawn(move || {
                    let to = to.unwrap();
                    let _ = io::copy(&mut from.unwrap(), &mut &to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    own
}

/// A node that trusts the authority of these certificates, and may show one.
fn secured(node: Node, certificates: &Certificates, shown: Option<&Pair>) -> Node {
    let node = node.with("caFile", certificates.authority().to_str().unwrap());
    match shown {
        None => node,
        Some(pair) => node
            .with("certFile", pair.certificate.to_str().unwrap())
            .with("keyFile", pair.key.to_str().unwrap()),
    }
}

/// Every verb fails with one of these codes (STATUS with 50 in place of any but 7) and these words, in time.
#[track_caller]
fn assert_refused(node: Node, codes: &[u64], words: &[&str]) {
    let node = node.with("timeout", "1s");
    at_once(VERBS.len(), |number| {
        let verb = VERBS[number];
        let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
        let outcome = within(BOUND, || node.call_with(verb, "c1", &known));
        let (code, text) = outcome.failure();
        let fits = codes.contains(&code) || (verb == "STATUS" && code == 50);
        assert!(fits, "{verb}: {code} is none of {codes:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{verb}: {word:?} is not in {text}");
        }
    });
}

#[test]
fn https_needs_no_more_than_the_authority() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, false);
    let port = consul.endpoint().split(':').nth(1).unwrap().to_owned();
    // By address and by name, with a certificate that nobody asks for, too.
    for url in
        [consul.url(), format!("https://localhost:{port}"), format!("HTTPS://127.0.0.1:{port}/")]
    {
        let servers = [url];
        assert_works(&secured(Node::at(&servers), &certificates, None));
        assert_works(&secured(Node::at(&servers), &certificates, Some(&certificates.client())));
    }
    assert_eq!(holdings(&consul), [""; 0]);
}

#[test]
fn clients_show_certificates_with_keys_of_any_kind() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, true);
    for pair in [certificates.client(), certificates.rsa_client()] {
        assert_works(&secured(Node::of(&consul), &certificates, Some(&pair)));
    }
    // The key in the form that openssl's older commands write.
    let mut pair = certificates.client();
    let old = certificates.folder().join("sec1.key");
    let mut openssl = Command::new("openssl");
    openssl.args(["ec", "-in"]).arg(&pair.key).arg("-out").arg(&old);
    assert!(openssl.output().unwrap().status.success());
    assert!(fs::read_to_string(&old).unwrap().contains("BEGIN EC PRIVATE KEY"));
    pair.key = old;
    assert_works(&secured(Node::of(&consul), &certificates, Some(&pair)));
    // Both in one file, as some tools write them.
    let both = certificates.folder().join("both.pem");
    let of = |path: &Path| fs::read_to_string(path).unwrap();
    let client = certificates.client();
    fs::write(&both, of(&client.key) + &of(&client.certificate)).unwrap();
    let pair = Pair { certificate: both.clone(), key: both };
    assert_works(&secured(Node::of(&consul), &certificates, Some(&pair)));
}

#[test]
fn a_cluster_over_https_is_served_at_any_server_and_goes_on_without_one() {
    let mut made = None;
    let cluster = Cluster::start_with(3, |addresses| {
        let addresses: Vec<_> = addresses.iter().copied().map(std::net::IpAddr::from).collect();
        let certificates = made.insert(Certificates::make_for(&addresses));
        Consul::builder().tls(tls(certificates, true))
    });
    let certificates = made.unwrap();
    define(cluster.member(0), POOL, SUBNET);
    let servers: Vec<String> = cluster.members().iter().map(Consul::url).collect();
    let node = secured(Node::at(&servers), &certificates, Some(&certificates.client()));
    assert_works(&node);
    cluster.member(0).kill();
    assert_works(&node);
}

#[test]
fn a_server_that_cannot_be_trusted_is_asked_for_nothing() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, false);
    let before = everything(&consul);
    let why = "the server's certificate is not from a trusted CA";
    let trusting = |file: &Path| Node::of(&consul).with("caFile", file.to_str().unwrap());
    let other = trusting(&certificates.other_authority());
    assert_refused(other, &[103, 105], &[&consul.url(), "UnknownIssuer", why]);
    let page = Page::read("delegates/ipam-da-consul/README.md");
    let known = json!({"ips": [{"address": "10.1.0.1/16"}]});
    page.assert_codes_of_an_untrusted_server(|verb| {
        trusting(&certificates.other_authority()).call_with(verb, "c1", &known).failure().0
    });
    // A certificate that the client shows changes nothing.
    let shown = secured(Node::of(&consul), &certificates, Some(&certificates.client()));
    let other = shown.with("caFile", certificates.other_authority().to_str().unwrap());
    assert_refused(other, &[103, 105], &[&consul.url(), "UnknownIssuer", why]);
    // The authorities of the host do not know it either.
    assert_refused(Node::of(&consul), &[103, 105], &[&consul.url(), "UnknownIssuer", why]);
    // Its certificate is for 127.0.0.1.
    let url = format!("https://{}", piped(Ipv4Addr::new(127, 0, 0, 2), &consul.endpoint()));
    let node = secured(Node::at(std::slice::from_ref(&url)), &certificates, None);
    assert_refused(node, &[103, 105], &[&url, "not valid for name", "is for another name"]);
    assert_eq!(everything(&consul), before);
    assert_works(&trusting(&certificates.authority()));
}

#[test]
fn a_client_whose_certificate_is_not_taken_is_told_so() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, true);
    let before = everything(&consul);
    for pair in [None, Some(certificates.other_client()), Some(certificates.expired_client())] {
        let node = secured(Node::of(&consul), &certificates, pair.as_ref()).with("timeout", "1s");
        at_once(3 * VERBS.len(), |number| {
            let verb = VERBS[number / 3];
            let (code, text) = within(BOUND, || node.call(verb, "c1")).failure();
            assert!([103, 105, 50, 11].contains(&code), "{verb}: {code}: {text}");
            assert!(text.contains(&consul.url()), "{verb}: {text}");
            // The server says so after the handshake, and may have ended the connection before it was heard.
            assert!(text.contains("check the client's certificate and key"), "{verb}: {text}");
        });
    }
    assert_eq!(everything(&consul), before);
}

#[test]
fn a_server_that_refuses_us_does_not_hide_one_that_does_not() {
    let certificates = Certificates::make();
    let (strict, good) = (secure(&certificates, true), secure(&certificates, false));
    let plain = stocked();
    let wrong = format!("https://{}", plain.endpoint());
    for first in [strict.url(), wrong] {
        let servers = [first, good.url()];
        assert_works(&secured(Node::at(&servers), &certificates, None));
    }
    assert_eq!((holdings(&strict), holdings(&plain)), (vec![], vec![]));
}

#[test]
fn the_wrong_scheme_is_told() {
    let plain = stocked();
    let url = format!("https://{}", plain.endpoint());
    let node = Node::at(std::slice::from_ref(&url));
    assert_refused(node, &[103, 105, 11], &[&url, "use http://"]);
    let certificates = Certificates::make();
    let consul = secure(&certificates, false);
    let url = format!("http://{}", consul.endpoint());
    let node = Node::at(std::slice::from_ref(&url));
    assert_refused(node, &[103, 105], &[&url, "HTTP 400", "HTTPS"]);
    assert_eq!((holdings(&plain), holdings(&consul)), (vec![], vec![]));
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_keys() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, true);
    let before = everything(&consul);
    let good = || secured(Node::of(&consul), &certificates, Some(&certificates.client()));
    let file = |name: &str, content: &str| {
        let path = certificates.folder().join(name);
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let missing = certificates.folder().join("missing.pem").to_str().unwrap().to_owned();
    let folder = certificates.folder().to_str().unwrap().to_owned();
    for key in ["certFile", "keyFile", "caFile"] {
        for (path, reason) in [
            (&missing, "cannot be read"),
            (&folder, "cannot be read"),
            (&file("empty.pem", ""), "contains no PEM block of type"),
            (&file("garbage.pem", "garbage\n"), "contains no PEM block of type"),
        ] {
            let words = format!("ipam.consul.{key}: {path} {reason}");
            assert_refused(good().with(key, path.as_str()), &[7], &[&words]);
        }
    }
    let spoilt = |kind: &str| format!("-----BEGIN {kind}-----\nAAAA\n-----END {kind}-----\n");
    for (key, path) in [
        ("certFile", file("spoilt.pem", &spoilt("CERTIFICATE"))),
        ("keyFile", file("spoilt.key", &spoilt("PRIVATE KEY"))),
        ("caFile", file("spoilt-ca.pem", &spoilt("CERTIFICATE"))),
        ("keyFile", certificates.server().key.to_str().unwrap().to_owned()),
    ] {
        assert_refused(good().with(key, path.as_str()), &[7], &["ipam.consul.", "File: "]);
    }
    for (key, other) in [("certFile", "keyFile"), ("keyFile", "certFile")] {
        let mut node = good();
        node.store["consul"].as_object_mut().unwrap().remove(key);
        let words = format!("ipam.consul.{key}: missing, but ipam.consul.{other} is given");
        assert_refused(node, &[7], &[&words]);
    }
    assert_eq!(everything(&consul), before);
    assert_works(&good());
}

#[test]
fn an_empty_file_name_counts_as_absent() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, false);
    let node = secured(Node::of(&consul), &certificates, None);
    assert_works(&node.with("tokenFile", "").with("certFile", "").with("keyFile", ""));
    // Then the authorities of the host count.
    let node = Node::of(&consul).with("caFile", "");
    assert_refused(node, &[103, 105], &[&consul.url(), "UnknownIssuer"]);
}

#[test]
fn a_file_without_an_end_or_without_a_writer_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in ["/dev/zero", pipe.to_str().unwrap()] {
        for key in ["tokenFile", "caFile"] {
            let node = Node::at(&["https://127.0.0.1:1".to_owned()]).with(key, file);
            let told = format!("ipam.consul.{key}: {file} cannot be read");
            assert_refused(node, &[7], &[&told, "not a regular file"]);
        }
    }
}

#[test]
fn without_an_authority_those_that_the_host_trusts_are_asked() {
    let certificates = Certificates::make();
    let consul = secure(&certificates, false);
    let host = Host::new();
    host.shell("mount -t tmpfs tmpfs /etc/ssl/certs");
    let node = Node::of(&consul).with("timeout", "1s");
    let call = |node: &Node, verb: &str| {
        let outside = node.command(verb, "c1");
        let mut command = host.enter(PROGRAM);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        for stream in [Command::stdin, Command::stdout, Command::stderr] {
            stream(&mut command, std::process::Stdio::piped());
        }
        wait(start(command, &node.network()))
    };
    let (code, text) = call(&node, "ADD").failure();
    assert!([103, 105].contains(&code) && text.contains("UnknownIssuer"), "{code}: {text}");
    // A bundle without a writer is skipped at once.
    host.shell("mkfifo /etc/ssl/certs/ca-certificates.crt");
    let (code, text) = within(BOUND, || call(&node, "ADD")).failure();
    assert!([103, 105].contains(&code) && text.contains("UnknownIssuer"), "{code}: {text}");
    host.shell("rm /etc/ssl/certs/ca-certificates.crt");
    let bundle = host.path("/etc/ssl/certs/ca-certificates.crt");
    let of = |path: &Path| fs::read_to_string(path).unwrap();
    let both = of(&certificates.other_authority()) + "# ours\n" + &of(&certificates.authority());
    fs::write(&bundle, both).unwrap();
    for verb in ["ADD", "STATUS", "DEL"] {
        call(&node, verb).success();
    }
    // An authority that is named is the only one.
    fs::write(&bundle, of(&certificates.authority())).unwrap();
    let node = node.with("caFile", certificates.other_authority().to_str().unwrap());
    let (code, text) = call(&node, "ADD").failure();
    assert!([103, 105].contains(&code) && text.contains("UnknownIssuer"), "{code}: {text}");
    assert_eq!(holdings(&consul), [""; 0]);
}
