//! A small Kubernetes client: where the credentials come from, one request per question, no discovery
//! and no watch.
//!
//! A delegate that asks Kubernetes depends on this package. [`CredentialsSource`] finds the credentials, [`Kube`]
//! asks for any object, and [`own_node`] knows the node object of this machine:
//!
//! ```no_run
//! use ipam_kit::{Request, Result};
//! use ipam_kube::own_node::{NodeKeys, OwnNode};
//!
//! /// The rack that a label of this machine's node object names.
//! fn rack(request: &Request) -> Result<Option<String>> {
//!     let settings = request.network.settings::<NodeKeys>()?.read("ipam.")?;
//!     let (environment, unreached) = (&request.environment, request.unreached());
//!     let own = OwnNode::new(settings, environment, unreached, request.deadline)?;
//!     let node = own.read()?;
//!     Ok(node.string("/metadata/labels/rack").map(str::to_owned))
//! }
//! # let _ = rack;
//! ```
//!
//! A delegate that is called often takes `OwnNode::ask` instead, which remembers the answer.
//!
//! # Unreachable, or refusing
//!
//! A caller that keeps an earlier answer may use it while the API server is *unreachable*, but not
//! if the server *refuses*. The code of an error tells them apart:
//!
//! | code | says |
//! |---|---|
//! | 105 or 11: the one that the caller gave to [`CredentialsSource::open`], or [`ErrorCode::TRY_AGAIN`] | unreachable: no connection, no answer in time, overloaded (429), or failing (5xx) |
//! | [`ErrorCode::TIMED_OUT`] | unreachable: the time of the call was over before the request |
//! | [`ErrorCode::BACKEND`] | it refuses: 401, 403, a certificate that one side rejects, or it is not a Kubernetes API server |
//! | [`ErrorCode::INVALID_CONFIG`] | the kubeconfig is wrong: no request was sent |
//!
//! [`is_unreachable`] tests an error.
//!
//! [`ErrorCode::TRY_AGAIN`]: ipam_kit::ErrorCode::TRY_AGAIN
//! [`ErrorCode::TIMED_OUT`]: ipam_kit::ErrorCode::TIMED_OUT
//! [`ErrorCode::BACKEND`]: ipam_kit::ErrorCode::BACKEND
//! [`ErrorCode::INVALID_CONFIG`]: ipam_kit::ErrorCode::INVALID_CONFIG

#![warn(unreachable_pub)]

mod api;
mod credentials;
mod kubeconfig;
pub mod own_node;
mod refusal;
mod resource;
mod source;
mod status;
mod validity;
mod yaml;

#[cfg(test)]
mod tests;

pub use api::{ApiChange, ApiOutcome, Kube, List, is_unreachable};
pub use refusal::{ApiRefusal, RefusalReason};
pub use resource::Resource;
pub use source::CredentialsSource;
