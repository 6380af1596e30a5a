use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::credentials::{KubeCredentials, TOKEN};
use ipam_kit::cni::Environment;
use ipam_kit::error::{Error, Result};
use ipam_kit::host::Settings;
use ipam_servers::ConfigFile;

/// The source of the credentials for a Kubernetes API server. No file is read yet.
#[derive(Clone, Debug)]
pub struct CredentialsSource {
    origin: CredentialsOrigin,
    timeout: Duration,
}

#[derive(Clone, Debug)]
enum CredentialsOrigin {
    /// The configuration names it.
    Named(ConfigFile),
    /// `KUBECONFIG` names them; at least one exists.
    List(Vec<PathBuf>),
    /// A service account, and the host and port of the API server.
    Pod(PathBuf, String, String),
    /// kubectl's default.
    Home(PathBuf),
}

/// The folder in which a pod has its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

const LIST: &str = "KUBECONFIG";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";
const HOME: &str = "HOME";

const TIMEOUT: Duration = Duration::from_secs(10);

impl CredentialsSource {
    /// Finds the source. `key` is the path of the key that may name a kubeconfig. A kubeconfig
    /// that the configuration names is the only candidate; else the first is taken of those in
    /// `KUBECONFIG`, the service account of this pod, and `~/.kube/config`.
    ///
    /// # Errors
    /// Error 7: no source is found; the named kubeconfig has a relative path, or the host's settings do
    /// not allow it.
    pub fn find(
        key: &str,
        named: Option<ConfigFile>,
        environment: &Environment,
        host: &Settings,
    ) -> Result<Self> {
        if let Some(ConfigFile { path, file }) = &named {
            if file.is_relative() {
                let message = format_args!("{} is a relative path", file.display());
                return Err(Error::config(path, message)
                    .advise("write the absolute path: a runtime may call from any folder"));
            }
            host.refuse_kubeconfig(path, file)?;
        }
        Self::find_in(Path::new(SERVICE_ACCOUNT), key, named, environment)
    }

    /// The service account in a folder with `token`, `ca.crt` and `namespace`, as in a pod; `None` if
    /// the environment names no API server, or the folder has no token.
    pub fn service_account(folder: &Path, environment: &Environment) -> Option<Self> {
        let (host, port) = (environment.text(HOST)?, environment.text(PORT)?);
        let origin = CredentialsOrigin::Pod(folder.to_owned(), host.to_owned(), port.to_owned());
        folder.join(TOKEN).is_file().then(|| Self::of(origin))
    }

    /// Retries for this long after the first failure, instead of 10 seconds: for a caller that does not
    /// need an answer.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The identity of this source, as a key for what was read by it. It shows no secret.
    pub(crate) fn identity(&self) -> String {
        match &self.origin {
            CredentialsOrigin::Named(ConfigFile { file, .. }) | CredentialsOrigin::Home(file) => {
                file.display().to_string()
            }
            CredentialsOrigin::List(files) => joined(files, ":"),
            CredentialsOrigin::Pod(folder, host, port) => {
                format!("{}@{host}:{port}", folder.display())
            }
        }
    }

    /// The time of [`CredentialsSource::within`].
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn of(origin: CredentialsOrigin) -> Self {
        Self { origin, timeout: TIMEOUT }
    }

