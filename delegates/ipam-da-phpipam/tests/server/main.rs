//! The program beside the imitation of phpIPAM: how many requests a verb takes, what many callers at
//! once get, and what a bad server leads to.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod age;
mod answers;
mod chain;
mod deploy;
mod logins;
mod memory;
mod nodes;
mod people;
mod pools;
mod requests;
mod restored;
mod site;
mod storms;
