use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::api::Kube;
use crate::client::Named;
use crate::cni::Environment;
use crate::delegate::Deadline;
use crate::error::{Error, ErrorCode, Result};

/// Where the login to a Kubernetes API server comes from. Nothing of it has been read yet.
#[derive(Clone, Debug)]
pub struct Source {
    timeout: Duration,
}

impl Source {
    /// Finds the source: the kubeconfig that the configuration names, and then nothing else; those of
    /// `KUBECONFIG`; the service account of the pod that this runs in; `~/.kube/config`.
    ///
    /// # Errors
    /// There is none of them.
    pub fn find(named: Option<Named>, environment: &Environment) -> Result<Self> {
        let _ = (named, environment);
        Err(unwritten())
    }

    /// The service account whose `token`, `ca.crt` and `namespace` lie in a folder, as Kubernetes puts
    /// them into a pod; none where the environment names no API server, or the folder has no token.
    pub fn service_account(folder: &Path, environment: &Environment) -> Option<Self> {
        let _ = (folder, environment);
        None
    }

    /// Goes on for that long after the first trouble, instead of 10 seconds: for a caller that can do
    /// without an answer.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout }
    }

    /// What tells this source from another one, as a key for what was read by it: no secret.
    pub fn identity(&self) -> String {
        String::new()
    }

    /// Reads what there is to be read, and makes a client of it, which connects when there is something to
    /// ask. `unreached` is the code of an error when the API server could not be asked for anything.
    ///
    /// # Errors
    /// Error 7: a file cannot be read, or it says what is wrong or not supported.
    pub fn open(&self, unreached: ErrorCode, deadline: Deadline) -> Result<Kube> {
        let _ = (unreached, deadline);
        Err(unwritten())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("")
    }
}

fn unwritten() -> Error {
    Error::new(ErrorCode::INTERNAL, "the Kubernetes client is not written yet")
}
