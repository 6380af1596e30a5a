//! Real Kubernetes API servers for tests, each with an etcd of its own.
//!
//! Needs nothing of the other test support, so that a delegate's tests can include it by `#[path]`.
//! What is missing fails the test and says what to do; `tests/run.sh` installs it.

#![allow(
    dead_code,
    missing_docs,
    clippy::duplicate_mod,
    unused_imports,
    clippy::unwrap_used,
    reason = "test support; each test file uses a part of it"
)]

#[path = "../certificates.rs"]
pub mod certificates;
mod client;
#[path = "../etcd/mod.rs"]
pub mod etcd;
mod kubeconfig;
mod logins;
mod nodes;
mod program;
mod requests;
mod rights;
mod server;
mod service_accounts;
mod settings;
mod shared;
mod speaker;
mod tls;
mod yaml;

pub use certificates::{Certificates, Key, Pair, Standing};
pub use client::Client;
pub use etcd::servers::http::Answer;
pub use etcd::servers::silent::Silent;
pub use kubeconfig::{Kubeconfig, Material, Style};
pub use logins::{Credential, Login};
pub use nodes::Node;
pub use program::{kube_apiserver as program, kubectl, locate};
pub use requests::Request;
pub use rights::Grant;
pub use server::{Builder, Kube};
pub use service_accounts::ServiceAccount;
pub use speaker::{End, Speaker};
