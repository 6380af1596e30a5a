use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use log::warn;

use super::kubeconfig::{CurrentContext, Kubeconfig, KubeconfigSection};
use super::resource::is_object_name;
use super::validity::{Moment, Validity};
use ipam_kit::error::{Error, Result};
use ipam_servers::{ConfigFile, Pem, PemSource, Secret, Server, Trust, read_text};

/// An API server, and the credentials to show it.
#[derive(Debug)]
pub(super) struct KubeCredentials {
    pub server: Server,
    pub trust: Trust,
    /// With its path.
    pub token: Option<(String, Secret)>,
    /// With its path.
    pub namespace: Option<(String, String)>,
    /// The path of the server's address.
    pub server_path: String,
    /// The path of the CA, also if it is missing.
    pub ca_path: String,
}

/// The part of credentials that proves who sends a request, and that rotates.
#[derive(PartialEq, Eq)]
pub(super) struct LoginProof {
    token: Option<Secret>,
    /// PEM, if it can be read.
    certificate: Option<Vec<u8>>,
}

/// The files of a pod's service account.
pub(super) const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";

impl KubeCredentials {
    /// The credentials of the current context of kubeconfigs, each with the name that errors give it.
    ///
    /// # Errors
    /// One cannot be read, is wrong, or has a setting that is not supported.
    pub(super) fn of_kubeconfigs(files: &[(String, &Path)]) -> Result<Self> {
        let kubeconfig = Kubeconfig::read(files)?;
        let CurrentContext { context, cluster, user } = kubeconfig.current()?;
        for (key, instead) in NOT_OF_CLUSTERS {
            cluster.without(key, instead)?;
        }
        let skip_verification = cluster.flag("insecure-skip-tls-verify")?;
        let ca = cluster.pem("certificate-authority")?;
        if let Some(ca) = ca.as_ref().filter(|_| skip_verification) {
            return Err(Error::config(
                cluster.path("insecure-skip-tls-verify"),
                format_args!("true, together with {}", ca.path),
            )
            .advise("remove insecure-skip-tls-verify: the CA is configured"));
        }
        let (identity, token) = match &user {
            None => (None, None),
            Some(user) => {
                for (key, instead) in NOT_OF_USERS {
                    user.without(key, instead)?;
                }
                (identity(user)?, token(user)?)
            }
        };
        let secured = skip_verification || ca.is_some() || identity.is_some();
        let server = server(&cluster, secured)?;
        let ca_path = match &ca {
            Some(ca) => ca.path.clone(),
            None => cluster.path("certificate-authority-data"),
        };
        if skip_verification && server.is_secured() {
            warn!(
                "{}: the certificate of {server} is not verified",
                cluster.path("insecure-skip-tls-verify")
            );
        }
        if let Some((path, _)) = token.as_ref().filter(|_| !server.is_secured()) {
            warn!("{path}: the token is sent to {server} without TLS, in plain text");
        }
        Ok(Self {
            server,
            trust: Trust { ca, identity, skip_verification },
            token,
            namespace: namespace(&context)?,
            server_path: cluster.path("server"),
            ca_path,
        })
    }

    /// The identity of the cluster: a hash of its CA, else the server's URL.
    pub(super) fn cluster(&self) -> Result<String> {
        let Some(ca) = &self.trust.ca else { return Ok(self.server.to_string()) };
        let mut hasher = DefaultHasher::new();
        ca.certificates()?.hash(&mut hasher);
        Ok(format!("{:016x}", hasher.finish()))
    }

    /// The service account in a folder, for the API server at a host and port.
    ///
    /// # Errors
    /// The token cannot be read; host and port make no URL.
    pub(super) fn of_pod(folder: &Path, (host, port): (&str, &str)) -> Result<Self> {
        let server_path = "KUBERNETES_SERVICE_HOST".to_owned();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let server = Server::parse_one(&format!("https://{host}:{port}"), &server_path, None)?;
        let path = "the service account".to_owned();
        let token = ConfigFile { path: path.clone(), file: folder.join(TOKEN) };
        let secret = Secret::read(&token)?;
        let ca_file = folder.join(CA);
        let ca_path = ca_file.display().to_string();
        let ca = ca_file.exists().then_some(Pem { path, source: PemSource::File(ca_file) });
        let namespace_file = folder.join(NAMESPACE);
        let namespace = read_text(&namespace_file).ok();
        let namespace =
            namespace.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        Ok(Self {
            server,
            trust: Trust { ca, ..Trust::default() },
            token: Some((token.file.display().to_string(), secret)),
            namespace: namespace.map(|name| (namespace_file.display().to_string(), name)),
            server_path,
            ca_path,
        })
    }

    /// The token and the client's certificate, as it is now.
    pub(super) fn proof(&self) -> LoginProof {
        let certificate = self.trust.identity.as_ref().and_then(|(certificate, _)| {
            certificate.read("CERTIFICATE").ok().map(|content| content.into_owned())
        });
        let token = self.token.as_ref().map(|(_, secret)| secret.clone());
        LoginProof { token, certificate }
    }

