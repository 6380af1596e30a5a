//! A subject whose networks have a store, or pools of it, of their own.

use std::time::Duration;

use ipam_kit::Result;
use ipam_kit::allocate::Reach;
use ipam_kit::cni::Environment;
use serde_json::{Map, Value};

use crate::between::CallBetween;
use crate::subject::{CallOutput, Form, Subject};

/// A subject, and the change of the configuration of each call, by the network's name.
#[derive(Clone, Copy, Debug)]
pub struct Apart<S, F>(pub S, pub F);

impl<S: Subject, F: Fn(&mut Value) + Send + Sync> Apart<S, F> {
    fn changed(&self, stdin: &[u8]) -> Vec<u8> {
        match serde_json::from_slice(stdin) {
            Ok(mut network) => {
                self.1(&mut network);
                network.to_string().into_bytes()
            }
            // Some calls have no JSON.
            Err(_) => stdin.to_vec(),
        }
    }
}

impl<S: Subject, F: Fn(&mut Value) + Send + Sync> Subject for Apart<S, F> {
    fn form(&self) -> Form {
        self.0.form()
    }

    fn reach(&self) -> Reach {
        self.0.reach()
    }

    fn config(&self) -> Map<String, Value> {
        self.0.config()
    }

    fn answer(&self, environment: Environment, stdin: &[u8]) -> Result<CallOutput> {
        self.0.answer(environment, &self.changed(stdin))
    }

    fn interleave(&self, between: CallBetween) -> bool {
        self.0.interleave(between)
    }

    fn age(&self, by: Duration) -> bool {
        self.0.age(by)
    }

    fn keeps_names(&self) -> bool {
        self.0.keeps_names()
    }

    fn rests_freed(&self) -> bool {
        self.0.rests_freed()
    }

    fn store_pool(&self, network: &str) -> Option<String> {
        self.0.store_pool(network)
    }

    fn kill_during(&self, environment: Environment, stdin: &[u8], after: Duration) -> bool {
        self.0.kill_during(environment, &self.changed(stdin), after)
    }
}
