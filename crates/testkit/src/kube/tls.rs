//! TLS of the tests' own: what their client trusts and shows, and what their endpoints show.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::certificates::Pair;

/// Trusts this authority alone.
pub(super) fn client(authority: &Path, shown: Option<&Pair>) -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted(authority));
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(pair) => builder.with_client_auth_cert(chain(pair), key(pair)).unwrap(),
    })
}

pub(super) fn server(shown: &Pair) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    Arc::new(builder.with_single_cert(chain(shown), key(shown)).unwrap())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn trusted(authority: &Path) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    roots
}

fn chain(pair: &Pair) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(&pair.certificate).unwrap().map(Result::unwrap).collect()
}

fn key(pair: &Pair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(&pair.key).unwrap()
}
