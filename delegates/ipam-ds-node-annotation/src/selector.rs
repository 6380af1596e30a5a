use std::ffi::OsString;

use ipam_kit::cni::Verb;
use ipam_kit::delegate::{CliCall, selector_keys};
use ipam_kit::ipam_section::IpamSection;
use ipam_kit::keys::{Key, warn_of};
use ipam_kit::{Error, ErrorCode, Request, Result, Selection, Selector};
use ipam_kube::own_node::{self, NodeKeys, NodeQuery, NodeSettings, OwnNode};
use log::{debug, warn};
use serde_json::{Map, Value};

use crate::annotation::{AnnotationConfig, KEYS, of_node, parse, place, text};
use crate::cli;
use crate::conf::Conf;
use crate::log_file::logged;
use crate::lost;

/// Puts the settings of an annotation in the place of `ipam`. It keeps no state but what it remembers of
/// them.
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
    let (network, ttl) = (request.network.name().as_str(), settings.ttl());
    let own = OwnNode::new(settings, &request.environment, request.unreached(), request.deadline)?;
    let subject = place(name);
    let own = own.remembering(request.state_dir()?.root());
    // Allocators release and check by the owner, whatever the settings are.
    let goes_on = releases(request) || request.verb == Verb::Check;
    let own = if goes_on { own.briefly() } else { own };
    let known = own.ask(&NodeQuery { network, subject: &subject, ttl }, |node| {
        let text = text(node.annotation(name), &node.name, name)?;
        // What is of no use is not remembered, be it of use to this container or not.
        let verb = if request.verb == Verb::Add { Verb::Status } else { request.verb };
        let of_nobody = Request { verb, ..request.clone() };
        select(&text, &node.name, name, conf, &of_nobody)?;
        Ok(text)
    })?;
    let selection = select(&known.value, &known.node, name, conf, request)?;
    let remembered = known.remembered.map(|when| format!("{}, {when}", of_node(&known.node, name)));
    Ok(Selection { remembered, ..selection })
}

/// What the network was told last, whatever its age, for a call that goes on without an answer.
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
    let (network, subject) = (request.network.name().as_str(), place(name));
    let state = request.state_dir()?;
    let Some(known) = own_node::recall::<String>(state.root(), network, &subject) else {
        return Err(error);
    };
    warn!("{subject} as it was read last: {}", error.in_full());
    select(&known.value, &known.node, name, conf, request)
}

/// Settings that lead to the attachment's leases where the annotation is not known.
fn by_owner(request: &Request, error: Error) -> Result<Selection> {
    if is_final(&error) {
        return Err(error);
    }
    let why = error.in_full();
    let settings = match lost::settings(request)? {
        Some(settings) => {
            let folder = settings.get("dataDir").and_then(Value::as_str).unwrap_or_default();
            warn!("the annotation is not known, and the leases lie in {folder}: {why}");
            settings
        }
        None if request.verb == Verb::Del => {
            warn!("the annotation is not known, and no folder of dataDirs has a lease: {why}");
            lost::nothing()
        }
        None => return Err(error),
    };
    Ok(Selection::default().replacing(request.network.ipam(), settings))
}

/// Whether leases may lie where no delegate may look.
fn is_final(error: &Error) -> bool {
    error.code() == ErrorCode::RECORD
}

/// Fails for a folder in which nothing may be released or checked, though leases may lie there.
fn refuse_folder(settings: &Map<String, Value>, request: &Request) -> Result<()> {
    let of_folder = |(key, _): &(&String, &Value)| key.eq_ignore_ascii_case("dataDir");
    let folder = settings.iter().filter(of_folder);
    let folder: Map<_, _> = folder.map(|(key, value)| (key.clone(), value.clone())).collect();
    selector_keys::refuse_forbidden(&folder, &request.settings, true, "").map_err(|error| {
        let owner = request.attachment().map_or_else(
            |_| "CONTAINER IFNAME".to_owned(),
            |attachment| format!("{} {}", attachment.container, attachment.ifname),
        );
        error.with_code(ErrorCode::RECORD).advise(format!(
            "add the folder to dataDirs in /etc/cni/ipam-delegated.json, and the runtime's next DEL \
             releases what lies there; if it is gone for ever: ipam-delegated forget {} {owner} --yes",
            request.network.name()
        ))
    })
}

/// The settings that an annotation's text says, and the pools where it names ranges.
fn select(text: &str, node: &str, name: &str, conf: &Conf, request: &Request) -> Result<Selection> {
    let mut settings = parse(text, node, name)?;
    // Who comes next has its own name for it.
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
        debug!("{} goes on as it is written", place(name));
        return Ok(Selection::default().replacing(old, settings));
    }
    let mut ipam = settings.clone();
    // How ranges are read is the preset's.
    ipam.extend(old.get("rangeRules").map(|rules| ("rangeRules".to_owned(), rules.clone())));
    let with = request.network.with("ipam", Value::Object(ipam));
    let request = Request { network: with, ..request.clone() };
    let offer = IpamSection::read(&request).map_err(|error| error.within(of_node(node, name)))?;
    let selection = offer.map(Selection::from).unwrap_or_default();
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

/// Whether ranges stand where range sets should: who comes next says so.
fn is_flat(settings: &Map<String, Value>) -> bool {
    let sets = settings.get("ranges").and_then(Value::as_array);
    sets.is_some_and(|sets| sets.iter().any(Value::is_object))
}
