//! A place for the tests of `ipam-da-local`: leases in a folder, and every program that works on
//! them.

#![allow(dead_code, clippy::unwrap_used, reason = "test support; each test file uses a part of it")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use ipam_testkit::world::{Outcome, World, binary, host_local, start, until, wait};
use serde_json::{Value, json};

/// What works on leases in host-local's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// `ipam-da-local` by itself, the pools in `prevResult`.
    Allocator,
    /// `ipam-da-local` as the runtime's IPAM plugin, without a chain.
    Alone,
    /// The chain of `ipam-ds-static` and `ipam-da-local`.
    Chain,
    /// `ipam-delegated` under the name host-local.
    Preset,
    /// The real host-local.
    HostLocal,
}

impl Program {
    pub const OURS: [Self; 4] = [Self::Allocator, Self::Alone, Self::Chain, Self::Preset];
    pub const ALL: [Self; 5] =
        [Self::Allocator, Self::Alone, Self::Chain, Self::Preset, Self::HostLocal];
}

/// A world with range sets, for which every program gives addresses.
pub struct Place {
    pub world: World,
    /// One pool each, of one subnet.
    pub subnets: Vec<String>,
    /// More members of `ipam`.
    pub ipam: Value,
    /// More members of the configuration.
    pub more: Value,
}

/// The attachment most tests are about.
pub const C1: &str = "c1";

impl Place {
    pub fn new(subnets: &[&str]) -> Self {
        let world = World::new();
        for name in ["ipam-ds-static", "ipam-da-local"] {
            world.install(&binary(name));
        }
        let link = world.path("bin/host-local");
        std::os::unix::fs::symlink(binary("ipam-delegated"), link).unwrap();
        let subnets = subnets.iter().map(|subnet| (*subnet).to_owned()).collect();
        Self { world, subnets, ipam: json!({}), more: json!({}) }
    }

