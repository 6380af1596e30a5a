//! A kill before every system call that changes a file: of the delegate alone, of the delegate in
//! a chain, of the chain.
//!
//! After each kill no address has two holders, the owner gets its addresses at its next ADD, after
//! a DEL and a GC nothing is left, what another container holds is as it was, and host-local can go
//! on.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::kills::{CALLS, changing_calls, del_by_the_record, strace};
use ipam_testkit::world::{binary, full_size, start, wait};
use serde_json::json;

use common::{LONG, Place, Program, owned_by, plain, set_age};

/// Whose call is killed, and who holds addresses all the while.
const VICTIM: &str = "c1";
const OTHER: &str = "other";

/// What is killed in the middle of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scenario {
    /// The first ADD of a node.
    First,
    Add,
    /// ADD of an owner that holds its address.
    Again,
    /// ADD of an owner that holds an address of a pool that is not asked for any more.
    PoolsChanged,
    DualStack,
    /// ADD after host-local has written.
    AfterHostLocal,
    /// ADD that finds the index full, and beside it the one of an earlier release.
    FullIndex,
    /// ADD on a file system without hard links.
    NoLinks,
    /// ADD that finds the second pool full.
    Full,
    /// ADD that takes the place of an old leftover.
    Leftover,
    Del,
    /// DEL that notes when it freed the addresses.
    DelToRest,
    Gc,
    /// ADD of a chain whose last delegate fails.
    Undo,
}

use Scenario::*;

const ALL: [Scenario; 14] = [
    First,
    Add,
    Again,
    PoolsChanged,
    DualStack,
    AfterHostLocal,
    FullIndex,
    NoLinks,
    Full,
    Leftover,
    Del,
    DelToRest,
    Gc,
    Undo,
];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// The delegate, run by itself.
    Alone,
    /// The delegate, run by a chain.
    InChain,
    /// The chain; its delegate lives on.
    Chain,
}

/// What comes after the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The runtime's DEL.
    Del,
    /// A DEL that the configuration is of no help to: it has neither delegates nor settings of theirs.
    DelByRecord,
    /// The same call again.
    Retry,
    /// Nothing but a GC, later.
    Gc,
    /// The delegate's next calls do not find the state folder.
    StateLost,
}

#[derive(Clone, Debug)]
struct Point {
    scenario: Scenario,
    who: Who,
    verb: &'static str,
    call: String,
    nth: usize,
    next: Next,
}

macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

impl Scenario {
    fn verb(self) -> &'static str {
        match self {
            Del | DelToRest => "DEL",
            Gc => "GC",
            _ => "ADD",
        }
    }

    /// Who is killed, and in which verb of the delegate.
    fn kills(self) -> &'static [(Who, &'static str)] {
        match self {
            Add => &[(Who::Alone, "ADD"), (Who::InChain, "ADD"), (Who::Chain, "ADD")],
            Full => &[(Who::Alone, "ADD"), (Who::InChain, "ADD"), (Who::Chain, "ADD")],
            Undo => &[(Who::InChain, "ADD"), (Who::InChain, "DEL"), (Who::Chain, "ADD")],
            Del => &[(Who::Alone, "DEL"), (Who::InChain, "DEL"), (Who::Chain, "DEL")],
            DelToRest => &[(Who::Alone, "DEL")],
            Gc => &[(Who::Alone, "GC"), (Who::Chain, "GC")],
            _ => &[(Who::Alone, "ADD")],
        }
    }

    fn subnets(self) -> &'static [&'static str] {
        match self {
            DualStack | Del | Undo => &["10.5.0.0/24", "fd05::/64"],
            // The other container holds the second pool's one address.
            Full => &["10.5.0.0/24", "10.6.0.0/30"],
            _ => &["10.5.0.0/24"],
        }
    }

    /// Whether the victim's ADD can succeed.
    fn may_hold(self) -> bool {
        !matches!(self, Full | Undo)
    }
}

/// A scenario set up in a place of its own.
struct Stage {
    scenario: Scenario,
    who: Who,
    place: Place,
}

