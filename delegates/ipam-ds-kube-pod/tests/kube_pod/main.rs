//! The selector with pods of a real Kubernetes API server, which all of these tests share.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod api_server;
mod chain;
mod choices;
mod pods;
mod site;
