//! The delegate and its preset on machines with a node of a real Kubernetes API server, which all
//! of these tests share.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod bad_input;
mod chain;
mod common;
mod legacy_cache;
mod own_node;
mod pods;
mod ranges;
mod vectors;
