//! A kill before every system call that changes a file: of the chain, of its delegate, of both.
//!
//! After each kill the runtime's next calls must succeed, nothing may stay leased, no record may
//! stay behind, and what another container holds must be as it was.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::kills::{CALLS, changing_calls, del_by_the_record, strace};
use ipam_testkit::world::{World, binary, host_local, start, wait};
use serde_json::{Value, json};

/// The container whose call is killed, the one that holds an address all the while, and one that
/// comes later.
const VICTIM: &str = "c1";
const OTHER: &str = "b1";
const LATER: &str = "d1";

/// The container whose DEL is to be repeated.
const DUE: &str = "e1";

/// What is killed in the middle of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scenario {
    /// ADD with host-local.
    Add,
    /// DEL with host-local.
    Del,
    /// The same by a record in a folder, where earlier programs made it.
    DelInFolder,
    /// ADD with host-local and a delegate that fails after it.
    Undo,
    /// ADD with an allocator that gives the same owner the same address again.
    Idempotent,
    /// The first ADD of a node.
    First,
    /// ADD that finds a record long enough to be compacted.
    Compaction,
    /// ADD that finds an unreadable record, and sets it aside.
    Aside,
    /// DEL after an ADD that was killed.
    DelUnsure,
    /// ADD that first repeats the DEL of another container's killed ADD.
    Repeat,
}

impl Scenario {
    const ALL: [Self; 10] = [
        Self::Add,
        Self::Del,
        Self::DelInFolder,
        Self::Undo,
        Self::Idempotent,
        Self::First,
        Self::Compaction,
        Self::Aside,
        Self::DelUnsure,
        Self::Repeat,
    ];

    /// The verb that is killed.
    fn verb(self) -> &'static str {
        if matches!(self, Self::Del | Self::DelInFolder | Self::DelUnsure) { "DEL" } else { "ADD" }
    }

    /// The verbs its delegate is run with meanwhile.
    fn delegate_verbs(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Idempotent => &["ADD"],
            Self::Del => &["DEL"],
            Self::Undo => &["ADD", "DEL"],
            // To the delegate the same as above.
            Self::DelInFolder
            | Self::First
            | Self::Compaction
            | Self::Aside
            | Self::DelUnsure
            | Self::Repeat => &[],
        }
    }
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// The chain, before a call of its own; its delegate lives on.
    Chain,
    /// The chain likewise, and right after it what it has started.
    ChainAndRest,
    /// The delegate, before a call of its own.
    Delegate,
    /// The delegate likewise, and the chain before it has seen that.
    DelegateAndChain,
}

/// A kill before the `nth` call of a name.
#[derive(Clone, Debug)]
struct Point {
    scenario: Scenario,
    who: Who,
    /// The verb the killed delegate runs.
    verb: &'static str,
    call: String,
    nth: usize,
    /// What the runtime does next.
    next: Next,
}

/// What a runtime may do after a call was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// DEL, and that is all.
    Del,
    /// The same call again until it succeeds, then DEL.
    Retry,
}

/// What a kill amounted to.
#[derive(Default)]
struct Findings {
    /// The process did come to that call.
    killed: bool,
    /// host-local left an empty lease: its own leak when it is killed between create and write.
    empty_leases: usize,
    /// The record stayed for the repetition of its DEL.
    unsure: bool,
}

macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}

/// A scenario set up in a world of its own.
struct Stage {
    scenario: Scenario,
    world: World,
    network: Value,
}