    fn find_in(
        service_account: &Path,
        key: &str,
        named: Option<ConfigFile>,
        environment: &Environment,
    ) -> Result<Self> {
        if let Some(named) = named {
            return Ok(Self::of(CredentialsOrigin::Named(named)));
        }
        let list = listed(environment);
        if list.iter().any(|file| file.exists()) {
            return Ok(Self::of(CredentialsOrigin::List(list)));
        }
        if let Some(pod) = Self::service_account(service_account, environment) {
            return Ok(pod);
        }
        let home = environment.text(HOME).map(|home| Path::new(home).join(".kube/config"));
        if let Some(file) = home.as_ref().filter(|file| file.exists()) {
            return Ok(Self::of(CredentialsOrigin::Home(file.clone())));
        }
        let list = match &list[..] {
            [] => format!("{LIST} is empty or not set"),
            list => format!("{LIST}: {} not found", joined(list, ", ")),
        };
        let pod = match (environment.text(HOST), environment.text(PORT)) {
            (Some(_), Some(_)) => format!("{}/{TOKEN} not found", service_account.display()),
            _ => format!("{HOST} and {PORT} are not set (not in a pod)"),
        };
        let home = match home {
            Some(file) => format!("{} not found", file.display()),
            None => format!("{HOME} is not set"),
        };
        let message =
            format!("missing, and no other Kubernetes credentials found: {list}; {pod}; {home}");
        Err(Error::config(key, message).advise(
            "name a kubeconfig whose user has the rights of the README, for example \"kubeconfig\": \
             \"/etc/cni/net.d/ipam-delegated.d/kubeconfig\"",
        ))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// Error 7: a file cannot be read, is wrong, or has a setting that is not supported.
    pub(super) fn credentials(&self) -> Result<KubeCredentials> {
        match &self.origin {
            CredentialsOrigin::Named(ConfigFile { path, file }) => {
                KubeCredentials::of_kubeconfigs(&[(format!("{path}: {}", file.display()), file)])
            }
            CredentialsOrigin::List(files) => {
                let mut existing: Vec<_> = files.iter().filter(|file| file.exists()).collect();
                // If all have gone, the error names them all.
                if existing.is_empty() {
                    existing = files.iter().collect();
                }
                let existing = existing.into_iter();
                let named: Vec<_> =
                    existing.map(|file| (format!("{LIST}: {}", file.display()), &**file)).collect();
                KubeCredentials::of_kubeconfigs(&named)
            }
            CredentialsOrigin::Pod(folder, host, port) => {
                KubeCredentials::of_pod(folder, (host, port))
            }
            CredentialsOrigin::Home(file) => {
                KubeCredentials::of_kubeconfigs(&[(file.display().to_string(), file)])
            }
        }
    }
}

/// The files of `KUBECONFIG`, each once.
fn listed(environment: &Environment) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for file in std::env::split_paths(environment.text(LIST).unwrap_or_default()) {
        if !file.as_os_str().is_empty() && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

fn joined(files: &[PathBuf], between: &str) -> String {
    let shown: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    shown.join(between)
}

/// For logs.
impl fmt::Display for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            CredentialsOrigin::Pod(folder, ..) => {
                write!(f, "the service account in {}", folder.display())
            }
            CredentialsOrigin::List(files) => f.write_str(&joined(files, ", ")),
            CredentialsOrigin::Named(ConfigFile { file, .. }) | CredentialsOrigin::Home(file) => {
                file.display().fmt(f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use ipam_kit::delegate::Deadline;
    use ipam_kit::error::ErrorCode;

    const CONFIG: &str = "current-context: c\ncontexts: [{name: c, context: {cluster: k}}]\n\
                          clusters: [{name: k, cluster: {server: 'http://a'}}]\n";

    /// A folder with a service account in `pod`, a kubeconfig in `home/.kube/config` and one in `other`.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in
            [("pod/token", "t"), ("home/.kube/config", CONFIG), ("other", CONFIG), ("dir/x", "")]
        {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        folder
    }

    #[test]
    fn sources_are_looked_for_in_order() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let pod = [(HOST, "10.0.0.1".to_owned()), (PORT, "443".to_owned())];
        let home = (HOME, at("home"));
        let all = [
            (LIST, format!("{}::{}", at("absent"), at("other"))),
            home.clone(),
            pod[0].clone(),
            pod[1].clone(),
        ];
        let named = ConfigFile { path: "ipam.kubeconfig".to_owned(), file: "/named".into() };
        let found = |named: Option<&ConfigFile>, variables: &[(&str, String)]| {
            let environment = Environment::new(variables.iter().cloned());
            let source = CredentialsSource::find_in(
                &folder.path().join("pod"),
                "ipam.kubeconfig",
                named.cloned(),
                &environment,
            )
            .unwrap();
            (source.to_string(), source.identity())
        };
        let account = format!("the service account in {}", at("pod"));
        assert_eq!(found(Some(&named), &all), ("/named".to_owned(), "/named".to_owned()));
        assert_eq!(found(None, &all).1, format!("{}:{}", at("absent"), at("other")));
        assert_eq!(found(None, &all[1..]), (account, format!("{}@10.0.0.1:443", at("pod"))));
        assert_eq!(found(None, &all[1..3]).0, at("home/.kube/config"));
        let gone = (LIST, at("absent"));
        assert_eq!(found(None, &[gone, home]).0, at("home/.kube/config"));
    }

    #[test]
    fn a_relative_path_is_refused() {
        let named = ConfigFile::given("ipam.k", Some("kubeconfig"));
        let (environment, host) = (Environment::default(), Settings::default());
        let error = CredentialsSource::find("ipam.k", named, &environment, &host).unwrap_err();
        assert_eq!(error.to_string(), "ipam.k: kubeconfig is a relative path");
    }

    #[test]
    fn where_nothing_is_found_the_error_says_what_was_looked_for() {
        let find = |variables: &[(&str, &str)]| {
            let environment = Environment::new(variables.iter().copied());
            let nowhere = Path::new("/nowhere");
            CredentialsSource::find_in(nowhere, "ipam.k.config", None, &environment).unwrap_err()
        };
        let error = find(&[]);
        assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        assert_eq!(
            error.to_string(),
            "ipam.k.config: missing, and no other Kubernetes credentials found: KUBECONFIG is empty or not set; \
             KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set (not in a pod); HOME is not set"
        );
        let error =
            find(&[(LIST, "/no/a:/no/b"), (HOST, "a"), (PORT, "1"), (HOME, "/no")]).to_string();
        assert!(
            error.ends_with("KUBECONFIG: /no/a, /no/b not found; /nowhere/token not found; /no/.kube/config not found"),
            "{error}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_named_with_who_names_it() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let open = |source: &CredentialsSource| {
            source
                .open(ErrorCode::UNREACHED, Deadline::after(TIMEOUT))
                .map(|kube| format!("{kube:?}"))
        };
        let named = |name: &str| {
            CredentialsSource::of(CredentialsOrigin::Named(ConfigFile {
                path: "ipam.k".to_owned(),
                file: at(name),
            }))
        };
        let pipe = at("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (name, cause) in [
            ("absent", "No such file"),
            ("dir", "not a regular file"),
            ("pipe", "not a regular file"),
            ("/dev/zero", "not a regular file"),
        ] {
            let error = open(&named(name)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("ipam.k: {}: cannot be read", at(name).display())
            );
            assert!(error.details().starts_with(cause), "{error:?}");
        }
        let list = |names: &[&str]| {
            CredentialsSource::of(CredentialsOrigin::List(
                names.iter().map(|name| at(name)).collect(),
            ))
        };
        assert!(open(&list(&["absent", "other"])).is_ok());
        for names in [&["other", "dir"][..], &["absent"]] {
            let error = open(&list(names)).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("KUBECONFIG: {}/", folder.path().display())),
                "{error}"
            );
        }
    }
}
