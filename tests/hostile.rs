//! Delegates that misbehave: every call ends in its time, is undone, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// How much longer than its `ipam.timeout` a call may take on a busy machine.
const SLACK: Duration = Duration::from_secs(1);

/// The timeout of the chains here, as the configuration and as a duration.
const TIMEOUT: (&str, Duration) = ("4s", Duration::from_secs(4));

/// A chain of an honest allocator and a hostile delegate after it, which misbehaves on ADD.
struct Trial {
    world: World,
    network: Value,
}

impl Trial {
    fn new(on_add: &str) -> Self {
        // DEL reads stdin and succeeds; each call is noted.
        Self::with(&format!(
            "if [ $CNI_COMMAND = DEL ]; then cat >/dev/null; exit 0; fi\n{on_add}\n"
        ))
    }

    fn with(body: &str) -> Self {
        let world = World::new();
        world.allocator("honest", "10.0.0.2/24");
        let verbs = world.path("verbs").display().to_string();
        world.program(
            "hostile",
            &format!(
                "#!/bin/sh\necho $CNI_COMMAND $IPAM_DELEGATED_DEADLINE_MS >>'{verbs}'\n{body}\n"
            ),
        );
        let mut network = world.network(json!(["honest", "hostile"]));
        network["ipam"]["timeout"] = TIMEOUT.0.into();
        Self { world, network }
    }

    /// ADD, and that it ends in its time, lets the lock go and leaves no process.
    fn add(&self) -> (Outcome, Duration) {
        let began = Instant::now();
        let outcome = wait(start(self.world.command("ADD", "c1"), &self.network));
        let took = began.elapsed();
        assert!(took < TIMEOUT.1 + SLACK, "{took:?}: {outcome:?}");
        // What has been sent SIGKILL may still be on its way out.
        assert!(
            self.world.is_quiet_within(Duration::from_millis(100)),
            "left behind {:?}: {outcome:?}",
            self.world.processes()
        );
        assert!(self.world.is_unlocked("c1"), "the lock is still held: {outcome:?}");
        (outcome, took)
    }

