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
    /// `ipam-da-etcd`, its DEL with the leases that a chain remembers.
    pub alone: [Times; 2],
    /// Its DEL without them.
    pub unremembered: Times,
    pub chain: [Times; 2],
}

const ALONE: &str = "ipam-da-etcd";

/// Whoever is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum System {
    Floor,
    Alone,
    Chain,
}

impl Measured {
    pub fn new(held: usize) -> Self {
        let [floor, alone, chain] = [const { [const { Times::new() }; 2] }; 3];
        Self { held, floor, alone, unremembered: Times::new(), chain }
    }

    /// One ADD and one DEL of each.
    pub fn round(&mut self, plugins: &Plugins, site: &Site, container: &str) {
        for (verb, times) in VERBS.iter().zip(&mut self.floor) {
            times.push(System::Floor.call(plugins, site, verb, container));
        }
        let add = plugins.command(ALONE, "ADD", container);
        let (time, answer) = measure(add, &site.alone.to_string());
        self.alone[0].push(time);
        let recorded = site.recorded(&answer);
        self.alone[1].push(plugins.call(ALONE, "DEL", container, &recorded));
        System::Alone.call(plugins, site, "ADD", container);
        self.unremembered.push(System::Alone.call(plugins, site, "DEL", container));
        for (verb, times) in VERBS.iter().zip(&mut self.chain) {
            times.push(System::Chain.call(plugins, site, verb, container));
        }
    }
}

impl System {
    /// The time of one process that must succeed.
    fn call(self, plugins: &Plugins, site: &Site, verb: &str, container: &str) -> Duration {
        match self {
            Self::Alone => plugins.call(ALONE, verb, container, &site.alone),
            Self::Chain => plugins.call(site.layout.program, verb, container, &site.chain),
            Self::Floor => {
                let mut command = plugins.command("floor", verb, container);
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
