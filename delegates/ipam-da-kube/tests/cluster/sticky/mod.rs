//! Addresses that stay with a name.

mod amid;
mod by_hand;
mod deployments;
mod faults;
mod history;
mod holders;
mod keeping;
mod kills;
mod people;
mod planted;
mod trouble;
