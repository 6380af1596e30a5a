//! The conformance suites pass on the ledger in memory, whatever kind of store it is, and find
//! every bug that is planted in it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, thread};

use ipam_kit::allocate::{Allocate, Reach};
use ipam_kit::cni::{IpamResult, NetworkName, ValidAttachments};
use ipam_kit::delegate::Request;
use ipam_kit::{Delegate, Result};
use ipam_suites::between::CallBetween;
use ipam_suites::ledger_suite::{self, LedgerSubject};
use ipam_suites::memory::{MemoryLedger, MemoryStore, Shape, ShownPools};
use ipam_suites::mutants::{Bug, Mutant};
use ipam_suites::subject::{Binary, Form, InProcess, Subject};
use ipam_suites::{CheckOutcome, Report, allocator_suite};
use serde_json::json;

const CONFORMANCE: &str = env!("CARGO_BIN_EXE_ipam-conformance");

/// How often a bug must be found, of as many times.
const TIMES: usize = 20;

#[derive(Clone)]
struct Place {
    store: String,
    bug: Option<Bug>,
}

impl LedgerSubject for Place {
    type Ledger = Mutant;

    fn open(&self, network: &NetworkName) -> Result<Mutant> {
        Ok(Mutant::on(&self.store, network.clone(), self.bug))
    }

    fn interleave(&self, between: CallBetween) -> bool {
        MemoryStore::named(&self.store).interleave(between)
    }

    fn store_pool(&self, network: &NetworkName) -> Option<String> {
        (self.bug == Some(Bug::ChoiceIgnored)).then(|| network.to_string())
    }
}

#[derive(Clone)]
struct Sound(MemoryStore);

impl LedgerSubject for Sound {
    type Ledger = MemoryLedger;

    fn open(&self, network: &NetworkName) -> Result<MemoryLedger> {
        Ok(MemoryLedger::on(&self.0, network.clone()))
    }

    fn interleave(&self, between: CallBetween) -> bool {
        self.0.interleave(between)
    }

    fn store_pool(&self, network: &NetworkName) -> Option<String> {
        self.0.shape().chooses.then(|| network.to_string())
    }
}

fn fresh_store() -> String {
    static STORES: AtomicU64 = AtomicU64::new(0);
    format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed))
}

/// Kinds of stores, as different as there are.
fn shapes() -> Vec<Shape> {
    let default = Shape::default();
    vec![
        default,
        Shape { shows: ShownPools::All, tells: false, ..default },
        Shape { shows: ShownPools::Windows, tries: 1, ..default },
        Shape { guesses: true, tries: 1, tells: false, ..default },
        Shape { guesses: true, shows: ShownPools::Windows, ..default },
        Shape { locks: true, shows: ShownPools::Windows, ..default },
        Shape { locks: true, tells: false, tries: 3, ..default },
        Shape { behind: true, ..default },
        Shape { behind: true, tells: false, tries: 1, ..default },
        Shape { behind: true, guesses: true, ..default },
        Shape { chooses: true, tells: false, ..default },
        Shape { chooses: true, locks: true, shows: ShownPools::All, ..default },
        Shape { chooses: true, behind: true, guesses: true, tries: 1, ..default },
    ]
}

fn in_memory(store: &str) -> Arc<dyn Subject> {
    let delegate: Allocate<MemoryLedger> = Allocate::default();
    subject(delegate, store, json!({"memory": store}))
}

fn subject(
    delegate: impl Delegate + Send + Sync + 'static,
    store: &str,
    ipam: serde_json::Value,
) -> Arc<dyn Subject> {
    let memory = MemoryStore::named(store);
    let subject = InProcess::new(delegate, Reach::Cluster, ipam).keeping_names().resting();
    let subject = match memory.shape().chooses {
        true => subject.choosing(str::to_owned),
        false => subject,
    };
    Arc::new(subject.on(memory))
}

fn assert_well(report: &Report, most_not_applicable: usize) {
    assert!(report.failed().is_empty() && report.differs().is_empty(), "{report}");
    let rest = report.outcomes.len() - report.passed().len();
    assert!(rest <= most_not_applicable && report.passed().len() > 30, "{report}");
}

#[test]
fn a_ledger_in_memory_passes_whatever_kind_of_store_it_is() {
    for shape in shapes() {
        let store = MemoryStore::named(&fresh_store()).shaped(shape);
        assert_well(&ledger_suite::run(&Sound(store)), 4 * usize::from(shape.locks));
    }
}

