//! A place where a call meets an error, and what must be true afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipam_testkit::errors::{Call, traced};
use ipam_testkit::world::{Host, Outcome, binary, names, start, wait};
use serde_json::{Value, json};

use crate::common::{LONG, Place, Program, owned_by, set_age};

/// Whose call meets the error, and who holds addresses all the while.
const VICTIM: &str = "c1";
const OTHER: &str = "other";

/// What meets the error in the middle of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// The first ADD of a node.
    First,
    Add,
    /// ADD of an owner that holds its addresses.
    Again,
    Check,
    Del,
    /// DEL with nothing but the type.
    Stripped,
    /// GC, with an attachment that the runtime does not list.
    Gc,
    /// `reap` of an attachment whose network namespace is gone.
    Reap,
    /// ADD of a chain whose last delegate fails.
    Undo,
}

use Scenario::{Add, Again, Check, Del, First, Gc, Reap, Stripped, Undo};

/// Who meets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// The delegate, run by itself.
    Alone,
    /// The delegate, run by a chain.
    InChain,
    Chain,
}

use Who::{Alone, Chain, InChain};

/// A scenario, who meets an error in it, and in which verb of the delegate.
pub const ALL: [(Scenario, Who, &str); 24] = [
    (First, Alone, "ADD"),
    (First, Chain, "ADD"),
    (Add, Alone, "ADD"),
    (Add, InChain, "ADD"),
    (Add, Chain, "ADD"),
    (Again, Alone, "ADD"),
    (Again, InChain, "ADD"),
    (Again, Chain, "ADD"),
    (Check, Alone, "CHECK"),
    (Check, InChain, "CHECK"),
    (Check, Chain, "CHECK"),
    (Del, Alone, "DEL"),
    (Del, InChain, "DEL"),
    (Del, Chain, "DEL"),
    (Stripped, InChain, "DEL"),
    (Stripped, Chain, "DEL"),
    (Gc, Alone, "GC"),
    (Gc, InChain, "DEL"),
    (Gc, InChain, "GC"),
    (Gc, Chain, "GC"),
    (Reap, InChain, "DEL"),
    (Reap, Chain, "DEL"),
    (Undo, InChain, "DEL"),
    (Undo, Chain, "ADD"),
];

macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

type Held = BTreeSet<String>;

/// A scenario set up in a place of its own.
pub struct Stage<'a> {
    scenario: Scenario,
    who: Who,
    host: &'a Host,
    place: Place,
    /// What the victim holds before, and its ADD's result.
    before: Held,
    result: Value,
    others: Held,
    identity: Option<String>,
}

impl<'a> Stage<'a> {
    /// On a host whose settings it writes: a runtime may strip all of `ipam`.
    pub fn new(host: &'a Host, scenario: Scenario, who: Who) -> Self {
        let mut place = Place::new(&["10.5.0.0/24", "fd05::/64"]);
        let world = &place.world;
        let wrapped = world.path("bin/ipam-da-local");
        fs::remove_file(&wrapped).unwrap();
        world.program("ipam-da-local", &wrapper());
        if scenario == Undo {
            let script = format!(
                "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND,$CNI_CONTAINERID = ADD,{VICTIM} ] || {{ printf '{{\"ips\":[],\"pools\":[]}}'; exit 0; }}\n\
                 printf '{{\"code\":100,\"msg\":\"full\"}}'; exit 1\n"
            );
            world.program("failing", &script);
            place.ipam = json!({"delegates": ["ipam-ds-static", "ipam-da-local", "failing"]});
        }
        host.settings(&json!({"stateDir": world.path("state")}));
        let (before, others) = (Held::new(), Held::new());
        let mut stage = Self {
            scenario,
            who,
            host,
            place,
            before,
            result: Value::Null,
            others,
            identity: None,
        };
        stage.prepare();
        stage
    }

    fn prepare(&mut self) {
        if self.scenario != First {
            self.call("ADD", OTHER, &self.network()).success();
        }
        if !matches!(self.scenario, First | Add | Undo) {
            self.result = self.call("ADD", VICTIM, &self.network()).success();
        }
        if self.scenario == Gc {
            let path = self.place.put("10.5.0.30", owned_by("nobody"));
            set_age(&path, LONG);
        }
        match (self.scenario, self.who) {
            (Gc, Alone) => self.place.age(LONG),
            // What the record knows of a lease includes its time.
            (Gc | Reap, _) => self.age_record(),
            _ => {}
        }
        self.before = self.of(VICTIM);
        self.others = self.of(OTHER);
        self.identity = fs::read_to_string(self.node()).ok();
    }

