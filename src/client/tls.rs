use std::fs;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::secret::Named;
use crate::error::{Error, ErrorCode, Result};

/// Whom to trust over TLS, and as whom to call.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Certificates of the authorities that may have signed the server's; without it, those that the
    /// host trusts.
    pub authority: Option<Named>,
    /// The client's certificate with its key.
    pub identity: Option<(Named, Named)>,
}

/// Where distributions keep the certificates of public authorities.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Tls {
    /// The settings of connections.
    ///
    /// # Errors
    /// A file cannot be read, or holds no PEM of its kind; the key is not that of the certificate.
    pub(super) fn settings(&self) -> Result<Arc<ClientConfig>> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(ErrorCode::INTERNAL, "TLS cannot be set up").caused_by(error)
            })?
            .with_root_certificates(self.authorities()?);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_slice(&read(key, "PRIVATE KEY")?)
                    .map_err(|error| malformed(key, "PRIVATE KEY").caused_by(error))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| {
                    let (file, of) = (key.file.display(), certificate.file.display());
                    Error::config(&key.path, format_args!("{file} does not go with {of}"))
                        .caused_by(error)
                        .advise("give the unencrypted key of that certificate")
                })?
            }
        };
        Ok(Arc::new(config))
    }

    fn authorities(&self) -> Result<RootCertStore> {
        let mut store = RootCertStore::empty();
        match &self.authority {
            Some(named) => {
                let (added, _) = store.add_parsable_certificates(certificates(named)?);
                if added == 0 {
                    return Err(malformed(named, "CERTIFICATE"));
                }
            }
            // As Go clients do, the authorities that the host trusts.
            None => {
                let bundle =
                    BUNDLES.iter().find_map(|path| fs::read(path).ok()).unwrap_or_default();
                store.add_parsable_certificates(CertificateDer::pem_slice_iter(&bundle).flatten());
            }
        }
        Ok(store)
    }
}

fn certificates(named: &Named) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(&read(named, "CERTIFICATE")?)
        .collect::<Result<_, _>>()
        .map_err(|error| malformed(named, "CERTIFICATE").caused_by(error))
}

fn read(named: &Named, kind: &str) -> Result<Vec<u8>> {
    let Named { path, file } = named;
    let content = fs::read(file).map_err(|error| {
        Error::config(path, format_args!("{} cannot be read", file.display()))
            .caused_by(error)
            .advise("name a PEM file that root may read")
    })?;
    let text = String::from_utf8_lossy(&content);
    let begins = |line: &str| line.starts_with("-----BEGIN ") && line.contains(kind);
    if text.lines().any(begins) { Ok(content) } else { Err(malformed(named, kind)) }
}

fn malformed(Named { path, file }: &Named, kind: &str) -> Error {
    Error::config(path, format_args!("{} holds no PEM of a {kind}", file.display()))
        .advise(format!("expected a line like -----BEGIN {kind}-----, and what belongs to it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_of_no_use_is_named_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: &str, name: &str| Named {
            path: path.to_owned(),
            file: folder.path().join(name),
        };
        fs::write(folder.path().join("text"), "no PEM").unwrap();
        let torn = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        fs::write(folder.path().join("torn"), torn).unwrap();
        for (name, what) in [
            ("absent", "cannot be read"),
            ("text", "holds no PEM of a CERTIFICATE"),
            ("torn", "holds no PEM of a CERTIFICATE"),
        ] {
            let tls = Tls { authority: Some(named("p.caFile", name)), identity: None };
            let error = tls.settings().unwrap_err();
            let file = folder.path().join(name);
            assert_eq!(error.to_string(), format!("p.caFile: {} {what}", file.display()));
        }
        let identity = Some((named("p.certFile", "text"), named("p.keyFile", "text")));
        let error = Tls { authority: None, identity }.settings().unwrap_err();
        assert!(error.to_string().starts_with("p.certFile: "), "{error}");
    }

    #[test]
    fn without_files_the_host_decides() {
        assert!(Tls::default().settings().is_ok());
    }
}