#[test]
fn the_allocator_over_it_passes_whatever_kind_of_store_it_is() {
    for shape in shapes() {
        let name = fresh_store();
        let _ = MemoryStore::named(&name).shaped(shape);
        // What needs an interleaved call, and what needs a process.
        let not_applicable = 1 + 3 * usize::from(shape.locks);
        assert_well(&allocator_suite::run(&in_memory(&name), &[], &[]), not_applicable);
    }
}

#[test]
fn without_a_bug_the_suites_always_pass() {
    for _ in 0..TIMES {
        let place = Place { store: fresh_store(), bug: None };
        assert_well(&ledger_suite::run(&place), 0);
        assert_well(&allocator_suite::run(&in_memory(&fresh_store()), &[], &[]), 1);
    }
}

/// The checks of which each must find a bug, every time.
fn found_by(bug: Bug) -> (&'static [&'static str], &'static [&'static str]) {
    match bug {
        Bug::Overwrite => (
            &["a_lost_claim_changes_nothing", "of_owners_who_race_for_an_address_one_wins"],
            &["a_requested_address_that_is_taken_is_refused"],
        ),
        Bug::CheckThenPut => {
            (&["a_claim_that_comes_between_wins"], &["an_add_that_was_quicker_keeps_its_address"])
        }
        Bug::ReleaseOfAny => (
            &["a_drop_frees_nothing_of_others", "a_stale_drop_is_lost"],
            &["a_stale_hint_frees_nothing_of_others", "a_late_del_spares_a_later_add"],
        ),
        Bug::IfnameIgnored => {
            (&["the_interface_is_of_the_owner"], &["a_del_releases_its_interface_only"])
        }
        Bug::NoUndo => {
            (&["a_claim_of_two_addresses_is_all_or_nothing"], &["an_add_is_all_or_nothing"])
        }
        Bug::LostIndex => (
            &["the_owner_holds_what_was_kept_and_claimed_and_no_more"],
            &["an_added_pool_adds_a_lease"],
        ),
        Bug::RestampUnguarded => (
            &[
                "a_stale_keep_is_lost",
                "a_freed_lease_cannot_be_kept",
                "a_release_that_comes_between_is_final",
            ],
            &["a_late_add_takes_nothing_of_others"],
        ),
        Bug::LateDelUnguarded => (
            &["a_stale_drop_is_lost", "a_confirmation_that_comes_between_saves_a_lease"],
            &["a_late_del_spares_a_later_add"],
        ),
        Bug::StaleBelieved => (
            &["what_is_held_and_what_is_not_is_proved_at_once"],
            &["a_missing_hint_leaves_nothing_behind", "a_check_passes_after_an_add"],
        ),
        Bug::SomeForAll => (
            &["a_change_that_leaves_out_a_lease_is_lost"],
            &["a_hint_of_some_leases_leaves_nothing_behind"],
        ),
        // An allocator looks twice only in a pool that is nearly full.
        Bug::EarlierKept => (&["a_view_after_another_is_committed_on"], &[]),
        Bug::EarlierBelieved => (&["a_proof_after_a_guess_shows_what_is_held"], &[]),
        Bug::NamesForgotten => (&[], &["an_address_stays_with_its_name_for_its_time"]),
        Bug::RestForgotten | Bug::RestTaken => {
            (&[], &["a_freed_address_rests_until_nothing_else_is_free"])
        }
        Bug::ChoiceIgnored => (
            &["an_owner_holds_what_the_store_chose"],
            &[
                "a_pool_of_the_store_is_given_out_to_the_last_address",
                "an_add_again_gives_what_the_store_chose",
            ],
        ),
    }
}