    /// ADD fails with this code and these texts, and is undone.
    fn fails(&self, code: u64, texts: &[&str], unsure: bool) {
        let (outcome, _) = self.add();
        let (got, text) = outcome.failure();
        assert_eq!(got, code, "{text}");
        assert!(text.starts_with("hostile: "), "the delegate is not named: {text}");
        for part in texts {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        assert!(self.world.held().is_empty(), "not undone: {text}");
        assert_eq!(self.world.take_calls(), ["honest ADD", "honest DEL"]);
        let events = fs::read_to_string(self.world.record("c1")).unwrap();
        let last: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
        assert_eq!(last["event"], "failed");
        assert_eq!(last["unsure"].as_bool().unwrap_or(false), unsure, "{text}");
        self.world.call("DEL", "c1", &self.network).success();
    }

    /// The verbs the hostile delegate was called with, and its time in milliseconds.
    fn verbs(&self) -> Vec<(String, u64)> {
        let text = fs::read_to_string(self.world.path("verbs")).unwrap_or_default();
        let line = |line: &str| {
            let (verb, time) = line.split_once(' ').unwrap();
            (verb.to_owned(), time.parse().unwrap())
        };
        text.lines().map(line).collect()
    }
}

/// Pads the configuration beyond what a pipe holds.
fn pad(network: &mut Value) {
    network["padding"] = "x".repeat(200_000).into();
}

#[test]
fn delegates_that_hang_are_killed_with_all_they_started() {
    let cases = [
        // Never answers.
        "cat >/dev/null; sleep 600",
        // Never reads stdin.
        "exec sleep 600",
        // Closes everything it was given and stays.
        "exec <&- >&- 2>&-; sleep 600",
        // Answers well, but does not end.
        "cat >/dev/null; printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'; exec sleep 600",
        // Does not hear SIGTERM, SIGINT, SIGHUP.
        "trap '' TERM INT HUP; while :; do sleep 600; done",
        // A tree: children, a grandchild in a session of its own, one whose parent has gone.
        "sleep 600 & (setsid sh -c 'sleep 600 & sleep 600' &) ; setsid sleep 600 & sh -c 'sh -c \"sleep 600; :\"; :'",
        // Starts a child anew whenever it is killed, a bounded number of times, in other sessions.
        "setsid sh -c 'for i in 1 2 3 4 5 6; do setsid sh -c \"sleep 600; :\"; done' & sleep 600",
        // A child that forks another one and ends, a hundred times over, then stays.
        "next() { if [ $1 -gt 0 ]; then ( next $(($1 - 1)) & ) else sleep 600; fi; }; next 100; sleep 600",
        // A stopped process.
        "kill -STOP $$",
        // Writes to stderr without end, where stdout stays quiet.
        "exec yes >&2",
    ];
    std::thread::scope(|scope| {
        for case in cases {
            for padded in [false, true] {
                scope.spawn(move || {
                    let mut trial = Trial::new(case);
                    if padded {
                        pad(&mut trial.network);
                    }
                    let mut command = trial.world.command("ADD", "c1");
                    command.stderr(std::process::Stdio::null());
                    let began = Instant::now();
                    let outcome = wait(start(command, &trial.network));
                    let took = began.elapsed();
                    // A quarter of the time is kept for the undo.
                    assert!(
                        took >= TIMEOUT.1 * 3 / 4 - Duration::from_millis(300),
                        "{took:?}: {case}"
                    );
                    assert!(took < TIMEOUT.1 + SLACK, "{took:?}: {case}");
                    assert!(
                        trial.world.is_quiet_within(Duration::from_millis(200)),
                        "{:?} left behind by {case}",
                        trial.world.processes()
                    );
                    assert!(trial.world.is_unlocked("c1"), "{case}");
                    let (code, text) = outcome.failure();
                    assert_eq!(code, 111, "{text}: {case}");
                    let time = text.strip_prefix("hostile: timed out after ").unwrap();
                    let (time, _) = time.split_once(", killed").unwrap();
                    assert!(time.len() <= "2.999s".len(), "{text}");
                    assert!(text.contains("ipam.timeout"), "no advice: {text}");
                    assert!(trial.world.held().is_empty(), "not undone: {case}");
                    assert_eq!(trial.world.events("c1").last().unwrap(), "failed");
                    let verbs = trial.verbs();
                    assert_eq!(verbs.len(), 2, "{case}");
                    assert_eq!((verbs[0].0.as_str(), verbs[1].0.as_str()), ("ADD", "DEL"));
                });
            }
        }
    });
}

#[test]
fn stderr_that_nobody_reads_does_not_hold_the_chain() {
    let trial = Trial::new("exec yes >&2");
    let began = Instant::now();
    let mut child = start(trial.world.command("ADD", "c1"), &trial.network);
    // Its pipe is full from now on.
    let status = child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(1), None));
    assert!(began.elapsed() < TIMEOUT.1 + SLACK);
    assert!(trial.world.is_quiet_within(Duration::from_millis(200)));
    assert!(trial.world.held().is_empty() && trial.world.is_unlocked("c1"));
}

