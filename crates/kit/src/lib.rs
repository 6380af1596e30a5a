//! The library for IPAM delegates in Rust.
//!
//! `ipam-delegated` gives containers their addresses by a chain of small programs, the *delegates*.
//! *Selectors* (`ipam-ds-…`) choose pools, *allocators* (`ipam-da-…`) take an address out of each.
//! A delegate in Rust is a type with this library's trait [`Selector`] or [`Ledger`], and a `main`
//! of one line. A delegate can also be written in any other language: `docs/contract.md` is the
//! contract, `docs/delegates.md` the guide.
//!
//! This package is enough for a delegate. Further packages add to it: `ipam-servers` calls servers
//! over HTTP, `ipam-kube` reads from Kubernetes, `ipam-cli` answers people, and `ipam-suites` tests
//! an allocator.
//!
//! # A complete delegate
//!
//! ```no_run
#![doc = include_str!("../../../examples/ipam-ds-rack.rs")]
//! ```
//!
//! With `"rackFile": "/etc/rack", "racks": {"r1": {"name": "blue"}}` in the section `ipam`, a host whose
//! `/etc/rack` says `r1` gets its addresses from the pool `blue`. [`run`] reads stdin, dispatches
//! the verbs, and handles versions, errors, logs and the time limit. [`Select`] answers each verb as a
//! selector must.
//!
//! # An allocator
//!
//! A [`Ledger`] is a store of leases: it shows the leases, and changes them in one guarded step.
//! [`Allocate`] is the allocator over any ledger: it searches for an address and retries.
//! `ipam_cli::answer` gives it the verbs for people, which `ipam-delegated` asks it for (`list`,
//! `who`, `pools`, `release`).
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use ipam_kit::Allocate;
//! # // A ledger that exists, instead of the author's.
//! # use ipam_suites::memory::MemoryLedger as Site;
//!
//! // `Site` is your store: a type with the trait `Ledger`.
//! fn delegate() -> Allocate<Site> {
//!     Allocate::answering(ipam_cli::answer::<Site>)
//! }
//!
//! fn main() -> ExitCode {
//!     ipam_kit::run("ipam-da-site", delegate())
//! }
//! ```
//!
//! `Allocate::<Site>::default()` is the same without verbs for people. `ipam-suites` tests the
//! ledger and the allocator.
//!
//! # Features
//!
//! - `allocator`: in musl builds, a memory allocator that asks the kernel less often than musl's
//!   own. It is off by default: a program switches it on, unless it has a global allocator of its
//!   own.
//! - `verbose`: debug logs in `/var/log/cni` without any setting.
//!
//! # The rooms
//!
//! Imports point up this list only; ARCHITECTURE.md says why, and a test holds it.
//!
//! - [`error`]: [`Error`] and the only table of error codes.
//! - [`keys`]: the keys that a delegate declares, and those that are misspelt.
//! - [`text`]: text of others on its way to people.
//! - [`presence`]: held, absent or unreadable: the three answers of a look.
//! - [`cni`]: the protocol, without I/O: verbs, environment, network configuration, results of
//!   every version, addresses read as Go reads them.
//! - [`contract`]: what delegates say to each other beside the CNI result, typed.
//! - [`pool`]: pools, ranges and range sets, which selectors choose and allocators serve.
//! - [`host`]: what this machine knows: host-wide settings, the state folder, the node's identity.
//! - [`log`]: lines on stderr and in the verbose log.
//! - [`delegate`]: the trait [`Delegate`] and the only edge that touches environment, stdin, stdout
//!   and exit.
//! - [`ipam_section`]: what the section `ipam` itself offers: pools, routes, name resolution.
//! - [`select`]: the role of a selector.
//! - [`allocate`]: the role of an allocator.

#![warn(unreachable_pub)]

pub mod allocate;
pub mod cni;
pub mod contract;
pub mod delegate;
pub mod error;
pub mod host;
pub mod ipam_section;
pub mod keys;
pub mod log;
pub mod pool;
pub mod presence;
pub mod select;
pub mod text;

pub use allocate::{Allocate, Ledger};
pub use delegate::{Delegate, Request, run};
pub use error::{Error, ErrorCode, Result};
pub use select::{Select, Selection, Selector};

#[cfg(all(target_env = "musl", feature = "allocator"))]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
