use serde_json::Value;

use super::common::plugins::Plugins;
use super::common::times::Times;
use super::crowd::throughput;

/// The times of one network, by number of leases held.
pub struct Measured {
    pub held: usize,
    pub host_local: [Times; 2],
    pub chain: [Times; 2],
    pub preset: [Times; 2],
    pub allocator: [Times; 2],
}

/// Whoever is measured.
#[derive(Clone, Copy)]
pub struct System<'a> {
    pub plugins: &'a Plugins,
    pub program: &'a str,
}

impl Measured {
    pub fn new(held: usize) -> Self {
        let [host_local, chain, preset, allocator] = [const { [const { Times::new() }; 2] }; 4];
        Self { held, host_local, chain, preset, allocator }
    }
}

impl System<'_> {
    /// One ADD and one DEL.
    pub fn pair(self, network: &Value, container: &str, times: &mut [Times; 2]) {
        self.plugins.pair(self.program, network, container, times);
    }

    /// ADDs that have to look at the whole folder because of what was done before each, with a
    /// DEL after it that is not measured.
    pub fn adds(self, network: &Value, runs: usize, before: impl Fn()) -> Times {
        let mut times = Times::new();
        for _ in 0..runs {
            before();
            times.push(self.plugins.call(self.program, "ADD", "special", network));
            self.plugins.call(self.program, "DEL", "special", network);
        }
        times
    }

    /// ADDs a second, and DELs a second, 20 processes at a time.
    pub fn throughput(self, network: &Value) -> [f64; 2] {
        throughput(|verb, container| {
            self.plugins.call(self.program, verb, container, network);
        })
    }
}
