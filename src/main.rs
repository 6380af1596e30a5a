//! The meta-plugin `ipam-delegated`.

fn main() {}
