//! The program beside real openwisp-ipam servers, most tests on one that they share: how many
//! requests a verb takes, what many callers at once get, and what a bad server leads to.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod answers;
mod chain;
mod deploy;
mod logins;
mod memory;
mod moved;
mod nodes;
mod people;
mod pools;
mod requests;
mod restored;
mod site;
mod storms;