impl Stage {
    fn new(scenario: Scenario, who: Who) -> Self {
        let mut place = Place::new(scenario.subnets());
        let world = &place.world;
        let wrapped = world.path("bin/ipam-da-local");
        fs::remove_file(&wrapped).unwrap();
        world.program("ipam-da-local", &wrapper());
        if scenario == Undo {
            world.program(
                "failing",
                &format!(
                    "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND,$CNI_CONTAINERID = ADD,{VICTIM} ] || {{ printf '{{\"ips\":[],\"pools\":[]}}'; exit 0; }}\n\
                     printf '{{\"code\":100,\"msg\":\"full\"}}'; exit 1\n"
                ),
            );
            place.ipam = json!({"delegates": ["ipam-ds-static", "ipam-da-local", "failing"]});
        }
        if scenario == DelToRest {
            place.ipam = json!({"cooldown": "1h"});
        }
        let stage = Self { scenario, who, place };
        stage.prepare();
        stage
    }

    fn prepare(&self) {
        let place = &self.place;
        if self.scenario != First {
            place.add(self.program(), OTHER);
        }
        match self.scenario {
            Again | Del | DelToRest => {
                place.add(self.program(), VICTIM);
            }
            PoolsChanged => {
                let mut network = place.network(Program::Allocator);
                network["prevResult"]["pools"][0]["ranges"][0]["subnet"] = "10.7.0.0/24".into();
                place.call_with(Program::Allocator, "ADD", VICTIM, &network).success();
            }
            AfterHostLocal => {
                place.call(Program::HostLocal, "ADD", "theirs").success();
                place.call(Program::HostLocal, "DEL", "theirs").success();
            }
            FullIndex => self.fill_index(),
            Leftover => set_age(&place.put("10.5.0.3", ""), LONG),
            Gc => {
                for name in ["10.5.0.30", "10.5.0.31"] {
                    set_age(&place.put(name, owned_by(&format!("stale{name}"))), LONG);
                }
                set_age(&place.put("10.5.0.32", ""), LONG);
                place.add(Program::Allocator, OTHER);
            }
            _ => {}
        }
    }

    fn fill_index(&self) {
        let root = self.place.world.path("state/local/net");
        let folder = root.join(&ipam_testkit::world::names(&root)[0]);
        let path = folder.join("index");
        let mut index = fs::read(&path).unwrap();
        for (number, slot) in index[4096..].chunks_mut(128).enumerate() {
            let entry = format!("gone{number}:eth0 10.9.9.9");
            slot[..entry.len()].copy_from_slice(entry.as_bytes());
        }
        fs::write(path, index).unwrap();
        fs::create_dir(folder.join("owners")).unwrap();
        std::os::unix::fs::symlink("10.5.0.2", folder.join("owners/other:eth0")).unwrap();
        fs::write(folder.join("stamp"), "123456789 1 1 \n").unwrap();
    }

    fn program(&self) -> Program {
        if self.who == Who::Alone { Program::Allocator } else { Program::Chain }
    }

