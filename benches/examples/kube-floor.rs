//! The least that a process costs which reads a Kubernetes object: what selectors are compared
//! with:
//!
//! ```text
//! kube-floor SERVER PATH AUTHORITY TOKEN              a GET with the token of a file
//! kube-floor SERVER PATH AUTHORITY CERTIFICATE KEY    a GET with a client certificate
//! ```
//!
//! SERVER is `ADDRESS:PORT`; the last ones are files.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

// For its memory allocator, the same as the selectors'.
use ipam_kit as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, path, authority, login @ ..] = &arguments[..] else { return Err(USAGE.into()) };
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
    tcp.set_read_timeout(Some(Duration::from_secs(10)))?;
    let tls = ClientConnection::new(Arc::new(config), address.ip().into())?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {server}\r\nAccept: application/json\r\n{header}\r\n"
    );
    let answer = get(StreamOwned::new(tls, tcp), request.as_bytes())?;
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        return Err(String::from_utf8_lossy(&answer).into());
    }
    writeln!(std::io::stdout(), "{{}}")?;
    Ok(())
}

const USAGE: &str = "expected: SERVER PATH AUTHORITY (TOKEN | CERTIFICATE KEY)";

/// Sends a request and reads until the answer is whole; the connection stays open.
fn get(mut stream: impl Read + Write, request: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    stream.write_all(request)?;
    let (mut answer, mut read) = (vec![0; 64 * 1024], 0);
    while !is_whole(&answer[..read]) {
        match stream.read(&mut answer[read..])? {
            0 => return Err("the answer is cut off, or larger than this program reads".into()),
            length => read += length,
        }
    }
    answer.truncate(read);
    Ok(answer)
}

/// Whether the last chunk has come: a Kubernetes object of some size is sent in chunks.
fn is_whole(answer: &[u8]) -> bool {
    answer.ends_with(b"\r\n0\r\n\r\n")
}