impl Stage {
    fn new(scenario: Scenario) -> Self {
        let world = World::new();
        world.allocator("double", "10.9.0.77/24");
        let double = world.path("bin/double.real");
        fs::rename(world.path("bin/double"), &double).unwrap();
        world.program("double", &wrapper(&double));
        world.program("host-local", &wrapper(&host_local()));
        world.program(
            "failing",
            &format!(
                "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\n\
                 [ $CNI_CONTAINERID = {VICTIM} ] || {{ printf '{{\"ips\":[]}}'; exit 0; }}\n\
                 printf '{{\"code\":100,\"msg\":\"full\"}}'; exit 1\n"
            ),
        );
        let delegates = match scenario {
            Scenario::Undo => json!(["host-local", "failing"]),
            Scenario::Idempotent => json!(["double"]),
            _ => json!(["host-local"]),
        };
        let mut network = world.network(delegates);
        network["ipam"]["ranges"] = json!([[{"subnet": "10.9.0.0/24"}]]);
        let stage = Self { scenario, world, network };
        if scenario != Scenario::First {
            stage.call("ADD", OTHER).unwrap();
        }
        if matches!(scenario, Scenario::Del | Scenario::DelInFolder) {
            stage.call("ADD", VICTIM).unwrap();
        }
        match scenario {
            Scenario::DelInFolder => stage.world.put_record_in_folder(VICTIM),
            Scenario::Compaction => stage.make_long_record(),
            Scenario::Aside => fs::write(stage.world.record(VICTIM), "no event\n").unwrap(),
            Scenario::DelUnsure => stage.make_unfinished(VICTIM, ""),
            Scenario::Repeat => {
                let released = "{\"event\":\"released\",\"time\":1,\"due\":1}\n";
                stage.make_unfinished(DUE, released);
                stage.list_due("000000000000001.1.0", DUE);
            }
            _ => {}
        }
        stage
    }

    fn call(&self, verb: &str, container: &str) -> Result<Value, String> {
        let outcome = self.world.call(verb, container, &self.network);
        if outcome.exit == Some(0) {
            Ok(outcome.json())
        } else {
            Err(format!("{verb} {container}: {outcome:?}"))
        }
    }

    /// An ADD as if it had been killed before it could say what is held, and more events.
    fn make_unfinished(&self, container: &str, more: &str) {
        self.call("ADD", container).unwrap();
        let path = self.world.record(container);
        let text = fs::read_to_string(&path).unwrap();
        let unfinished: String = text.split_inclusive('\n').take(2).collect();
        fs::write(&path, unfinished + more).unwrap();
    }

    fn list_due(&self, name: &str, container: &str) {
        let folder = self.world.path("state/unsure");
        fs::create_dir_all(&folder).unwrap();
        let target = format!("net/{container}/eth0");
        std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
    }

