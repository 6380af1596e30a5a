//! Pools that others share: sandboxes of a pod, attachments of old releases, pools that overlap,
//! networks without reservations, large pools, and people.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod large;
mod old_attachments;
mod overlap;
mod people;
mod renamed;
mod repair;
mod sandboxes;
mod without_reservations;
