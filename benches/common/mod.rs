//! What the benchmarks share.

pub mod plugins;
pub mod programs;
pub mod times;

/// ADD and DEL.
pub const VERBS: [&str; 2] = ["ADD", "DEL"];

/// A number from the environment.
pub fn count(variable: &str, otherwise: usize) -> usize {
    let Ok(text) = std::env::var(variable) else { return otherwise };
    text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, no number"))
}

/// Whether `cargo bench` started this program: `cargo test --benches` does, too.
pub fn is_wanted(name: &str) -> bool {
    let wanted = std::env::args().any(|argument| argument == "--bench");
    if !wanted {
        println!("run it with: cargo bench --bench {name}");
    }
    wanted
}

pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

/// A row of the table of targets.
#[allow(dead_code, reason = "not every benchmark has that table")]
pub fn target(what: &str, value: &str, met: bool) {
    println!("| {what} | {value} | {} |", verdict(met));
}
