//! Applies the choices of a pod to the pools of the selectors before it.

use std::path::PathBuf;

use ipam_kit::cni::{Verb, parse_value};
use ipam_kit::keys::Key;
use ipam_kit::pool::{Placement, Pool};
use ipam_kit::{Error, ErrorCode, Request, Result, Selection, Selector};
use ipam_kube::{CredentialsSource, Kube, Resource, is_forbidden};
use ipam_servers::ConfigFile;
use log::debug;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::choice;
use crate::networks::Sought;
use crate::pod::{self, PodFacts, PodId};
use crate::requests;
use crate::rules::{KEYS, KubePodConfig, PodRules, StickyRule};
use crate::wishes::{PodWishes, of_namespace};

/// The selector. It keeps no state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KubePod;

impl Selector for KubePod {
    /// It reads the section on ADD and STATUS alone: no other verb fails by it.
    type Config = IgnoredAny;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, _: IgnoredAny, request: &Request) -> Result<Selection> {
        if !request.is_strict() {
            return Ok(Selection::default());
        }
        let config: KubePodConfig = request.network.settings()?;
        let Some(rules) = config.rules()? else { return Ok(Selection::default()) };
        let remarks = rules.remarks.clone();
        if rules.allow_nothing() {
            return Ok(Selection { remarks, ..Selection::default() });
        }
        match request.verb {
            Verb::Add => add(&rules, request),
            _ => status(&rules, request, remarks)
                .map_err(|error| error.with_code(ErrorCode::UNAVAILABLE)),
        }
    }
}

fn add(rules: &PodRules, request: &Request) -> Result<Selection> {
    let there = earlier_pools(request)?;
    let is_missing = there.is_none();
    let there = there.unwrap_or_default();
    if !rules.need_pod() {
        return Ok(answer(choice::choose(there, &rules.choices, &[])?, is_missing));
    }
    let id = PodId::of(&request.args)?;
    let mut api = Api { rules, request, kube: None };
    let facts = api.facts(&id)?;
    let sought = Sought {
        ifname: request.attachment()?.ifname.as_str(),
        network: request.network.name().as_str(),
        namespace: &id.namespace,
    };
    let wishes = PodWishes::read(rules, &id, &facts, sought)?;
    debug!("pod {id}: {wishes:?}");
    let mut wanted = vec![wishes.pools];
    if rules.namespace_may_choose_pool() {
        wanted.push(of_namespace(rules, &id, &id.read_namespace(api.kube()?)?)?);
    }
    let mut pools = choice::choose(there, &rules.choices, &wanted)?;
    if pools.is_empty() && (wishes.sticky.is_some() || !wishes.addresses.is_empty()) {
        return Err(without_pools());
    }
    requests::request(&mut pools, &wishes.addresses)?;
    if let Some(name) = wishes.sticky {
        set_sticky(&mut pools, &name, rules);
    }
    Ok(answer(pools, is_missing))
}

/// A sticky name in place of a pod's: the allocator then tells on STATUS whether it keeps names.
const SAMPLE: &str = "NAMESPACE/NAME";

/// All pools that a pod may choose: the verbs for people show each.
fn status(rules: &PodRules, request: &Request, remarks: Vec<String>) -> Result<Selection> {
    let there = earlier_pools(request)?;
    let is_missing = there.is_none();
    let mut pools = choice::all(there.unwrap_or_default(), &rules.choices)?;
    if rules.sticky != StickyRule::Off {
        set_sticky(&mut pools, SAMPLE, rules);
    }
    let mut api = Api { rules, request, kube: None };
    let missing = api.missing_rights()?;
    let remarks = remarks.into_iter().chain(missing).collect();
    Ok(Selection { remarks, ..answer(pools, is_missing) })
}

fn set_sticky(pools: &mut [Pool], name: &str, rules: &PodRules) {
    for pool in pools {
        pool.sticky = Some(name.to_owned());
        pool.keep.clone_from(&rules.keep);
    }
}

