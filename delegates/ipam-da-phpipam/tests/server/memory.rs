//! What a call needs of memory does not grow with a subnet.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use ipam_testkit::phpipam::PhpIpam;
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::{Value, json};

use crate::site::{Node, Site};

/// For the data of a call, in KiB; the kernel refuses more.
const MEMORY: u64 = 8 * 1024;

const HELD: u32 = 4_000;

/// A call with so much memory.
fn call(node: &Node, verb: &str, members: &Value) -> Outcome {
    let mut network = node.network();
    network.as_object_mut().unwrap().append(&mut members.as_object().unwrap().clone());
    let inside = node.command(verb, "c1");
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -d {MEMORY}; exec \"$@\""), "sh"]);
    limited.arg(inside.get_program()).env_clear();
    limited.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
    limited.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(start(limited, &network))
}

#[test]
fn four_thousand_addresses_fit_into_eight_mebibytes() {
    let server = PhpIpam::start();
    let site = Site::on(&server, "10.1.0.0/16");
    let first = u32::from(Ipv4Addr::new(10, 1, 0, 10));
    for host in first..first + HELD {
        let address = Ipv4Addr::from(host).to_string();
        server.record(&site.subnet, &address, &[("hostname", "of others")]);
    }
    let node = site.node();
    call(&node, "ADD", &json!({})).success();
    call(&node, "STATUS", &json!({})).success();
    call(
        &node,
        "GC",
        &json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}),
    )
    .success();
    call(&node, "DEL", &json!({})).success();
    assert_eq!(site.records().len(), HELD as usize);
}
