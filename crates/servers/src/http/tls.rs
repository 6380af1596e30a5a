use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::tls::{Pem, Trust, host_ca_bundle};
use ipam_kit::error::{Error, ErrorCode, Result};

impl Trust {
    /// The settings of connections.
    ///
    /// # Errors
    /// A file cannot be read, or holds no PEM of its kind; the key is not that of the certificate.
    pub(super) fn settings(&self) -> Result<Arc<ClientConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(ErrorCode::INTERNAL, "cannot set up TLS").caused_by(error)
            })?;
        let builder = if self.skip_verification {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoVerification(provider)))
        } else {
            builder.with_root_certificates(self.root_certificates()?)
        };
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificate.certificates()?;
                let secret = PrivateKeyDer::from_pem_slice(&key.read("PRIVATE KEY")?)
                    .map_err(|error| key.malformed("PRIVATE KEY").caused_by(error))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| {
                    let of = certificate.shown().unwrap_or_else(|| certificate.path.clone());
                    let subject = key.shown().map_or_else(String::new, |file| file + " ");
                    Error::config(
                        &key.path,
                        format_args!("{subject}does not match the certificate {of}"),
                    )
                    .caused_by(error)
                    .advise("name the unencrypted key of that certificate")
                })?
            }
        };
        Ok(Arc::new(config))
    }

    fn root_certificates(&self) -> Result<RootCertStore> {
        let mut store = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                let (added, _) = store.add_parsable_certificates(pem.certificates()?);
                if added == 0 {
                    return Err(pem.malformed("CERTIFICATE"));
                }
            }
            // As Go clients do, the authorities that the host trusts.
            None => {
                let bundle = host_ca_bundle();
                store.add_parsable_certificates(CertificateDer::pem_slice_iter(&bundle).flatten());
            }
        }
        Ok(store)
    }
}

impl Pem {
    /// The certificates in it, at least one.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&self.read("CERTIFICATE")?)
            .collect::<Result<_, _>>()
            .map_err(|error| self.malformed("CERTIFICATE").caused_by(error))
    }
}

/// Takes any certificate for the server's, as far as the server has the key of it.
#[derive(Debug)]
struct NoVerification(Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{ConfigFile, Tls};

    #[test]
    fn a_file_that_is_of_no_use_is_named_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: &str, name: &str| ConfigFile {
            path: path.to_owned(),
            file: folder.path().join(name),
        };
        fs::write(folder.path().join("text"), "no PEM").unwrap();
        let torn = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        fs::write(folder.path().join("torn"), torn).unwrap();
        for (name, what) in [
            ("absent", "cannot be read"),
            ("text", "contains no PEM block of type CERTIFICATE"),
            ("torn", "contains no PEM block of type CERTIFICATE"),
        ] {
            let tls = Tls { ca: Some(named("p.caFile", name)), identity: None };
            let error = Trust::from(tls).settings().unwrap_err();
            let file = folder.path().join(name);
            assert_eq!(error.to_string(), format!("p.caFile: {} {what}", file.display()));
        }
        let identity = Some((named("p.certFile", "text"), named("p.keyFile", "text")));
        let error = Trust::from(Tls { ca: None, identity }).settings().unwrap_err();
        assert!(error.to_string().starts_with("p.certFile: "), "{error}");
    }

    #[test]
    fn without_files_the_host_decides() {
        assert!(Trust::default().settings().is_ok());
    }
}
