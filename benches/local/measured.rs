use std::time::{Duration, Instant};

use serde_json::Value;

use super::common::count;
use super::common::plugins::Plugins;
use super::common::times::Times;

/// The times of one network, by number of leases held.
pub struct Measured {
    pub held: usize,
    pub host_local: [Times; 2],
    pub chain: [Times; 2],
    pub preset: [Times; 2],
    pub allocator: [Times; 2],
}

/// ADD and DEL.
const VERBS: [&str; 2] = ["ADD", "DEL"];

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
        for (verb, times) in VERBS.iter().zip(times) {
            times.push(self.plugins.call(self.program, verb, container, network));
        }
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
        let each = count("BENCH_EACH", 10);
        VERBS.map(|verb| {
            let began = Instant::now();
            std::thread::scope(|scope| {
                for thread in 0..AT_A_TIME {
                    scope.spawn(move || {
                        for n in 0..each {
                            let container = format!("many-{thread}-{n}");
                            self.plugins.call(self.program, verb, &container, network);
                        }
                    });
                }
            });
            per_second(AT_A_TIME * each, began.elapsed())
        })
    }
}

/// How many processes there are at a time.
pub const AT_A_TIME: usize = 20;

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
fn per_second(calls: usize, time: Duration) -> f64 {
    calls as f64 / time.as_secs_f64()
}

/// The middle one.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
