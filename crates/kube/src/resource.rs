use std::fmt;

use ipam_servers::escape;

/// The annotations in which the mirror of a static pod has the uid that runtimes know: its kubelet
/// gave it. The object's own uid is another one.
pub const STATIC_POD_UID: [&str; 2] = ["kubernetes.io/config.mirror", "kubernetes.io/config.hash"];

/// A kind of object, and one of that kind where it has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource<'a> {
    /// The API group; empty for the core of Kubernetes.
    pub group: &'a str,
    /// The version of the group, as in `v1`.
    pub version: &'a str,
    /// The kind as paths and rules write it, for example `nodes`.
    pub plural: &'a str,
    /// The namespace; none where the kind has none, or for all of them.
    pub namespace: Option<&'a str>,
    /// The object; none for all of the kind.
    pub name: Option<&'a str>,
}

impl<'a> Resource<'a> {
    /// All nodes.
    pub fn nodes() -> Self {
        Self { group: "", version: "v1", plural: "nodes", namespace: None, name: None }
    }

    /// One node.
    pub fn node(name: &'a str) -> Self {
        Self { name: Some(name), ..Self::nodes() }
    }

    /// The path below the server.
    pub(super) fn path(&self) -> String {
        let mut path = match self.group {
            "" => format!("api/{}", escape(self.version)),
            group => format!("apis/{}/{}", escape(group), escape(self.version)),
        };
        let namespace = self.namespace.map(|namespace| ["namespaces", namespace]);
        let parts = namespace.iter().flatten().copied().chain([self.plural]).chain(self.name);
        for part in parts {
            path.push('/');
            path.push_str(&escape(part));
        }
        path
    }
}

/// Whether an object can have this name. Any other may have a meaning of its own in a path.
pub fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.bytes().all(|byte| is_inner(byte) || matches!(byte, b'-' | b'.'))
        && name.bytes().next().is_some_and(is_inner)
        && name.bytes().last().is_some_and(is_inner)
}

/// As kubectl names it: `nodes/a`, `pods/b in the namespace c`, `ippools.example.org/d`.
impl fmt::Display for Resource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(name) = self.name {
            write!(f, "/{name}")?;
        }
        match self.namespace {
            Some(namespace) => write!(f, " in the namespace {namespace}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_made_of_what_is_asked_for() {
        let pool = Resource {
            group: "ipam.example.org",
            version: "v1alpha1",
            plural: "pools",
            namespace: Some("kube-system"),
            name: Some("a/b"),
        };
        for (resource, path, shown) in [
            (Resource::nodes(), "api/v1/nodes", "nodes"),
            (Resource::node("n-1.x"), "api/v1/nodes/n-1.x", "nodes/n-1.x"),
            (
                pool,
                "apis/ipam.example.org/v1alpha1/namespaces/kube-system/pools/a%2Fb",
                "pools.ipam.example.org/a/b in the namespace kube-system",
            ),
        ] {
            assert_eq!((&*resource.path(), &*resource.to_string()), (path, shown));
        }
    }
}
