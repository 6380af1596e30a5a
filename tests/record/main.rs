//! The attachment record: what is undone, what stays owed, and what is released, with real
//! processes.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod content;
mod damaged;
mod failing_dels;
mod forget;
mod re_adds;
mod recorded_chain;
mod undo;

use ipam_testkit::world::World;
use serde_json::{Value, json};

/// A chain of two allocators; the second is full.
fn one_then_full(world: &World) -> Value {
    world.allocator("one", "10.0.0.2/24").full("two");
    world.network(json!(["one", "two"]))
}
