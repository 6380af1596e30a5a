use ipam_kit::Result;
use ipam_servers::{ConfigFile, Pem, host_ca_bundle};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::EtcdStore;
use crate::endpoint::Endpoint;

/// Returns the settings for servers over TLS; `None` if no endpoint uses TLS.
///
/// # Errors
/// A file cannot be read or holds no PEM of its kind.
pub(crate) fn settings(store: &EtcdStore) -> Result<Option<ClientTlsConfig>> {
    if !store.endpoints.iter().any(Endpoint::is_secured) {
        return Ok(None);
    }
    let mut tls = ClientTlsConfig::new().assume_http2(true);
    tls = tls.ca_certificate(Certificate::from_pem(match &store.trusted {
        Some(trusted) => read(trusted, "CERTIFICATE")?,
        // The CAs that the host trusts, as Go clients do.
        None => host_ca_bundle(),
    }));
    if let Some((cert, key)) = &store.identity {
        let cert = read(cert, "CERTIFICATE")?;
        let key = read(key, "PRIVATE KEY")?;
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    Ok(Some(tls))
}

fn read(named: &ConfigFile, kind: &str) -> Result<Vec<u8>> {
    Ok(Pem::from(named.clone()).read(kind)?.into_owned())
}
