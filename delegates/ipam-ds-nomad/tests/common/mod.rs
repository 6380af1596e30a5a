//! Nomad's API as far as this delegate asks it, in answers as Nomad 1 gives them, and calls of the program.

#![allow(dead_code, clippy::unwrap_used, reason = "test support; each test file uses a part of it")]

use std::process::Command;

use ipam_testkit::fake_http::{self, Fake};
use ipam_testkit::world::{Outcome, World, start, wait};
use serde_json::{Value, json};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ipam-ds-nomad");

/// The allocation of the tests.
pub const ID: &str = "5456bd7a-9fc0-c0dd-6131-cbee77f57577";

/// What a server answers to a request.
#[derive(Clone)]
pub enum Reply {
    Say(u16, String),
    Redirect(String),
    Silence,
}

/// A server of Nomad's.
pub struct Nomad {
    pub url: String,
    server: Fake,
}

impl Nomad {
    /// One that knows this allocation and has a leader.
    pub fn with(id: &str, allocation: &Value) -> Self {
        let (id, allocation) = (id.to_owned(), allocation.to_string());
        Self::start(move |path, _| {
            let path = path.split('?').next().unwrap();
            match path.strip_prefix("/v1/allocation/") {
                Some(asked) if asked == id => Reply::Say(200, allocation.clone()),
                Some(_) => Reply::Say(404, "alloc not found".to_owned()),
                None if path == "/v1/status/leader" => {
                    Reply::Say(200, "\"10.20.30.40:4647\"".to_owned())
                }
                None => Reply::Say(404, "Invalid URL Path".to_owned()),
            }
        })
    }

    /// One that answers always so.
    pub fn saying(status: u16, body: &str) -> Self {
        let reply = Reply::Say(status, body.to_owned());
        Self::start(move |_, _| reply.clone())
    }

    /// One that answers by path and number of the request.
    pub fn start(reply: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let say = move |request: &str, number| {
            let path = request.split(' ').nth(1).unwrap();
            match reply(path, number) {
                Reply::Say(status, body) => fake_http::Reply::Say(format!(
                    "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nVary: Accept-Encoding\r\n\
                     X-Nomad-Index: 54\r\nX-Nomad-Knownleader: true\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )),
                Reply::Redirect(to) => fake_http::Reply::Say(format!(
                    "HTTP/1.1 307 X\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
                )),
                Reply::Silence => fake_http::Reply::Silence,
            }
        };
        let server = fake_http::answering(say);
        Self { url: server.url.clone(), server }
    }

    /// The first lines of the requests so far, without the protocol, and the heads that show a token.
    pub fn requests(&self) -> Vec<String> {
        let heads = self.server.seen.lock().unwrap();
        heads
            .iter()
            .map(|head| {
                let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
                let token = |line: &str| line.to_lowercase().starts_with("x-nomad-token: ");
                match head.lines().find(|line| token(line)) {
                    Some(header) => format!("{line} ({})", &header["x-nomad-token: ".len()..]),
                    None => line,
                }
            })
            .collect()
    }
}

/// An allocation as `/v1/allocation/ID` shows it, of a group with this `meta` and these `network` blocks.
pub fn allocation(meta: Value, networks: Value) -> Value {
    let mut allocation: Value = serde_json::from_str(include_str!("allocation.json")).unwrap();
    let group = &mut allocation["Job"]["TaskGroups"][1];
    group["Meta"] = meta;
    group["Networks"] = networks;
    allocation
}

/// The allocation of a group that asks for 10.0.21.100 of `pool-name` in the network `example`.
pub fn usual() -> Value {
    serde_json::from_str(include_str!("allocation.json")).unwrap()
}

/// A configuration as the chain gives it to this delegate.
pub fn network(urls: &[&str]) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "example", "type": "bridge",
        "ipam": {"type": "ipam-ds-nomad", "nomad_servers": urls},
        "prevResult": {"cniVersion": "1.1.0", "ips": []},
    })
}

/// One call of the program.
pub fn command(world: &World, verb: &str, container: &str) -> Command {
    let mut command = world.command_of(PROGRAM.as_ref(), verb, container);
    // What an operator's shell may have set.
    for proxy in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(proxy, "http://127.0.0.1:1");
    }
    command
}

pub fn call(verb: &str, container: &str, network: &Value) -> Outcome {
    wait(start(command(&World::new(), verb, container), network))
}
