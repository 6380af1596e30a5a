use std::path::Path;

use ipam_kit::host::read_regular;
use ipam_kit::{Error, Result};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::{Named, Store};

/// Where distributions keep the certificates of public authorities.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The settings for endpoints over TLS; none where there are no such endpoints.
///
/// # Errors
/// A file cannot be read or holds no PEM of its kind.
pub(crate) fn settings(store: &Store) -> Result<Option<ClientTlsConfig>> {
    if !store.endpoints.iter().any(crate::endpoint::Endpoint::is_secured) {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new().assume_http2(true);
    match &store.trusted {
        Some(trusted) => {
            tls = tls.ca_certificate(Certificate::from_pem(read(trusted, "CERTIFICATE")?));
        }
        // As Go clients do, the authorities that the host trusts.
        None => {
            let bundle = BUNDLES.iter().find_map(|path| read_regular(Path::new(path)).ok());
            tls = tls.ca_certificates(bundle.map(Certificate::from_pem));
        }
    }
    if let Some((cert, key)) = &store.identity {
        let (cert, key) = (read(cert, "CERTIFICATE")?, read(key, "PRIVATE KEY")?);
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    Ok(Some(tls))
}

fn read(named: &Named, kind: &str) -> Result<Vec<u8>> {
    let file = named.file.display();
    let content = read_regular(&named.file).map_err(|error| {
        Error::config(&named.path, format_args!("{file} cannot be read"))
            .caused_by(error)
            .advise("name a PEM file that root may read")
    })?;
    let text = String::from_utf8_lossy(&content);
    let begins = |line: &str| line.starts_with("-----BEGIN ") && line.contains(kind);
    if !text.lines().any(begins) {
        return Err(Error::config(&named.path, format_args!("{file} holds no PEM of a {kind}"))
            .advise(format!("expected a line like -----BEGIN {kind}-----")));
    }
    Ok(content)
}
