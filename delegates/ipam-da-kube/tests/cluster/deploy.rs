//! What `deploy/` holds: definitions that keep the objects of every release of whereabouts, and the
//! rights that the program uses.

use std::path::{Path, PathBuf};
use std::process::Command;

use ipam_testkit::kube::{self, Kube, Kubeconfig};
use ipam_testkit::whereabouts::{API, Crds, Objects, POOLS, RESERVATIONS, Release};
use ipam_testkit::world::World;
use serde_json::{Value, json};

use crate::common::changing;

/// `kubectl` for a server.
struct Kubectl(World);

impl Kubectl {
    fn of(kube: &Kube) -> Self {
        let world = World::new();
        Kubeconfig::of(kube, &kube.admin()).write(&world.path("admin"));
        Self(world)
    }

    /// What it says of each object of a manifest of `deploy/`.
    #[track_caller]
    fn run(&self, words: &[&str], manifest: &str) -> Vec<String> {
        let mut kubectl = Command::new(kube::kubectl());
        kubectl.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.0.path(""));
        kubectl.arg("--kubeconfig").arg(self.0.path("admin")).args(words).arg("-f");
        let output = kubectl.arg(deploy(manifest)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// The members of an entry that a release writes.
fn entry(release: Release) -> Value {
    match release {
        Release::V04 => json!({"id": "a"}),
        Release::Fork | Release::V054 | Release::V07 => json!({"id": "a", "podref": "n/p"}),
        Release::V094 => json!({"id": "a", "podref": "n/p", "ifname": "net1"}),
    }
}

/// A reservation as a release writes it, and the least that its definition takes.
fn reservations(release: Release) -> Vec<Value> {
    match release {
        Release::V04 | Release::Fork => Vec::new(),
        Release::V054 | Release::V07 => {
            vec![json!({"podref": "n/p", "containerid": "a"}), json!({"containerid": "a"})]
        }
        Release::V094 => vec![json!({"podref": "n/p", "ifname": "net1"}), json!({"podref": "n/p"})],
    }
}

#[test]
fn the_definitions_replace_those_of_whereabouts_under_its_objects_and_make_a_pool_small() {
    let kube = changing();
    let namespace = kube.create_namespace();
    let objects = Objects::of(&kube, &namespace);
    for (i, release) in Release::ALL.into_iter().enumerate() {
        release.crds().install(&kube);
        let range = format!("10.{i}.0.0/16");
        objects.create_pool("", &range, &json!({"1": entry(release)}));
        let name = format!("10.{i}.0.0-16");
        let before = objects.pool(&name).unwrap();
        Crds::shipped().install(&kube);
        assert_eq!(objects.pool(&name).unwrap(), before, "{release:?}");

        // Its nodes go on writing, and so does this program.
        let own = json!({"id": "a", "podref": "", "ifname": "net1", "ipamDelegated": "b"});
        let change = json!({"spec": {"allocations": {"2": entry(release), "3": own}}});
        let changed = kube.patch(&objects.path(POOLS, &name), &change);
        let expected = json!({"1": entry(release), "2": entry(release), "3": own});
        assert_eq!(changed["spec"]["allocations"], expected, "{release:?}");
        for (k, spec) in reservations(release).into_iter().enumerate() {
            let metadata = json!({"name": format!("10.{i}.0.{k}"), "namespace": namespace});
            let made = kube.create(&json!({
                "apiVersion": API, "kind": "OverlappingRangeIPReservation",
                "metadata": metadata, "spec": spec,
            }));
            assert_eq!(made["spec"], spec, "{release:?}");
        }
    }
    // The server keeps no record of each entry.
    let entries = |count: usize| -> Value {
        let entry = json!({"id": "0".repeat(64), "podref": "shop/web-0", "ifname": "eth0"});
        (1..=count).map(|key| (key.to_string(), entry.clone())).collect()
    };
    let name = objects.create_pool("", "10.9.0.0/16", &entries(999))["metadata"]["name"].clone();
    let change = json!([{"op": "add", "path": "/spec/allocations", "value": entries(1000)}]);
    let changed = kube.patch(&objects.path(POOLS, name.as_str().unwrap()), &change);
    assert_eq!(changed["spec"]["allocations"].as_object().unwrap().len(), 1000);
    let fields = changed["metadata"]["managedFields"].to_string();
    assert!(fields.len() < 1000, "{fields}");
}

#[test]
fn kubectl_applies_every_manifest_and_again_without_a_change() {
    let kube = changing();
    let kubectl = Kubectl::of(&kube);
    // Over the definitions of whereabouts, which have the same names.
    Release::V094.crds().install(&kube);
    let name = |plural: &str| {
        format!("customresourcedefinition.apiextensions.k8s.io/{plural}.whereabouts.cni.cncf.io")
    };
    for outcome in ["configured", "unchanged"] {
        let said = [POOLS, RESERVATIONS].map(|plural| format!("{} {outcome}", name(plural)));
        assert_eq!(kubectl.run(&["apply"], "crds.yaml"), said);
    }
    let group = "rbac.authorization.k8s.io";
    let of = |kinds: &[&str], name: &str| -> Vec<String> {
        kinds.iter().map(|kind| format!("{kind}.{group}/{name}")).collect()
    };
    let all = ["role", "rolebinding", "clusterrole", "clusterrolebinding"];
    let mut plain = of(&all[..2], "ipam-da-kube");
    plain.insert(0, "serviceaccount/ipam-delegated".to_owned());
    plain.extend(of(&all[..2], "ipam-da-kube-cluster"));
    let mut sticky = of(&all, "ipam-da-kube-sticky");
    let kind = "customresourcedefinition.apiextensions.k8s.io/stickyleases.ipam-delegated.io";
    sticky.insert(0, kind.to_owned());
    let of_pods = of(&all[2..], "ipam-ds-kube-pod");
    let of_pods_file = "../../ipam-ds-kube-pod/deploy/rbac.yaml";
    for (objects, file) in [(plain, "rbac.yaml"), (sticky, "sticky.yaml"), (of_pods, of_pods_file)]
    {
        kubectl.run(&["delete", "--ignore-not-found"], file);
        for outcome in ["created", "unchanged"] {
            let said: Vec<String> =
                objects.iter().map(|object| format!("{object} {outcome}")).collect();
            assert_eq!(kubectl.run(&["apply"], file), said);
        }
    }
}

#[test]
fn the_rules_for_another_namespace_leave_the_one_of_the_cluster_in_kube_system() {
    let kube = changing();
    let kubectl = Kubectl::of(&kube);
    let namespace = kube.create_namespace();
    let text = std::fs::read_to_string(deploy("rbac.yaml")).unwrap();
    let moved = text.split("---\n").map(|object| {
        // In the file as it is, each object is in that namespace.
        let (metadata, subjects) = object.split_once("subjects:").unwrap_or((object, ""));
        let own =
            |part: &str| part.replace("namespace: kube-system", &format!("namespace: {namespace}"));
        let is_of_cluster = metadata.contains("  name: ipam-da-kube-cluster");
        let metadata = if is_of_cluster { metadata.to_owned() } else { own(metadata) };
        if subjects.is_empty() { metadata } else { format!("{metadata}subjects:{}", own(subjects)) }
    });
    let moved = moved.collect::<Vec<_>>().join("---\n");
    let manifest = kubectl.0.path("rbac.yaml");
    std::fs::write(&manifest, moved).unwrap();
    kubectl.run(&["apply"], manifest.to_str().unwrap());
    let may = |verb: &str, namespace_of: &str, group: &str, resource: &str, name: &str| {
        let attributes = json!({
            "verb": verb, "namespace": namespace_of, "group": group, "resource": resource, "name": name,
        });
        let user = format!("system:serviceaccount:{namespace}:ipam-delegated");
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        kube.post(path, &review)["status"]["allowed"] == true
    };
    let group = "whereabouts.cni.cncf.io";
    assert!(may("patch", &namespace, group, POOLS, "a"));
    assert!(!may("patch", "kube-system", group, POOLS, "a"));
    assert!(may("get", "kube-system", "", "namespaces", "kube-system"));
    assert!(!may("get", &namespace, "", "namespaces", &namespace));
}
