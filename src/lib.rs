//! IP address management for containers as a chain of small parts.
//!
//! Every system that gives containers their addresses is a chain: something chooses the pools for
//! a container, and something takes an address out of each. The program `ipam-delegated` is a CNI
//! IPAM plugin that runs such a chain: an ordered list of small programs, the *delegates*. Each
//! gets the network configuration with the result of the one before as `prevResult`, and answers
//! with that result, enriched. *Selectors* (`ipam-ds-…`) choose pools, *allocators* (`ipam-da-…`,
//! or any standard IPAM plugin) give addresses. When an ADD fails, what it took is released; when
//! it succeeds, a record says what a later DEL has to release, whatever has become of the
//! configuration meanwhile.
//!
//! This library is what delegates in Rust are made of. A delegate may be written in any language:
//! the README holds the contract, and the folder `examples` this same selector in shell and Python.
//!
//! # A complete delegate
//!
//! ```no_run
#![doc = include_str!("../examples/ipam-ds-rack.rs")]
//! ```
//!
//! With `"rackFile": "/etc/rack", "racks": {"r1": "blue"}` in the section `ipam`, a host whose
//! `/etc/rack` says `r1` gets its addresses from the pool `blue`. Reading stdin, all verbs,
//! versions, errors, logs and the time limit are [`run`]'s affair, and what a selector does on
//! each verb is [`Select`]'s.
//!
//! # The rooms
//!
//! Imports point down this list only; ARCHITECTURE.md says why, and a test holds it.
//!
//! - [`error`]: [`Error`] and the only table of error codes.
//! - [`presence`]: held, absent or unreadable: the three answers of a look.
//! - [`cni`]: the protocol, without I/O: verbs, environment, network configuration, results of
//!   every version, addresses read as Go reads them.
//! - [`pool`]: pools, ranges and range sets, which selectors choose and allocators serve.
//! - [`host`]: what this machine knows: host-wide settings, the state folder, the node's identity.
//! - [`operate`]: what verbs for people share: typed words, tables, the map of a pool.
//! - [`delegate`]: the trait [`Delegate`] and the only edge that touches environment, stdin, stdout
//!   and exit.
//! - [`offer`]: what the section `ipam` itself offers: pools, routes, name resolution.
//! - `client`, with the feature of that name: what delegates share to reach servers over HTTP; with the
//!   feature `kube` also Kubernetes API servers.
//! - [`select`]: the role of a selector.
//! - [`allocate`]: the role of an allocator.
//! - `testing`, with the feature of that name: stand-ins for stores, and the suites that every
//!   ledger and every allocator must pass.
//! - [`chain`]: the meta-plugin: which delegates run, running each as a process, undo, and the
//!   record of each attachment. It knows processes, not addresses.

pub mod allocate;
pub mod chain;
#[cfg(feature = "client")]
pub mod client;
pub mod cni;
pub mod delegate;
pub mod error;
pub mod host;
mod log;
pub mod offer;
pub mod operate;
pub mod pool;
pub mod presence;
pub mod select;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use allocate::{Allocate, Allocator};
pub use delegate::{Delegate, Request, run};
pub use error::{Error, ErrorCode, Result};
pub use select::{Select, Selection, Selector};

#[cfg(all(target_env = "musl", feature = "allocator"))]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
