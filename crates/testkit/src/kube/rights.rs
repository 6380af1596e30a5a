//! What somebody may do.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Client;
use super::logins::Login;
use super::server::Kube;
use crate::servers::process;

/// Rights that were given, until they are taken away.
pub struct Grant<'a> {
    kube: &'a Kube,
    name: String,
    /// The namespace that they are for; none for the whole cluster.
    namespace: Option<String>,
    user: String,
    /// What tells whether the server knows of them.
    sample: Value,
}

impl Kube {
    /// Allows a user what these rules of RBAC say, such as
    /// `[{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["a"]}]`,
    /// in the whole cluster, and waits until it holds.
    #[track_caller]
    pub fn allow(&self, login: &Login, rules: &Value) -> Grant<'_> {
        self.allow_where(None, login, rules)
    }

    /// Allows a user what these rules say in one namespace, and waits until it holds.
    #[track_caller]
    pub fn allow_in(&self, namespace: &str, login: &Login, rules: &Value) -> Grant<'_> {
        self.allow_where(Some(namespace), login, rules)
    }

    #[track_caller]
    fn allow_where(&self, namespace: Option<&str>, login: &Login, rules: &Value) -> Grant<'_> {
        let name = process::unique();
        let metadata = json!({"name": name, "namespace": namespace});
        let group = "rbac.authorization.k8s.io";
        let version = format!("{group}/v1");
        let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
        self.create(&json!({
            "apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules,
        }));
        self.create(&json!({
            "apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": login.user}],
        }));
        let first = &rules[0];
        let sample = json!({
            "verb": first["verbs"][0],
            "group": first["apiGroups"][0],
            "resource": first["resources"][0],
            "name": first["resourceNames"][0],
            "namespace": namespace,
        });
        let (namespace, user) = (namespace.map(str::to_owned), login.user.clone());
        let grant = Grant { kube: self, name, namespace, user, sample };
        grant.until_allowed(true);
        grant
    }

    /// Allows a user to read the nodes of these names, or all where none is named.
    #[track_caller]
    pub fn allow_reading_nodes(&self, login: &Login, names: &[&str]) -> Grant<'_> {
        let mut rule = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        self.allow(login, &json!([rule]))
    }
}

impl Grant<'_> {
    /// Takes them away, and waits until that holds.
    #[track_caller]
    pub fn revoke(self) {
        let folder = match &self.namespace {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => "cluster".to_owned(),
        };
        for kind in ["rolebindings", "roles"] {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{folder}{kind}/{}", self.name);
            self.kube.delete(&path);
        }
        self.until_allowed(false);
    }

    /// The server learns of its own objects a moment later.
    #[track_caller]
    fn until_allowed(&self, expected: bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        while allowed(self.kube, &self.user, &self.sample) != expected {
            let Self { user, sample, .. } = self;
            assert!(Instant::now() < give_up, "{user}: {sample} is not {expected}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn allowed(client: &Client, user: &str, attributes: &Value) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    });
    client.create(&review)["status"]["allowed"] == true
}
