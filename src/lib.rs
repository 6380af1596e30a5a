//! IP address management for containers as a chain of small parts.

pub mod error;
pub mod pool;

pub use error::{Error, ErrorCode, Result};
