//! The chain `ipam-ds-static`, `ipam-da-local`, beside host-local on leases of the same layout.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::caller::{Caller, Callers, Plugins, VERBS, callers};
use crate::disk::Ext4;
use crate::harness::System;
use crate::network::{NETWORK, SIZE, address, after, network, pool, pools};
use crate::plot::{Class, Scale};
use crate::programs::host_local;
use crate::site::{HELD, Site, Sites, Stage, Turn};
use crate::table::{Row, Table};
use crate::target::Target::{Growth, Memory, RateRatio, Ratio, Size};
use crate::times::Times;

pub const SYSTEM: System = System {
    name: "local",
    title: "",
    levels: &HELD,
    held: 50_000,
    runs: 100,
    warm_up: 1,
    start,
    tables: &[
        Table::Held(&[
            ("host-local ADD", None),
            ("chain ADD", Some("host-local ADD")),
            ("preset ADD", None),
            ("allocator ADD", None),
            ("host-local DEL", None),
            ("chain DEL", Some("host-local DEL")),
            ("preset DEL", None),
            ("allocator DEL", None),
        ]),
        Table::Cases {
            corner: "fresh ext4",
            cases: &["fresh ext4 host-local", "fresh ext4 chain", "fresh ext4 allocator"],
            columns: VERBS,
        },
        Table::Cases {
            corner: "busy ext4",
            cases: &["busy ext4 host-local", "busy ext4 chain", "busy ext4 allocator"],
            columns: VERBS,
        },
    ],
    drawing: Some((
        Scale::Logarithmic,
        [
            (Class::Floor, "three bare processes", "three", None),
            (Class::HostLocal, "host-local", "host-local ADD", Some("busy ext4 host-local ADD")),
            (Class::Chain, "ipam-delegated", "chain ADD", Some("busy ext4 chain ADD")),
        ],
    )),
    crowd: &["chain", "host-local", "busy ext4 chain", "busy ext4 host-local"],
    crowded: 1,
    targets: &[
        Ratio { of: "chain ADD", to: "host-local ADD", held: 0, most: [0.52, 1.5] },
        Ratio {
            of: "fresh ext4 chain ADD",
            to: "fresh ext4 host-local ADD",
            held: 0,
            most: [0.55, 1.5],
        },
        Ratio {
            of: "busy ext4 chain ADD",
            to: "busy ext4 host-local ADD",
            held: 0,
            most: [0.8, 1.5],
        },
        Ratio { of: "chain ADD", to: "host-local ADD", held: 50_000, most: [0.01; 2] },
        Growth { of: "chain ADD", most: 1.2 },
        RateRatio { of: "chain ADD", to: "host-local ADD", least: 2.5 },
        RateRatio { of: "busy ext4 chain ADD", to: "busy ext4 host-local ADD", least: 1.2 },
        Memory { of: "chain", verbs: &["ADD"], most: 4096 },
        Memory { of: "selector", verbs: &["ADD"], most: 4096 },
        Memory { of: "allocator", verbs: &["ADD"], most: 4096 },
        Size { of: &PROGRAMS, most: 1024 },
    ],
    floor: None,
};

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-local"];

/// A network that host-local and the chain serve, each from a folder of its own with as many
/// leases of other owners in it.
struct Folders {
    held: usize,
    root: PathBuf,
    callers: Callers,
    plugins: Plugins,
    preset: Plugins,
    disks: Vec<Disk>,
}

/// Folders on an ext4, whose callers have its name before their own.
struct Disk {
    kind: &'static DiskKind,
    ext4: Ext4,
}

/// What is measured on a disk of its own.
struct DiskKind {
    name: &'static str,
    has_journal: bool,
    /// How many files are made and removed before all rounds.
    before: usize,
    /// How many before each round, and before each batch of calls at a time.
    each: usize,
}

const DISKS: [DiskKind; 2] = [
    DiskKind { name: "fresh ext4", has_journal: true, before: 0, each: 0 },
    DiskKind { name: "busy ext4", has_journal: false, before: 5000, each: 300 },
];

fn start(stage: &Stage<'_>, held: &[usize]) -> Sites {
    let plugins = stage.plugins("bin", &PROGRAMS).link("host-local", host_local());
    let preset = stage.plugins("preset", &PROGRAMS).link("host-local", "ipam-delegated");
    let site = |held: &usize| {
        // Given one after another.
        let taken: Vec<u32> = (0..u32::try_from(*held).unwrap()).collect();
        let root = stage.state().join(held.to_string());
        Folders::new(root, &taken, &plugins, &preset)
    };
    let mut sites: Vec<_> = held.iter().map(site).collect();
    for kind in &DISKS {
        let Some(ext4) = Ext4::mount(kind.has_journal) else { continue };
        ext4.churn(kind.before);
        let folders = Folders::new(ext4.path().join("0"), &[], &plugins, &preset);
        let disk = Disk { kind, ext4 };
        let named = folders.callers.into_iter().map(|(caller, it)| (disk.caller(&caller), it));
        sites[0].callers.extend(named);
        sites[0].disks.push(disk);
    }
    sites.into_iter().map(|site| Box::new(site) as Box<dyn Site>).collect()
}

