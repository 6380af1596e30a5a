//! Selectors with one known bug each: what the selector suite must find.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::subject::{CallOutput, Form, Subject};
use ipam_kit::allocate::Reach;
use ipam_kit::cni::Environment;
use ipam_kit::error::Result;

/// A bug that an author's first selector may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectorBug {
    /// A range begins outside of its subnet.
    InvalidRange,
    /// The gateway is outside of the subnet.
    ForeignGateway,
    /// It gives an address itself.
    GivesAddress,
    /// It answers a result of its own, without the addresses before it.
    DropsAddresses,
    /// It copies the members that it knows, and no other.
    DropsUnknown,
    /// Its pools replace those of the selectors before it.
    ReplacesPools,
    /// It puts a pool of the same name behind the first.
    DoublesPools,
    /// The second call chooses another pool.
    Wavers,
    /// It refuses a key that it does not know.
    RefusesKeys,
    /// It prints a line of its log on stdout.
    LogsOnStdout,
    /// It answers in its own version of CNI.
    OwnVersion,
    /// It fails without the namespace that `CNI_NETNS` names.
    NeedsNamespace,
    /// It fails without `CNI_ARGS`.
    NeedsArguments,
    /// It reads stdin before it answers VERSION.
    VersionReadsStdin,
    /// It fails on STATUS.
    NoStatus,
    /// It answers an object without pools on DEL.
    EmptyDel,
    /// It fails on GC.
    NoGc,
    /// It treats every verb as ADD.
    AnyVerb,
    /// It fails by exit status and stderr alone.
    NoErrorObject,
    /// It ignores a section `ipam` that it cannot read.
    IgnoresSection,
    /// It crashes on a key of the wrong type.
    CrashesOnKey,
}