    /// The credentials without their secrets, and whether they have expired: for an error.
    pub(super) fn shown(&self) -> String {
        let mut shown = Vec::new();
        if let Some((certificate, _)) = &self.trust.identity {
            let chain = certificate.certificates().unwrap_or_default();
            let validity = chain.first().and_then(|first| Validity::of_certificate(first));
            shown.push(with_validity("the client certificate", &certificate.path, validity));
        }
        if let Some((path, secret)) = &self.token {
            let validity = Validity::of_token(secret.expose());
            shown.push(with_validity("the token", path, validity));
        }
        if shown.is_empty() { "no credentials".to_owned() } else { shown.join(" and ") }
    }
}

/// Without its secrets.
impl fmt::Debug for LoginProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// A certificate or token with its path, and with the reason if it is not valid now.
fn with_validity(name: &str, path: &str, validity: Option<Validity>) -> String {
    match validity.and_then(|validity| validity.complaint(Moment::now())) {
        Some(complaint) => format!("{name} ({path}), which {complaint}"),
        None => format!("{name} ({path})"),
    }
}

/// Keys of a cluster that are not supported, with advice.
const NOT_OF_CLUSTERS: [(&str, &str); 2] = [
    ("proxy-url", "remove it, and name a server that is reachable without a proxy"),
    ("tls-server-name", "remove it, and use the name in the server's certificate as the server"),
];

/// Keys of a user that are not supported, with advice.
const NOT_OF_USERS: [(&str, &str); 8] = [
    ("exec", WITHOUT_PROGRAM),
    ("auth-provider", WITHOUT_PROGRAM),
    ("username", WITHOUT_PASSWORD),
    ("password", WITHOUT_PASSWORD),
    ("as", WITHOUT_MASK),
    ("as-uid", WITHOUT_MASK),
    ("as-groups", WITHOUT_MASK),
    ("as-user-extra", WITHOUT_MASK),
];
const WITHOUT_PROGRAM: &str = "programs that provide credentials are not run: give this user a tokenFile, a token, or client-certificate with client-key, \
     for example those of a service account";
const WITHOUT_PASSWORD: &str = "Kubernetes does not accept passwords: give this user a tokenFile, a token, or client-certificate with client-key";
const WITHOUT_MASK: &str = "impersonation is not supported: use the credentials of that user";

/// As in client-go, a server without a scheme uses TLS if the kubeconfig has any setting of TLS.
fn server(cluster: &KubeconfigSection<'_>, secured: bool) -> Result<Server> {
    let Some(server) = cluster.string("server")? else {
        return Err(cluster
            .missing("server")
            .advise("set the URL of the API server, for example https://10.20.30.40:6443"));
    };
    let scheme = match (server.contains("://"), secured) {
        (true, _) => "",
        (false, true) => "https://",
        (false, false) => "http://",
    };
    Server::parse_one(&format!("{scheme}{server}"), &cluster.path("server"), None)
}

fn namespace(context: &KubeconfigSection<'_>) -> Result<Option<(String, String)>> {
    let Some(name) = context.string("namespace")? else { return Ok(None) };
    let path = context.path("namespace");
    if is_object_name(name) {
        return Ok(Some((path, name.to_owned())));
    }
    Err(Error::config(path, format_args!("{name:?} cannot be the name of a namespace"))
        .advise("use lower-case letters, digits and -, as in kube-system"))
}

fn identity(user: &KubeconfigSection<'_>) -> Result<Option<(Pem, Pem)>> {
    match (user.pem("client-certificate")?, user.pem("client-key")?) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (Some(given), None) => Err(half_missing(user, "client-key", &given)),
        (None, Some(given)) => Err(half_missing(user, "client-certificate", &given)),
    }
}

fn half_missing(user: &KubeconfigSection<'_>, key: &str, given: &Pem) -> Error {
    Error::config(user.path(key), format_args!("missing, but {} is given", given.path))
        .advise("give both or neither")
}

/// The token in the file, which rotates, if that can be read; else the one in the kubeconfig.
fn token(user: &KubeconfigSection<'_>) -> Result<Option<(String, Secret)>> {
    let path = user.path("token");
    let token = user.string("token")?.map(|token| Secret::parse(token, &path));
    let token = token.transpose()?.map(|secret| (path, secret));
    let Some(file) = user.file("tokenFile")? else { return Ok(token) };
    match (read(user, file), token) {
        (Err(error), Some(token)) => {
            warn!("{}; the user's token is used instead", error.in_full());
            Ok(Some(token))
        }
        (Err(error), None) => Err(error),
        (Ok(secret), _) => Ok(Some((user.path("tokenFile"), secret))),
    }
}

fn read(user: &KubeconfigSection<'_>, file: PathBuf) -> Result<Secret> {
    Secret::read(&ConfigFile { path: user.path("tokenFile"), file })
}

#[cfg(test)]
mod tests;