    /// Makes the victim's record older than any grace.
    fn age_record(&self) {
        let aged = |line: &Value| {
            let mut line = line.clone();
            if line.get("time").is_some() {
                line["time"] = 1.into();
            }
            format!("{line}\n")
        };
        let lines: String = self.place.world.lines(VICTIM).iter().map(aged).collect();
        fs::write(self.place.world.record(VICTIM), lines).unwrap();
    }

    fn node(&self) -> PathBuf {
        self.place.world.path("state/node")
    }

    fn program(&self) -> Program {
        if self.who == Alone { Program::Allocator } else { Program::Chain }
    }

    fn of(&self, container: &str) -> Held {
        let leases = self.place.leases().into_iter();
        leases.filter(|(_, text)| *text == owned_by(container)).map(|(name, _)| name).collect()
    }

    /// The usual configuration; the host says where the state is.
    fn network(&self) -> Value {
        let mut network = self.place.network(self.program());
        network["ipam"].as_object_mut().unwrap().remove("stateDir");
        network
    }

    /// What the call that meets the error gets.
    fn asked(&self) -> Value {
        let mut network = self.network();
        match self.scenario {
            Stripped => strip(&mut network),
            Gc => {
                network["cniVersion"] = "1.1.0".into();
                network["cni.dev/valid-attachments"] =
                    json!([{"containerID": OTHER, "ifname": "eth0"}]);
            }
            Check => {
                let pools = network["prevResult"]["pools"].take();
                network["prevResult"] = self.result.clone();
                if self.who == Alone {
                    network["prevResult"]["pools"] = pools;
                }
            }
            _ => {}
        }
        network
    }

