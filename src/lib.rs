//! IP address management for containers as a chain of small parts.

pub mod cni;
pub mod delegate;
pub mod error;
pub mod host;
mod log;

pub use error::{Error, ErrorCode, Result};