impl Site for Folders {
    fn callers(&self) -> &Callers {
        &self.callers
    }

    fn round(&self, turn: &mut Turn<'_>) {
        let all = ["chain", "preset", "allocator", "host-local"];
        turn.pairs(&self.callers, if self.held == 0 { &all } else { &all[..3] });
        for disk in &self.disks {
            disk.ext4.churn(disk.kind.each);
            let callers = ["chain", "allocator", "host-local"].map(|caller| disk.caller(caller));
            turn.pairs(&self.callers, &callers);
        }
    }

    /// Reading so many files leaves the others cold caches.
    fn last(&self, turn: &mut Turn<'_>) {
        if self.held > 0 {
            turn.pair(&self.callers, "host-local");
        }
    }

    fn before_batch(&self, caller: &str) {
        for disk in self.disks.iter().filter(|disk| caller.starts_with(disk.kind.name)) {
            disk.ext4.churn(disk.kind.each);
        }
    }

    /// The calls that have to list or read the folder.
    fn more(&self, stage: &Stage<'_>) -> Vec<Row> {
        let held = self.held;
        let chain = &self.callers["chain"];
        println!(
            "\nchain ADD, first look at {held} leases of others: {}",
            adds(chain, 5, || self.forget())
        );
        let foreign = adds(chain, 15, || self.write_as_another());
        println!("chain ADD at {held} after each write by another plugin: {foreign}");
        if held < HELD[HELD.len() - 1] {
            return Vec::new();
        }
        // Only each 1100th address is free.
        let taken: Vec<u32> = (0..SIZE).filter(|n| n % 1100 != 1099).collect();
        let full = Self::new(stage.state().join("full"), &taken, &self.plugins, &self.preset);
        adds(&full.callers["chain"], 1, || ());
        let [chain, host_local] =
            ["chain", "host-local"].map(|name| adds(&full.callers[name], 15, || ()));
        println!(
            "ADD into a pool with {} of {SIZE} addresses held: chain {chain}, host-local {host_local}",
            full.held
        );
        let memory = full.callers["allocator"].peak_memory("ADD");
        println!("peak memory of ipam-da-local there: {memory} KiB");
        self.forget();
        let memory = self.callers["allocator"].peak_memory("ADD");
        println!("peak memory of ipam-da-local at the first look at {held}: {memory} KiB");
        Vec::new()
    }
}

impl Disk {
    /// The name of a caller on this disk.
    fn caller(&self, name: &str) -> String {
        format!("{} {name}", self.kind.name)
    }
}

impl Folders {
    fn new(root: PathBuf, taken: &[u32], plugins: &Plugins, preset: &Plugins) -> Self {
        let network = |data: &str, ipam: Value| {
            let folders = json!({"dataDir": root.join(data), "stateDir": root.join("state")});
            let mut network = network(ipam, pool());
            crate::network::extend(&mut network["ipam"], folders);
            network
        };
        let chain =
            json!({"type": "ipam-delegated", "delegates": ["ipam-ds-static", "ipam-da-local"]});
        let allocator = network("chain", json!({"type": "ipam-da-local", "node": "bench"}));
        let callers = callers([
            ("host-local", plugins.plugin(network("host-local", json!({"type": "host-local"})))),
            ("chain", plugins.plugin(network("chain", chain.clone()))),
            ("preset", preset.plugin(network("chain", json!({"type": "host-local"})))),
            ("selector", plugins.tool("ipam-ds-static", Vec::new()).given(network("chain", chain))),
            ("allocator", plugins.plugin(after(allocator, pools()))),
        ]);
        for data in ["host-local", "chain"] {
            fill(&root.join(data).join(NETWORK), taken);
        }
        let (plugins, preset) = (plugins.clone(), preset.clone());
        Self { held: taken.len(), root, callers, plugins, preset, disks: Vec::new() }
    }

    /// Lets the next call of the chain see the leases for the first time.
    fn forget(&self) {
        fs::remove_dir_all(self.root.join("state")).unwrap();
    }

    /// Takes or releases an address beside the chain, as host-local would.
    fn write_as_another(&self) {
        let path = self.root.join("chain").join(NETWORK).join(address(SIZE - 1).to_string());
        if fs::remove_file(&path).is_err() {
            fs::write(path, "foreign\r\neth0").unwrap();
        }
    }
}

/// ADDs that have to look at the whole folder because of what was done before each, with a DEL
/// after it that is not measured.
fn adds(caller: &Caller, runs: usize, before: impl Fn()) -> Times {
    let add = |_| {
        before();
        let time = caller.call("ADD", "special");
        caller.call("DEL", "special");
        time.as_secs_f64() * 1000.0
    };
    (0..runs).map(add).collect()
}

fn fill(folder: &Path, taken: &[u32]) {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).unwrap();
    for n in taken {
        fs::write(folder.join(address(*n).to_string()), format!("foreign-{n:056}\r\neth0"))
            .unwrap();
    }
    if let Some(last) = taken.last() {
        fs::write(folder.join("last_reserved_ip.0"), address(*last).to_string()).unwrap();
    }
    fs::write(folder.join("lock"), "").unwrap();
}
