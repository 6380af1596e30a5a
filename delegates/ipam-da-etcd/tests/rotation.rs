//! A password that is exchanged between ADD and DEL.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::PathBuf;

use ipam_testkit::etcd::Etcd;
use ipam_testkit::outlasting::{Rotation, stripped};
use serde_json::{Value, json};

const USER: &str = "node";

/// A node of a server that asks who calls.
struct Site {
    etcd: Etcd,
    node: Rotation,
}

impl Site {
    /// The user's password is `first`, as in the file `password`.
    fn new() -> Self {
        let etcd = Etcd::builder().auth(USER, "first", "/ipam-delegated/").start();
        let site = Self { etcd, node: Rotation::new("ipam-da-etcd") };
        fs::write(site.file("password"), "first").unwrap();
        site
    }

    fn file(&self, name: &str) -> PathBuf {
        self.node.world.path(name)
    }

    fn network(&self, file: &str, endpoints: &[String]) -> Value {
        self.node.network(json!({
            "ranges": [[{"subnet": "10.1.0.0/24"}]],
            "etcd": {"endpoints": endpoints, "username": USER, "passwordFile": self.file(file)},
        }))
    }

    /// Gives the user another password; what it has signed in with before counts no more.
    fn exchange(&self, password: &str) {
        self.etcd.etcdctl(&["user", "delete", USER]);
        self.etcd.etcdctl(&["user", "add", &format!("{USER}:{password}")]);
        self.etcd.etcdctl(&["user", "grant-role", USER, "below-the-prefix"]);
    }

    #[track_caller]
    fn release(&self, container: &str, network: &Value) {
        self.node.release(container, network, || self.etcd.keys(""));
    }
}

#[test]
fn a_del_reads_the_password_file_as_it_is_now() {
    let site = Site::new();
    let network = site.network("password", &[site.etcd.endpoint()]);
    for container in ["container-a", "container-b", "container-c"] {
        site.node.call("ADD", container, &network).success();
    }
    site.exchange("second");
    let (code, text) = site.node.call("DEL", "container-a", &stripped()).failure();
    assert!(code != 0 && text.contains("passwordFile") && !text.contains("first"), "{text}");
    fs::write(site.file("password"), "second").unwrap();
    site.release("container-a", &stripped());
    site.release("container-b", &network);
    // The servers are listed otherwise.
    let grown = [site.etcd.endpoint().replace("127.0.0.1", "localhost"), site.etcd.endpoint()];
    site.release("container-c", &site.network("password", &grown));
}

#[test]
fn a_del_by_the_configuration_reads_the_password_where_it_is_now() {
    let site = Site::new();
    let endpoints = [site.etcd.endpoint()];
    site.node.call("ADD", "container-a", &site.network("password", &endpoints)).success();
    site.exchange("second");
    fs::write(site.file("moved"), "second").unwrap();
    fs::remove_file(site.file("password")).unwrap();
    let (code, text) = site.node.call("DEL", "container-a", &stripped()).failure();
    assert!(code == 7 && text.contains(site.file("password").to_str().unwrap()), "{text}");
    site.release("container-a", &site.network("moved", &endpoints));
}
