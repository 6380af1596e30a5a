//! Two nodes of a cluster. The first reaches the API server through a relay.

use std::path::Path;
use std::process::Command;

use ipam_testkit::kube::Kubeconfig;
use ipam_testkit::whereabouts::{API, Crds, Held, RESERVATIONS, reservation_name};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

use super::Desk;
use super::relay::{Bug, Relay, no_bug};

/// The parts of a site.
#[derive(Clone, Copy)]
pub struct Plan {
    pub crds: fn() -> Crds,
    pub overlap_check: bool,
    pub ranges: &'static [&'static str],
    /// Whether the chain calls the program.
    pub is_chain: bool,
}

pub struct Site {
    pub plan: Plan,
    pub desk: Desk,
    pub relay: Relay,
    pub worlds: [World; 2],
}

/// The nodes.
#[derive(Clone, Copy)]
pub enum On {
    /// The one with the relay.
    First,
    Second,
}

/// A delegate after ours that fails, so that ours is undone.
const FAILING: &str = "ipam-da-zz";

impl Site {
    pub fn new(plan: Plan) -> Self {
        Self::with_bug(plan, no_bug)
    }

    /// The same, whose first node has a bug.
    pub fn with_bug(plan: Plan, bug: Bug) -> Self {
        let desk = Desk::new(&(plan.crds)());
        let relay = Relay::to(&desk.client, bug);
        let worlds = [World::new(), World::new()];
        for world in &worlds {
            world.install(&binary("ipam-ds-static"));
            world.install(Path::new(env!("CARGO_BIN_EXE_ipam-da-kube")));
            let script =
                "[ $CNI_COMMAND != ADD ] || { printf '{\"code\":100,\"msg\":\"full\"}'; exit 1; }";
            world.delegate(FAILING, script);
            let more = json!({"contexts": [{"context": {"namespace": desk.namespace}}]});
            let kubeconfig = Kubeconfig::of(desk.kube, &desk.login).more(&more);
            kubeconfig.write(&world.path("kubeconfig"));
        }
        let site = Self { plan, desk, relay, worlds };
        let more = json!({"contexts": [{"context": {"namespace": site.desk.namespace}}]});
        Kubeconfig::of(site.desk.kube, &site.desk.login)
            .server(&site.relay.url())
            .authority(None)
            .more(&more)
            .write(&site.worlds[0].path("kubeconfig"));
        site
    }

    /// The network of a node, as a runtime sends it.
    pub fn network(&self, on: On) -> Value {
        let world = &self.worlds[on as usize];
        let Plan { overlap_check, ranges, is_chain, .. } = self.plan;
        let mut network = world.network(json!(["ipam-ds-static", "ipam-da-kube"]));
        let ipam = network["ipam"].as_object_mut().unwrap();
        if !is_chain {
            ipam.remove("delegates");
            ipam["type"] = "ipam-da-kube".into();
        }
        let sets: Vec<Value> = ranges.iter().map(|range| json!([{"subnet": range}])).collect();
        ipam.insert("ranges".to_owned(), sets.into());
        ipam.insert(
            "kube".to_owned(),
            json!({
                "kubeconfig": world.path("kubeconfig"),
                "overlapCheck": overlap_check,
                "timeout": "20s",
            }),
        );
        network
    }

    /// The network of the first node, whose chain fails after our delegate.
    pub fn failing(&self) -> Value {
        let mut network = self.network(On::First);
        network["ipam"]["delegates"] = json!(["ipam-ds-static", "ipam-da-kube", FAILING]);
        network
    }

    pub fn command(&self, on: On, verb: &str, container: &str) -> Command {
        let world = &self.worlds[on as usize];
        match self.plan.is_chain {
            true => world.command(verb, container),
            false => {
                world.command_of(Path::new(env!("CARGO_BIN_EXE_ipam-da-kube")), verb, container)
            }
        }
    }

    /// Lets no call of the first node wait for its turn at a pool: the folder of the locks is a file.
    pub fn end_turns(&self) {
        super::end_turns(&self.worlds[0].path("state"));
    }

    pub fn call(&self, on: On, verb: &str, container: &str) -> Outcome {
        wait(start(self.command(on, verb, container), &self.network(on)))
    }

    /// Makes the reservation of an address, as another program does.
    pub fn reserve(&self, address: &str) {
        let name = reservation_name("", address.parse().unwrap());
        self.desk.client.create(&json!({
            "apiVersion": API, "kind": "OverlappingRangeIPReservation",
            "metadata": {"namespace": self.desk.namespace, "name": name},
            "spec": {"podref": "a/b", "containerid": "foreign", "ifname": "eth0"},
        }));
    }

    /// Removes what [`Site::reserve`] has made.
    pub fn unreserve(&self, address: &str) {
        let name = reservation_name("", address.parse().unwrap());
        self.desk.client.delete(&self.desk.objects().path(RESERVATIONS, &name));
    }

    /// Fails unless the objects say that a container holds these addresses and no others.
    #[track_caller]
    pub fn assert_holds(&self, container: &str, addresses: &[String]) {
        self.holds(container, addresses).unwrap();
    }

    /// Compares what the objects say that a container holds with these addresses.
    ///
    /// # Errors
    /// What differs.
    pub fn holds(&self, container: &str, addresses: &[String]) -> Result<(), String> {
        let objects = self.desk.objects();
        let bare = |address: &String| address.split('/').next().unwrap().to_owned();
        let mut expected: Vec<String> = addresses.iter().map(bare).collect();
        expected.sort();
        let own = |held: Held| (held.entry.id == container).then(|| held.address.to_string());
        let mut entries: Vec<String> = objects.held().into_iter().filter_map(own).collect();
        entries.sort();
        if entries != expected {
            return Err(format!("{container} has entries of {entries:?}, expected {expected:?}"));
        }
        let is_own = |object: &Value| {
            let spec = &object["spec"]["containerid"];
            let ours = &object["metadata"]["annotations"]["ipam-delegated/container"];
            spec == container || ours == container
        };
        let mut reserved = objects.reservations();
        reserved.retain(|_, object| is_own(object));
        let reserved: Vec<String> = reserved.into_keys().collect();
        let name = |address: &String| reservation_name("", address.parse().unwrap());
        let mut expected: Vec<String> = match self.plan.overlap_check {
            true => expected.iter().map(name).collect(),
            false => Vec::new(),
        };
        expected.sort();
        match reserved == expected {
            true => Ok(()),
            false => Err(format!("{container} reserves {reserved:?}, expected {expected:?}")),
        }
    }

    /// Fails unless the objects say that nothing is held.
    #[track_caller]
    pub fn assert_empty(&self) {
        let objects = self.desk.objects();
        assert_eq!(objects.held(), []);
        assert_eq!(objects.reservations().len(), 0, "{:?}", objects.reservations());
    }
}
