//! Service accounts and their tokens.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::logins::{Credential, Login};
use super::server::Kube;
use crate::servers::process;

/// A service account of a server.
#[derive(Clone, Copy)]
pub struct ServiceAccount<'a> {
    kube: &'a Kube,
    namespace: &'a str,
    name: &'a str,
}

impl Kube {
    /// Makes a service account. The namespace need not be there.
    #[track_caller]
    pub fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> ServiceAccount<'a> {
        self.create(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"namespace": namespace, "name": name},
        }));
        self.existing_service_account(namespace, name)
    }

    /// A service account that somebody else has made.
    pub fn existing_service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> ServiceAccount<'a> {
        ServiceAccount { kube: self, namespace, name }
    }
}

impl ServiceAccount<'_> {
    /// A new token of it, by a TokenRequest. Deleting the account ends all of them, but the server
    /// takes one that it has seen for 10 s longer.
    #[track_caller]
    pub fn login(&self) -> Login {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        });
        let answer = self.kube.post(&format!("{}/token", self.path()), &request);
        let token = answer["status"]["token"].as_str().unwrap().to_owned();
        let user = format!("system:serviceaccount:{}:{}", self.namespace, self.name);
        Login { user, credential: Credential::Token(token) }
    }

    /// Writes what a pod finds in `/var/run/secrets/kubernetes.io/serviceaccount`, with a new
    /// token: `token`, `ca.crt` and `namespace`, links into a folder that the next call exchanges
    /// at once, as a kubelet does.
    #[track_caller]
    pub fn mount(&self, folder: &Path) -> Login {
        let login = self.login();
        let content = folder.join(format!("..{}", process::unique()));
        fs::create_dir_all(&content).unwrap();
        fs::write(content.join("token"), login.token().unwrap()).unwrap();
        fs::write(content.join("namespace"), self.namespace).unwrap();
        fs::copy(self.kube.authority(), content.join("ca.crt")).unwrap();
        let (data, new) = (folder.join("..data"), folder.join("..data_tmp"));
        let old: Option<PathBuf> = fs::read_link(&data).ok();
        std::os::unix::fs::symlink(content.file_name().unwrap(), &new).unwrap();
        fs::rename(&new, &data).unwrap();
        if let Some(old) = old {
            return fs::remove_dir_all(folder.join(old)).map(|()| login).unwrap();
        }
        for name in ["token", "namespace", "ca.crt"] {
            let target = Path::new("..data").join(name);
            std::os::unix::fs::symlink(target, folder.join(name)).unwrap();
        }
        login
    }

    #[track_caller]
    pub fn delete(&self) {
        self.kube.delete(&self.path());
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/serviceaccounts/{}", self.namespace, self.name)
    }
}
