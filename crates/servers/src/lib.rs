//! The way of delegates to servers: an ordered list of equivalent servers, deadlines, TLS,
//! secrets, and the meaning of a failure for a request.
//!
//! A delegate whose source or store is a server depends on this package, and so does `ipam-kube`.
//! [`ServerSection`] reads the settings that such delegates have in common.
//!
//! # Failover
//!
//! A [`Failover`] sends each request to one server, and to the next one if that fails. It separates
//! requests that were certainly not carried out from those that may have been, so that a caller
//! never repeats a change blindly. A [`Transport`] sends a request to one server, and reports by a
//! [`RequestError`] what became of a request that failed.
//!
//! # Over HTTP
//!
//! The feature `http` brings a transport, and `Client`, a failover over it. A client keeps the
//! connection for the next request. It follows no redirects and uses no proxy. A token is a header
//! of every request, in `Access::headers`, or of one request, in `HttpRequest::secrets`. No error and no
//! log shows it. [`ServerSection::read`] makes the settings:
//!
//! ```no_run
//! use ipam_kit::{Request, Result};
//! use ipam_servers::{Access, HttpAnswer, HttpRequest, Client, Method, Secret, ServerSettings, escape};
//!
//! /// Asks whichever server answers for the pool of a rack.
//! fn pool_of(rack: &str, settings: ServerSettings, request: &Request) -> Result<Option<HttpAnswer>> {
//!     let ServerSettings { servers, token, tls, timeout, .. } = settings;
//!     let mut headers = Vec::new();
//!     if let Some(token) = token {
//!         let shown = format!("Token {}", token.expose());
//!         headers.push(("Authorization", Secret::parse(&shown, "ipam.racks.token")?));
//!     }
//!     let access = Access {
//!         service: "rack",
//!         servers,
//!         tls,
//!         headers,
//!         timeout,
//!         unreached: request.unreached(),
//!         advice: |status, _| (status == 403).then_some("let this host read racks"),
//!     };
//!     let mut client = Client::new(access, request.deadline)?;
//!     let path = format!("v1/racks/{}", escape(rack));
//!     let answer = client.read(&HttpRequest {
//!         ok_statuses: &[200, 404],
//!         limit: 64 * 1024,
//!         ..HttpRequest::new(Method::Get, &path)
//!     })?;
//!     Ok((answer.status == 200).then_some(answer))
//! }
//! # let _ = pool_of;
//! ```
//!
//! A change is sent by `Client::write`. Its `HttpRequest` may name the media type of the body, headers of
//! this request alone, and the headers that the answer keeps:
//!
//! ```
//! use ipam_servers::{HttpRequest, Method, media};
//!
//! let patch = HttpRequest {
//!     body: br#"{"status": "reserved"}"#,
//!     media: Some(media::MERGE_PATCH),
//!     headers: &[("If-Match", "\"7\"")],
//!     kept_headers: &["ETag"],
//!     ok_statuses: &[200, 412],
//!     ..HttpRequest::new(Method::Patch, "v1/addresses/12")
//! };
//! ```
//!
//! # Over a transport of your own
//!
//! A transport keeps its connection with the index of the server, and drops it after any failure.
//! Its errors must show no secret.
//!
//! ```no_run
//! use std::io::{BufRead, BufReader, Write};
//! use std::net::TcpStream;
//! use std::time::Duration;
//!
//! use ipam_kit::{Request, Result};
//! use ipam_servers::{Failover, Service, Transport, RequestError};
//!
//! /// A line there, a line back.
//! struct Lines {
//!     servers: Vec<String>,
//!     open: Option<(usize, BufReader<TcpStream>)>,
//! }
//!
//! impl Transport<&str> for Lines {
//!     type Answer = String;
//!
//!     fn ask(
//!         &mut self,
//!         index: usize,
//!         line: &mut &str,
//!         patience: Duration,
//!     ) -> Result<String, RequestError> {
//!         let mut stream = match self.open.take() {
//!             Some((of, stream)) if of == index => stream,
//!             _ => connect(&self.servers[index]).map_err(|e| RequestError::not_done(e.to_string()))?,
//!         };
//!         let mut answer = String::new();
//!         let asked = (stream.get_ref().set_read_timeout(Some(patience)))
//!             .and_then(|()| writeln!(stream.get_ref(), "{line}"))
//!             .and_then(|()| stream.read_line(&mut answer));
//!         match asked {
//!             Ok(1..) if answer == "unknown request\n" => {
//!                 return Err(RequestError::rejected("it does not know the request").sent(true));
//!             }
//!             Ok(1..) => {}
//!             Ok(0) => return Err(RequestError::unknown("it closed the connection")),
//!             Err(error) => return Err(RequestError::unknown(error.to_string())),
//!         }
//!         self.open = Some((index, stream));
//!         Ok(answer)
//!     }
//! }
//!
//! fn connect(server: &str) -> std::io::Result<BufReader<TcpStream>> {
//!     Ok(BufReader::new(TcpStream::connect(server)?))
//! }
//!
//! /// Releases an address; `None` if that is uncertain.
//! fn release(address: &str, servers: Vec<String>, request: &Request) -> Result<Option<String>> {
//!     let service = Service {
//!         name: "rack",
//!         servers: servers.clone(),
//!         timeout: Duration::from_secs(5),
//!         unreached: request.unreached(),
//!     };
//!     let mut failover = Failover::new(service, Lines { servers, open: None }, request.deadline);
//!     failover.write(&*format!("release {address}"))
//! }
//! # let _ = release;
//! ```

#![warn(unreachable_pub)]

mod failover;
mod file;
#[cfg(feature = "http")]
mod http;
mod provider_file;
mod request_error;
mod secret;
mod section;
mod server;
mod server_status;
mod tls;
#[cfg(feature = "http")]
mod user_login;
pub mod words;

pub use failover::{Failover, PATIENCE, Service, Transport};
pub use file::read_text;
#[cfg(feature = "http")]
pub use http::{
    Access, Client, HttpAnswer, HttpRequest, Method, Secrets, each_element, escape, media,
    parse_http_date, parse_timestamp, timestamp,
};
pub use request_error::RequestError;
pub use secret::{ConfigFile, Secret};
pub use section::{
    LoginKeys, ServerLogin, ServerSection, ServerSettings, both_or_neither, parse_timeout,
};
pub use server::Server;
pub use tls::{Pem, PemSource, Tls, Trust, host_ca_bundle};
#[cfg(feature = "http")]
pub use user_login::{LoginAnswer, UserLogin};
