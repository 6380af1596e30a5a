//! `ipam-da-phpipam`, alone and as the chain `ipam-ds-static`, `ipam-da-phpipam`, beside a bare
//! process that sends the same requests. The server is the imitation, which takes next to no time, or
//! the one that `IPAM_DELEGATED_PHPIPAM_URL` names.

use ipam_testkit::phpipam::{APP, CODE, PhpIpam};
use serde_json::json;

use crate::harness::System;
use crate::network::{SUBNET, spread};
use crate::records::{self, Central};
use crate::target::Target;

pub const SYSTEM: System = System {
    name: "phpipam",
    title: "",
    start: |stage, held| records::sites(stage, held, "phpipam", |held| start(held, None)),
    targets: TARGETS,
    floor: Some("phpipam-floor"),
    ..records::SYSTEM
};

/// With a custom field under a unique index: the claim comes first.
pub const KEYED: System = System {
    title: ", with keyField",
    start: |stage, held| records::sites(stage, held, "phpipam", |held| start(held, Some(KEY))),
    ..SYSTEM
};

const TARGETS: &[Target] = &records::targets(&["ipam-da-phpipam"]);

const KEY: &str = "cni_key";

fn start(held: usize, key_field: Option<&str>) -> Central {
    let builder = PhpIpam::builder();
    let server = key_field.iter().fold(builder, |builder, key| builder.key_field(key)).start();
    let subnet = server.subnet(SUBNET, "bench");
    for address in spread(held) {
        server.record(&subnet, &address.to_string(), &[("hostname", "of others")]);
    }
    let mut floor = [&server.endpoint(), APP, CODE, &subnet].map(str::to_owned).to_vec();
    floor.extend(key_field.map(str::to_owned));
    let mut section = json!({"url": server.url(), "appId": APP, "token": CODE});
    if let Some(key) = key_field {
        section["keyField"] = json!(key);
    }
    Central { section, pool: subnet, floor, server: Box::new(server) }
}
