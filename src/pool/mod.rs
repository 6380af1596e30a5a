//! Pools of addresses: what they are made of, and how they are written.

pub mod cidr;
