use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use super::file;
use super::secret::ConfigFile;
use ipam_kit::error::{Error, Result};

/// Whom to trust over TLS, and as whom to call.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Certificates of the authorities that may have signed the server's; without it, those that the
    /// host trusts.
    pub ca: Option<ConfigFile>,
    /// The client's certificate with its key.
    pub identity: Option<(ConfigFile, ConfigFile)>,
}

/// PEM, and where it is.
#[derive(Clone)]
pub struct Pem {
    /// Where the configuration has it, or names its file.
    pub path: String,
    /// The PEM itself, or its file.
    pub source: PemSource,
}

/// Where PEM comes from.
#[derive(Clone)]
pub enum PemSource {
    /// A file, read when a connection is made.
    File(PathBuf),
    /// The text itself, as in a kubeconfig.
    Data(Vec<u8>),
}

/// What [`Tls`] names, and what else may be had.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// As [`Tls::ca`].
    pub ca: Option<Pem>,
    /// As [`Tls::identity`].
    pub identity: Option<(Pem, Pem)>,
    /// Whether whoever answers is taken for the server.
    pub skip_verification: bool,
}

impl From<ConfigFile> for Pem {
    fn from(ConfigFile { path, file }: ConfigFile) -> Self {
        Self { path, source: PemSource::File(file) }
    }
}

impl From<Tls> for Trust {
    fn from(Tls { ca, identity }: Tls) -> Self {
        Self {
            ca: ca.map(Pem::from),
            identity: identity.map(|(certificate, key)| (certificate.into(), key.into())),
            skip_verification: false,
        }
    }
}

impl Pem {
    /// The content, in which there is PEM of this kind, as in `CERTIFICATE` or `PRIVATE KEY`.
    ///
    /// # Errors
    /// The file cannot be read, or holds no PEM of the kind.
    pub fn read(&self, kind: &str) -> Result<Cow<'_, [u8]>> {
        let content = match &self.source {
            PemSource::Data(data) => Cow::Borrowed(&data[..]),
            PemSource::File(file) => Cow::Owned(file::read(file).map_err(|error| {
                Error::config(&self.path, format_args!("{} cannot be read", file.display()))
                    .caused_by(error)
                    .advise("name a PEM file that root may read")
            })?),
        };
        let text = String::from_utf8_lossy(&content);
        let begins = |line: &str| line.starts_with("-----BEGIN ") && line.contains(kind);
        if text.lines().any(begins) { Ok(content) } else { Err(self.malformed(kind)) }
    }

    /// The file's name.
    pub(crate) fn shown(&self) -> Option<String> {
        match &self.source {
            PemSource::File(file) => Some(file.display().to_string()),
            PemSource::Data(_) => None,
        }
    }

    pub(crate) fn malformed(&self, kind: &str) -> Error {
        let subject = self.shown().map_or_else(String::new, |file| file + " ");
        Error::config(&self.path, format_args!("{subject}holds no PEM of a {kind}"))
            .advise(format!("expected a line like -----BEGIN {kind}-----, and what belongs to it"))
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Where distributions keep the certificates of public authorities.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The certificates of the authorities that the host trusts, as PEM; empty where it names none.
pub fn host_ca_bundle() -> Vec<u8> {
    BUNDLES.iter().find_map(|path| file::read(Path::new(path)).ok()).unwrap_or_default()
}
