//! A small Kubernetes client: where the credentials come from, one request per question, no discovery
//! and no watch.
//!
//! A delegate that asks Kubernetes depends on this package. [`CredentialsSource`] finds the
//! credentials, [`Kube`] asks for any object, and [`own_node`] knows the node object of this
//! machine:
//!
//! ```no_run
//! use ipam_kit::{Request, Result};
//! use ipam_kube::own_node::{NodeKeys, OwnNode};
//!
//! /// The rack that a label of this machine's node object names.
//! fn rack(request: &Request) -> Result<Option<String>> {
//!     let settings = request.network.settings::<NodeKeys>()?.read("ipam.")?;
//!     let (environment, host) = (&request.environment, &request.settings);
//!     let own =
//!         OwnNode::new(settings, environment, host, request.unreached(), request.deadline)?;
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
//! | [`ErrorCode::BACKEND`] | it refuses: 401, 403, a certificate that one side rejects, or it is not a Kubernetes API server. [`is_unauthorized`] tells a 401 from the others |
//! | [`ErrorCode::INVALID_CONFIG`] | the kubeconfig is wrong: no request was sent |
//!
//! [`is_unreachable`] tests an error.
//!
//! # Credentials that rotate
//!
//! A service account's token and a kubelet's certificate rotate while a client has them. After its
//! first 401 a [`Kube`] reads its files once more. If the token or the certificate differs from the
//! one that was sent, the request is sent again: a request answered 401 was not carried out. An error
//! that [`is_unauthorized`] recognizes means that the second answer was 401 too, or that the files
//! have nothing new. A file that names another server is ignored.
//!
//! # Changes
//!
//! [`Kube::ask`] sends an [`ApiChange`] and never repeats one that may have been carried out:
//!
//! | answer | is |
//! |---|---|
//! | the object, its metadata, or for DELETE a Status | [`ApiOutcome::Done`] |
//! | 404, 409 or 422 | [`ApiOutcome::Refused`], with its [`RefusalReason`] |
//! | 413, or a 500 in which etcd says that the object is too large | [`RefusalReason::TooLarge`] |
//! | any other 5xx; a broken connection, no answer in time, an answer that cannot be parsed | [`ApiOutcome::Unknown`]: read the object to learn what became of it |
//! | 401, 403, 429, no connection | an error, by the table above |
//!
//! ```no_run
//! use ipam_kit::{ErrorCode, Error, Result};
//! use ipam_kube::{ApiChange, ApiOutcome, Kube, Resource};
//! use serde::de::IgnoredAny;
//!
//! /// Sets the label of a node, unless the node has it.
//! fn label(kube: &mut Kube, node: &str) -> Result<bool> {
//!     let patch = r#"[{"op": "test", "path": "/metadata/labels/rack", "value": null},
//!                     {"op": "add", "path": "/metadata/labels/rack", "value": "a"}]"#;
//!     let change = ApiChange::patch(Resource::node(node), patch);
//!     match kube.ask::<IgnoredAny>(&ApiChange { metadata_only: true, ..change })? {
//!         ApiOutcome::Done(_) => Ok(true),
//!         ApiOutcome::Refused(_) => Ok(false),
//!         ApiOutcome::Unknown => Err(Error::new(ErrorCode::TRY_AGAIN, "unknown outcome")),
//!     }
//! }
//! # let _ = label;
//! ```
//!
//! [`ErrorCode::TRY_AGAIN`]: ipam_kit::ErrorCode::TRY_AGAIN
//! [`ErrorCode::TIMED_OUT`]: ipam_kit::ErrorCode::TIMED_OUT
//! [`ErrorCode::BACKEND`]: ipam_kit::ErrorCode::BACKEND
//! [`ErrorCode::INVALID_CONFIG`]: ipam_kit::ErrorCode::INVALID_CONFIG

#![warn(unreachable_pub)]

mod api;
mod change;
mod credentials;
mod kubeconfig;
pub mod own_node;
mod refusal;
mod resource;
mod session;
mod source;
mod status;
mod validity;
mod yaml;

#[cfg(test)]
mod tests;

pub use api::{Kube, List, is_unreachable};
pub use change::{ApiChange, ApiOutcome};
pub use refusal::{ApiRefusal, RefusalReason, is_forbidden, is_unauthorized, is_unserved};
pub use resource::{Resource, STATIC_POD_UID, is_object_name};
pub use source::CredentialsSource;
pub use validity::Moment;