    /// Many failed ADDs of the victim, longer than a record stays.
    fn make_long_record(&self) {
        self.call("ADD", VICTIM).unwrap();
        let path = self.world.record(VICTIM);
        let text = fs::read_to_string(&path).unwrap();
        self.call("DEL", VICTIM).unwrap();
        let mut failed: String = text.split_inclusive('\n').take(2).collect();
        failed.push_str("{\"event\":\"failed\",\"time\":1}\n");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, failed.repeat(70_000 / failed.len() + 1)).unwrap();
    }

    /// The call that is killed; `at` is what strace injects, nothing for a run that only counts.
    fn victim(&self, who: Option<Who>, verb: &str, at: Option<&str>) -> bool {
        let traced = matches!(who, None | Some(Who::Chain | Who::ChainAndRest));
        let program = if traced { strace() } else { binary("ipam-delegated") };
        let mut command = self.world.command_of(&program, self.scenario.verb(), VICTIM);
        if traced {
            command.arg("-o").arg(self.world.path("chain.log"));
            trace(&mut command, at);
            command.arg(binary("ipam-delegated"));
        }
        if !matches!(who, Some(Who::Chain | Who::ChainAndRest)) {
            command.env("CRASH_VERB", verb).env("CRASH_LOG", self.world.path("delegate.log"));
            let inject = at.map_or_else(String::new, |at| format!("-e inject={at}"));
            command.env("CRASH_INJECT", inject);
        }
        if who == Some(Who::DelegateAndChain) {
            command.env("CRASH_BOTH", "yes");
        }
        let mut child = start(command, &self.network);
        if matches!(who, Some(Who::Chain | Who::ChainAndRest)) {
            let status = child.wait().unwrap();
            if who == Some(Who::ChainAndRest) {
                for pid in self.world.processes() {
                    let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
                }
            }
            return status.signal() == Some(9);
        }
        let outcome = wait(child);
        assert!(at.is_some() || !outcome.stderr.contains("strace: "), "{outcome:?}");
        let log = fs::read_to_string(self.world.path("delegate.log")).unwrap_or_default();
        log.contains("killed by SIGKILL")
    }

    /// The files with leases but the one that is due, with what is in them.
    fn leases(&self) -> BTreeMap<String, String> {
        self.all_leases().into_iter().filter(|(_, text)| !text.starts_with(DUE)).collect()
    }

    fn all_leases(&self) -> BTreeMap<String, String> {
        let folder = match self.scenario {
            Scenario::Idempotent => self.world.path("held"),
            _ => self.world.path("data/net"),
        };
        let names = ipam_testkit::world::names(&folder);
        let leases = names
            .into_iter()
            .filter(|name| name != "lock" && !name.starts_with("last_reserved_ip."));
        leases
            .map(|name| {
                let text = fs::read_to_string(folder.join(&name)).unwrap();
                (name, text)
            })
            .collect()
    }

    /// The leases of the container that is left alone.
    fn leases_of_other(&self) -> BTreeMap<String, String> {
        let is_its = |(name, text): &(String, String)| match self.scenario {
            Scenario::Idempotent => name.contains(OTHER),
            _ => text.starts_with(OTHER),
        };
        self.leases().into_iter().filter(is_its).collect()
    }

    /// Everything that must hold after a kill.
    fn recover(
        &self,
        point: &Point,
        before: &BTreeMap<String, String>,
    ) -> Result<Findings, String> {
        let world = &self.world;
        check!(world.is_quiet_within(Duration::from_secs(15)), "{:?} live on", world.processes());
        let mut findings = Findings { killed: true, ..Findings::default() };
        if self.scenario != Scenario::Idempotent {
            findings.empty_leases = self.drop_empty_leases();
        }
        let host_local_was_killed = point.who != Who::Chain;
        check!(
            findings.empty_leases <= usize::from(host_local_was_killed),
            "{} empty leases",
            findings.empty_leases
        );
        if self.scenario == Scenario::Idempotent && point.next == Next::Retry {
            self.call("ADD", VICTIM)?;
        } else {
            // host-local itself refuses the ADD of an owner that has an address.
            // One of the two recoveries of each point has nothing but the record. One that was
            // unreadable needs the configuration.
            let by_record = point.nth.is_multiple_of(2) == (point.next == Next::Del);
            match by_record && self.scenario != Scenario::Aside {
                true => del_by_the_record(world, VICTIM, &self.network)?,
                false => drop(self.call("DEL", VICTIM)?),
            }
            check!(self.leases_are(before), "after DEL: {:?}", self.leases());
        }
        let unsure = self.is_unsure();
        self.call("DEL", VICTIM)?;
        check!(self.leases_are(before), "after another DEL: {:?}", self.leases());
        if point.next == Next::Retry {
            let again = self.call("ADD", VICTIM);
            check!(again.is_ok() != (self.scenario == Scenario::Undo), "{again:?}");
            if self.scenario == Scenario::Undo {
                check!(self.leases_are(before), "after ADD: {:?}", self.leases());
            }
            self.call("DEL", VICTIM)?;
            check!(self.leases_are(before), "after the last DEL: {:?}", self.leases());
        }
        check!(self.is_unsure() || !unsure, "a claim that may still commit is forgotten");
        findings.unsure = self.repeat_unsure(before)?;
        // The other container's address is still held, its record readable, and can be released.
        if self.scenario != Scenario::First {
            check!(self.leases_of_other() == *before && before.len() == 1, "{:?}", self.leases());
            check!(
                world.events(OTHER).last().is_some_and(|e| e == "held"),
                "{:?}",
                world.events(OTHER)
            );
            self.call("DEL", OTHER)?;
        }
        check!(self.all_leases().is_empty(), "at the end: {:?}", self.all_leases());
        self.state_is_clean()?;
        Ok(findings)
    }

    fn leases_are(&self, expected: &BTreeMap<String, String>) -> bool {
        self.leases() == *expected
    }

    /// Whether the DEL of the victim's record is to be repeated.
    fn is_unsure(&self) -> bool {
        self.world.events(VICTIM).last().is_some_and(|event| event == "released")
    }

    fn drop_empty_leases(&self) -> usize {
        let empty: Vec<_> = self.leases().into_iter().filter(|(_, text)| text.is_empty()).collect();
        for (name, _) in &empty {
            fs::remove_file(self.world.path("data/net").join(name)).unwrap();
        }
        empty.len()
    }

    /// Makes every DEL that is to be repeated due, lets a claim commit late, and sees it go.
    fn repeat_unsure(&self, before: &BTreeMap<String, String>) -> Result<bool, String> {
        let world = &self.world;
        let record = world.record(VICTIM);
        let unsure = record.exists();
        if unsure {
            let text = fs::read_to_string(&record).unwrap();
            let mut events: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let last = events.last_mut().unwrap();
            check!(last["event"] == "released", "a record is left, but not unsure: {text}");
            last["due"] = 1.into();
            let lines: Vec<String> = events.iter().map(|event| format!("{event}\n")).collect();
            fs::write(&record, lines.concat()).unwrap();
            match self.scenario {
                Scenario::Idempotent => {
                    let late = world.path("held").join(format!("double-{VICTIM}-eth0"));
                    fs::write(late, "late").unwrap();
                }
                _ => fs::write(world.path("data/net/10.9.0.200"), "c1\r\neth0").unwrap(),
            }
        }
        let folder = world.path("state/unsure");
        let links = ipam_testkit::world::names(&folder);
        check!(!unsure || !links.is_empty(), "unsure, but in no list");
        for (i, link) in links.iter().enumerate() {
            fs::rename(folder.join(link), folder.join(format!("000000000000001.1.{i}"))).unwrap();
        }
        for _ in &links {
            self.call("ADD", LATER)?;
            self.call("DEL", LATER)?;
        }
        check!(!record.exists(), "the DEL of an unsure record was not repeated");
        check!(self.leases_are(before), "after the repeated DEL: {:?}", self.leases());
        Ok(unsure)
    }

    /// Nothing but the node's identity is left in the state folder.
    fn state_is_clean(&self) -> Result<(), String> {
        let state = self.world.path("state");
        let names: BTreeSet<String> = ipam_testkit::world::names(&state).into_iter().collect();
        let known = ["attachments", "node", "unsure"].map(str::to_owned);
        check!(names.iter().all(|name| known.contains(name)), "the state folder holds {names:?}");
        for folder in ["attachments/net", "unsure"] {
            let left = ipam_testkit::world::names(&state.join(folder));
            check!(left.is_empty(), "{folder} holds {left:?}");
        }
        Ok(())
    }
}

