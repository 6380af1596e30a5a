//! What delegates share to reach servers over HTTP: an ordered list of servers of which one that answers
//! is as good as another, deadlines, TLS, and what an answer or a failure means for what was asked.
//!
//! A [`Client`] sends each request to one server, over a connection that it keeps for the next one, and
//! goes on to the next server when that one fails. It tells what was certainly not carried out from what
//! may have been, so that a caller never repeats a change blindly. It follows no redirects and uses no
//! proxy.

#![warn(unreachable_pub)]

mod ask;
mod dial;
mod failover;
mod file;
mod finding;
mod secret;
mod server;
mod tls;
mod trouble;

#[cfg(test)]
mod tests;

pub use ask::{Answer, Ask, Method, escape};
pub use failover::{Access, Client};
pub use file::read_text;
pub use secret::{Named, Secret};
pub use server::Server;
pub use tls::{Content, Pem, Tls, Trust};