    /// The call that is killed; `at` is what strace injects, nothing for a run that only counts.
    /// Tells whether it was, and what strace saw.
    fn victim(&self, verb: &str, at: Option<&str>) -> (bool, String) {
        let log = self.place.world.path("log");
        let program = self.place.file(self.program());
        let inject = match (at, self.scenario) {
            (at, NoLinks) => {
                let links = "-e inject=linkat:error=EPERM".to_owned();
                at.map_or(links.clone(), |at| format!("{links} -e inject={at}"))
            }
            (Some(at), _) => format!("-e inject={at}"),
            (None, _) => String::new(),
        };
        let traced = self.who != Who::InChain;
        let file = if traced { strace() } else { program.clone() };
        let call = self.scenario.verb();
        let mut command = self.place.command(self.program(), call, VICTIM);
        let outside = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned)));
        let outside: Vec<_> = outside.collect();
        command = Command::new(file);
        command.env_clear().envs(outside.into_iter().filter_map(|(k, v)| Some((k, v?))));
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        if traced {
            command.arg("-o").arg(&log).arg("-e").arg(format!("trace={CALLS}"));
            command.args(inject.split_whitespace()).arg(program);
        } else {
            command.env("CRASH_VERB", verb).env("CRASH_LOG", &log).env("CRASH_INJECT", inject);
        }
        let mut network = self.place.network(self.program());
        if self.scenario == Gc {
            network["cniVersion"] = "1.1.0".into();
            network["cni.dev/valid-attachments"] =
                json!([{"containerID": OTHER, "ifname": "eth0"}]);
        }
        let mut child = start(command, &network);
        let killed = if traced {
            // A delegate that lives on holds the chain's stdout.
            child.wait().unwrap().signal() == Some(9)
        } else {
            wait(child);
            fs::read_to_string(&log).is_ok_and(|log| log.contains("killed by SIGKILL"))
        };
        (killed, fs::read_to_string(log).unwrap_or_default())
    }

    /// The lease files, by what is in them.
    fn held(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut held: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (name, content) in self.place.leases() {
            held.entry(content).or_default().insert(name);
        }
        held
    }

    fn of(&self, container: &str) -> BTreeSet<String> {
        self.held().remove(&owned_by(container)).unwrap_or_default()
    }

    fn call(&self, program: Program, verb: &str, container: &str) -> Result<Vec<String>, String> {
        let outcome = self.place.call(program, verb, container);
        if outcome.exit != Some(0) {
            return Err(format!("{verb} {container} by {program:?}: {outcome:?}"));
        }
        let json = outcome.json();
        let ips = json["ips"].as_array().cloned().unwrap_or_default();
        Ok(plain(ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect()))
    }

    /// Everything that must hold after a kill.
    fn recover(&self, point: &Point, before: &BTreeSet<String>) -> Result<(), String> {
        let place = &self.place;
        check!(place.world.is_quiet_within(Duration::from_secs(15)), "processes live on");
        let empty: Vec<_> = self.held().remove("").unwrap_or_default().into_iter().collect();
        check!(
            empty.is_empty() || matches!(self.scenario, NoLinks | Leftover | Gc),
            "empty leases: {empty:?}"
        );
        let program = self.program();
        match point.next {
            Next::Gc => {}
            Next::Retry if self.scenario.verb() == "ADD" => self.retry(program)?,
            Next::Retry => {
                self.call(program, "DEL", VICTIM)?;
                check!(self.of(VICTIM).is_empty(), "after DEL: {:?}", self.held());
                self.retry(program)?;
                self.call(program, "DEL", VICTIM)?;
            }
            Next::Del => {
                self.call(program, "DEL", VICTIM)?;
                check!(self.of(VICTIM).is_empty(), "after DEL: {:?}", self.held());
            }
            Next::DelByRecord => {
                del_by_the_record(&place.world, VICTIM, &place.network(Program::Chain))?;
                check!(self.of(VICTIM).is_empty(), "after DEL: {:?}", self.held());
            }
            Next::StateLost => {
                fs::remove_dir_all(place.world.path("state")).unwrap();
                self.retry(Program::Allocator)?;
                self.call(Program::Allocator, "DEL", VICTIM)?;
                check!(self.of(VICTIM).is_empty(), "after DEL: {:?}", self.held());
            }
        }
        check!(self.of(OTHER) == *before, "the other's: {:?}", self.held());
        // host-local goes on beside what is left.
        if self.scenario != Full {
            let theirs = self.call(Program::HostLocal, "ADD", "theirs")?;
            check!(self.of("theirs") == theirs.into_iter().collect(), "{:?}", self.held());
            self.call(Program::HostLocal, "DEL", "theirs")?;
        }
        // Whatever the kill left, a GC that comes later takes, and nothing else.
        place.age(LONG);
        let outcome = place.gc(Program::Allocator, &[OTHER]);
        check!(outcome.exit == Some(0), "{outcome:?}");
        let left: BTreeSet<_> = place.leases().into_keys().collect();
        check!(left == *before, "after GC: {:?}", self.held());
        self.call(Program::Allocator, "ADD", "newcomer").map_or_else(
            |error| if self.scenario == Full { Ok(()) } else { Err(error) },
            |given| {
                check!(given.iter().all(|address| !before.contains(address)), "{given:?}");
                Ok(())
            },
        )?;
        Ok(())
    }

    /// The victim's ADD: it gets what it is to have, twice the same, or nothing.
    fn retry(&self, program: Program) -> Result<(), String> {
        if !self.scenario.may_hold() {
            if program == Program::Chain {
                check!(self.call(program, "ADD", VICTIM).is_err(), "an ADD that must fail");
                self.call(program, "DEL", VICTIM)?;
                check!(self.of(VICTIM).is_empty(), "{:?}", self.held());
            }
            return Ok(());
        }
        let given = self.call(program, "ADD", VICTIM)?;
        check!(given.len() == self.scenario.subnets().len(), "{given:?}");
        check!(self.of(VICTIM) == given.iter().cloned().collect(), "{given:?}: {:?}", self.held());
        check!(self.call(program, "ADD", VICTIM)? == given, "another address");
        Ok(())
    }
}

