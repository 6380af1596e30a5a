//! Addresses that stay with a name.

mod history;
mod holders;
mod keeping;
mod kills;
mod people;
mod trouble;
