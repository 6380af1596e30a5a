//! The delegate and its preset on a host with a node of a real Kubernetes API server, which all of
//! these tests share.

#![allow(clippy::unwrap_used, reason = "tests")]

mod annotation;
mod before;
mod chain;
mod common;
mod conf;
mod keys;
mod next;
mod next_static;
mod seed;
mod stores;
mod with_etcd;
