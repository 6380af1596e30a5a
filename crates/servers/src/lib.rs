//! What delegates share to reach servers over HTTP: an ordered list of servers of which one that answers
//! is as good as another, deadlines, TLS, and what an answer or a failure means for what was asked.
//!
//! A [`Client`] sends each request to one server, over a connection that it keeps for the next one, and
//! goes on to the next server when that one fails. It tells what was certainly not carried out from what
//! may have been, so that a caller never repeats a change blindly. It follows no redirects and uses no
//! proxy.
//!
//! A delegate whose source or store speaks HTTP depends on this package; `ipam-kube` stands on it.
//!
//! # A question
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use ipam_kit::{Request, Result};
//! use ipam_servers::{Access, Answer, Ask, Client, Method, Server, Tls, escape};
//!
//! /// Asks whichever server answers for the pool of a rack.
//! fn pool_of(rack: &str, urls: &[String], request: &Request) -> Result<Option<Answer>> {
//!     let access = Access {
//!         service: "rack",
//!         servers: Server::parse_all(urls, "ipam.rackServers", 8080)?,
//!         tls: Tls::default(),
//!         headers: Vec::new(),
//!         timeout: Duration::from_secs(5),
//!         unreached: request.unreached(),
//!         advice: |status, _| (status == 403).then_some("let this host read racks"),
//!     };
//!     let mut client = Client::new(access, request.deadline)?;
//!     let path = format!("v1/racks/{}", escape(rack));
//!     let answer = client.read(&Ask {
//!         answers: &[200, 404],
//!         limit: 64 * 1024,
//!         ..Ask::new(Method::Get, &path)
//!     })?;
//!     Ok((answer.status == 200).then_some(answer))
//! }
//! # let _ = pool_of;
//! ```

#![warn(unreachable_pub)]

mod failover;
mod file;
mod finding;
#[cfg(feature = "http")]
mod http;
mod secret;
mod section;
mod server;
mod tls;
mod trouble;
pub mod words;

pub use failover::{Failover, PATIENCE, Service, Transport};
pub use file::read_text;
#[cfg(feature = "http")]
pub use http::{Access, Answer, Ask, Client, Method, Secrets, each_element, escape, media};
pub use secret::{Named, Secret};
pub use section::{Section, ServerSettings, both_or_neither, parse_timeout};
pub use server::Server;
pub use tls::{Content, Pem, Tls, Trust, authorities_of_host};
pub use trouble::Trouble;