impl SelectorBug {
    /// Every bug, each with the check that must find it.
    pub const ALL: [(Self, &'static str); 21] = [
        (Self::InvalidRange, "pools_are_valid"),
        (Self::ForeignGateway, "a_gateway_is_inside_its_subnet"),
        (Self::GivesAddress, "no_address_is_given"),
        (Self::DropsAddresses, "addresses_routes_and_dns_are_kept"),
        (Self::DropsUnknown, "unknown_members_are_kept"),
        (Self::ReplacesPools, "pools_that_are_there_stay_in_front"),
        (Self::DoublesPools, "a_pool_of_the_same_name_is_one_pool"),
        (Self::Wavers, "an_add_again_answers_the_same_pools"),
        (Self::RefusesKeys, "an_unknown_key_changes_nothing"),
        (Self::LogsOnStdout, "stdout_has_one_object_and_nothing_else"),
        (Self::OwnVersion, "the_answer_has_the_version_of_the_configuration"),
        (Self::NeedsNamespace, "an_add_needs_no_namespace_and_no_arguments"),
        (Self::NeedsArguments, "an_add_needs_no_namespace_and_no_arguments"),
        (Self::VersionReadsStdin, "version_is_answered_without_stdin"),
        (Self::NoStatus, "status_answers_as_an_add"),
        (Self::EmptyDel, "del_and_check_answer_pools_or_an_error_object"),
        (Self::NoGc, "gc_answers_pools_or_nothing"),
        (Self::AnyVerb, "an_unknown_verb_is_error_4"),
        (Self::NoErrorObject, "stdin_without_an_object_is_an_error_object"),
        (Self::IgnoresSection, "a_broken_section_is_an_error_object"),
        (Self::CrashesOnKey, "a_broken_section_is_an_error_object"),
    ];
}

/// A selector of one pool, with a bug or without.
#[derive(Debug, Default)]
pub struct SelectorMutant {
    bug: Option<SelectorBug>,
    calls: AtomicU64,
}

/// An error that it answers.
type Refusal = (u64, &'static str);

impl SelectorMutant {
    /// A selector with this bug.
    pub fn with(bug: SelectorBug) -> Self {
        Self { bug: Some(bug), ..Self::default() }
    }

    fn is(&self, bug: SelectorBug) -> bool {
        self.bug == Some(bug)
    }

    fn answer_to(&self, environment: &Environment, stdin: &[u8]) -> Result<Value, Refusal> {
        use SelectorBug::*;
        let text = |name| environment.text(name).unwrap_or_default();
        let verb = text("CNI_COMMAND");
        let config = serde_json::from_slice::<Map<String, Value>>(stdin);
        if verb == "VERSION" && !(self.is(VersionReadsStdin) && config.is_err()) {
            return Ok(
                json!({"cniVersion": "1.1.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}),
            );
        }
        let is_known = ["ADD", "DEL", "CHECK", "GC", "STATUS"].contains(&verb);
        if !is_known && !self.is(AnyVerb) {
            return Err((4, "unknown CNI_COMMAND"));
        }
        let config = config.map_err(|_| (6, "stdin: expected one JSON object"))?;
        let pool = self.choose(&config)?;
        match (verb, self.bug) {
            ("STATUS", Some(NoStatus)) | ("GC", Some(NoGc)) => Err((4, "unknown verb")),
            ("DEL", Some(EmptyDel)) => Ok(json!({"cniVersion": "1.1.0"})),
            _ if self.is(NeedsNamespace) && !Path::new(text("CNI_NETNS")).exists() => {
                Err((4, "CNI_NETNS: not found"))
            }
            _ if self.is(NeedsArguments) && text("CNI_ARGS").is_empty() => {
                Err((4, "CNI_ARGS: missing"))
            }
            _ => Ok(self.result(&config, pool)),
        }
    }

    /// The pool that the key `pool` names.
    fn choose(&self, config: &Map<String, Value>) -> Result<Value, Refusal> {
        use SelectorBug::*;
        let section = config.get("ipam").and_then(Value::as_object);
        if section.is_none() && !self.is(IgnoresSection) {
            return Err((7, "ipam: expected an object"));
        }
        let known = |key: &String| ["type", "pool", "dataDir", "stateDir"].contains(&key.as_str());
        if self.is(RefusesKeys) && !section.is_none_or(|section| section.keys().all(known)) {
            return Err((7, "ipam: unknown key"));
        }
        let name = match section.and_then(|section| section.get("pool")) {
            Some(Value::String(name)) => name,
            None if self.is(IgnoresSection) => "blue",
            _ => return Err((7, "ipam.pool: expected a name")),
        };
        let turn = self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(match self.bug {
            Some(Wavers) => json!({"name": format!("{name}-{turn}")}),
            Some(InvalidRange) => {
                json!({"name": name, "ranges": [{"subnet": "10.1.2.0/24", "rangeStart": "10.1.3.9"}]})
            }
            Some(ForeignGateway) => {
                json!({"name": name, "ranges": [{"subnet": "10.1.2.0/24", "gateway": "10.1.9.1"}]})
            }
            _ => json!({"name": name, "ranges": [{"subnet": "10.1.2.0/24"}]}),
        })
    }

    /// The result before it, with the pool.
    fn result(&self, config: &Map<String, Value>, pool: Value) -> Value {
        use SelectorBug::*;
        let mut result = json!({"ips": []});
        let before = config.get("prevResult").and_then(Value::as_object).cloned();
        let mut before = before.unwrap_or_default();
        let mut pools = match before.remove("pools") {
            Some(Value::Array(pools)) if !self.is(ReplacesPools) => pools,
            _ => Vec::new(),
        };
        match self.bug {
            Some(DropsAddresses) => before.retain(|key, _| key == "conformance.example"),
            Some(DropsUnknown) => {
                before.retain(|key, _| ["ips", "routes", "dns"].contains(&&**key))
            }
            _ => {}
        }
        result.as_object_mut().into_iter().for_each(|result| result.extend(before.clone()));
        match pools.iter_mut().find(|it| it["name"] == pool["name"] && !self.is(DoublesPools)) {
            Some(same) => same["ranges"] = pool["ranges"].clone(),
            None => pools.push(pool),
        }
        result["pools"] = json!(pools);
        let own = self.is(OwnVersion);
        result["cniVersion"] = if own { json!("1.1.0") } else { config["cniVersion"].clone() };
        if self.is(GivesAddress) {
            result["ips"] = json!([{"address": "10.1.2.2/24"}]);
        }
        result
    }
}

impl Subject for SelectorMutant {
    fn form(&self) -> Form {
        Form::Delegate
    }

    fn reach(&self) -> Reach {
        Reach::Node
    }

    fn config(&self) -> Map<String, Value> {
        Map::from_iter([("ipam".to_owned(), json!({"type": "ipam-ds-mutant", "pool": "blue"}))])
    }

    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput> {
        let answer = self.answer_to(&environment, stdin);
        let success = answer.is_ok();
        let is_silent = match answer {
            Err((7, message)) => self.is(SelectorBug::CrashesOnKey) && message.contains("pool"),
            Err(_) => self.is(SelectorBug::NoErrorObject),
            Ok(_) => false,
        };
        let answer = answer.unwrap_or_else(
            |(code, message)| json!({"cniVersion": "1.1.0", "code": code, "msg": message}),
        );
        let mut stdout = if is_silent { String::new() } else { answer.to_string() };
        if self.is(SelectorBug::LogsOnStdout) {
            stdout.push_str("\nchose blue\n");
        }
        Ok(CallOutput { success, stdout, stderr: String::new() })
    }
}
