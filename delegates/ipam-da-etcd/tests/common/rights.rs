//! Servers that ask who calls, and users of them who may do more or less.

use std::fs;

use ipam_testkit::etcd::Etcd;

use super::Node;
use super::layouts::{BOTH, Old};

const PASSWORD: &str = "secret-word";

/// What a user may do below the prefix of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    All,
    /// What the replaced plugin needs, to the key.
    Theirs,
    /// The same, and reading what is ours.
    TheirsAndRead,
    /// Nothing.
    None,
}

impl Rights {
    fn user(self, old: Old) -> String {
        format!("{}-{self:?}", old.name())
    }

    /// Permissions as `etcdctl role grant-permission` has them: whether for all keys that begin so, what, the key.
    fn permissions(self, old: Old) -> Vec<(bool, &'static str, String)> {
        let net = "/etcd-cni/networks/net";
        let theirs = || match old {
            Old::CniIpamEtcd => vec![
                (false, "readwrite", net.to_owned()),
                (false, "readwrite", format!("{net}/lock")),
                (true, "readwrite", format!("{net}/lastReserved/")),
                (true, "readwrite", format!("{net}/used/")),
            ],
            Old::HostEtcd => ["/ipam/ips/", "/ipam/last_reserved_ip", "/ipam/lock/"]
                .map(|key| (true, "readwrite", key.to_owned()))
                .to_vec(),
        };
        match self {
            Self::All => vec![(true, "readwrite", old.prefix().to_owned())],
            Self::Theirs => theirs(),
            Self::TheirsAndRead => {
                let read = (true, "read", old.ours().to_owned());
                theirs().into_iter().chain([read]).collect()
            }
            Self::None => Vec::new(),
        }
    }
}

/// A server with these users for each layout.
#[track_caller]
pub fn guarded(users: &[(Old, Rights)]) -> Etcd {
    let etcd = Etcd::builder().auth("nobody", PASSWORD, "/nothing/").start();
    for (old, rights) in users {
        let name = rights.user(*old);
        etcd.etcdctl(&["role", "add", &name]);
        for permission in rights.permissions(*old) {
            grant(&etcd, &name, &permission);
        }
        etcd.etcdctl(&["user", "add", &format!("{name}:{PASSWORD}")]);
        etcd.etcdctl(&["user", "grant-role", &name, &name]);
    }
    etcd
}

/// A server with users of these rights in both layouts, where something is done in each.
#[track_caller]
pub fn each(rights: &[Rights], act: impl Fn(Old, &Etcd, Rights)) {
    let users = BOTH.into_iter().flat_map(|old| rights.iter().map(move |rights| (old, *rights)));
    let users: Vec<_> = users.collect();
    let etcd = guarded(&users);
    for (old, rights) in users {
        act(old, &etcd, rights);
        etcd.etcdctl(&["del", "--prefix", "/"]);
    }
}

/// Those whose token does not let us write keys of our own.
pub const POOR: [Rights; 2] = [Rights::Theirs, Rights::TheirsAndRead];

fn grant(etcd: &Etcd, role: &str, (prefix, what, key): &(bool, &str, String)) {
    let prefix = format!("--prefix={prefix}");
    etcd.etcdctl(&["role", "grant-permission", &prefix, role, what, key]);
}

/// Lets a user do everything from now on.
#[track_caller]
pub fn grant_all(etcd: &Etcd, old: Old, rights: Rights) {
    for permission in Rights::All.permissions(old) {
        grant(etcd, &rights.user(old), &permission);
    }
}

/// Takes that back.
#[track_caller]
pub fn revoke_all(etcd: &Etcd, old: Old, rights: Rights) {
    for (_, _, key) in Rights::All.permissions(old) {
        etcd.etcdctl(&["role", "revoke-permission", "--prefix=true", &rights.user(old), &key]);
    }
}

/// A node that calls as this user.
pub fn node_of(old: Old, etcd: &Etcd, rights: Rights) -> Node {
    calling_as(old.node(etcd), old, rights)
}

/// The same node as this user.
pub fn calling_as(node: Node, old: Old, rights: Rights) -> Node {
    let file = node.world.path("password");
    fs::write(&file, PASSWORD).unwrap();
    let file = file.to_str().unwrap().to_owned();
    node.with("username", rights.user(old)).with("passwordFile", file)
}

/// Makes the node forget that it was refused, as after ten minutes.
#[track_caller]
pub fn forget_refusal(node: &Node) {
    let text = fs::read_to_string(node.memory()).unwrap();
    let last = text.lines().rfind(|line| !line.is_empty()).unwrap();
    let mut parts: serde_json::Value = serde_json::from_str(last).unwrap();
    let refused = parts[""]["unindexed"].as_u64().expect("a refusal");
    parts[""]["unindexed"] = (refused - 601).into();
    fs::write(node.memory(), format!("{parts}\n")).unwrap();
}