#[test]
fn nonsense_is_an_error_that_names_the_delegate_and_gives_advice() {
    let deep = "printf '{\"x\":'; head -c 10000 /dev/zero | tr '\\0' '['; head -c 10000 /dev/zero | tr '\\0' ']'; printf '}'";
    let cases: &[(&str, u64, &[&str], bool)] = &[
        ("exec <&-; exit 0", 110, &["without an answer", "must print a result on ADD"], true),
        ("exit 0", 110, &["without an answer"], true),
        ("printf ' \\n '", 110, &["without an answer"], true),
        ("printf garbage", 110, &["its answer is not one JSON object", "run it by hand"], true),
        ("printf '\\377\\376\\0'", 110, &["its answer is not one JSON object"], true),
        ("printf '{}{}'", 110, &["its answer is not one JSON object"], true),
        ("printf '{\"ips\":[{\"addr'", 110, &["its answer is not one JSON object"], true),
        ("printf '[]'", 110, &["its answer is JSON but not an object", "run it by hand"], true),
        ("printf null", 110, &["its answer is JSON but not an object"], true),
        (deep, 110, &["its answer is not one JSON object", "recursion"], true),
        ("yes garbage", 110, &["more than 1 MiB", "logs belong on stderr"], true),
        (
            "echo why >&2; exit 3",
            110,
            &["exit status 3", "no error object", "stderr: why", "run it by hand"],
            true,
        ),
        ("printf '{\"x\":1}'; exit 1", 110, &["exit status 1", "no error object"], true),
        (
            "printf 'oops {\"code\":100,\"msg\":\"full\"} oops'; exit 1",
            110,
            &["its answer is not one JSON object", "exit status 1"],
            true,
        ),
        ("printf '{\"code\":100,\"msg\":\"full\"}'; exit 1", 100, &["hostile: full"], false),
        ("printf '{\"code\":11,\"msg\":\"later\"}'; exit 1", 11, &["hostile: later"], true),
        ("printf '{\"code\":\"x\",\"msg\":\"odd\"}'; exit 1", 110, &["hostile: odd"], false),
        ("printf '{\"code\":-1}'; exit 1", 110, &["an error without a message"], false),
        // An error is an error whatever the exit code says.
        (
            "printf '{\"code\":100,\"msg\":\"full\"}'; exit 0",
            100,
            &["hostile: full", "exit status 0"],
            true,
        ),
        (
            "printf '{\"cniVersion\":\"1.0.0\",\"code\":7,\"msg\":\"bad\",\"details\":\"no pool\"}'",
            7,
            &["hostile: bad", "no pool", "exit status 0"],
            true,
        ),
        ("kill -9 $$", 110, &["signal 9 (SIGKILL)", "no error object"], true),
        (
            "printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'; kill -11 $$",
            110,
            &["signal 11"],
            true,
        ),
        (
            "printf '{\"ips\":[{\"address\":\"10.0.0.300/24\"}]}'",
            110,
            &["its answer.ips[0].address"],
            false,
        ),
        ("printf '{\"ips\":{}}'", 110, &["its answer.ips"], false),
        (
            "printf '{\"ipam\":{\"type\":\"x\"},\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'",
            110,
            &["ipam.type"],
            false,
        ),
    ];
    for (body, code, texts, unsure) in cases {
        for (read, padded) in [(true, false), (false, false), (true, true), (false, true)] {
            let read = if read { "cat >/dev/null\n" } else { "" };
            let mut trial = Trial::new(&format!("{read}{body}"));
            if padded {
                pad(&mut trial.network);
            }
            trial.fails(*code, texts, *unsure);
        }
    }
}

