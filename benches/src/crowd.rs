//! Many processes at a time.

use std::time::{Duration, Instant};

use crate::caller::{Caller, VERBS};

/// How many processes there are at a time.
pub const AT_A_TIME: usize = 20;

/// Calls a second: of ADD for as many containers, then of DEL; so many calls of each process.
pub fn throughput(caller: &Caller, each: usize) -> [f64; 2] {
    VERBS.map(|verb| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..AT_A_TIME {
                scope.spawn(move || {
                    for n in 0..each {
                        caller.call(verb, &format!("many-{thread}-{n}"));
                    }
                });
            }
        });
        per_second(AT_A_TIME * each, began.elapsed())
    })
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
fn per_second(calls: usize, time: Duration) -> f64 {
    calls as f64 / time.as_secs_f64()
}
