//! Chooses the subnets that the node object names.

use std::net::IpAddr;

use ipam_kit::cni::{Network, Verb};
use ipam_kit::ipam_section::{IpamSection, SectionPool};
use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result, Selection, Selector};
use ipam_kube::is_unreachable;
use ipam_kube::own_node::{NodeAnswer, NodeKeys, NodeQuery, NodeSettings, OwnNode};
use log::{debug, warn};
use serde_json::{Map, Value, json};

use crate::config::{KEYS, KubeNodeConfig};
use crate::legacy_cache::LegacyCache;
use crate::subnets;

/// The selector. It keeps no state; what it remembers of a node is a hint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KubeNode;

/// Keys that also name ranges; the subnets of the node object replace them.
const OTHER_RANGES: [&str; 7] =
    ["pools", "ranges", "subnet", "rangeStart", "rangeEnd", "gateway", "exclude"];

impl Selector for KubeNode {
    type Config = KubeNodeConfig;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, config: KubeNodeConfig, request: &Request) -> Result<Selection> {
        let settings = request.network.settings::<NodeKeys>()?.read("ipam.")?;
        choose(&config, settings, request).map_err(|error| match request.verb {
            Verb::Status => error.with_code(ErrorCode::UNAVAILABLE),
            _ => error,
        })
    }
}

fn choose(config: &KubeNodeConfig, settings: NodeSettings, request: &Request) -> Result<Selection> {
    let network = request.network.name().as_str();
    if request.network.ip_ranges().is_some() {
        warn!("runtimeConfig.ipRanges is ignored: the ranges come from the node");
    }
    let legacy = LegacyCache::of(config.data_dir(), network);
    let subject = subnets::path(config.annotation());
    let query = NodeQuery { network, subject: &subject, ttl: settings.ttl() };
    let Request { environment, settings: host, deadline, .. } = request;
    let own = OwnNode::new(settings, environment, host, request.unreached(), *deadline)?;
    let own = own.remembering(request.state_dir()?.root());
    // Allocators release and check by the owner, whatever the subnets are.
    let is_by_owner = matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check);
    let has_legacy_alone = !own.remembers(network) && legacy.read().is_some();
    let own = if is_by_owner || has_legacy_alone { own.briefly() } else { own };
    let answer = own.ask(&query, |node| {
        let subnets = subnets::read(node, config.annotation())?;
        // Subnets that cannot be used are not remembered, whatever this pod asks for.
        select(&subnets, &node.name, config, &without_pod(request))?;
        Ok(subnets)
    });
    match answer {
        Ok(NodeAnswer { node, value, remembered }) => {
            if remembered.is_none() {
                legacy.keep(&value);
            }
            let remembered = remembered.map(|when| format!("{subject} of node {node}, {when}"));
            Ok(Selection { remembered, ..select(&value, &node, config, request)? })
        }
        // Our own memory of the node replaces the legacy cache, which a newer answer may have
        // written.
        Err(error) if is_unreachable(&error) && !own.remembers(network) => {
            let Some(subnets) = legacy.read() else { return Err(error) };
            let path = legacy.path().display().to_string();
            let why = error.in_full();
            warn!("the API server does not answer, using kube-node's file {path}: {why}");
            let remembered = Some(format!("{subject}, from kube-node's file {path}"));
            let node = format!("(by {path})");
            Ok(Selection { remembered, ..select(&subnets, &node, config, request)? })
        }
        Err(error) => Err(error),
    }
}

/// The request without what its pod asks for.
fn without_pod(request: &Request) -> Request {
    let verb = if request.verb == Verb::Add { Verb::Status } else { request.verb };
    Request { verb, ..request.clone() }
}

/// Chooses among the subnets of a node.
fn select(
    subnets: &[String],
    node: &str,
    config: &KubeNodeConfig,
    request: &Request,
) -> Result<Selection> {
    let request = Request { network: with_ranges(&request.network, subnets), ..request.clone() };
    // Addresses are released and checked whatever the namespace may have today.
    let without_ipv4 = config.without_ipv4(&request.args).filter(|_| request.verb == Verb::Add);
    let path = format!("{} of node {node}", subnets::path(config.annotation()));
    let section = IpamSection::read_where(&request, |pool: &SectionPool| {
        let is_ipv4 = pool.set.as_ref().is_some_and(|set| set.is_ipv4());
        without_ipv4.is_none() || !is_ipv4
    });
    let section = section.map_err(|error| error.within(&path))?;
    let mut section = section.ok_or_else(|| Error::config(&path, "no subnet"))?;
    if let Some(namespace) = without_ipv4 {
        debug!("no IPv4 for namespace {namespace:?}: not in ipam.ipv4-namespaces");
        if section.pools.is_empty() {
            let message =
                format!("namespace {namespace:?} gets no IPv4 address, and {path} has only IPv4");
            return Err(Error::config("ipam.ipv4-namespaces", message).advise(
                "add the namespace to ipam.ipv4-namespaces, or give the node an IPv6 subnet",
            ));
        }
        // A route needs an address of its family.
        section.routes.retain(|route| matches!(route.dst.addr(), IpAddr::V6(_)));
    }
    Ok(Selection::from(section))
}

/// The network with each subnet as a range set.
fn with_ranges(network: &Network, subnets: &[String]) -> Network {
    let mut ipam = network.ipam().clone();
    ipam.retain(|key, _| !OTHER_RANGES.contains(&key.as_str()));
    let sets = subnets.iter().map(|subnet| json!([{ "subnet": subnet }]));
    ipam.insert("ranges".to_owned(), sets.collect());
    let mut network = network.with("ipam", Value::Object(ipam));
    if network.ip_ranges().is_some() {
        let runtime = network.config().get("runtimeConfig").and_then(Value::as_object);
        let mut runtime: Map<String, Value> = runtime.cloned().unwrap_or_default();
        runtime.remove("ipRanges");
        network = network.with("runtimeConfig", Value::Object(runtime));
    }
    network
}
