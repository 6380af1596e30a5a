//! Replaces `ipam` by the settings in an annotation of the node object.

use std::ffi::OsString;

use ipam_kit::cni::Verb;
use ipam_kit::delegate::{CliCall, selector_keys};
use ipam_kit::ipam_section::IpamSection;
use ipam_kit::keys::{Key, warn_of};
use ipam_kit::{Error, ErrorCode, Request, Result, Selection, Selector};
use ipam_kube::own_node::{self, NodeKeys, NodeQuery, NodeSettings, OwnNode};
use log::{debug, warn};
use serde_json::{Map, Value};

use crate::annotation::{AnnotationConfig, KEYS, of_node, parse, path, value_of};
use crate::cli;
use crate::conf::Conf;
use crate::log_file::logged;
use crate::lost;

/// The selector. It keeps no state; what it remembers of an annotation is a hint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Annotation;

impl Selector for Annotation {
    type Config = AnnotationConfig;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, config: AnnotationConfig, request: &Request) -> Result<Selection> {
        let chosen = Conf::load(&request.environment).and_then(|conf| {
            if request.is_strict() {
                warn_of(&conf.misspelt);
            }
            let about = config.annotation().unwrap_or_default();
            let settings =
                request.network.settings::<NodeKeys>().and_then(|keys| keys.read("ipam."));
            let chosen = settings.and_then(|settings| {
                choose(&config, &conf, settings.or(conf.settings.clone()), request)
            });
            let chosen = chosen.or_else(|error| recall(&config, &conf, request, error));
            logged(conf.log.as_deref(), about, chosen)
        });
        chosen.or_else(|error| match request.verb {
            Verb::Status => Err(error.with_code(ErrorCode::UNAVAILABLE)),
            Verb::Del | Verb::Check => by_owner(request, error),
            _ => Err(error),
        })
    }

    fn expand_args(&self, typed: Vec<OsString>) -> Vec<OsString> {
        cli::expand_args(typed)
    }

    fn cli(&self, call: &CliCall) -> Option<Result<String>> {
        Some(cli::answer(call))
    }
}

fn choose(
    config: &AnnotationConfig,
    conf: &Conf,
    settings: NodeSettings,
    request: &Request,
) -> Result<Selection> {
    let name = config.annotation()?;
    let subject = path(name);
    let query = NodeQuery {
        network: request.network.name().as_str(),
        subject: &subject,
        ttl: settings.ttl(),
    };
    let Request { environment, settings: host, deadline, .. } = request;
    let own = OwnNode::new(settings, environment, host, request.unreached(), *deadline)?;
    let own = own.remembering(request.state_dir()?.root());
    // Allocators release and check by the owner, whatever the settings are.
    let is_by_owner = releases(request) || request.verb == Verb::Check;
    let own = if is_by_owner { own.briefly() } else { own };
    let answer = own.ask(&query, |node| {
        let value = value_of(node.annotation(name), &node.name, name)?;
        // A value that cannot be used is not remembered, whatever this container asks for.
        let verb = if request.verb == Verb::Add { Verb::Status } else { request.verb };
        let without_container = Request { verb, ..request.clone() };
        select(&value, &node.name, name, conf, &without_container)?;
        Ok(value)
    })?;
    let selection = select(&answer.value, &answer.node, name, conf, request)?;
    let remembered =
        answer.remembered.map(|when| format!("{}, {when}", of_node(&answer.node, name)));
    Ok(Selection { remembered, ..selection })
}

/// Uses the last remembered annotation, of any age: DEL and CHECK need no answer of the API server.
fn recall(
    config: &AnnotationConfig,
    conf: &Conf,
    request: &Request,
    error: Error,
) -> Result<Selection> {
    if !matches!(request.verb, Verb::Del | Verb::Check) || is_final(&error) {
        return Err(error);
    }
    let name = config.annotation()?;
    let network = request.network.name().as_str();
    let subject = path(name);
    let state = request.state_dir()?;
    let Some(known) = own_node::recall::<String>(state.root(), network, &subject) else {
        return Err(error);
    };
    warn!("{subject}: using the last value read: {}", error.in_full());
    select(&known.value, &known.node, name, conf, request)
}

