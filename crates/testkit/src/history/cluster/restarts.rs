//! A store whose servers are all killed and started again: what is released meanwhile is released, by
//! `reap` and by DELs that are stripped of all but their type, and what is held is not said to be gone.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Store;
use crate::servers::cluster::{Cluster, Member};
use crate::world::{Host, Outcome, World, binary, full_size, start, wait};

/// How many attachments are released in each way, and how many are held.
const RELEASED: usize = 16;
const HELD: usize = 4;

/// How long it may take until all is released.
const PATIENCE: Duration = Duration::from_secs(90);

/// A node, on a host whose settings say where its state is.
struct Node {
    world: World,
    host: Host,
    network: Value,
}

/// Each round kills every server, starts all, and waits for none before it calls.
#[track_caller]
pub fn assert_released_through_restarts(
    cluster: &Cluster<impl Member>,
    endpoints: &[String],
    store: &impl Store,
) {
    let rounds = if full_size() { 10 } else { 2 };
    let node = Node::new(store, endpoints);
    let names = |kind: &str, count| (0..count).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
    let (reaped, deleted) = (names("reaped", RELEASED), names("deleted", RELEASED));
    let held = names("held", HELD);
    // One that stands, and one that is gone.
    let own = format!("/proc/{}/ns/net", std::process::id());
    let results = held.iter().map(|container| node.add(container, &own)).collect::<Vec<_>>();
    for round in 0..rounds {
        for container in reaped.iter().chain(&deleted) {
            node.add(container, "/run/netns/none");
        }
        cluster.members().iter().for_each(|member| member.kill());
        cluster.members().iter().for_each(|member| member.launch_again());
        std::thread::scope(|scope| {
            scope.spawn(|| node.reap(&reaped));
            for part in deleted.chunks(RELEASED / 4) {
                scope.spawn(|| part.iter().for_each(|container| node.delete(container)));
            }
            for (container, result) in held.iter().zip(&results) {
                node.check(container, result);
            }
        });
        cluster.members().iter().for_each(|member| member.until_ready());
        let left: BTreeSet<String> =
            store.leases().into_iter().map(|lease| lease.container).collect();
        assert!(left.iter().eq(&held), "round {round}: the store holds {left:?}");
    }
    held.iter().for_each(|container| node.delete(container));
    assert_eq!(store.holdings(), Vec::<String>::new());
}

impl Node {
    fn new<S: Store>(store: &S, endpoints: &[String]) -> Self {
        let (world, host) = (World::new(), Host::new());
        let allocator = format!("ipam-da-{}", S::NAME);
        for name in ["ipam-ds-static", &allocator] {
            world.install(&binary(name));
        }
        fs::create_dir(world.path("results")).unwrap();
        host.settings(&json!({"stateDir": world.path("state"), "gcGrace": "0s"}));
        let mut network = world.network(json!(["ipam-ds-static", allocator]));
        let ipam = network["ipam"].as_object_mut().unwrap();
        ipam.retain(|key, _| key == "type" || key == "delegates");
        store.configure(ipam, endpoints, "5s");
        Self { world, host, network }
    }

    fn call(&self, verb: &str, container: &str, netns: &str, network: &Value) -> Outcome {
        let mut command = self.host.command(&self.world, verb, container);
        command.env("CNI_NETNS", netns);
        wait(start(command, network))
    }

    #[track_caller]
    fn add(&self, container: &str, netns: &str) -> Value {
        self.call("ADD", container, netns, &self.network).success()
    }

    /// CHECK of what is held.
    fn check(&self, container: &str, result: &Value) {
        let mut network = self.network.clone();
        network["prevResult"] = result.clone();
        until_done(&format!("CHECK of {container}"), || {
            self.call("CHECK", container, "/proc/self/ns/net", &network)
        });
    }

    /// A DEL of which a runtime has left nothing but the type.
    fn delete(&self, container: &str) {
        let mut network = self.network.clone();
        network["ipam"].as_object_mut().unwrap().retain(|key, _| key == "type");
        until_done(&format!("DEL of {container}"), || self.call("DEL", container, "", &network));
    }

    /// Reaps until nothing is known of these containers any more.
    fn reap(&self, containers: &[String]) {
        let give_up = Instant::now() + PATIENCE;
        while containers.iter().any(|container| self.world.record(container).exists()) {
            let outcome = wait(self.reaping().spawn().unwrap());
            assert!(Instant::now() < give_up, "reap: {outcome:?}");
        }
    }

    fn reaping(&self) -> Command {
        let mut command = self.host.enter(binary("ipam-delegated"));
        let cache = format!("--cache-dir={}", self.world.path("results").display());
        command.args(["reap", "--yes", "--json", &cache]).env_clear();
        command.env("CNI_PATH", self.world.path("bin"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Repeats a call that says that the store is away, as a runtime does.
#[track_caller]
fn until_done(what: &str, call: impl Fn() -> Outcome) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let outcome = call();
        if outcome.exit == Some(0) {
            return;
        }
        let told = format!("{outcome:?}");
        let (code, _) = outcome.failure();
        assert!([11, 105, 111].contains(&code), "{what}: {told}");
        assert!(Instant::now() < give_up, "{what}: {told}");
    }
}
