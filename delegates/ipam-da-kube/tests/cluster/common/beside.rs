//! Our programs on nodes where other nodes run releases of whereabouts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use ipam_testkit::kube::{Client, Kube, Kubeconfig};
use ipam_testkit::node::addresses;
use ipam_testkit::old::whereabouts::{Call, Whereabouts};
use ipam_testkit::whereabouts::{Crds, Objects, RESERVATIONS, Release, collection};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use ipnet::IpNet;
use serde_json::{Value, json};
use tempfile::TempDir;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-da-kube");

/// The interface of all attachments.
pub const IFNAME: &str = "eth0";

/// A namespace with objects of a test's own, and the way to it.
pub struct Site {
    pub objects: Objects,
    pub client: Client,
    pub kubeconfig: PathBuf,
    /// Whether the server serves reservations, which the fork does not know.
    pub reserves: bool,
    _folder: TempDir,
}

impl Site {
    #[track_caller]
    pub fn new(kube: &Kube) -> Self {
        Self::through(kube, None)
    }

    /// The same, where ours reach the server by this URL.
    #[track_caller]
    pub fn through(kube: &Kube, server: Option<&str>) -> Self {
        let namespace = kube.create_namespace();
        let folder = TempDir::new().unwrap();
        let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
        let login = kube.admin();
        let file = folder.path().join("kubeconfig");
        let config = Kubeconfig::of(kube, &login).more(&more);
        let kubeconfig = match server {
            Some(url) => config.server(url).authority(None).write(&file),
            None => config.write(&file),
        };
        let client = (**kube).clone();
        let objects = Objects::of(&client, &namespace);
        let reserves = client.get(&collection(&namespace, RESERVATIONS)).is_some();
        Self { objects, client, kubeconfig, reserves, _folder: folder }
    }

    /// An old node with a range.
    #[track_caller]
    pub fn old(&self, release: Release, range: &str) -> Whereabouts {
        let namespace = self.objects.namespace();
        Whereabouts::new(release, &self.client, namespace, &json!({"range": range}))
            .pause(Duration::from_millis(50))
    }

    /// Who holds which address.
    #[track_caller]
    pub fn held(&self) -> BTreeMap<IpAddr, String> {
        let of = |held: ipam_testkit::whereabouts::Held| {
            // The fork writes the key of the network's own address for the one after it.
            let is_first = held.offset == 0;
            let address = if is_first { next(held.address) } else { held.address };
            (address, held.entry.id)
        };
        holdings(self.objects.held().into_iter().map(of))
    }

    /// Fails unless these containers, and no others, hold these addresses, each with a reservation
    /// where the release makes them.
    #[track_caller]
    pub fn assert_held<'a>(
        &self,
        release: Release,
        all: impl IntoIterator<Item = (&'a str, IpAddr)>,
        when: &str,
    ) {
        let all = holdings(all.into_iter().map(|(id, address)| (address, id.to_owned())));
        assert_eq!(self.held(), all, "{release:?}: {when}");
        if release != Release::Fork {
            let faults = self.objects.faults();
            assert!(faults.is_empty(), "{release:?}: {when}: {faults:#?}");
        }
    }

    /// Fails if an entry is left, or a reservation that no fork has left.
    #[track_caller]
    pub fn assert_released(&self, release: Release, when: &str) {
        match release {
            Release::Fork => assert_eq!(self.held(), BTreeMap::new(), "{when}"),
            _ => self.assert_empty(when),
        }
    }

    /// Fails if anything is held.
    #[track_caller]
    pub fn assert_empty(&self, when: &str) {
        assert_eq!(self.held(), BTreeMap::new(), "{when}");
        let reservations: Vec<String> = self.objects.reservations().into_keys().collect();
        assert_eq!(reservations, [""; 0], "{when}");
    }
}

/// Holders by address, which has one.
#[track_caller]
fn holdings(all: impl IntoIterator<Item = (IpAddr, String)>) -> BTreeMap<IpAddr, String> {
    let mut holders = BTreeMap::new();
    for (address, id) in all {
        let other = holders.insert(address, id.clone());
        assert_eq!(other, None, "{address} of {id} has two holders");
    }
    holders
}

fn next(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + 1).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() + 1).into(),
    }
}

/// A range from its first address on, as whereabouts has it: the gateway is the last but one.
fn subnet(range: &str) -> Value {
    let net: IpNet = range.parse().unwrap();
    let gateway = match net.broadcast() {
        IpAddr::V4(last) => IpAddr::V4(Ipv4Addr::from_bits(last.to_bits() - 1)),
        IpAddr::V6(last) => IpAddr::V6(Ipv6Addr::from_bits(last.to_bits() - 1)),
    };
    json!({"subnet": range, "gateway": gateway})
}

/// The pod of a container.
pub fn pod(container: &str) -> String {
    format!("ns/pod-of-{container}")
}

/// A node with one of our programs and the network `net`.
pub struct Ours {
    pub world: World,
    program: PathBuf,
    pub network: Value,
    pub kind: &'static str,
}