    /// The configuration that makes a program give addresses of these subnets.
    pub fn network(&self, program: Program) -> Value {
        let sets: Vec<Value> = self.subnets.iter().map(|s| json!([{"subnet": s}])).collect();
        let mut network = self.world.network(json!(["ipam-ds-static", "ipam-da-local"]));
        network["cniVersion"] = "1.0.0".into();
        let ipam = network["ipam"].as_object_mut().unwrap();
        match program {
            Program::Chain => {}
            Program::Allocator => {
                ipam.insert("type".to_owned(), "ipam-da-local".into());
                ipam.insert("node".to_owned(), "node-1".into());
                ipam.remove("delegates");
            }
            Program::Alone => {
                ipam.insert("type".to_owned(), "ipam-da-local".into());
                ipam.remove("delegates");
            }
            Program::Preset | Program::HostLocal => {
                ipam.insert("type".to_owned(), "host-local".into());
                ipam.remove("delegates");
            }
        }
        if program == Program::Allocator {
            let pools: Vec<Value> = (0..)
                .zip(sets)
                .map(|(index, ranges): (u32, _)| json!({"ranges": ranges, "index": index}))
                .collect();
            network["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [], "pools": pools});
        } else {
            ipam.insert("ranges".to_owned(), sets.into());
        }
        for (key, value) in self.ipam.as_object().unwrap() {
            network["ipam"][key] = value.clone();
        }
        for (key, value) in self.more.as_object().unwrap() {
            network[key] = value.clone();
        }
        network
    }

    pub fn file(&self, program: Program) -> PathBuf {
        match program {
            Program::Allocator | Program::Alone => binary("ipam-da-local"),
            Program::Chain => binary("ipam-delegated"),
            Program::Preset => self.world.path("bin/host-local"),
            Program::HostLocal => host_local(),
        }
    }

    /// A call, ready to be changed and started.
    pub fn command(&self, program: Program, verb: &str, container: &str) -> Command {
        let mut command = self.world.command_of(&self.file(program), verb, container);
        if matches!(verb, "GC" | "STATUS") {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        command
    }

    pub fn call(&self, program: Program, verb: &str, container: &str) -> Outcome {
        self.call_with(program, verb, container, &self.network(program))
    }

    pub fn call_with(
        &self,
        program: Program,
        verb: &str,
        container: &str,
        network: &Value,
    ) -> Outcome {
        wait(start(self.command(program, verb, container), network))
    }

    /// An ADD that succeeds: its addresses, without prefix length.
    #[track_caller]
    pub fn add(&self, program: Program, container: &str) -> Vec<String> {
        plain(self.call(program, "ADD", container).ips())
    }

    #[track_caller]
    pub fn del(&self, program: Program, container: &str) {
        assert_eq!(self.call(program, "DEL", container).success(), Value::Null);
    }

    /// CHECK of what an ADD answered, as a runtime calls it.
    pub fn check(&self, program: Program, container: &str, result: &Value) -> Outcome {
        let mut network = self.network(program);
        let pools = network["prevResult"]["pools"].take();
        network["prevResult"] = result.clone();
        if program == Program::Allocator {
            network["prevResult"]["pools"] = pools;
        }
        self.call_with(program, "CHECK", container, &network)
    }

    /// GC that keeps these attachments' first interfaces.
    pub fn gc(&self, program: Program, keep: &[&str]) -> Outcome {
        let mut network = self.network(program);
        network["cniVersion"] = "1.1.0".into();
        network["cni.dev/valid-attachments"] =
            keep.iter().map(|c| json!({"containerID": c, "ifname": "eth0"})).collect();
        wait(start(self.command(program, "GC", ""), &network))
    }

    pub fn status(&self, program: Program) -> Outcome {
        let mut network = self.network(program);
        network["cniVersion"] = "1.1.0".into();
        wait(start(self.command(program, "STATUS", ""), &network))
    }

    /// The folder of leases.
    pub fn folder(&self) -> PathBuf {
        self.world.path("data/net")
    }

    /// The lease files, each with what is in it.
    pub fn leases(&self) -> BTreeMap<String, String> {
        leases(&self.folder())
    }

    /// A lease file as somebody else would leave it.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::create_dir_all(self.folder()).unwrap();
        let path = self.folder().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes every lease file as old as that.
    pub fn age(&self, age: Duration) {
        for name in self.leases().into_keys() {
            set_age(&self.folder().join(name), age);
        }
    }

    /// Everything in the folder of leases: for each name what it holds.
    pub fn everything(&self) -> BTreeMap<String, Vec<u8>> {
        let names = ipam_testkit::world::names(&self.folder()).into_iter();
        names
            .map(|name| {
                let content = fs::read(self.folder().join(&name)).unwrap();
                (name, content)
            })
            .collect()
    }
}

/// Older than any grace.
pub const LONG: Duration = Duration::from_secs(3600);

pub fn set_age(path: &Path, age: Duration) {
    File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
}

/// The lease files of a folder, each with what is in it.
pub fn leases(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in ipam_testkit::world::names(folder) {
        if name == "lock" || name.starts_with("last_reserved_ip.") {
            continue;
        }
        // One that goes meanwhile is no lease.
        if let Ok(content) = fs::read(folder.join(&name)) {
            found.insert(name, String::from_utf8_lossy(&content).into_owned());
        }
    }
    found
}

/// What a lease file of a container's first interface says.
pub fn owned_by(container: &str) -> String {
    format!("{container}\r\neth0")
}

/// Waits until so many processes of a world have a file open.
#[track_caller]
pub fn until_open(world: &World, path: &Path, processes: usize) {
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.map(|entry| fs::read_link(entry.path())).any(|to| to.is_ok_and(|to| to == path))
    };
    until(&format!("{processes} processes with {} open", path.display()), || {
        world.processes().iter().filter(|pid| has_it(pid)).count() >= processes
    });
}

/// Addresses without prefix length.
pub fn plain(addresses: Vec<String>) -> Vec<String> {
    addresses.iter().map(|address| address.split('/').next().unwrap().to_owned()).collect()
}