/// Runs a delegate under strace when the call is the one to be killed.
fn wrapper(real: &Path) -> String {
    format!(
        "#!/bin/sh\n[ \"$CRASH_VERB,$CNI_CONTAINERID\" = \"$CNI_COMMAND,{VICTIM}\" ] || exec '{real}'\n\
         '{strace}' -f -o \"$CRASH_LOG\" -e 'trace={CALLS}' $CRASH_INJECT '{real}'\n\
         code=$?\n[ -z \"$CRASH_BOTH\" ] || kill -9 $PPID\n[ $code -lt 128 ] || kill -9 $$\nexit $code\n",
        real = real.display(),
        strace = strace().display(),
    )
}

fn trace(command: &mut Command, at: Option<&str>) {
    command.arg("-e").arg(format!("trace={CALLS}"));
    if let Some(at) = at {
        command.arg("-e").arg(format!("inject={at}"));
    }
}

/// Every point of a scenario, from a run of it without a kill.
fn points(scenario: Scenario) -> Vec<Point> {
    let mut points = Vec::new();
    let mut add = |whos: [Who; 2], verb, log: &str| {
        let calls = changing_calls(log);
        assert!(!calls.is_empty(), "{scenario:?} {whos:?} {verb} changes no file: {log}");
        for who in whos {
            for (call, nth) in calls.clone() {
                for next in [Next::Del, Next::Retry] {
                    points.push(Point { scenario, who, verb, call: call.clone(), nth, next });
                }
            }
        }
    };
    let stage = Stage::new(scenario);
    stage.victim(None, scenario.delegate_verbs().first().unwrap_or(&""), None);
    let log = |name: &str| fs::read_to_string(stage.world.path(name)).unwrap();
    add([Who::Chain, Who::ChainAndRest], "", &log("chain.log"));
    for verb in scenario.delegate_verbs() {
        let stage = Stage::new(scenario);
        stage.victim(None, verb, None);
        let log = fs::read_to_string(stage.world.path("delegate.log")).unwrap();
        add([Who::Delegate, Who::DelegateAndChain], verb, &log);
    }
    points
}