    /// A call by these words on the host.
    fn command(&self, words: &[String], verb: &str, container: &str) -> Command {
        let mut inside = self.place.world.command_of(Path::new(&words[0]), verb, container);
        if verb == "GC" {
            inside.env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        let mut command = self.host.enter(&words[0]);
        command.args(&words[1..]).env_clear();
        command.envs(inside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn call(&self, verb: &str, container: &str, network: &Value) -> Outcome {
        let program = self.place.file(self.program()).display().to_string();
        wait(start(self.command(&[program], verb, container), network))
    }

    /// The call that meets the error, none for a run that only counts; and what strace saw.
    pub fn victim(&self, verb: &str, injection: Option<&str>) -> (Outcome, String) {
        let log = self.place.world.path("log");
        let by = traced(log.to_str().unwrap(), injection);
        let mut words = ["/usr/bin/timeout", "-s", "KILL", "60"].map(str::to_owned).to_vec();
        if self.who != InChain {
            words.extend(by.clone());
        }
        words.push(self.place.file(self.program()).display().to_string());
        let (called, container) = match self.scenario {
            Del | Stripped => ("DEL", VICTIM),
            Gc => ("GC", ""),
            Check => ("CHECK", VICTIM),
            Reap => ("", ""),
            First | Add | Again | Undo => ("ADD", VICTIM),
        };
        if self.scenario == Reap {
            let cache = self.place.world.path("results");
            fs::create_dir_all(&cache).unwrap();
            let cache = format!("--cache-dir={}", cache.display());
            words.extend(["reap", "--yes", "--json", &cache].map(str::to_owned));
        }
        let mut command = self.command(&words, called, container);
        if self.scenario == Reap {
            command.env_remove("CNI_COMMAND");
        }
        if self.who == InChain {
            command.env("ERRORS_VERB", verb).env("ERRORS_BY", by.join(" "));
        }
        let outcome = wait(start(command, &self.asked()));
        (outcome, fs::read_to_string(log).unwrap_or_default())
    }

    /// Everything that must hold after a call of which this one has failed.
    pub fn judge(&self, failed: &Call, outcome: &Outcome) -> Result<(), String> {
        check!(outcome.exit != Some(137), "it hangs");
        let done = outcome.exit == Some(0);
        let answer = serde_json::from_str::<Value>(&outcome.stdout);
        let held = self.of(VICTIM);
        let told = self.scenario == Reap || (self.who != InChain && failed.is_answer());
        if !done && !told {
            let answer = answer.as_ref().map_err(|error| format!("{error}: {outcome:?}"))?;
            let code = answer["code"].as_u64();
            check!(outcome.exit == Some(1), "{outcome:?}");
            check!(code.is_some_and(|code| code != 0 && code != 199), "{outcome:?}");
            check!(answer["msg"].as_str().is_some_and(|text| !text.is_empty()), "{outcome:?}");
            check!(code != Some(104), "what is held is said not to be: {outcome:?}");
        }
        match self.scenario {
            First | Add | Again | Undo => {
                check!(self.before.is_empty() || held == self.before, "it moved to {held:?}");
                if done {
                    let given = answer.map_err(|error| format!("{error}: {outcome:?}"))?;
                    let given = addresses(&given);
                    check!(given.len() == 2 && given == held, "{given:?}, but {held:?} is held");
                }
                check!(self.scenario != Undo || !done, "an ADD that must fail");
            }
            Check => check!(held == self.before, "{held:?}"),
            Reap => self.judge_reap(&held, outcome)?,
            Del | Stripped if done => {
                check!(held.is_empty(), "released, but holds {held:?}: {outcome:?}");
            }
            Gc if done => {
                let left: Held = self.place.leases().into_keys().collect();
                check!(left == self.others, "GC has left {left:?}: {outcome:?}");
            }
            Del | Stripped | Gc => {}
        }
        self.release(VICTIM)?;
        self.aftermath()
    }

    /// What `reap` says that it has released is free, and nothing else is.
    fn judge_reap(&self, held: &Held, outcome: &Outcome) -> Result<(), String> {
        let rows = serde_json::from_str::<Value>(&outcome.stdout).unwrap_or_default();
        let row = rows.as_array().into_iter().flatten().find(|row| row["containerID"] == VICTIM);
        let said = row.map(|row| row["outcome"].as_str().unwrap_or_default().to_owned());
        let known = self.place.world.record(VICTIM).exists();
        let released = said.as_deref() == Some("released");
        check!(!released || held.is_empty(), "{said:?}, but holds {held:?}: {outcome:?}");
        check!(known || held.is_empty(), "no record, but {held:?}: {outcome:?}");
        let panicked = outcome.stderr.contains("panicked");
        check!(!panicked && [Some(0), Some(1)].contains(&outcome.exit), "{outcome:?}");
        check!(outcome.exit == Some(1) || released || known, "silence: {outcome:?}");
        Ok(())
    }

    /// A DEL by the record alone, which must release.
    fn release(&self, container: &str) -> Result<(), String> {
        let mut network = self.network();
        if self.who != Alone {
            strip(&mut network);
        }
        let outcome = self.call("DEL", container, &network);
        check!(outcome.exit == Some(0), "then DEL of {container}: {outcome:?}");
        let left = self.of(container);
        check!(left.is_empty(), "DEL of {container} has left {left:?}: {outcome:?}");
        let events = self.place.world.events(container);
        let unsure = events.last().is_some_and(|event| event == "released");
        check!(events.is_empty() || unsure, "DEL has left a record: {events:?}");
        Ok(())
    }

    /// What the others see.
    fn aftermath(&self) -> Result<(), String> {
        let others = self.of(OTHER);
        check!(others == self.others, "the other holds {others:?}");
        if self.identity.is_some() {
            check!(fs::read_to_string(self.node()).ok() == self.identity, "another identity");
        }
        let state = |folder: &str| names(&self.place.world.path(folder));
        let known = ["attachments", "node", "unsure", "local"];
        let left = state("state");
        check!(left.iter().all(|name| known.contains(&name.as_str())), "state: {left:?}");
        let left = state("state/attachments/net");
        let known = [OTHER, VICTIM].map(|container| format!("{container}:eth0"));
        check!(left.iter().all(|name| known.contains(name)), "{left:?}");
        let next = self.call("ADD", "next", &self.network());
        check!(next.exit == Some(0), "{next:?}");
        let next = addresses(&next.json());
        check!(next.len() == 2 && next.is_disjoint(&self.others), "next got {next:?}");
        self.release("next")?;
        if self.scenario != First {
            self.release(OTHER)?;
        }
        let left: Vec<_> = self.place.leases().into_keys().collect();
        check!(left.is_empty() || self.scenario == Gc, "in the end {left:?}");
        Ok(())
    }
}

fn strip(network: &mut Value) {
    network["ipam"].as_object_mut().unwrap().retain(|key, _| key == "type");
}

fn addresses(result: &Value) -> Held {
    let ips = result["ips"].as_array().into_iter().flatten();
    let plain = |ip: &Value| ip["address"].as_str()?.split('/').next().map(str::to_owned);
    ips.filter_map(plain).collect()
}

/// Runs the delegate under strace when its call is to meet an error.
fn wrapper() -> String {
    format!(
        "#!/bin/sh\ncase $ERRORS_VERB,$CNI_CONTAINERID in $CNI_COMMAND,{VICTIM}|GC,) exec $ERRORS_BY '{real}';; esac\n\
         exec '{real}'\n",
        real = binary("ipam-da-local").display(),
    )
}
