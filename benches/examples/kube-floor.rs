//! The least that a process costs which sends requests to a Kubernetes API server: what selectors
//! and `ipam-da-kube` are compared with:
//!
//! ```text
//! kube-floor VERB SERVER ADD-REQUESTS DEL-REQUESTS AUTHORITY TOKEN
//! kube-floor VERB SERVER ADD-REQUESTS DEL-REQUESTS AUTHORITY CERTIFICATE KEY
//! ```
//!
//! SERVER is `ADDRESS:PORT`; the last ones are files. Requests are lines of `METHOD ACCEPT PATH
//! BODY`, which are sent one after the other. `{resourceVersion}` in a body becomes that of the
//! latest object in an answer. A patch that meets others too often (409) is sent again.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

// For its memory allocator, the same as the delegates'.
use ipam_kit as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [verb, server, add, del, authority, login @ ..] = &arguments[..] else {
        return Err(USAGE.into());
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let (config, header) = match login {
        [token] => {
            let token = std::fs::read_to_string(token)?;
            (builder.with_no_client_auth(), format!("Authorization: Bearer {}\r\n", token.trim()))
        }
        [certificate, key] => {
            let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
            let key = PrivateKeyDer::from_pem_file(key)?;
            (builder.with_client_auth_cert(chain, key)?, String::new())
        }
        _ => return Err(USAGE.into()),
    };
    let address: SocketAddr = server.parse()?;
    let tcp = TcpStream::connect(address)?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(Duration::from_secs(30)))?;
    let tls = ClientConnection::new(Arc::new(config), address.ip().into())?;
    let mut stream = BufReader::with_capacity(16 * 1024, StreamOwned::new(tls, tcp));
    let mut version = String::new();
    for line in if verb == "DEL" { del } else { add }.lines() {
        let mut parts = line.splitn(4, ' ');
        let [Some(method), Some(accept), Some(path)] = [(); 3].map(|()| parts.next()) else {
            return Err(USAGE.into());
        };
        let kind = if method == "PATCH" { "json-patch+json" } else { "json" };
        let body = parts.next().unwrap_or_default().replace("{resourceVersion}", &version);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {server}\r\nAccept: {accept}\r\n{header}\
             Content-Type: application/{kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len(),
        );
        let (mut status, mut answer) = exchange(&mut stream, request.as_bytes())?;
        while (method, status) == ("PATCH", 409) {
            (status, answer) = exchange(&mut stream, request.as_bytes())?;
        }
        // A reservation may be missing.
        if status >= 300 && (method, status) != ("GET", 404) {
            return Err(format!("{line}: {}", String::from_utf8_lossy(&answer)).into());
        }
        if let Some(found) = version_in(&answer) {
            version = found;
        }
    }
    writeln!(std::io::stdout(), "{{}}")?;
    Ok(())
}

const USAGE: &str =
    "expected: VERB SERVER ADD-REQUESTS DEL-REQUESTS AUTHORITY (TOKEN | CERTIFICATE KEY)";

/// Sends a request and reads its answer, whose length is known or which comes in chunks.
fn exchange(
    stream: &mut BufReader<impl Read + Write>,
    request: &[u8],
) -> io::Result<(u16, Vec<u8>)> {
    stream.get_mut().write_all(request)?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.get(9..12).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("no answer"))?;
    let (mut body, mut length) = (Vec::new(), None);
    while !line.trim_end().is_empty() {
        line.clear();
        stream.read_line(&mut line)?;
        let header = line.to_ascii_lowercase();
        length =
            length.or(header.strip_prefix("content-length:").map(|text| text.trim().to_owned()));
    }
    if let Some(length) = length {
        let length = length.parse().map_err(io::Error::other)?;
        stream.take(length).read_to_end(&mut body)?;
        return Ok((status, body));
    }
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim_end(), 16).map_err(io::Error::other)?;
        stream.by_ref().take(length).read_to_end(&mut body)?;
        stream.read_line(&mut line)?;
        if length == 0 {
            return Ok((status, body));
        }
    }
}

fn version_in(answer: &[u8]) -> Option<String> {
    let name = b"\"resourceVersion\":\"";
    let start = answer.windows(name.len()).position(|part| part == name)? + name.len();
    let end = answer[start..].iter().position(|byte| *byte == b'"')?;
    String::from_utf8(answer[start..start + end].to_vec()).ok()
}
