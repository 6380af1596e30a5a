//! IP address management for containers as a chain of small parts.

#[allow(dead_code, unused_imports)]
pub mod chain;
pub mod cni;
pub mod delegate;
pub mod error;
pub mod host;
mod log;

pub use error::{Error, ErrorCode, Result};
