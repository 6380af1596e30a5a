//! `reassert`: what it claims again in a store that was restored, and which stores it accepts.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod claims;
mod stores;

use ipam_testkit::world::{Outcome, World, with};
use serde_json::{Value, json};

const NAME: &str = "ipam-da-x";

/// A selector, and an allocator whose store the cluster shares, on the network `net`.
fn world() -> World {
    let world = World::new();
    world.selector("ipam-ds-x", &json!([{"name": "blue", "takeover": true, "colour": 1}]));
    world.shared(NAME, "10.0.0.2/24");
    world.conflist("10-net.conflist", &network(&world));
    world
}

fn network(world: &World) -> Value {
    with(&world.network(json!(["ipam-ds-x", NAME])), "store", "a")
}

trait Reasserting {
    fn shared(&self, name: &str, address: &str) -> &Self;
    fn add(&self, containers: &[&str]);
    fn reassert(&self, words: &[&str]) -> Outcome;
    fn ended_well(&self, words: &[&str]);
    /// The calls of ADD.
    fn claims(&self) -> Vec<Value>;
    /// The stores that were accepted: network and `ipam.store` of each.
    fn accepted(&self) -> Vec<String>;
}

impl Reasserting for World {
    fn shared(&self, name: &str, address: &str) -> &Self {
        self.answering(name, address)
            .answer(name, "about", &json!({"name": name, "reach": "cluster"}))
            .answer(name, "accept", &json!({"accepted": true}))
    }

    fn add(&self, containers: &[&str]) {
        for container in containers {
            self.call("ADD", container, &network(self)).success();
        }
        self.take_calls();
    }

    fn reassert(&self, words: &[&str]) -> Outcome {
        self.typed(&[&["reassert", "--json"], words].concat())
    }

    fn ended_well(&self, words: &[&str]) {
        let outcome = self.typed(words);
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    }

    fn claims(&self) -> Vec<Value> {
        self.calls().into_iter().filter(|call| call["verb"] == "ADD").collect()
    }

    fn accepted(&self) -> Vec<String> {
        let asked =
            self.asked().into_iter().filter(|call| call["asked"] == "accept --json --config -");
        asked
            .map(|call| {
                let (network, store) = (&call["stdin"]["name"], &call["stdin"]["ipam"]["store"]);
                format!("{} {}", network.as_str().unwrap(), store.as_str().unwrap())
            })
            .collect()
    }
}

/// Container and outcome of each row; an accepted store has no container.
fn fates(told: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("store").to_owned();
    let rows = told.as_array().unwrap().iter();
    rows.map(|row| (text(row, "containerID"), text(row, "outcome"))).collect()
}

fn fate(container: &str, outcome: &str) -> (String, String) {
    (container.to_owned(), outcome.to_owned())
}
