//! The least that a process costs which takes an address in phpIPAM or gives it back: what
//! `ipam-da-phpipam` is compared with:
//!
//! ```text
//! phpipam-floor VERB SERVER APP CODE SUBNET [KEY-FIELD] ID-FILE
//! ```
//!
//! SERVER is `ADDRESS:PORT`, SUBNET the id of a subnet. ADD lists the node's records in it, makes a
//! record of the address that phpIPAM chooses, and writes the record's id into the file. With a
//! custom field, it lists nothing, and the record has the file's name in the field. DEL reads the
//! record of that id, removes it, and removes the file.

use std::error::Error;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::Path;

// For its memory allocator, the same as the delegate's.
use ipam_kit as _;
use ipam_testkit::servers::http::{Answer, exchange};

const LIST: &str = "addresses/?filter_by=note&filter_match=partial&filter_value=floor";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, app, code, subnet, key_field @ .., file] = &arguments[..] else {
        return Err("expected: ADD|DEL SERVER APP CODE SUBNET [KEY-FIELD] ID-FILE".into());
    };
    let client = Client { server, app, code };
    if verb == "ADD" {
        let name = Path::new(file).file_name().unwrap_or_default().display();
        let key = key_field.first().map(|field| format!(r#","{field}":"{name}""#));
        std::fs::write(file, client.add(subnet, key)?)?;
    } else {
        let record = format!("addresses/{}/", std::fs::read_to_string(file)?);
        client.ask("GET", &record, "", &[200])?;
        client.ask("DELETE", &record, "", &[200])?;
        std::fs::remove_file(file)?;
    }
    writeln!(io::stdout(), "{{}}")?;
    Ok(())
}

struct Client<'a> {
    server: &'a str,
    app: &'a str,
    code: &'a str,
}

impl Client<'_> {
    /// Takes an address: the id of its record.
    fn add(&self, subnet: &str, key: Option<String>) -> io::Result<String> {
        if key.is_none() {
            // An empty list is 404.
            self.ask("GET", &format!("subnets/{subnet}/{LIST}"), "", &[200, 404])?;
        }
        let body = format!(
            r#"{{"note":"floor","hostname":"floor","owner":"floor","description":"floor"{}}}"#,
            key.unwrap_or_default()
        );
        let path = format!("addresses/first_free/{subnet}/");
        let made = self.ask("POST", &path, &body, &[201])?.text();
        // A number or a text.
        let id = made.split_once(r#""id":"#).and_then(|(_, rest)| rest.split([',', '}']).next());
        let id = id.map(|id| id.trim_matches('"'));
        id.map(str::to_owned).ok_or_else(|| io::Error::other(made.clone()))
    }

    /// Sends a request with nothing but the standard library; its answer must have one of these
    /// statuses.
    fn ask(&self, method: &str, path: &str, body: &str, statuses: &[u16]) -> io::Result<Answer> {
        let request = format!(
            "{method} /api/{}/{path} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\ntoken: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.app,
            self.server,
            self.code,
            body.len(),
        );
        let answer = exchange(TcpStream::connect(self.server)?, request.as_bytes())?;
        if statuses.contains(&answer.status) {
            Ok(answer)
        } else {
            Err(io::Error::other(answer.text()))
        }
    }
}
