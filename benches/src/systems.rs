//! Whole processes, timed beside the systems that they replace and beside the least processes that
//! do the same work. `benches/README.md` says what is measured and how.

#![allow(clippy::print_stdout, reason = "a table for the one who runs it")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run ends")]

mod caller;
mod chain;
mod cluster;
mod consul;
mod crowd;
mod disk;
mod etcd;
mod harness;
mod ippool;
mod kube;
mod local;
mod network;
mod openwisp;
mod phpipam;
mod plot;
mod programs;
mod records;
mod site;
mod table;
mod target;
mod times;

use harness::System;

const SYSTEMS: [&System; 11] = [
    &local::SYSTEM,
    &etcd::NATIVE,
    &etcd::PRESET,
    &etcd::WHEREABOUTS,
    &consul::SYSTEM,
    &openwisp::SYSTEM,
    &phpipam::SYSTEM,
    &phpipam::KEYED,
    &kube::SYSTEM,
    &ippool::SYSTEM,
    &chain::SYSTEM,
];

fn main() {
    let (options, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with('-'));
    let known = |name: &String| SYSTEMS.iter().any(|system| system.name == name);
    // `cargo test --benches` starts this program without the option.
    if !options.iter().any(|option| option == "--bench") || !names.iter().all(known) {
        println!(
            "cargo bench -p ipam-benches \
             [local|etcd|whereabouts|consul|openwisp|phpipam|kube|ippool|chain]"
        );
        return;
    }
    for build in programs::builds() {
        for system in SYSTEMS {
            if names.is_empty() || names.iter().any(|name| name == system.name) {
                system.run(&build);
            }
        }
    }
}