fn kill_at(point: &Point) -> Result<Findings, String> {
    let at = format!("{}:signal=SIGKILL:when={}", point.call, point.nth);
    // host-local's threads share its calls out anew each time.
    for _ in 0..4 {
        let stage = Stage::new(point.scenario);
        let before = stage.leases_of_other();
        if stage.victim(Some(point.who), point.verb, Some(&at)) {
            return stage.recover(point, &before);
        }
    }
    Ok(Findings::default())
}

#[test]
fn a_kill_at_any_point_loses_nothing_and_leaves_nothing() {
    let queue: Vec<Point> = Scenario::ALL.into_iter().flat_map(points).collect();
    let tallies: Mutex<BTreeMap<(Scenario, Who), [usize; 4]>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let next = Mutex::new(queue.iter());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(point) = next.lock().unwrap().next() else { return };
                    match kill_at(point) {
                        Ok(findings) => {
                            let mut tallies = tallies.lock().unwrap();
                            let tally = tallies.entry((point.scenario, point.who)).or_default();
                            tally[0] += usize::from(findings.killed);
                            tally[1] += usize::from(!findings.killed);
                            tally[2] += findings.empty_leases;
                            tally[3] += usize::from(findings.unsure);
                        }
                        Err(error) => failures.lock().unwrap().push(format!("{point:?}: {error}")),
                    }
                }
            });
        }
    });
    let tallies = tallies.into_inner().unwrap();
    for ((scenario, who), [killed, missed, empty, unsure]) in &tallies {
        // Not through the harness, which keeps what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "crash points: {scenario:?} {who:?} {killed} ({missed} not reached, {unsure} unsure, {empty} empty leases of host-local's own)"
        );
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), queue.len(), failures.join("\n"));
    for scenario in Scenario::ALL {
        let killed = |whos: &[Who]| -> usize {
            whos.iter().filter_map(|who| tallies.get(&(scenario, *who))).map(|t| t[0]).sum()
        };
        assert!(killed(&[Who::Chain]) > 0 && killed(&[Who::ChainAndRest]) > 0, "{scenario:?}");
        if !scenario.delegate_verbs().is_empty() {
            assert!(killed(&[Who::Delegate]) > 0, "{scenario:?}");
            assert!(killed(&[Who::DelegateAndChain]) > 0, "{scenario:?}");
        }
    }
}

#[test]
fn a_record_whose_first_line_was_cut_short_goes_with_the_del() {
    let stage = Stage::new(Scenario::Add);
    stage.call("ADD", VICTIM).unwrap();
    let path = stage.world.record(VICTIM);
    let text = fs::read_to_string(&path).unwrap();
    stage.call("DEL", VICTIM).unwrap();
    let first = text.lines().next().unwrap();
    for cut in (0..=first.len()).step_by(3) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &first[..cut]).unwrap();
        stage.call("DEL", VICTIM).unwrap();
        assert_eq!(stage.world.records(), ["b1:eth0"], "cut at {cut}");
    }
}

#[test]
fn a_dels_repetition_waits_until_the_record_says_it_is_due() {
    let stage = Stage::new(Scenario::Add);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let due = since.as_millis() + 50_000;
    let released = format!("{{\"event\":\"released\",\"time\":1,\"due\":{due}}}\n");
    stage.make_unfinished(VICTIM, &released);
    // An entry that an earlier DEL left, and the one of the last DEL.
    stage.list_due("000000000000001.1.0", VICTIM);
    let later = format!("{due:015}.1.0");
    stage.list_due(&later, VICTIM);
    stage.call("ADD", LATER).unwrap();
    assert!(stage.world.record(VICTIM).exists(), "repeated too early");
    assert_eq!(ipam_testkit::world::names(&stage.world.path("state/unsure")), [later]);
}