#[test]
fn programs_that_cannot_be_run_are_named_and_the_rest_is_undone() {
    let unrunnable = |make: &dyn Fn(&World)| {
        let world = World::new();
        world.allocator("honest", "10.0.0.2/24");
        make(&world);
        let network = world.network(json!(["honest", "hostile"]));
        let (code, text) = world.call("ADD", "c1", &network).failure();
        assert!(text.contains("hostile") && world.held().is_empty(), "{text}");
        assert!(world.is_quiet_within(Duration::from_millis(100)));
        (code, text)
    };
    let file = |world: &World, content: &str, mode: u32| {
        world.program("hostile", content);
        let path = world.path("bin/hostile");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    // Found before anything runs.
    let (code, text) = unrunnable(&|world| file(world, "#!/bin/sh\n", 0o644));
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("hostile is not executable") && text.contains("chmod +x"), "{text}");
    for (code, text) in [
        unrunnable(&|world| fs::create_dir(world.path("bin/hostile")).unwrap()),
        unrunnable(&|_| ()),
    ] {
        assert_eq!(code, 7, "{text}");
        assert!(text.contains("is not in CNI_PATH") && text.contains("install hostile"), "{text}");
    }
    // Found when they are started.
    for (code, text) in [
        unrunnable(&|world| file(world, "\u{7f}ELF nonsense", 0o755)),
        unrunnable(&|world| file(world, "", 0o755)),
    ] {
        assert_eq!(code, 5, "{text}");
        assert!(text.contains("hostile: cannot start") && text.contains("reinstall it"), "{text}");
    }
    let interpreter = unrunnable(&|world| file(world, "#!/no/such/interpreter\n", 0o755));
    let vanished = unrunnable(&|world| {
        file(world, "#!/bin/sh\n", 0o755);
        // The delegate before it takes it away.
        let path = world.path("bin/hostile");
        world.program("honest", &format!("#!/bin/sh\ncat >/dev/null; rm -f '{}'; [ $CNI_COMMAND = DEL ] || printf '{{\"ips\":[{{\"address\":\"10.0.0.2/24\"}}]}}'\n", path.display()));
    });
    for ((code, text), advice) in [
        (interpreter, "its interpreter \"/no/such/interpreter\" does not exist: install it"),
        (vanished, "install it there"),
    ] {
        assert_eq!(code, 5, "{text}");
        assert!(text.contains("hostile: cannot start") && text.contains(advice), "{text}");
    }
}

#[test]
fn a_long_answer_is_taken_whole() {
    for padded in [false, true] {
        let mut trial = Trial::new(
            "printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}],\"note\":\"'; head -c 921600 /dev/zero | tr '\\0' x; printf '\"}'",
        );
        if padded {
            pad(&mut trial.network);
        }
        let (outcome, _) = trial.add();
        let json = outcome.success();
        assert_eq!(json["note"].as_str().unwrap().len(), 921_600);
        assert_eq!(json["ips"].as_array().unwrap().len(), 2);
        trial.world.call("DEL", "c1", &trial.network).success();
        assert!(trial.world.held().is_empty() && !trial.world.record("c1").exists());
    }
}

#[test]
fn a_child_that_keeps_stdout_open_delays_nothing() {
    let trial =
        Trial::new("cat >/dev/null; sleep 5 & printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'");
    let began = Instant::now();
    let outcome = wait(start(trial.world.command("ADD", "c1"), &trial.network));
    assert_eq!(outcome.ips(), ["10.0.0.2/24", "10.0.0.3/24"]);
    assert!(began.elapsed() < Duration::from_secs(3));
    // A daemon of a delegate that ended well may live on, but it does not hold the attachment.
    assert_eq!(trial.world.processes().len(), 1);
    assert!(trial.world.is_unlocked("c1"));
    let began = Instant::now();
    trial.world.call("DEL", "c1", &trial.network).success();
    assert!(began.elapsed() < Duration::from_secs(1));
    assert!(!trial.world.record("c1").exists() && trial.world.held().is_empty());
    assert!(trial.world.is_quiet_within(Duration::from_secs(10)));
}

#[test]
fn a_daemon_of_an_earlier_delegate_survives_the_kill_of_a_later_one() {
    let trial = Trial::new("sleep 600");
    trial.world.program("honest", "#!/bin/sh\ncat >/dev/null\n[ $CNI_COMMAND = DEL ] && exit\nsleep 9 &\nprintf '{\"ips\":[{\"address\":\"10.0.0.2/24\"}]}'\n");
    let outcome = wait(start(trial.world.command("ADD", "c1"), &trial.network));
    assert_eq!(outcome.failure().0, 111);
    assert_eq!(trial.world.processes().len(), 1, "the daemon only");
    assert!(trial.world.is_unlocked("c1"));
    assert!(trial.world.is_quiet_within(Duration::from_secs(10)));
}

