//! Servers that speak HTTP.

mod ask;
mod client;
mod dial;
mod elements;
mod exchange;
mod request_error;
mod secrets;
mod tls;

#[cfg(test)]
mod tests;

pub use ask::{Answer, Ask, Method, escape, media};
pub use client::Client;
pub use elements::each_element;
pub use exchange::Access;
pub use secrets::Secrets;
