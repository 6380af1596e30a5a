use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

use super::file;
use super::secret::ConfigFile;
use ipam_kit::error::{Error, Result};

/// The CA that TLS trusts, and the client's certificate.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// The CA certificates that may have signed the server's; without it, the host's.
    pub ca: Option<ConfigFile>,
    /// The client's certificate with its key.
    pub identity: Option<(ConfigFile, ConfigFile)>,
}

/// PEM, with its path.
#[derive(Clone)]
pub struct Pem {
    /// The key with the PEM or its file's name.
    pub path: String,
    /// The PEM itself, or its file.
    pub source: PemSource,
}

/// The source of PEM.
#[derive(Clone)]
pub enum PemSource {
    /// A file, read when a connection is made.
    File(PathBuf),
    /// The PEM itself, as in a kubeconfig.
    Data(Vec<u8>),
}

/// [`Tls`] with more choices.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// As [`Tls::ca`].
    pub ca: Option<Pem>,
    /// As [`Tls::identity`].
    pub identity: Option<(Pem, Pem)>,
    /// Whether any certificate of the server is accepted.
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
    /// The content, with PEM of this kind: `CERTIFICATE` or `PRIVATE KEY`.
    ///
    /// # Errors
    /// The file cannot be read, or holds no PEM of the kind.
    pub fn read(&self, kind: &str) -> Result<Cow<'_, [u8]>> {
        let content = match &self.source {
            PemSource::Data(data) => Cow::Borrowed(&data[..]),
            PemSource::File(file) => Cow::Owned(file::read(file).map_err(|error| {
                Error::config(&self.path, format_args!("{} cannot be read", file.display()))
                    .caused_by(error)
                    .advise("name a PEM file that root can read")
            })?),
        };
        let text = String::from_utf8_lossy(&content);
        let has_kind =
            text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind));
        if has_kind { Ok(content) } else { Err(self.malformed(kind)) }
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
        Error::config(&self.path, format_args!("{subject}contains no PEM block of type {kind}"))
            .advise(format!("expected a block that begins with -----BEGIN {kind}-----"))
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// The files with public CA certificates, by distribution.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The CA certificates that the host trusts, as PEM; empty without such a file.
pub fn host_ca_bundle() -> Vec<u8> {
    BUNDLES.iter().find_map(|path| file::read(Path::new(path)).ok()).unwrap_or_default()
}