/// Runs the delegate under strace when the call is the one to be killed.
fn wrapper() -> String {
    format!(
        "#!/bin/sh\n[ \"$CRASH_VERB,$CNI_CONTAINERID\" = \"$CNI_COMMAND,{VICTIM}\" ] || exec '{real}'\n\
         '{strace}' -o \"$CRASH_LOG\" -e 'trace={CALLS}' $CRASH_INJECT '{real}'\n\
         code=$?\n[ $code -lt 128 ] || kill -9 $$\nexit $code\n",
        real = binary("ipam-da-local").display(),
        strace = strace().display(),
    )
}

/// Every point of a scenario, from a run of it without a kill.
fn points(scenario: Scenario) -> Vec<Point> {
    let mut points = Vec::new();
    for (who, verb) in scenario.kills() {
        let (_, log) = Stage::new(scenario, *who).victim(verb, None);
        let calls = changing_calls(&log);
        assert!(!calls.is_empty(), "{scenario:?} {who:?} {verb} changes no file: {log}");
        // Of a chain the workspace's tests know more; a lost state is the delegate's affair.
        let nexts: &[Next] = match who {
            Who::Alone => &[Next::Del, Next::Retry, Next::Gc, Next::StateLost],
            Who::InChain | Who::Chain if scenario != Gc => {
                &[Next::Del, Next::Retry, Next::DelByRecord]
            }
            Who::InChain | Who::Chain => &[Next::Del, Next::Retry],
        };
        // Whether the record says enough is told by each point of the chain's own.
        let always = |next: Next| *who == Who::Chain && next == Next::DelByRecord;

        for (place, (call, nth)) in calls.into_iter().enumerate() {
            let turn = nexts[place % nexts.len()];
            let wanted = |next: &Next| full_size() || *next == turn || always(*next);
            for next in nexts.iter().copied().filter(wanted) {
                points.push(Point { scenario, who: *who, verb, call: call.clone(), nth, next });
            }
        }
    }
    points
}

/// Whether the kill came about, and what was wrong after it.
fn kill_at(point: &Point) -> Result<bool, String> {
    let at = format!("{}:signal=SIGKILL:when={}", point.call, point.nth);
    let stage = Stage::new(point.scenario, point.who);
    let before = stage.of(OTHER);
    let (killed, _) = stage.victim(point.verb, Some(&at));
    if killed {
        stage.recover(point, &before)?;
    }
    Ok(killed)
}

#[test]
fn a_kill_at_any_point_loses_no_address_and_gives_none_twice() {
    let queue: Vec<Point> = ALL.into_iter().flat_map(points).collect();
    let tallies: Mutex<BTreeMap<(Scenario, Who), [usize; 2]>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let next = Mutex::new(queue.iter());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(point) = next.lock().unwrap().next() else { return };
                    match kill_at(point) {
                        Ok(killed) => {
                            let mut tallies = tallies.lock().unwrap();
                            let tally = tallies.entry((point.scenario, point.who)).or_default();
                            tally[usize::from(!killed)] += 1;
                        }
                        Err(error) => failures.lock().unwrap().push(format!("{point:?}: {error}")),
                    }
                }
            });
        }
    });
    let tallies = tallies.into_inner().unwrap();
    for ((scenario, who), [killed, missed]) in &tallies {
        // Not through the harness, which keeps what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "crash points: {scenario:?} {who:?} {killed} ({missed} not reached)"
        );
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), queue.len(), failures.join("\n"));
    for ((scenario, who), [killed, missed]) in tallies {
        assert!(killed > 0 && missed <= killed / 10, "{scenario:?} {who:?}: {killed}, {missed}");
    }
}
