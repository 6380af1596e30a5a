//! A small Kubernetes client: where the login comes from, one request per question, no discovery
//! and no watch.
//!
//! A delegate that asks Kubernetes depends on this package. [`Source`] finds the login, [`Kube`]
//! asks for any object, and [`own_node`] knows the node object of this machine:
//!
//! ```no_run
//! use ipam_kit::{Request, Result};
//! use ipam_kube::own_node::{Keys, OwnNode};
//!
//! /// The rack that a label of this machine's node object names.
//! fn rack(request: &Request) -> Result<Option<String>> {
//!     let settings = request.network.settings::<Keys>()?.read("ipam.")?;
//!     let (environment, unreached) = (&request.environment, request.unreached());
//!     let own = OwnNode::new(settings, environment, unreached, request.deadline)?;
//!     let node = own.read()?;
//!     Ok(node.text("/metadata/labels/rack").map(str::to_owned))
//! }
//! # let _ = rack;
//! ```
//!
//! A delegate that is called often takes `OwnNode::ask` instead, which remembers the answer.
//!
//! # Away, or refusing
//!
//! A caller that keeps what it read before may go on with that while the API server is *away*, and must
//! not while the server *refuses*. The code of an error tells them apart:
//!
//! | code | says |
//! |---|---|
//! | 105 or 11: the one that the caller gave to [`Source::open`], or [`ErrorCode::TRY_AGAIN`] | away: it cannot be reached, gives no answer in time, is overloaded (429) or fails (5xx) |
//! | [`ErrorCode::TIMED_OUT`] | away: the time of the call was over before it was asked |
//! | [`ErrorCode::BACKEND`] | it refuses: 401, 403, certificates that one side does not take, what is no Kubernetes API server |
//! | [`ErrorCode::INVALID_CONFIG`] | the kubeconfig is wrong: nobody was asked |
//!
//! [`is_away`] says so of an error.
//!
//! [`ErrorCode::TRY_AGAIN`]: ipam_kit::ErrorCode::TRY_AGAIN
//! [`ErrorCode::TIMED_OUT`]: ipam_kit::ErrorCode::TIMED_OUT
//! [`ErrorCode::BACKEND`]: ipam_kit::ErrorCode::BACKEND
//! [`ErrorCode::INVALID_CONFIG`]: ipam_kit::ErrorCode::INVALID_CONFIG

#![warn(unreachable_pub)]

mod api;
mod kubeconfig;
mod login;
pub mod own_node;
mod refusal;
mod resource;
mod source;
mod status;
mod validity;
mod yaml;

#[cfg(test)]
mod tests;

pub use api::{Change, Kube, List, Outcome, Refusal, Why, is_away};
pub use resource::Resource;
pub use source::Source;
