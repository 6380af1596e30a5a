//! Chooses the subnets that this machine's node object has in `spec.podCIDRs`, or in an annotation.

use std::process::ExitCode;

use ipam_kit::cni::address::parse_cidr;
use ipam_kit::pool::Pool;
use ipam_kit::{Request, Result, Select, Selection, Selector};
use ipam_kube::own_node::{NodeKeys, NodeObject, NodeQuery, OwnNode, rejected};
use serde_json::{Value, json};

/// What it reads of `ipam`, beside the keys that say how to find the node.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Config {
    annotation: Option<String>,
}

struct NodeRanges;

impl Selector for NodeRanges {
    type Config = Config;

    fn select(&self, Config { annotation }: Config, request: &Request) -> Result<Selection> {
        let settings = request.network.settings::<NodeKeys>()?.read("ipam.")?;
        let (network, ttl) = (request.network.name().as_str(), settings.ttl());
        let (environment, host) = (&request.environment, &request.settings);
        let own = OwnNode::new(settings, environment, host, request.unreached(), request.deadline)?;
        let own = own.remembering(request.state_dir()?.root());
        let subject = annotation.as_ref().map_or("spec.podCIDRs".to_owned(), |name| place(name));
        let query = NodeQuery { network, subject: &subject, ttl };
        let known = own.ask(&query, |node| subnets(node, annotation.as_deref()))?;
        let pool = |subnet| Pool::parse(&json!({"ranges": [{"subnet": subnet}]}), &subject);
        Ok(Selection::of(known.value.into_iter().map(pool).collect::<Result<Vec<_>>>()?))
    }
}

fn place(annotation: &str) -> String {
    format!("annotation {annotation}")
}

fn subnets(node: &NodeObject, annotation: Option<&str>) -> Result<Vec<String>> {
    let Some(annotation) = annotation else {
        let subnets = node.object.pointer("/spec/podCIDRs").and_then(Value::as_array);
        let subnets = subnets.into_iter().flatten().filter_map(Value::as_str);
        return Ok(subnets.map(str::to_owned).collect());
    };
    let rejected = |message: &str| rejected(&node.name, &place(annotation), message);
    let text = node.annotation(annotation).ok_or_else(|| rejected("missing"))?;
    let subnets = text.split(',').map(|subnet| match parse_cidr(subnet) {
        Ok(_) => Ok(subnet.to_owned()),
        Err(_) => Err(rejected(&format!("invalid CIDR {subnet:?}"))),
    });
    subnets.collect()
}

fn main() -> ExitCode {
    ipam_kit::run("ipam-ds-node-ranges", Select(NodeRanges))
}
