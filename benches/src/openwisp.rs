//! `ipam-da-openwisp`, alone and as the chain `ipam-ds-static`, `ipam-da-openwisp`, beside a bare
//! process that sends the same requests. Most of each time is the server's, in Python.

use ipam_testkit::openwisp::{ORGANIZATION, OpenWisp, TOKEN};
use serde_json::json;

use crate::harness::System;
use crate::network::{SUBNET, spread};
use crate::records::{self, Central};
use crate::target::Target;

pub const SYSTEM: System = System {
    name: "openwisp",
    title: "",
    start: |stage, held| records::sites(stage, held, "openwisp", start),
    targets: TARGETS,
    floor: Some("openwisp-floor"),
    ..records::SYSTEM
};

const TARGETS: &[Target] = &records::targets(&["ipam-da-openwisp"]);

fn start(held: usize) -> Central {
    let server = OpenWisp::start();
    let subnet = server.subnet(Some(ORGANIZATION), SUBNET, "bench");
    let addresses = spread(held).into_iter().map(|address| (address.to_string(), "of others"));
    server.records_of(&subnet, addresses);
    Central {
        section: json!({"url": server.url(), "token": TOKEN, "organization": ORGANIZATION}),
        floor: vec![server.endpoint(), TOKEN.to_owned(), subnet.clone()],
        pool: subnet,
        server: Box::new(server),
    }
}
