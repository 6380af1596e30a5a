use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use log::warn;

use super::kubeconfig::{Current, Kubeconfig, Section};
use super::validity::{Moment, Validity};
use ipam_kit::error::{Error, Result};
use ipam_servers::{ConfigFile, Pem, PemSource, Secret, Server, Trust, read_text};

/// Which API server, and as whom.
#[derive(Debug)]
pub(super) struct Login {
    pub server: Server,
    pub trust: Trust,
    /// With where it comes from.
    pub token: Option<(String, Secret)>,
    pub namespace: Option<String>,
    /// Where the server's address comes from.
    pub server_path: String,
    /// Where the CA comes from, or would.
    pub ca_path: String,
}

/// The files that a pod finds its service account in.
pub(super) const TOKEN: &str = "token";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";

impl Login {
    /// What kubeconfigs say for their current context, each with the name that errors give it.
    ///
    /// # Errors
    /// One cannot be read, or says what is wrong or not supported.
    pub(super) fn of_kubeconfigs(files: &[(String, &Path)]) -> Result<Self> {
        let kubeconfig = Kubeconfig::read(files)?;
        let Current { context, cluster, user } = kubeconfig.current()?;
        for (key, instead) in NOT_OF_CLUSTERS {
            cluster.without(key, instead)?;
        }
        let skip_verification = cluster.flag("insecure-skip-tls-verify")?;
        let ca = cluster.pem("certificate-authority")?;
        if let Some(ca) = ca.as_ref().filter(|_| skip_verification) {
            return Err(Error::config(
                cluster.path("insecure-skip-tls-verify"),
                format_args!("true together with {}", ca.path),
            )
            .advise("leave insecure-skip-tls-verify out: the authority is there"));
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
                "{}: whoever answers at {server} is taken for the API server",
                cluster.path("insecure-skip-tls-verify")
            );
        }
        if let Some((place, _)) = token.as_ref().filter(|_| !server.is_secured()) {
            warn!("{place}: the token goes to {server} without TLS, for everybody to read");
        }
        Ok(Self {
            server,
            trust: Trust { ca, identity, skip_verification },
            token,
            namespace: context.text("namespace")?.map(str::to_owned),
            server_path: cluster.path("server"),
            ca_path,
        })
    }

    /// What tells the cluster from others.
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
        let place = "the service account".to_owned();
        let token = ConfigFile { path: place.clone(), file: folder.join(TOKEN) };
        let secret = Secret::read(&token)?;
        let ca_file = folder.join(CA);
        let ca_path = ca_file.display().to_string();
        let there = ca_file.exists();
        let pem = Pem { path: place, source: PemSource::File(ca_file) };
        let ca = there.then_some(pem);
        let namespace = read_text(&folder.join(NAMESPACE)).ok();
        Ok(Self {
            server,
            trust: Trust { ca, ..Trust::default() },
            token: Some((token.file.display().to_string(), secret)),
            namespace: namespace.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
            server_path,
            ca_path,
        })
    }

    /// By what the server was to know us, with what is wrong about it by now: for an error.
    pub(super) fn shown(&self) -> String {
        let now = Moment::now();
        let told = |what: &str, place: &str, validity: Option<Validity>| match validity
            .and_then(|validity| validity.complaint(now))
        {
            Some(complaint) => format!("{what} ({place}), which {complaint}"),
            None => format!("{what} ({place})"),
        };
        let mut shown = Vec::new();
        if let Some((certificate, _)) = &self.trust.identity {
            let chain = certificate.certificates().unwrap_or_default();
            let validity = chain.first().and_then(|first| Validity::of_certificate(first));
            shown.push(told("the client certificate", &certificate.path, validity));
        }
        if let Some((place, secret)) = &self.token {
            shown.push(told("the token", place, Validity::of_token(secret.expose())));
        }
        if shown.is_empty() { "no login at all".to_owned() } else { shown.join(" and ") }
    }
}

/// What a cluster may not have, with what to do instead.
const NOT_OF_CLUSTERS: [(&str, &str); 2] = [
    ("proxy-url", "name a server that can be reached without a proxy"),
    ("tls-server-name", "name the server as its certificate does"),
];

/// What a user may not have, with what to do instead.
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
const WITHOUT_PROGRAM: &str = "no program is run for a login: give this user a tokenFile, a token, or client-certificate with client-key, \
     as a service account of its own has them";
const WITHOUT_PASSWORD: &str = "Kubernetes takes no passwords: give this user a tokenFile, a token, or client-certificate with client-key";
const WITHOUT_MASK: &str =
    "nobody is impersonated: give the login of the very user that is to be acted as";

/// As client-go, a server without a scheme is one over TLS where anything about TLS is said.
fn server(cluster: &Section<'_>, secured: bool) -> Result<Server> {
    let missing =
        || cluster.missing("server").advise("name the API server, as in https://10.20.30.40:6443");
    let text = cluster.text("server")?.ok_or_else(missing)?;
    let scheme = match (text.contains("://"), secured) {
        (true, _) => "",
        (false, true) => "https://",
        (false, false) => "http://",
    };
    Server::parse_one(&format!("{scheme}{text}"), &cluster.path("server"), None)
}

fn identity(user: &Section<'_>) -> Result<Option<(Pem, Pem)>> {
    let missing = |key: &str, given: &Pem| {
        Error::config(user.path(key), format_args!("missing, but there is {}", given.path))
            .advise("give both or neither")
    };
    match (user.pem("client-certificate")?, user.pem("client-key")?) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (Some(given), None) => Err(missing("client-key", &given)),
        (None, Some(given)) => Err(missing("client-certificate", &given)),
    }
}

/// The token in the file, which rotates, where that can be read; else the one that is written out.
fn token(user: &Section<'_>) -> Result<Option<(String, Secret)>> {
    let path = user.path("token");
    let token = user.text("token")?.map(|text| Secret::parse(text, &path));
    let token = token.transpose()?.map(|secret| (path, secret));
    let Some(file) = user.file("tokenFile")? else { return Ok(token) };
    match (read(user, file), token) {
        (Err(error), Some(token)) => {
            warn!("{}; the token is used that stands beside it", error.in_full());
            Ok(Some(token))
        }
        (Err(error), None) => Err(error),
        (Ok(secret), _) => Ok(Some((user.path("tokenFile"), secret))),
    }
}

fn read(user: &Section<'_>, file: PathBuf) -> Result<Secret> {
    Secret::read(&ConfigFile { path: user.path("tokenFile"), file })
}

#[cfg(test)]
mod tests;
