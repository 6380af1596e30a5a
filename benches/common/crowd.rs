//! Many processes at a time. Included by the benchmarks that measure them.

use std::time::{Duration, Instant};

use super::common::{VERBS, count};

/// How many processes there are at a time.
pub const AT_A_TIME: usize = 20;

/// Calls a second: of ADD for as many containers, then of DEL.
pub fn throughput(call: impl Fn(&str, &str) + Sync) -> [f64; 2] {
    let each = count("BENCH_EACH", 10);
    let call = &call;
    VERBS.map(|verb| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..AT_A_TIME {
                scope.spawn(move || {
                    for n in 0..each {
                        call(verb, &format!("many-{thread}-{n}"));
                    }
                });
            }
        });
        per_second(AT_A_TIME * each, began.elapsed())
    })
}

/// The middle one.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
fn per_second(calls: usize, time: Duration) -> f64 {
    calls as f64 / time.as_secs_f64()
}
