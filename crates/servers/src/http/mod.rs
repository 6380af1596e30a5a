//! Servers that speak HTTP.

mod client;
mod dial;
mod elements;
mod exchange;
mod message;
mod request_error;
mod secrets;
mod tls;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use elements::each_element;
pub use exchange::Access;
pub use message::{
    HttpAnswer, HttpRequest, Method, escape, media, parse_http_date, parse_timestamp, timestamp,
};
pub use secrets::Secrets;