/// The pools instead of those of earlier selectors. Where none has named any, an allocator reads
/// `ipam` itself.
fn answer(pools: Vec<Pool>, is_missing: bool) -> Selection {
    let pools = Some(pools).filter(|pools| !(is_missing && pools.is_empty()));
    Selection { pools, placing: Placement::Replace, ..Selection::default() }
}

/// The pools of the selectors before this one; `None` if none has named any.
fn earlier_pools(request: &Request) -> Result<Option<Vec<Pool>>> {
    let Some(pools) = request.members().pools()? else { return Ok(None) };
    let parse = |(i, pool): (usize, &Value)| Pool::parse(pool, &format!("prevResult.pools[{i}]"));
    pools.iter().enumerate().map(parse).collect::<Result<_>>().map(Some)
}

fn without_pools() -> Error {
    Error::config("prevResult.pools", "missing or empty: the pod's choices are about no pool")
        .advise("put a selector such as ipam-ds-static before ipam-ds-kube-pod in ipam.delegates")
}

/// The API server, with which the first question connects.
struct Api<'a> {
    rules: &'a PodRules,
    request: &'a Request,
    kube: Option<Kube>,
}

impl Api<'_> {
    /// The pod as the runtime passes it, if that is enough, else its object.
    fn facts(&mut self, id: &PodId) -> Result<PodFacts> {
        if !self.rules.read_object() {
            if !self.rules.read_annotations() {
                return Ok(PodFacts::default());
            }
            if let Some(annotations) = pod::of_runtime(&self.request.network)? {
                return Ok(PodFacts { annotations, ..PodFacts::default() });
            }
        }
        id.read(self.kube()?)
    }

    /// The rights that an ADD needs and these credentials lack, as remarks: each is tried on an
    /// object that need not exist.
    fn missing_rights(&mut self) -> Result<Vec<String>> {
        let (namespace, name) = ("default", "ipam-delegated");
        let reads_pods = self.rules.read_annotations() || self.rules.read_object();
        let pods = Some(pod::pods(namespace, name)).filter(|_| reads_pods);
        let namespaces = Some(pod::namespaces(namespace));
        let namespaces = namespaces.filter(|_| self.rules.namespace_may_choose_pool());
        let mut missing = Vec::new();
        for resource in pods.into_iter().chain(namespaces) {
            missing.extend(self.missing_right(&resource)?);
        }
        Ok(missing)
    }

    fn missing_right(&mut self, resource: &Resource<'_>) -> Result<Option<String>> {
        match self.kube()?.get::<IgnoredAny>(resource) {
            Err(error) if is_forbidden(&error) => Ok(Some(format!(
                "ADD may lack a right, unless it is given for other objects: {}",
                error.in_full()
            ))),
            answer => answer.map(|_| None),
        }
    }

    fn kube(&mut self) -> Result<&mut Kube> {
        let kube = match self.kube.take() {
            Some(kube) => kube,
            None => source(self.rules, self.request)?
                .open(self.request.unreached(), self.request.deadline)?,
        };
        Ok(self.kube.insert(kube))
    }
}

/// The login: the section's own, else the allocator's, else that of the other selectors.
fn source(rules: &PodRules, request: &Request) -> Result<CredentialsSource> {
    let ipam = request.network.ipam();
    let of_kube = ipam.get("kube").and_then(|kube| kube.get("kubeconfig"));
    let mut named = ConfigFile::given("ipam.pod.kubeconfig", rules.kubeconfig.clone());
    let shared = [("ipam.kube.kubeconfig", of_kube), ("ipam.kubeconfig", ipam.get("kubeconfig"))];
    for (path, value) in shared {
        let file: Option<PathBuf> = parse_value(value.unwrap_or(&Value::Null), path)?;
        named = named.or_else(|| ConfigFile::given(path, file));
    }
    let Request { environment, settings, .. } = request;
    CredentialsSource::find("ipam.pod.kubeconfig", named, environment, settings)
}