/// Runs both suites on a bug, and tells what they missed.
fn hunt(bug: Bug) -> Vec<String> {
    let mut missed = Vec::new();
    for time in 0..TIMES {
        let (of_ledger, of_allocator) = found_by(bug);
        let (of_ledgers, store) = (fresh_store(), fresh_store());
        let looked = Shape { behind: bug == Bug::StaleBelieved, ..Shape::default() };
        let locks = bug == Bug::EarlierKept;
        let guesses = bug == Bug::EarlierBelieved;
        let chooses = bug == Bug::ChoiceIgnored;
        let looked = Shape { chooses, ..looked };
        let shape = Shape { locks, guesses, ..looked };
        let _ = MemoryStore::named(&of_ledgers).shaped(shape);
        // A hint reaches the guards only where it is believed until then.
        let guesses = matches!(bug, Bug::ReleaseOfAny | Bug::SomeForAll);
        let _ = MemoryStore::named(&store).shaped(Shape { guesses, ..looked });
        let ledger = ledger_suite::run(&Place { store: of_ledgers, bug: Some(bug) });
        let delegate: Allocate<Mutant> = Allocate::default();
        let ipam = json!({"memory": store, "bug": format!("{bug:?}")});
        // Once with all the checks around it, then without those that say nothing of it.
        let others = |name: &&str| time > 0 && !of_allocator.contains(name);
        let skipped: Vec<&str> = allocator_suite::names().into_iter().filter(others).collect();
        let allocator = allocator_suite::run(&subject(delegate, &store, ipam), &[], &skipped);
        for (report, expected) in [(&ledger, of_ledger), (&allocator, of_allocator)] {
            let failed = report.failed();
            missed.extend(
                expected.iter().filter(|check| !failed.contains(check)).map(|check| {
                    format!("{bug:?}, time {time}: {check} did not find it\n{report}")
                }),
            );
        }
    }
    missed
}

#[test]
fn every_planted_bug_is_found_every_time() {
    let hunts: Vec<_> = Bug::ALL.map(|bug| thread::spawn(move || hunt(bug))).into();
    let missed: Vec<String> = hunts.into_iter().flat_map(|hunt| hunt.join().unwrap()).collect();
    assert!(missed.is_empty(), "{} missed, first {}", missed.len(), missed[0]);
}

/// An allocator that leaves static addresses out of its answer.
struct OmitsStatic(Allocate<MemoryLedger>);

impl Delegate for OmitsStatic {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        let omitted = request.members().static_addresses()?;
        let mut result = self.0.add(request)?;
        result.ips.retain(|ip| !omitted.contains(ip));
        Ok(result)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.del(request)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.check(request)
    }

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        self.0.gc(request, keep)
    }

    fn status(&self, request: &Request) -> Result<Option<IpamResult>> {
        self.0.status(request)
    }
}

#[test]
fn an_allocator_that_omits_static_addresses_is_found() {
    let store = fresh_store();
    let subject = subject(OmitsStatic(Allocate::default()), &store, json!({"memory": store}));
    let report = allocator_suite::run(&subject, &[], &[]);
    let expected = [
        "static_addresses_are_answered_beside_one_for_each_pool",
        "static_addresses_alone_are_answered",
        "a_pool_leases_no_static_address",
    ];
    assert_eq!(report.failed(), expected);
}

/// A plugin that gives everybody the same address, and says yes to all the rest.
const CARELESS: &str = r#"#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.2.2/28","gateway":"10.1.2.1"}]}' ;;
esac
"#;

