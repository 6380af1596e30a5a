//! The addresses of the selector's pools in the objects of whereabouts, on a real API server.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;

use ipam_testkit::kube::{Client, Kubeconfig};
use ipam_testkit::whereabouts::{Objects, Release};
use ipam_testkit::world::{Outcome, World, binary, start, wait};
use serde_json::{Value, json};

/// A node with the chain of the preset, and a namespace of its own.
struct Site {
    world: World,
    client: Client,
    namespace: String,
}

impl Site {
    fn new() -> Self {
        let kube = Release::V094.crds().served();
        let (login, world) = (kube.admin(), World::new());
        let client = kube.client(&login);
        let namespace = client.create_namespace();
        let more = json!({"contexts": [{"context": {"namespace": namespace}}]});
        Kubeconfig::of(kube, &login).more(&more).write(&world.path("kubeconfig"));
        world.install(&binary("ipam-ds-whereabouts")).install(&binary("ipam-da-kube"));
        Self { world, client, namespace }
    }

    fn call(&self, verb: &str, container: &str, args: &str, ipam: &Value) -> Outcome {
        self.call_after(verb, container, args, ipam, &Value::Null)
    }

    /// A call with the result of an ADD.
    fn call_after(
        &self,
        verb: &str,
        container: &str,
        args: &str,
        ipam: &Value,
        result: &Value,
    ) -> Outcome {
        let chain = json!([{"type": "ipam-ds-whereabouts", "sets": ["kube"]}, "ipam-da-kube"]);
        let mut network = self.world.network(chain);
        let section = network["ipam"].as_object_mut().unwrap();
        section
            .insert("kubernetes".to_owned(), json!({"kubeconfig": self.world.path("kubeconfig")}));
        section.extend(ipam.as_object().unwrap().clone());
        if !result.is_null() {
            network["prevResult"] = result.clone();
        }
        let mut command = self.world.command(verb, container);
        command.env("CNI_ARGS", args);
        wait(start(command, &network))
    }

    /// The offsets in a pool, each with its container.
    fn entries(&self, pool: &str) -> Vec<(u128, String)> {
        let entries = Objects::of(&self.client, &self.namespace).allocations(pool);
        entries.into_iter().map(|(offset, entry)| (offset, entry.id)).collect()
    }
}

#[test]
fn an_address_that_a_pod_asks_for_is_claimed_beside_one_of_the_range() {
    let site = Site::new();
    let ipam = json!({
        "range": "10.240.0.0/28", "gateway": "10.240.0.1", "network_name": "blue",
        "addresses": [{"address": "10.240.9.9/24"}],
    });
    let entry = |offset, container: &str| (offset, container.to_owned());
    let given = ["10.240.0.2/28", "10.240.0.5/28", "10.240.9.9/24"];
    for _ in 0..2 {
        assert_eq!(site.call("ADD", "a", "IP=10.240.0.5", &ipam).ips(), given);
    }
    assert_eq!(site.entries("blue-10.240.0.0-28"), [entry(2, "a"), entry(5, "a")]);
    let (code, text) = site.call("ADD", "b", "IP=10.240.0.5", &ipam).failure();
    assert!(code == 102 && text.contains("10.240.0.5"), "{text}");
    assert_eq!(site.entries("blue-10.240.0.0-28").len(), 2);
    let mut instead = ipam.clone();
    instead["requested"] = "instead".into();
    let given = ["10.240.0.3/28", "10.240.9.9/24"];
    assert_eq!(site.call("ADD", "b", "IP=10.240.0.3", &instead).ips(), given);
    let objects = Objects::of(&site.client, &site.namespace);
    objects.assert_consistent();
    for container in ["a", "b"] {
        site.call("DEL", container, "", &json!({})).ended_well();
    }
    assert_eq!(site.entries("blue-10.240.0.0-28"), []);
    let fixed = json!({"addresses": ipam["addresses"]});
    assert_eq!(site.call("ADD", "c", "", &fixed).ips(), ["10.240.9.9/24"]);
    site.call("DEL", "c", "", &fixed).ended_well();
    assert_eq!(objects.reservations().len(), 0);
}

#[test]
fn check_knows_what_a_pod_has_requested_with_and_without_a_record() {
    let site = Site::new();
    let ipam = json!({
        "range": "10.241.0.0/28", "range_end": "10.241.0.6", "exclude": ["10.241.0.4"],
        "addresses": [{"address": "10.241.0.3/28"}],
        "dns": {"nameservers": ["10.1.1.1"], "search": ["a"]},
    });
    // An excluded address, one beyond the bounds, and one outside of all ranges.
    let args = "IP=10.241.0.4,10.241.0.9,10.9.9.9/24";
    let result = site.call("ADD", "a", args, &ipam).success();
    assert_eq!(result["dns"], ipam["dns"]);
    let ips = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap());
    let ips: Vec<&str> = ips.collect();
    let given = ["10.241.0.1/28", "10.241.0.4/28", "10.241.0.9/28", "10.241.0.3/28", "10.9.9.9/24"];
    assert_eq!(ips, given);
    let check = || site.call_after("CHECK", "a", args, &ipam, &result);
    let record = fs::read(site.world.record("a")).unwrap();
    check().ended_well();
    fs::remove_file(site.world.record("a")).unwrap();
    check().ended_well();
    let pool = format!(
        "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/{}/ippools/10.241.0.0-28",
        site.namespace
    );
    site.client.patch(&pool, &json!({"spec": {"allocations": {"4": null}}}));
    let lost = |outcome: Outcome| {
        let (code, text) = outcome.failure();
        assert!(code == 104 && text.contains("10.241.0.4"), "{text}");
    };
    lost(check());
    fs::write(site.world.record("a"), record).unwrap();
    lost(check());
}

#[test]
fn a_del_uses_the_kubeconfig_that_the_selector_names_today() {
    let site = Site::new();
    let by = |kubeconfig: &str| {
        let login = json!({"kubeconfig": site.world.path(kubeconfig)});
        json!({"range": "10.242.0.0/28", "kubernetes": login})
    };
    let (old, new) = (by("kubeconfig"), by("moved"));
    let results = ["a", "b"].map(|container| site.call("ADD", container, "", &old).success());
    fs::rename(site.world.path("kubeconfig"), site.world.path("moved")).unwrap();
    assert_eq!(site.call("DEL", "a", "", &old).failure().0, 7);
    site.call_after("CHECK", "a", "", &new, &results[0]).success();
    site.call("DEL", "a", "", &new).success();
    assert_eq!(site.entries("10.242.0.0-28"), [(2, "b".to_owned())]);
    site.call("DEL", "b", "", &new).success();
    assert_eq!(site.entries("10.242.0.0-28"), []);
}
