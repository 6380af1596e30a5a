//! The manifests of an allocator whose leases are records of a central server.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::{Cluster, PodHost};
use crate::node::program;
use crate::record_site::{RecordServer, RecordSite};
use crate::world::until;

/// A real API server takes the manifests of a folder; the pod keeps a token on the host, by which
/// the network works once the token is right. `wrong` is refused by the record server.
#[track_caller]
pub fn assert_deployed<S: RecordServer>(
    site: &RecordSite<'_, S>,
    folder: &Path,
    wrong: &str,
    right: &str,
) {
    let cluster = Cluster::new();
    let (network, name) = (S::NAME, format!("ipam-delegated-{}", S::NAME));
    for (manifest, object) in [
        ("secret.yaml", format!("secret/{name}")),
        ("daemonset.yaml", format!("daemonset.apps/{name}")),
        (
            "network-attachment-definition.yaml",
            format!("networkattachmentdefinition.k8s.cni.cncf.io/{network}"),
        ),
    ] {
        assert_eq!(cluster.apply(&folder.join(manifest)), [format!("{object} created")]);
    }
    let programs = ["ipam-delegated", "ipam-ds-static", &program::<S>()];
    let machine = PodHost::new(&cluster.daemon_set(&name), &programs);
    let secret = machine.volume("secret");
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("token"), wrong).unwrap();
    machine.init();
    let keeper = machine.keep_login(&[]);
    let file = machine.login(&format!("{network}.token"));
    let kept = || fs::read_to_string(&file).unwrap_or_default();
    until("the token is there", || kept() == wrong);
    assert!(machine.is_ready());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut network = cluster.network(network);
    network["ipam"][S::NAME]["url"] = json!(site.server.address());
    network["ipam"]["pools"][0]["name"] = json!(site.subnet);
    let (code, text) = machine.call("ADD", "c1", &network).failure();
    assert!(code == 103 && text.contains("401"), "{code} {text}");

    fs::write(secret.join("token"), right).unwrap();
    until("the new token is there", || kept() == right);
    assert_eq!(machine.call("ADD", "c1", &network).ips().len(), 1);
    assert_eq!(site.records().len(), 1);
    machine.call("DEL", "c1", &network).success();
    site.assert_empty();

    // Without a source it says so, and leaves what is there.
    fs::remove_dir_all(&secret).unwrap();
    keeper.looks();
    assert_eq!(kept(), right);
    let said = keeper.end();
    assert!(said.contains(&format!("{}.token stays as it is", S::NAME)), "{said}");
}
