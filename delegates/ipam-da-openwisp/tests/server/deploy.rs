//! What `deploy/` holds: a real API server takes the manifests, and what the pod does on a host lets
//! the network work.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ipam_testkit::deployed::{Cluster, PodHost};
use ipam_testkit::openwisp::{OPERATOR, ORGANIZATION};
use ipam_testkit::world::until;

use crate::site::Site;

const MANIFESTS: [(&str, &str); 3] = [
    ("secret.yaml", "secret/ipam-delegated-openwisp"),
    ("daemonset.yaml", "daemonset.apps/ipam-delegated-openwisp"),
    ("network-attachment-definition.yaml", "networkattachmentdefinition.k8s.cni.cncf.io/openwisp"),
];

const PROGRAMS: [&str; 3] = ["ipam-delegated", "ipam-ds-static", "ipam-da-openwisp"];

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

#[test]
fn a_cluster_takes_the_manifests_and_what_the_pod_does_serves_the_network() {
    let cluster = Cluster::new();
    for (manifest, object) in MANIFESTS {
        assert_eq!(cluster.apply(&deploy(manifest)), [format!("{object} created")]);
    }
    let site = Site::new();
    let users =
        ["deployed", "rotated"].map(|name| site.server.user(name, Some(ORGANIZATION), &OPERATOR));
    let machine = PodHost::new(&cluster.daemon_set("ipam-delegated-openwisp"), &PROGRAMS);
    let secret = machine.volume("secret");
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("token"), &users[0].token).unwrap();
    machine.init();
    let keeper = machine.keep_login(&[]);
    let file = machine.login("openwisp.token");
    let kept = || fs::read_to_string(&file).unwrap_or_default();
    until("the token is there", || kept() == users[0].token);
    assert!(machine.is_ready());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut network = cluster.network("openwisp");
    network["ipam"]["openwisp"]["url"] = site.server.url().into();
    network["ipam"]["pools"][0]["name"] = site.subnet.as_str().into();
    assert_eq!(machine.call("ADD", "c1", &network).ips().len(), 1);
    assert_eq!(site.records().len(), 1);

    // The token is exchanged, and the first user has no rights any more.
    fs::write(secret.join("token"), &users[1].token).unwrap();
    until("the new token is there", || kept() == users[1].token);
    site.server.disarm(&users[0]);
    machine.call("DEL", "c1", &network).success();
    site.assert_empty();

    // Without a source it says so, and leaves what is there.
    fs::remove_dir_all(&secret).unwrap();
    keeper.looks();
    assert_eq!(kept(), users[1].token);
    let said = keeper.end();
    assert!(said.contains("openwisp.token stays as it is"), "{said}");
}
