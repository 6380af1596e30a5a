//! Subnets that other networks or routes of this host have too, and gateways outside of theirs, as
//! `lint` finds them.

use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value};

use super::findings::Findings;
use super::routes::routes;
use crate::operator::call::Operator;
use crate::operator::dry_run::DryRunStage;
use crate::operator::network::configurations_of;
use crate::operator::options::CONF_DIR;
use crate::operator::our_plugin::OurPlugin;
use ipam_kit::cni::address::{is_strange_gateway, parse_address, parse_cidr};

/// The folder of podman's own networks, whose form is not CNI's.
const PODMAN: &str = "/etc/containers/networks";

impl Findings {
    /// Finds subnets that overlap those of another network, or a route of the host.
    pub(super) fn of_overlaps(
        &mut self,
        operator: &Operator,
        ours: &OurPlugin,
        stages: &[DryRunStage],
    ) {
        let plugin = Value::Object(ours.network.config().clone());
        let own = subnets_of(&plugin, stages);
        if own.is_empty() {
            return;
        }
        let folder = operator.arguments.value(&CONF_DIR);
        for (file, config) in configurations_of(folder, Path::new(PODMAN)) {
            let file = file.display().to_string();
            match config {
                Ok(config) if config.get("name") == plugin.get("name") => {}
                Ok(config) => self.of_network(&file, &Value::Object(config), &plugin, &own),
                Err(error) => {
                    let why = error.in_full();
                    self.push("note", &format!("subnets are not compared with one network: {why}"));
                }
            }
        }
        self.of_routes(&plugin, &own);
    }

    fn of_network(&mut self, file: &str, other: &Value, plugin: &Value, own: &[NetworkSubnet]) {
        let name = other["name"].as_str().unwrap_or_default();
        let plugins = other["plugins"].as_array().cloned().unwrap_or_else(|| vec![other.clone()]);
        for of_other in plugins {
            let mut theirs = Vec::new();
            add_subnets(&of_other["ipam"], &mut theirs);
            add_subnets(&of_other["subnets"], &mut theirs);
            // Two networks of one link may share a subnet, with ranges of their own.
            let shares = link(plugin).is_some() && link(plugin) == link(&of_other);
            for mine in own {
                let Some(found) = theirs.iter().find(|it| mine.overlaps(it, shares)) else {
                    continue;
                };
                let message = format!(
                    "{} overlaps {} of the network {name} ({file}): give one of them {}",
                    mine.text,
                    found.text,
                    if shares { "other ranges" } else { "another subnet" },
                );
                self.push("warning", &message);
            }
        }
    }

    fn of_routes(&mut self, plugin: &Value, own: &[NetworkSubnet]) {
        let is_ptp = plugin["type"] == "ptp";
        // A plugin on a link of the host shares the link's subnet.
        let Some(bridge) = bridge(plugin).or(is_ptp.then_some("")) else { return };
        let routes = match routes() {
            Ok(routes) => routes,
            Err(error) => {
                let why = error.in_full();
                let message = format!("subnets are not compared with the host's routes: {why}");
                return self.push("note", &message);
            }
        };
        for route in routes.iter().filter(|route| route.interface != bridge) {
            let Some(routed) = span_of(&route.subnet) else { continue };
            for mine in own.iter().filter(|mine| overlap(mine.whole, routed)) {
                let message = format!(
                    "{} overlaps the host's route to {} via {}: choose another subnet, or remove \
                     the route",
                    mine.text, route.subnet, route.interface
                );
                self.push("warning", &message);
            }
        }
    }

    /// Finds gateways outside their subnets, if the rules of the ranges allow them.
    pub(super) fn of_gateways(&mut self, ours: &OurPlugin, stages: &[DryRunStage]) {
        let plugin = Value::Object(ours.network.config().clone());
        for NetworkSubnet { text, gateway, .. } in subnets_of(&plugin, stages) {
            let Some((gateway, subnet)) = gateway.zip(parse_cidr(&text).ok()) else { continue };
            if is_strange_gateway(gateway, subnet) {
                let message = format!(
                    "the gateway {gateway} is outside its subnet {text}: correct one of them"
                );
                self.push("warning", &message);
            }
        }
    }
}

/// First and last address.
type SubnetSpan = (IpAddr, IpAddr);

/// The subnet of a range.
#[derive(Debug, PartialEq, Eq)]
struct NetworkSubnet {
    /// As written.
    text: String,
    whole: SubnetSpan,
    /// The part of it that the range gives.
    given: SubnetSpan,
    gateway: Option<IpAddr>,
}

/// The subnets that a plugin's configuration names, and those that its selectors answer.
fn subnets_of(plugin: &Value, stages: &[DryRunStage]) -> Vec<NetworkSubnet> {
    let mut written = Vec::new();
    let mut chosen = Vec::new();
    add_subnets(&plugin["ipam"], &mut written);
    for stage in stages {
        stage.pools.iter().flatten().for_each(|pool| add_subnets(pool, &mut chosen));
    }
    for subnet in chosen {
        // A selector hands on what is written, with the bounds that it means.
        if written.iter().all(|known| known.whole != subnet.whole) {
            written.push(subnet);
        }
    }
    written
}

/// Adds the subnets of a section as host-local reads it: at its top, in range sets, in pools, and
/// in the objects of delegates.
fn add_subnets(section: &Value, found: &mut Vec<NetworkSubnet>) {
    match section {
        Value::Array(all) => all.iter().for_each(|each| add_subnets(each, found)),
        Value::Object(members) => {
            for key in ["ranges", "pools", "delegates"] {
                members.get(key).into_iter().for_each(|each| add_subnets(each, found));
            }
            found.extend(NetworkSubnet::of(members));
        }
        _ => {}
    }
}

impl NetworkSubnet {
    /// The subnet of a range; `None` if it has none.
    fn of(range: &Map<String, Value>) -> Option<Self> {
        let text = range.get("subnet")?.as_str()?;
        let whole = span_of(text)?;
        let first = address(range, "rangeStart").unwrap_or(whole.0);
        let last = address(range, "rangeEnd").unwrap_or(whole.1);
        let gateway = address(range, "gateway");
        Some(Self { text: text.to_owned(), whole, given: (first, last), gateway })
    }

    /// Whether two have addresses in common: any, or any that their ranges give.
    fn overlaps(&self, other: &Self, given_alone: bool) -> bool {
        match given_alone {
            true => overlap(self.given, other.given),
            false => overlap(self.whole, other.whole),
        }
    }
}

fn address(range: &Map<String, Value>, key: &str) -> Option<IpAddr> {
    parse_address(range.get(key)?.as_str()?).ok()
}

fn span_of(subnet: &str) -> Option<SubnetSpan> {
    parse_cidr(subnet).ok().map(|net| (net.network(), net.broadcast()))
}

fn overlap(one: SubnetSpan, other: SubnetSpan) -> bool {
    one.0 <= other.1 && other.0 <= one.1
}

/// The bridge that a plugin makes.
fn bridge(plugin: &Value) -> Option<&str> {
    let is_bridge = plugin["type"] == "bridge";
    plugin["bridge"].as_str().filter(|name| !name.is_empty()).or(is_bridge.then_some("cni0"))
}

/// The link that a plugin connects its containers to, if networks can share it.
fn link(plugin: &Value) -> Option<&str> {
    let kind = plugin["type"].as_str();
    let is_part = matches!(kind, Some("macvlan" | "ipvlan"));
    // Without a master it is the interface of the default route.
    bridge(plugin).or(is_part.then(|| plugin["master"].as_str().unwrap_or_default()))
}
