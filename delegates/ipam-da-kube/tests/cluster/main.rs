//! The program beside real API servers, one for each set of definitions: what a call does to objects
//! that others share, what it does in trouble, and what is left when it is killed.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod another_cluster;
mod beside;
mod common;
mod contention;
mod cooldown;
mod deploy;
mod end_to_end;
mod fleet;
mod kills;
mod large;
mod old_attachments;
mod on_the_way;
mod overlap;
mod people;
mod readme;
mod renamed;
mod repair;
mod requests;
mod restored;
mod sandboxes;
mod sticky;
mod suites;
mod trouble;
mod without_reservations;
