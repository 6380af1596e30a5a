//! IP address management for containers as a chain of small parts.

pub mod allocate;
pub mod chain;
pub mod cni;
pub mod delegate;
pub mod error;
pub mod host;
mod log;
pub mod pool;
pub mod select;

pub use allocate::{Allocate, Allocator};
pub use delegate::{Delegate, Request, run};
pub use error::{Error, ErrorCode, Result};
pub use select::{Select, Selection, Selector};