/// Settings by which the attachment's leases are found without the annotation.
fn by_owner(request: &Request, error: Error) -> Result<Selection> {
    if is_final(&error) {
        return Err(error);
    }
    let why = error.in_full();
    let settings = match lost::settings(request)? {
        Some(settings) => {
            let folder = settings.get("dataDir").and_then(Value::as_str).unwrap_or_default();
            warn!("the annotation is unknown, using the leases found in {folder}: {why}");
            settings
        }
        None if request.verb == Verb::Del => {
            warn!("the annotation is unknown, and no folder of dataDirs has a lease: {why}");
            lost::nothing()
        }
        None => return Err(error),
    };
    Ok(Selection::default().replacing(request.network.ipam(), settings))
}

/// Whether leases may be in a folder that no delegate may read.
fn is_final(error: &Error) -> bool {
    error.code() == ErrorCode::RECORD
}

/// Fails for a folder that may have leases, and in which nothing may be released or checked.
fn refuse_folder(settings: &Map<String, Value>, request: &Request) -> Result<()> {
    let mut folder = settings.clone();
    folder.retain(|key, _| key.eq_ignore_ascii_case("dataDir"));
    selector_keys::refuse_forbidden(&folder, &request.settings, true, "").map_err(|error| {
        let owner = request.attachment().map_or_else(
            |_| "CONTAINER IFNAME".to_owned(),
            |attachment| format!("{} {}", attachment.container, attachment.ifname),
        );
        error.with_code(ErrorCode::RECORD).advise(format!(
            "add the folder to dataDirs in /etc/cni/ipam-delegated.json, so that the runtime's next DEL \
             releases its leases; if the folder is permanently lost: ipam-delegated forget {} {owner} --yes",
            request.network.name()
        ))
    })
}

/// The settings in the value of an annotation, and the pools if it names ranges.
fn select(
    value: &str,
    node: &str,
    name: &str,
    conf: &Conf,
    request: &Request,
) -> Result<Selection> {
    let mut settings = parse(value, node, name)?;
    // `type` is the name of the next program.
    settings.remove("type");
    if matches!(request.verb, Verb::Del | Verb::Check) {
        refuse_folder(&settings, request).map_err(|error| error.within(of_node(node, name)))?;
    }
    selector_keys::refuse_forbidden(&settings, &request.settings, releases(request), "")
        .map_err(|error| error.within(of_node(node, name)))?;
    if releases(request) {
        settings.remove("resolvConf");
    }
    let old = request.network.ipam();
    if conf.next.is_some() || is_flat(&settings) {
        debug!("{}: passed on unchanged", path(name));
        return Ok(Selection::default().replacing(old, settings));
    }
    let mut ipam = settings.clone();
    // A preset may set how ranges are read.
    ipam.extend(old.get("rangeRules").map(|rules| ("rangeRules".to_owned(), rules.clone())));
    let with = request.network.with("ipam", Value::Object(ipam));
    let request = Request { network: with, ..request.clone() };
    let section = IpamSection::read(&request).map_err(|error| error.within(of_node(node, name)))?;
    let selection = section.map(Selection::from).unwrap_or_default();
    for (key, value) in &selection.ipam {
        match value {
            Value::Null => settings.remove(key),
            value => settings.insert(key.clone(), value.clone()),
        };
    }
    Ok(selection.replacing(old, settings))
}

fn releases(request: &Request) -> bool {
    matches!(request.verb, Verb::Del | Verb::Gc)
}

/// Whether `ranges` is a flat list of ranges instead of range sets; the next program rejects it.
fn is_flat(settings: &Map<String, Value>) -> bool {
    let sets = settings.get("ranges").and_then(Value::as_array);
    sets.is_some_and(|sets| sets.iter().any(Value::is_object))
}
