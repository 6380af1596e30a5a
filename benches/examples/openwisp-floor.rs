//! The least that a process costs which takes an address in OpenWISP IPAM or gives it back: what
//! `ipam-da-openwisp` is compared with:
//!
//! ```text
//! openwisp-floor VERB SERVER TOKEN SUBNET ID-FILE
//! ```
//!
//! SERVER is `ADDRESS:PORT`, SUBNET the id of 10.77.0.0/16. ADD reads the subnet, makes a record of
//! a free address, reads the subnet again and writes the record's id into the file. DEL reads the
//! record of that id, removes it, and removes the file.

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};

// For its memory allocator, the same as the delegate's.
use ipam_kit as _;
use ipam_testkit::servers::http::exchange;

/// The first and the last address of the subnet for containers.
const FIRST: u32 = 0x0A4D_0002;
const LAST: u32 = 0x0A4D_FFFE;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, token, subnet, file] = &arguments[..] else {
        return Err("expected: ADD|DEL SERVER TOKEN SUBNET ID-FILE".into());
    };
    let client = Client { server, token };
    if verb == "ADD" {
        std::fs::write(file, client.add(subnet)?)?;
    } else {
        let record = format!("ip-address/{}/", std::fs::read_to_string(file)?);
        client.ask("GET", &record, "")?;
        client.ask("DELETE", &record, "")?;
        std::fs::remove_file(file)?;
    }
    writeln!(io::stdout(), "{{}}")?;
    Ok(())
}

struct Client<'a> {
    server: &'a str,
    token: &'a str,
}

impl Client<'_> {
    /// Takes an address: the id of its record.
    fn add(&self, subnet: &str) -> io::Result<String> {
        let export = format!("subnet/{subnet}/export/");
        let used = self.ask("POST", &export, "")?;
        let address = free(&used);
        let body = format!(
            r#"{{"subnet":"{subnet}","ip_address":"{address}","description":"openwisp-floor"}}"#
        );
        let made = self.ask("POST", &format!("subnet/{subnet}/ip-address/"), &body)?;
        self.ask("POST", &export, "")?;
        let id = made.split_once(r#""id":""#).and_then(|(_, rest)| rest.get(..36));
        id.map(str::to_owned).ok_or_else(|| io::Error::other(made.clone()))
    }

    /// Sends a request with nothing but the standard library; it has to succeed.
    fn ask(&self, method: &str, path: &str, body: &str) -> io::Result<String> {
        let request = format!(
            "{method} /api/v1/ipam/{path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.server,
            self.token,
            body.len(),
        );
        let answer = exchange(TcpStream::connect(self.server)?, request.as_bytes())?;
        let is_done = (200..300).contains(&answer.status);
        is_done.then(|| answer.text()).ok_or_else(|| io::Error::other(answer.text()))
    }
}

/// A random address that is not at the start of a line of an export.
fn free(used: &str) -> Ipv4Addr {
    loop {
        let random = RandomState::new().build_hasher().finish();
        let span = u64::from(LAST - FIRST);
        let host = FIRST + u32::try_from(random % span).unwrap_or_default();
        let address = Ipv4Addr::from(host);
        if !used.contains(&format!("\n{address},")) {
            return address;
        }
    }
}
