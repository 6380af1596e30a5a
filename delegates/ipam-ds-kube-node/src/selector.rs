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

/// Chooses the subnets that the node object names. It keeps no state but what it remembers of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KubeNode;

/// Keys that name ranges, too: those of the node object stand in their place.
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
        warn!("runtimeConfig.ipRanges is not used: the node says what the ranges are");
    }
    let legacy = LegacyCache::of(config.data_dir(), network);
    let (subject, ttl) = (subnets::place(config.annotation()), settings.ttl());
    let own = OwnNode::new(settings, &request.environment, request.unreached(), request.deadline)?;
    let own = own.remembering(request.state_dir()?.root());
    // Allocators release and check by the owner, whatever the subnets are.
    let by_owner = matches!(request.verb, Verb::Del | Verb::Gc | Verb::Check);
    let has_other = !own.remembers(network) && legacy.read().is_some();
    let own = if by_owner || has_other { own.briefly() } else { own };
    let known = own.ask(&NodeQuery { network, subject: &subject, ttl }, |node| {
        let subnets = subnets::read(node, config.annotation())?;
        // What is of no use is not remembered, be it of use to this pod or not.
        select(&subnets, &node.name, config, &of_no_pod(request))?;
        Ok(subnets)
    });
    match known {
        Ok(NodeAnswer { node, value, remembered }) => {
            if remembered.is_none() {
                legacy.keep(&value);
            }
            let remembered = remembered.map(|when| format!("{subject} of node {node}, {when}"));
            Ok(Selection { remembered, ..select(&value, &node, config, request)? })
        }
        // What we have read since may have been kept in it for another question.
        Err(error) if is_unreachable(&error) && !own.remembers(network) => {
            let Some(subnets) = legacy.read() else { return Err(error) };
            let path = legacy.path().display().to_string();
            let why = error.in_full();
            warn!("as kube-node left them in {path}, for the API server does not answer: {why}");
            let remembered = Some(format!("{subject}, as kube-node left them in {path}"));
            let node = format!("(by {path})");
            Ok(Selection { remembered, ..select(&subnets, &node, config, request)? })
        }
        Err(error) => Err(error),
    }
}

/// The request as it would be without an attachment's own wishes.
fn of_no_pod(request: &Request) -> Request {
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
    // What was given once is released and checked whatever the pod may have by now.
    let without = config.without_ipv4(&request.args).filter(|_| request.verb == Verb::Add);
    let of_pod = |offered: &SectionPool| {
        without.is_none() || offered.set.as_ref().is_none_or(|set| !set.is_ipv4())
    };
    let place = format!("{} of node {node}", subnets::place(config.annotation()));
    let offer = IpamSection::read_where(&request, of_pod).map_err(|error| error.within(&place))?;
    let mut offer = offer.ok_or_else(|| Error::config(&place, "no subnet"))?;
    if let Some(namespace) = without {
        debug!("no IPv4 for namespace {namespace:?}: ipam.ipv4-namespaces does not name it");
        if offer.pools.is_empty() {
            let message = format!("namespace {namespace:?} gets no IPv4, and {place} is all IPv4");
            return Err(Error::config("ipam.ipv4-namespaces", message)
                .advise("add the namespace, or give the node an IPv6 subnet"));
        }
        // Without an address of that family they cannot be set.
        offer.routes.retain(|route| matches!(route.dst.addr(), IpAddr::V6(_)));
    }
    Ok(Selection::from(offer))
}

/// The network, as if it named these subnets, each a range set.
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
