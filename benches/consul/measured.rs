use std::time::Duration;

use super::common::VERBS;
use super::common::plugins::{Plugins, measure};
use super::common::times::Times;
use super::crowd::throughput;
use super::site::Site;

/// The times at one number of leases held, each of ADD and DEL.
pub struct Measured {
    pub held: usize,
    /// A bare process with one transaction.
    pub floor: [Times; 2],
    /// `ipam-da-consul`, its DEL with the leases that a chain remembers.
    pub alone: [Times; 2],
    /// Its ADD where the node remembers nothing of the pool.
    pub cold: Times,
    /// Its DEL without leases.
    pub unremembered: Times,
    pub chain: [Times; 2],
    /// The ancestor's chain, where it takes part.
    pub ancestor: [Times; 2],
}

const ALONE: &str = "ipam-da-consul";

/// Whoever is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    Floor,
    Alone,
    Chain,
    Ancestor,
}

impl Measured {
    pub fn new(held: usize) -> Self {
        let [floor, alone, chain, ancestor] = [const { [const { Times::new() }; 2] }; 4];
        let [cold, unremembered] = [const { Times::new() }; 2];
        Self { held, floor, alone, cold, unremembered, chain, ancestor }
    }

    /// One ADD and one DEL of each.
    pub fn round(
        &mut self,
        plugins: &Plugins,
        ancestor: Option<&Plugins>,
        site: &Site,
        container: &str,
    ) {
        for (verb, times) in VERBS.iter().zip(&mut self.floor) {
            times.push(System::Floor.call(plugins, site, verb, container));
        }
        let add = plugins.command(ALONE, "ADD", container);
        let (time, answer) = measure(add, &site.alone.to_string());
        self.alone[0].push(time);
        let recorded = site.recorded(&answer);
        self.alone[1].push(plugins.call(ALONE, "DEL", container, &recorded));
        site.forget_pools();
        self.cold.push(System::Alone.call(plugins, site, "ADD", container));
        self.unremembered.push(System::Alone.call(plugins, site, "DEL", container));
        for (verb, times) in VERBS.iter().zip(&mut self.chain) {
            times.push(System::Chain.call(plugins, site, verb, container));
        }
        for (verb, times) in VERBS.iter().zip(&mut self.ancestor) {
            if let Some(plugins) = ancestor {
                times.push(System::Ancestor.call(plugins, site, verb, container));
            }
        }
    }
}

impl System {
    /// The time of one process that must succeed.
    fn call(self, plugins: &Plugins, site: &Site, verb: &str, container: &str) -> Duration {
        match self {
            Self::Alone => plugins.call(ALONE, verb, container, &site.alone),
            Self::Chain | Self::Ancestor => {
                plugins.call("ipam-delegated", verb, container, &site.chain)
            }
            Self::Floor => {
                let mut command = plugins.command("consul-floor", verb, container);
                command.args(site.floor(verb, container));
                measure(command, "").0
            }
        }
    }

    /// ADDs a second, and DELs a second, 20 processes at a time.
    pub fn throughput(self, plugins: &Plugins, site: &Site) -> [f64; 2] {
        throughput(|verb, container| {
            self.call(plugins, site, verb, container);
        })
    }
}
