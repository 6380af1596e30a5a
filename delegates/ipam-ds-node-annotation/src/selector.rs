use std::ffi::OsString;

use ipam_kit::cni::Verb;
use ipam_kit::delegate::{ByHand, selected};
use ipam_kit::keys::Key;
use ipam_kit::offer::Offer;
use ipam_kit::{ErrorCode, Request, Result, Selection, Selector};
use ipam_kube::own_node::{Keys, OwnNode, Settings, Wish};
use log::debug;
use serde_json::{Map, Value};

use crate::annotation::{Config, KEYS, of_node, parse, place, text};
use crate::by_hand;
use crate::conf::Conf;
use crate::log_file::logged;

/// Puts the settings of an annotation in the place of `ipam`. It keeps no state but what it remembers of
/// them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Annotation;

impl Selector for Annotation {
    type Config = Config;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    // It waits for the API server, but gives it up in its time.
    const WAITS: bool = false;

    fn select(&self, config: Config, request: &Request) -> Result<Selection> {
        let conf = Conf::load(&request.environment)?;
        let about = config.annotation().unwrap_or_default();
        let settings = request.network.settings::<Keys>()?.read("ipam.")?;
        let chosen = choose(&config, &conf, settings.or(conf.settings.clone()), request);
        logged(conf.log.as_deref(), about, chosen).map_err(|error| match request.verb {
            Verb::Status => error.with_code(ErrorCode::UNAVAILABLE),
            _ => error,
        })
    }

    fn completed(&self, typed: Vec<OsString>) -> Vec<OsString> {
        by_hand::completed(typed)
    }

    fn by_hand(&self, call: &ByHand) -> Option<Result<String>> {
        Some(by_hand::answer(call))
    }
}

fn choose(
    config: &Config,
    conf: &Conf,
    settings: Settings,
    request: &Request,
) -> Result<Selection> {
    let name = config.annotation()?;
    let (network, ttl) = (request.network.name().as_str(), settings.ttl());
    let own = OwnNode::new(settings, &request.environment, request.unreached(), request.deadline)?;
    let what = place(name);
    let own = own.remembering(request.state_dir()?.root());
    // Allocators release by the owner, whatever the settings are.
    let own = if releases(request) { own.briefly() } else { own };
    let known = own.ask(&Wish { network, what: &what, ttl }, |node| {
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

/// The settings that an annotation's text says, and the pools where it names ranges.
fn select(text: &str, node: &str, name: &str, conf: &Conf, request: &Request) -> Result<Selection> {
    let mut settings = parse(text, node, name)?;
    // Who comes next has its own name for it.
    settings.remove("type");
    selected::judge(&settings, &request.settings, releases(request), "")
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
    let offer = Offer::read(&request).map_err(|error| error.within(of_node(node, name)))?;
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
