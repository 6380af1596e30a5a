//! What the supports for real servers share: processes that end with the test's own, networks that
//! can be cut, endpoints that misbehave.
//!
//! Needs nothing of the other test support.

pub mod base64;
pub mod cluster;
pub mod daemon;
pub mod http;
pub(crate) mod lasting;
pub mod network;
pub mod passage;
pub mod process;
pub mod relay;
pub mod silent;