impl Ours {
    /// A chain that ends with `ipam-da-kube`, so that a DEL has the record.
    pub fn chain(site: &Site, range: &str) -> Self {
        let world = World::new();
        world.install(&binary("ipam-ds-static")).install(Path::new(PROGRAM));
        let ipam = json!({
            "type": "ipam-delegated",
            "delegates": ["ipam-ds-static", "ipam-da-kube"],
            "ranges": [[subnet(range)]],
        });
        Self::with("chain", world, binary("ipam-delegated"), ipam, site)
    }

    /// `ipam-da-kube` alone, which gets no lease back on a DEL.
    pub fn alone(site: &Site, range: &str) -> Self {
        let world = World::new();
        let ipam = json!({"type": "ipam-da-kube", "node": "node-1"});
        let mut ours = Self::with("alone", world, PROGRAM.into(), ipam, site);
        let pools = json!([{"ranges": [subnet(range)]}]);
        ours.network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [], "pools": pools});
        ours
    }

    /// In a network of whereabouts with this name, or without one.
    pub fn in_network(mut self, name: &str) -> Self {
        if !name.is_empty() {
            self.network["ipam"]["kube"]["networkName"] = name.into();
        }
        self
    }

    /// One of both, by a number.
    pub fn of(number: usize, site: &Site, range: &str) -> Self {
        match number % 2 {
            0 => Self::chain(site, range),
            _ => Self::alone(site, range),
        }
    }

    fn with(
        kind: &'static str,
        world: World,
        program: PathBuf,
        mut ipam: Value,
        site: &Site,
    ) -> Self {
        ipam["kube"] = json!({"kubeconfig": site.kubeconfig, "overlapCheck": site.reserves});
        ipam["stateDir"] = json!(world.path("state"));
        let network = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam});
        Self { world, program, network, kind }
    }

    pub fn start(&self, verb: &str, container: &str) -> Child {
        self.start_for(verb, container, &pod(container), "")
    }

    /// A call for a container of a pod with this uid.
    pub fn start_for(&self, verb: &str, container: &str, pod: &str, uid: &str) -> Child {
        self.start_with(&self.network, verb, container, [pod, uid])
    }

    fn start_with(
        &self,
        network: &Value,
        verb: &str,
        container: &str,
        [pod, uid]: [&str; 2],
    ) -> Child {
        let mut command = self.world.command_of(&self.program, verb, container);
        let (namespace, name) = pod.split_once('/').unwrap();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}"
        );
        command.env("CNI_ARGS", args).env("CNI_IFNAME", IFNAME);
        start(command, network)
    }

    pub fn call(&self, verb: &str, container: &str) -> Outcome {
        wait(self.start(verb, container))
    }

    /// An ADD that succeeds: the address.
    #[track_caller]
    pub fn add(&self, container: &str) -> IpAddr {
        given(self.call("ADD", container))
    }

    /// A DEL that succeeds.
    #[track_caller]
    pub fn del(&self, container: &str) {
        self.call("DEL", container).success();
    }

    /// CHECK of an address of a container of a pod.
    pub fn check(&self, container: &str, pod: &str, held: IpAddr) -> Outcome {
        let length = if held.is_ipv4() { 24 } else { 64 };
        let ips = json!([{"address": format!("{held}/{length}")}]);
        let mut network = self.network.clone();
        network["prevResult"]["cniVersion"] = "1.0.0".into();
        network["prevResult"]["ips"] = ips;
        wait(self.start_with(&network, "CHECK", container, [pod, ""]))
    }
}

/// The address of an ADD that succeeds.
#[track_caller]
pub fn given(outcome: Outcome) -> IpAddr {
    addresses(&outcome.success())[0].parse().unwrap()
}

/// An ADD of an old node, of the container's own pod.
pub fn old_add(old: &Whereabouts, container: &str) -> Call {
    old.add(container, IFNAME, &pod(container))
}

/// A DEL of an old node, which says nothing of what failed.
#[track_caller]
pub fn old_del(old: &Whereabouts, container: &str) {
    old.del(container, IFNAME, &pod(container)).run().unwrap();
}

/// The address of an ADD that succeeds.
#[track_caller]
pub fn old_given(call: Call) -> IpAddr {
    call.run().unwrap()[0]
}

/// Runs one of ours once an old call has sent so many requests. That goes on when ours has ended.
#[track_caller]
pub fn amid(
    mut old: Call,
    requests: usize,
    ours: impl FnOnce() -> Child,
) -> (Result<Vec<IpAddr>, String>, Outcome) {
    // A call that finds less to do ends earlier.
    let _ = old.by_ref().take(requests).count();
    let mut ours = ours();
    let give_up = Instant::now() + Duration::from_secs(10);
    while ours.try_wait().unwrap().is_none() {
        assert!(Instant::now() < give_up, "it waits for the old node, whose lease is not ours");
        thread::sleep(Duration::from_millis(5));
    }
    (old.run(), wait(ours))
}

/// The server of the CRDs of a release, or of those that this repository ships.
#[track_caller]
pub fn served(crds: Option<Release>) -> &'static Kube {
    crds.map_or_else(Crds::shipped, Release::crds).served()
}