#[test]
fn a_delegate_that_also_hangs_on_del_does_not_take_longer_than_the_chain_may() {
    let trial = Trial::with("exec sleep 600");
    let (outcome, took) = trial.add();
    let (code, text) = outcome.failure();
    assert_eq!(code, 111, "{text}");
    assert!(text.contains("the undo failed: hostile: timed out after"), "{text}");
    assert!(took > TIMEOUT.1 - Duration::from_millis(100), "{took:?}");
    assert!(trial.world.held().is_empty(), "the other delegate is undone first");
    let verbs = trial.verbs();
    // Told a little less than there is, so that it can still say why.
    assert!((2500..3000).contains(&verbs[0].1), "{verbs:?}");
    assert!((500..1000).contains(&verbs[1].1), "{verbs:?}");
}

#[test]
fn on_del_what_is_left_is_shared_by_those_still_to_run() {
    let world = World::new();
    let times = world.path("times").display().to_string();
    for (i, name) in ["one", "two", "three"].into_iter().enumerate() {
        world.program(name, &format!(
            "#!/bin/sh\nif [ $CNI_COMMAND = ADD ]; then cat >/dev/null; printf '{{\"ips\":[{{\"address\":\"10.0.0.{i}/24\"}}]}}'; exit; fi\n\
             echo {name} $IPAM_DELEGATED_DEADLINE_MS >>'{times}'\n[ -e '{times}.go' ] || exec sleep 600\ncat >/dev/null\n"
        ));
    }
    let mut network = world.network(json!(["one", "two", "three"]));
    network["ipam"]["timeout"] = "3s".into();
    world.call("ADD", "c1", &network).success();
    let check = |network: &Value| {
        let began = Instant::now();
        let (code, text) = world.call("DEL", "c1", network).failure();
        let took = began.elapsed();
        assert_eq!(code, 111, "{text}");
        for name in ["one", "two", "three"] {
            assert!(text.contains(&format!("{name}: timed out after")), "{text}");
        }
        assert!((Duration::from_millis(2900)..Duration::from_secs(4)).contains(&took), "{took:?}");
        assert!(world.is_quiet_within(Duration::from_millis(200)));
        let told = fs::read_to_string(world.path("times")).unwrap();
        let told: Vec<(&str, u64)> = told
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, time)| (name, time.parse().unwrap()))
            .collect();
        assert_eq!(told.iter().map(|t| t.0).collect::<Vec<_>>(), ["one", "two", "three"]);
        assert!(told.iter().all(|(_, time)| (600..1000).contains(time)), "{told:?}");
        fs::remove_file(world.path("times")).unwrap();
    };
    // By the record, and by the configuration.
    check(&network);
    assert!(world.record("c1").exists() && world.is_unlocked("c1"));
    let record = world.path("kept");
    fs::rename(world.record("c1"), &record).unwrap();
    check(&network);
    fs::create_dir_all(world.record("c1").parent().unwrap()).unwrap();
    fs::rename(&record, world.record("c1")).unwrap();
    fs::write(world.path("times.go"), "").unwrap();
    world.call("DEL", "c1", &network).success();
    assert!(!world.record("c1").exists());
}

#[test]
fn a_del_that_fails_names_the_delegate_and_runs_the_others() {
    for (on_del, code) in [
        ("exit 3", 110),
        ("kill -9 $$", 110),
        ("printf garbage", 110),
        ("printf '[]'", 110),
        ("yes", 110),
        ("printf '{\"code\":11,\"msg\":\"later\"}'; exit 1", 11),
        ("printf '{\"code\":11,\"msg\":\"later\"}'", 11),
    ] {
        let trial = Trial::with(
            "cat >/dev/null; [ $CNI_COMMAND = DEL ] || printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'",
        );
        let world = &trial.world;
        world.allocator("honest", "10.0.0.2/24");
        let mut network = trial.network.clone();
        network["ipam"]["delegates"] = json!(["hostile", "honest"]);
        world.call("ADD", "c1", &network).success();
        let healthy = fs::read_to_string(world.path("bin/hostile")).unwrap();
        world.program("hostile", &format!("#!/bin/sh\ncat >/dev/null\n{on_del}\n"));
        let (got, text) = world.call("DEL", "c1", &network).failure();
        assert_eq!(got, code, "{text}");
        assert!(text.starts_with("hostile: "), "{text}");
        assert!(text.contains("ipam-delegated forget net c1 eth0 --yes"), "{text}");
        assert!(world.held().is_empty(), "the one after it was not run: {text}");
        assert!(world.record("c1").exists() && world.is_unlocked("c1"), "{text}");
        assert!(world.is_quiet_within(Duration::from_millis(100)), "{text}");
        world.program("hostile", &healthy);
        world.call("DEL", "c1", &network).success();
        assert!(!world.record("c1").exists());
    }
}

