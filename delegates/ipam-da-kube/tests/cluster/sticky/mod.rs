//! Addresses that stay with a name.

mod holders;
mod keeping;
mod kills;
mod people;
mod trouble;
