//! Real Kubernetes API servers for tests, each with an etcd of its own.
//!
//! What is missing fails the test and says what to do; `tests/run.sh` installs it.

mod client;
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

pub use crate::certificates::{Certificates, Key, Pair, Standing};
pub use crate::servers::http::Answer;
pub use crate::servers::silent::Silent;
pub use client::Client;
pub use kubeconfig::{Kubeconfig, Material, Style};
pub use logins::{Credential, Login};
pub use nodes::Node;
pub(crate) use program::minor_version;
pub use program::{kube_apiserver as program, kubectl};
pub use requests::Request;
pub use rights::Grant;
pub use server::{Builder, Kube};
pub use service_accounts::ServiceAccount;
pub use speaker::{End, Speaker};