#[test]
fn a_delegates_own_timeout_is_less_and_never_more() {
    for (own, least, most) in [("500ms", 400, 2500), ("1h", 2900, 4000)] {
        let mut trial = Trial::new("exec sleep 600");
        trial.network["ipam"]["delegates"][1] = json!({"type": "hostile", "timeout": own});
        let (outcome, took) = trial.add();
        assert_eq!(outcome.failure().0, 111);
        assert!((least..most).contains(&took.as_millis()), "{own}: {took:?}");
        let told = u128::from(trial.verbs()[0].1);
        assert!(told < took.as_millis() && told > least / 2, "{own}: {told}");
    }
}

#[test]
fn stderr_of_a_delegate_reaches_ours() {
    let trial = Trial::new(
        "cat >/dev/null; echo 'one line' >&2; printf '{\"ips\":[{\"address\":\"10.0.0.3/24\"}]}'; printf 'the last' >&2",
    );
    let (outcome, _) = trial.add();
    assert!(
        outcome.stderr.contains("one line\n") && outcome.stderr.contains("the last"),
        "{outcome:?}"
    );
    outcome.success();
}

#[test]
fn a_delegate_that_fails_leaves_no_child_that_could_still_take_a_lease() {
    for (ending, code, unsure) in [
        ("printf '{\"code\":100,\"msg\":\"full\"}'; exit 1", 100, false),
        ("printf garbage; exit 1", 110, true),
        ("kill -9 $$", 110, true),
    ] {
        // The verbs of the undo find nothing to wait for.
        let body =
            format!("cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0; sleep 600 & {ending}");
        Trial::new(&body).fails(code, &[], unsure);
    }
}

#[test]
fn a_delegate_of_ours_ends_itself_when_the_chain_has_died() {
    // Its stdin is a pipe that never ends: it waits for its configuration for ever.
    let world = World::new();
    let fifo = world.path("fifo").display().to_string();
    let ours = binary("ipam-delegated").display().to_string();
    let ended = world.path("ended").display().to_string();
    world.program("hostile", &format!(
        "#!/bin/sh\nmkfifo '{fifo}'\nexec 9<>'{fifo}'\nenv -u IPAM_DELEGATED_CHAIN '{ours}' <&9 >'{ended}.out'\necho $? >'{ended}'\n"
    ));
    let mut network = world.network(json!(["hostile"]));
    network["ipam"]["timeout"] = "4s".into();
    let mut chain = start(world.command("ADD", "c1"), &network);
    let began = Instant::now();
    while !fs::exists(&fifo).unwrap() {
        assert!(began.elapsed() < 2 * SLACK);
        std::thread::sleep(Duration::from_millis(1));
    }
    chain.kill().unwrap();
    chain.wait().unwrap();
    assert!(!world.processes().is_empty(), "it ended with the chain");
    assert!(!world.is_unlocked("c1"), "the survivor must exclude others");
    assert!(world.is_quiet_within(Duration::from_secs(4)));
    assert_eq!(fs::read_to_string(&ended).unwrap(), "1\n");
    let said: Value = serde_json::from_slice(&fs::read(format!("{ended}.out")).unwrap()).unwrap();
    assert_eq!(said["code"], 111);
    assert!(world.is_unlocked("c1"));
}