fn temp(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Known of the host-local that Debian ships.
const HOST_LOCAL_DIFFERS: &[&str] = &[
    // A second ADD of an attachment fails, or adds a second address.
    "an_add_again_gives_the_same_addresses",
    "an_added_pool_adds_a_lease",
    "changed_pools_replace_the_lease",
    "a_request_again_gives_it_again",
    "another_requested_address_replaces_the_first",
    "a_missing_hint_leaves_nothing_behind",
    // CHECK looks whether the attachment holds something, whatever it is.
    "a_check_fails_for_an_address_not_held",
    // It knows neither GC nor STATUS.
    "gc_keeps_what_either_list_names",
    "gc_releases_what_no_list_names",
    "gc_tells_interfaces_apart",
    "gc_spares_what_is_young",
    "gc_spares_other_networks",
    "status_of_a_working_store_succeeds",
    "adds_at_once_of_one_attachment_get_the_same",
];

#[test]
fn of_host_local_the_known_differences_are_found_and_no_others() {
    let program = Path::new("/usr/lib/cni/host-local");
    assert!(program.exists(), "apt-get install containernetworking-plugins");
    let folder = temp("suite-host-local");
    let subject: Arc<dyn Subject> = Arc::new(Binary::new(program, Form::Standard, &folder));
    // Between two system calls a killed host-local leaves an empty file, which stays.
    let skipped = ["a_killed_add_leaves_nothing_that_a_del_does_not_find"];
    let report = allocator_suite::run(&subject, HOST_LOCAL_DIFFERS, &skipped);
    assert_eq!(report.differs(), HOST_LOCAL_DIFFERS, "{report}");
    assert!(report.failed().is_empty() && report.passed().len() > 15, "{report}");
    fs::remove_dir_all(folder).unwrap();
}

fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("plugin");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_command_finds_a_careless_plugin() {
    let folder = temp("suite-careless");
    let plugin = script(&folder, CARELESS);
    let output = Command::new(CONFORMANCE).arg(&plugin).output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for check in ["adds_at_once_get_addresses_of_their_own", "a_check_fails_after_a_del"] {
        let line = text.lines().find(|line| line.starts_with(check)).expect(check);
        assert!(line.contains("FAILED"), "{line}");
    }
    for form_of_rust in ["Some(", "None", "Ok(", "Err(", "[", "\\\""] {
        assert!(!text.contains(form_of_rust), "{form_of_rust} in {text}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// What the command says, and how it ends.
fn said(words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(CONFORMANCE).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_tells_how_it_is_used() {
    for word in ["--help", "-h"] {
        let (exit, stdout, stderr) = said(&[word]);
        assert_eq!((exit, &*stderr), (Some(0), ""));
        assert!(stdout.starts_with("usage: ipam-conformance PROGRAM"), "{stdout}");
        for option in ["--delegate", "--cluster", "--config", "--unclaimed", "--skip", "--only"] {
            assert!(stdout.contains(&format!("\n  {option} ")), "{option} in {stdout}");
        }
    }
    let version = format!("ipam-conformance {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(said(&["--version"]), (Some(0), version, String::new()));
    for wrong in [&[][..], &["--frobnicate"], &["/no/such/program"]] {
        let (exit, stdout, stderr) = said(wrong);
        assert_eq!((exit, &*stdout), (Some(2), ""));
        assert!(stderr.contains("usage: ") && stderr.ends_with("Try --help.\n"), "{stderr}");
    }
}

#[test]
fn a_check_that_is_not_made_tells_which_option_makes_it() {
    let folder = temp("suite-not-made");
    let plugin = script(&folder, CARELESS);
    let plugin = plugin.to_str().unwrap();
    let check = "gc_spares_other_nodes";
    let mut words = vec![plugin, "--only", check];
    for option in ["--delegate", "--cluster"] {
        let (exit, stdout, _) = said(&words);
        assert_eq!(exit, Some(0));
        assert!(stdout.starts_with(&format!("{check}  - ")), "{stdout}");
        assert!(stdout.lines().next().unwrap().ends_with(option), "{stdout}");
        let left_out = allocator_suite::names().len() - 1;
        assert!(stdout.ends_with(&format!("\n{left_out} left out by --skip and --only\n")));
        words.push(option);
    }
    let (exit, stdout, _) = said(&words);
    assert_eq!(exit, Some(1), "{stdout}");
    assert!(stdout.starts_with(&format!("{check}  FAILED")), "{stdout}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_plugin_that_never_ends_fails_its_check() {
    for text in ["exec sleep 1000", "exec sleep 1000 >&- 2>&-"] {
        let folder = temp("suite-endless");
        let plugin = script(&folder, &format!("#!/bin/sh\n{text}\n"));
        let binary = Binary::new(&plugin, Form::Standard, &folder);
        let subject: Arc<dyn Subject> = Arc::new(binary.within(Duration::from_millis(50)));
        let others = |name: &&str| *name != "a_del_releases";
        let skipped: Vec<&str> = allocator_suite::names().into_iter().filter(others).collect();
        let report = allocator_suite::run(&subject, &[], &skipped);
        assert_eq!(report.failed(), ["a_del_releases"]);
        assert!(report.to_string().contains("111"), "{report}");
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn the_command_tells_differences_from_failures() {
    let host_local = "/usr/lib/cni/host-local";
    let mut command = Command::new(CONFORMANCE);
    command.arg(host_local).args(["--only", "an_add_again_gives_the_same_addresses"]);
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    command.args(["--unclaimed", "an_add_again_gives_the_same_addresses"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout).unwrap().contains("differs"));
    command.args(["--unclaimed", "no_such_check"]);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

#[test]
fn a_report_has_a_line_for_each_check() {
    let report = Report {
        outcomes: vec![
            ("one", CheckOutcome::Passed),
            ("three", CheckOutcome::Failed("it is four".to_owned())),
            ("two", CheckOutcome::NotApplicable("no pair")),
        ],
    };
    let lines: Vec<String> = report.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines[1], "three  FAILED   it is four");
    assert_eq!(lines[3], "1 passed, 1 failed, 0 differ, 1 not applicable");
}
