//! Pools of addresses: what they are made of, and how they are written.

mod bounds;
pub mod cidr;
mod range;
mod range_config;

pub use range::Range;
pub use range_config::{GatewayPlace, HostBits, RangeConfig, RangeRules, SmallSubnets};
