//! The preset `whereabouts` with a provider file: the whole chain, with pods of a real API server, an
//! imitation of phpIPAM and a real OpenWISP; and what the fork of whereabouts was seen to do, with the
//! differences.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use ipam_testkit::kube::{Kube, Kubeconfig};
use ipam_testkit::openwisp::{OPERATOR, ORGANIZATION, OpenWisp};
use ipam_testkit::phpipam::{APP, PASSWORD, PhpIpam, Security, USER};
use ipam_testkit::vectors::{Comparison, Difference};
use ipam_testkit::world::{Host, Outcome, World, binary, start, wait};
use serde::Deserialize;
use serde_json::{Value, json};

const PROVIDER_FILE: &str = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";
const LOGIN: &str = "/etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig";

/// A node with the preset and a provider file.
struct ProviderNode {
    host: Host,
    world: World,
}

impl ProviderNode {
    fn new(file: &Value) -> Self {
        let (host, world) = (Host::new(), World::new());
        host.shell("mkdir -p /etc/cni/net.d/whereabouts.d");
        for program in
            ["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-phpipam", "ipam-da-openwisp"]
        {
            world.install(&binary(program));
        }
        world.install_as(&binary("ipam-delegated"), "whereabouts");
        let node = Self { host, world };
        let path = node.host.path(PROVIDER_FILE);
        fs::write(&path, file.to_string()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        node
    }

    fn preset(&self) -> PathBuf {
        self.world.path("bin/whereabouts")
    }

    /// A definition as the fork reads it.
    fn network(&self, pool: &str) -> Value {
        json!({
            "cniVersion": "1.1.0", "name": "whereaboutsexample", "args": {"pool": pool},
            "type": "macvlan", "master": "ens38", "mode": "bridge",
            "ipam": {
                "type": "whereabouts", "datastore": "kubernetes", "range": "192.168.2.225/28",
                "log_file": "/tmp/whereabouts.log", "log_level": "debug",
                "stateDir": self.world.path("state"),
            },
        })
    }

    fn call(&self, verb: &str, container: &str, args: &str, network: &Value) -> Outcome {
        let preset = self.preset();
        let outside = self.world.command_of(&preset, verb, container);
        let mut command = self.host.enter(&preset);
        command.env_clear();
        command.envs(outside.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.env("CNI_ARGS", args).env("CNI_IFNAME", "net1");
        if matches!(verb, "GC" | "STATUS") {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(start(command, network))
    }
}

/// `CNI_ARGS` of a pod.
fn args(namespace: &str, pod: &str) -> String {
    format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}")
}

/// A namespace of the API server, with a pod that names itself `test234` and one that does not.
fn namespace(kube: &Kube) -> String {
    let namespace = kube.create_namespace();
    for (pod, annotations) in [("named", json!({"podname": "test234"})), ("plain", json!({}))] {
        let metadata = json!({"name": pod, "namespace": namespace, "annotations": annotations});
        kube.create(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"nodeName": "node-1", "containers": [{"name": "main", "image": "none"}]},
        }));
    }
    namespace
}

/// The life of both pods, by the verbs of a runtime. `names` shows the address and the pod's name in
/// each record of the pool `pool1`.
fn assert_lives(file: &Value, subnet: &str, names: &dyn Fn() -> Vec<(String, String)>) {
    let kube = Kube::shared();
    let namespace = namespace(kube);
    let node = ProviderNode::new(file);
    Kubeconfig::of(kube, &kube.admin()).write(&node.host.path(LOGIN));
    let mut network = node.network("pool1");
    network["ipam"]["kubernetes"] = json!({"kubeconfig": LOGIN});
    network["ipam"]["routes"] = json!([{"dst": "172.16.0.0/12"}]);
    let password = file["ipampwd"].as_str().unwrap();
    let call = |verb: &str, container: &str, pod: &str, network: &Value| {
        let outcome = node.call(verb, container, &args(&namespace, pod), network);
        assert!(!format!("{outcome:?}").contains(password), "{outcome:?}");
        outcome
    };
    call("STATUS", "", "named", &network).ended_well();
    let added = call("ADD", "c1", "named", &network);
    assert!(added.stderr.contains("ipam.range is ignored: the pool \"pool1\""), "{added:?}");
    let result = added.success();
    let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with(subnet), "{address}");
    assert!(result["ips"][0]["gateway"].as_str().unwrap().starts_with(subnet), "{result}");
    assert_eq!(result["routes"], network["ipam"]["routes"]);
    let host = |result: &Value| {
        let address = result["ips"][0]["address"].as_str().unwrap();
        address.split('/').next().unwrap().to_owned()
    };
    assert_eq!(names(), [(host(&result), "test234".to_owned())]);
    assert_eq!(call("ADD", "c1", "named", &network).success(), result);
    let mut with_result = network.clone();
    with_result["prevResult"] = result.clone();
    call("CHECK", "c1", "named", &with_result).ended_well();
    // The name is held.
    let (code, text) = call("ADD", "c2", "named", &network).failure();
    assert!(code == 11 && text.contains("test234"), "{code} {text}");
    let plain = call("ADD", "c3", "plain", &network).success();
    let mut expected =
        [(host(&result), "test234".to_owned()), (host(&plain), format!("{namespace}/plain"))];
    expected.sort();
    let mut found = names();
    found.sort();
    assert_eq!(found, expected);
    let mut valid = network.clone();
    valid["cni.dev/valid-attachments"] = json!([
        {"containerID": "c1", "ifname": "net1"}, {"containerID": "c3", "ifname": "net1"},
    ]);
    call("GC", "", "named", &valid).ended_well();
    assert_eq!(names().len(), 2);
    // The pod is gone, and the runtime has stripped the configuration.
    let path = format!("/api/v1/namespaces/{namespace}/pods/named?gracePeriodSeconds=0");
    kube.delete(&path);
    let mut stripped = network.clone();
    stripped["ipam"] = json!({"type": "whereabouts", "stateDir": node.world.path("state")});
    call("DEL", "c1", "named", &stripped).ended_well();
    assert_eq!(names(), [(host(&plain), format!("{namespace}/plain"))]);
    call("DEL", "c3", "plain", &network).ended_well();
    assert!(names().is_empty());
    call("DEL", "c3", "plain", &network).ended_well();
}

#[test]
fn pods_live_with_addresses_of_phpipam() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let subnet = server.subnet("10.5.0.0/24", "pool1");
    server.gateway(&subnet, "10.5.0.1");
    let names = || {
        let records = server.records(&subnet).into_iter().filter(|record| !record.is_gateway);
        records.map(|record| (record.address, record.hostname)).collect::<Vec<_>>()
    };
    let file = json!({"ipamtype": "phpipam", "ipamuser": USER, "ipampwd": PASSWORD,
        "ipamurl": server.endpoint(), "appid": APP});
    assert_lives(&file, "10.5.0.", &names);
}

#[test]
fn pods_live_with_addresses_of_openwisp() {
    let server = OpenWisp::shared();
    let user = server.user("whereabouts", Some(ORGANIZATION), &OPERATOR);
    let subnet = server.subnet_of(&json!({
        "organization": ORGANIZATION, "subnet": "10.6.0.0/24", "name": "pool1",
        "description": "{\"gw\": \"10.6.0.1\"}",
    }));
    let names = || {
        let records = server.records(&subnet).into_iter();
        // Its one field for texts begins with the owner's mark.
        let name = |text: &str| text.split(' ').nth(1).unwrap_or_default().to_owned();
        records.map(|record| (record.address, name(&record.description))).collect::<Vec<_>>()
    };
    let file = json!({"ipamtype": "openwisp", "ipamuser": user.name, "ipampwd": user.password,
        "ipamurl": server.endpoint(), "appid": ""});
    assert_lives(&file, "10.6.0.", &names);
}

/// The file in which Multus keeps the result of an ADD.
fn cached(node: &ProviderNode, container: &str, ifname: &str) -> PathBuf {
    let folder = node.host.path("/var/lib/cni/multus/results");
    folder.join(format!("whereaboutsexample-{container}-{ifname}"))
}

/// Writes what Multus keeps of an ADD of the fork.
fn cache(node: &ProviderNode, container: &str, ifname: &str, address: &str) {
    let path = cached(node, container, ifname);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // The second one is of the key `addresses`.
    let ips = [address, "10.5.0.23/24", "10.7.0.23/24"];
    let ips = ips.map(|address| json!({"version": "4", "address": address}));
    let result = json!({"cniVersion": "0.3.1", "ips": ips});
    let file = json!({"kind": "cniCacheV1", "containerId": container, "ifName": ifname,
        "networkName": "whereaboutsexample", "result": result});
    fs::write(path, file.to_string()).unwrap();
}

/// What the fork left is shown and not collected, an ADD of its pod takes it, and a DEL of its
/// container deletes it. `record` makes a record with a name, and `names` shows all.
fn assert_adopts(
    file: &Value,
    prefix: &str,
    record: &dyn Fn(&str, &str),
    names: &dyn Fn() -> Vec<(String, String)>,
) {
    let node = ProviderNode::new(file);
    node.host.settings(&json!({"gcGrace": "0s"}));
    let mut network = node.network("pool1");
    network["ipam"]["pod"] = json!({"sticky": "off"});
    let at = |host: u8| format!("{prefix}.{host}");
    for (host, name) in [(20, "shop/web-0"), (21, "shop/web-1"), (22, "test234"), (23, "printer")] {
        record(&at(host), name);
    }
    let held = |names: &[(String, String)], host: u8| {
        names.iter().find(|(address, _)| *address == at(host)).map(|(_, name)| name.clone())
    };
    let call = |verb: &str, container: &str, pod: &str, network: &Value| {
        node.call(verb, container, &args("shop", pod), network)
    };
    let given = call("ADD", "c0", "web-0", &network).ips();
    assert_eq!(given, [format!("{}/24", at(20))]);
    assert_eq!(call("ADD", "c0", "web-0", &network).ips(), given);
    let mut valid = network.clone();
    valid["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", "web-0", &valid).ended_well();
    let left = names();
    assert_eq!(held(&left, 20), None);
    for (host, name) in [(21, "shop/web-1"), (22, "test234"), (23, "printer")] {
        assert_eq!(held(&left, host).as_deref(), Some(name), "{left:?}");
    }
    // Containers of the fork end. Of one, no result says which address it has.
    cache(&node, "named", "net1", &format!("{}/24", at(22)));
    for (container, pod) in [("unknown", "web-1"), ("named", "gone")] {
        call("DEL", container, pod, &network).ended_well();
    }
    let left = names();
    assert_eq!(held(&left, 21).as_deref(), Some("shop/web-1"));
    assert_eq!(held(&left, 22), None);
    assert_eq!(held(&left, 23).as_deref(), Some("printer"));
    // Another interface of the container has the address of the record.
    cache(&node, "c1", "net2", &format!("{}/24", at(21)));
    let other = call("ADD", "c1", "web-1", &network).ips();
    assert_ne!(other, [format!("{}/24", at(21))]);
    call("DEL", "c1", "web-1", &network).ended_well();
    let requests = format!("{};IP={}", args("shop", "web-1"), at(21));
    assert_eq!(node.call("ADD", "c1", &requests, &network).failure().0, 102);
    assert_eq!(held(&names(), 21).as_deref(), Some("shop/web-1"));
    fs::remove_file(cached(&node, "c1", "net2")).unwrap();
    // A late DEL of the sandbox before does not free what the pod has now.
    let again = call("ADD", "c1", "web-1", &network).ips();
    assert_eq!(again, [format!("{}/24", at(21))]);
    cache(&node, "before", "net1", &again[0]);
    call("DEL", "before", "web-1", &network).ended_well();
    assert_eq!(held(&names(), 21).as_deref(), Some("shop/web-1"));
    call("DEL", "c1", "web-1", &network).ended_well();
    assert_eq!(held(&names(), 21), None);
}

#[test]
fn what_the_fork_left_in_phpipam_is_adopted_by_its_pod_alone() {
    let server = PhpIpam::builder().security(Security::Token).start();
    let subnet = server.subnet("10.5.0.0/24", "pool1");
    let record = |address: &str, name: &str| {
        server.record(&subnet, address, &[("hostname", name)]);
    };
    let names = || {
        let records = server.records(&subnet).into_iter();
        records.map(|record| (record.address, record.hostname)).collect::<Vec<_>>()
    };
    let file = json!({"ipamtype": "phpipam", "ipamuser": USER, "ipampwd": PASSWORD,
        "ipamurl": server.endpoint(), "appid": APP});
    assert_adopts(&file, "10.5.0", &record, &names);
}

#[test]
fn what_the_fork_left_in_openwisp_is_adopted_by_its_pod_alone() {
    let server = OpenWisp::start();
    let user = server.user("adopts", Some(ORGANIZATION), &OPERATOR);
    let subnet = server.subnet(Some(ORGANIZATION), "10.7.0.0/24", "pool1");
    let record = |address: &str, name: &str| drop(server.record(&subnet, address, name));
    let names = || {
        let records = server.records(&subnet).into_iter();
        let name = |text: &str| text.split(' ').next_back().unwrap_or_default().to_owned();
        records.map(|record| (record.address, name(&record.description))).collect::<Vec<_>>()
    };
    let file = json!({"ipamtype": "openwisp", "ipamuser": user.name, "ipampwd": user.password,
        "ipamurl": server.endpoint(), "appid": ""});
    assert_adopts(&file, "10.7.0", &record, &names);
}

/// The file is read at every call: a DEL does not take another server for the one of its ADD.
#[test]
fn a_del_fails_while_the_file_names_another_server_than_at_the_add() {
    let servers = [(); 2].map(|()| PhpIpam::builder().security(Security::Token).start());
    let subnets = [0, 1].map(|n| servers[n].subnet("10.5.0.0/24", "pool1"));
    let file = |server: &PhpIpam| {
        json!({"ipamtype": "phpipam", "ipamuser": USER, "ipampwd": PASSWORD,
            "ipamurl": server.endpoint(), "appid": APP})
    };
    let node = ProviderNode::new(&file(&servers[0]));
    let mut network = node.network("pool1");
    network["ipam"]["pod"] = json!({"sticky": "off"});
    let call = |verb: &str| node.call(verb, "c1", &args("shop", "web-0"), &network);
    let name = |server: &PhpIpam| {
        fs::write(node.host.path(PROVIDER_FILE), file(server).to_string()).unwrap();
    };
    let given = call("ADD").ips();
    name(&servers[1]);
    // With its record in the state folder, and without.
    for _ in 0..2 {
        let (code, text) = call("DEL").failure();
        let address = given[0].trim_end_matches("/24");
        assert!(code == 11 && text.contains(address), "{code} {text}");
        let _ = fs::remove_dir_all(node.world.path("state/attachments"));
    }
    assert_eq!(servers[0].records(&subnets[0]).len(), 1);
    name(&servers[0]);
    call("DEL").ended_well();
    assert!(servers[0].records(&subnets[0]).is_empty());
    // The notes are gone with the record: a repeated DEL asks either.
    name(&servers[1]);
    call("DEL").ended_well();
    assert!(servers[1].records(&subnets[1]).is_empty());
}

#[derive(Deserialize)]
struct RecordedCases {
    reasons: BTreeMap<String, String>,
    vectors: Vec<RecordedCase>,
}

/// A call of the pod `ns1/pod1`, with a gateway at the first address.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedCase {
    id: String,
    about: String,
    provider: String,
    #[serde(default = "usual_subnet")]
    cidr: String,
    /// The pool of the network; the subnet is `pool1`.
    #[serde(default = "usual_pool")]
    pool: String,
    /// The hosts of addresses that have a record.
    #[serde(default)]
    records: BTreeMap<String, String>,
    #[serde(default = "usual_verb")]
    verb: String,
    recorded: Value,
    #[serde(default)]
    differences: Vec<Difference>,
}

fn usual_subnet() -> String {
    "10.5.0.0/24".to_owned()
}

fn usual_pool() -> String {
    "pool1".to_owned()
}

fn usual_verb() -> String {
    "ADD".to_owned()
}

impl RecordedCase {
    /// The outcome of the call. No server answers for OpenWISP.
    fn play(&self) -> Value {
        let server = PhpIpam::builder().security(Security::Token).start();
        let subnet = server.subnet(&self.cidr, "pool1");
        server.gateway(&subnet, "10.5.0.1");
        for (address, host) in &self.records {
            server.record(&subnet, address, &[("hostname", host)]);
        }
        let url = match &*self.provider {
            "phpipam" => server.endpoint(),
            _ => "127.0.0.1:1".to_owned(),
        };
        let node = ProviderNode::new(&json!({"ipamtype": self.provider, "ipamuser": USER,
            "ipampwd": PASSWORD, "ipamurl": url, "appid": APP}));
        let mut network = node.network(&self.pool);
        network["ipam"]["pod"] = json!({"sticky": "off"});
        let outcome = node.call(&self.verb, "dummy-0", &args("ns1", "pod1"), &network);
        if outcome.exit != Some(0) {
            return json!({"outcome": format!("error {}", outcome.failure().0)});
        }
        let result = outcome.success();
        let Some(ip) = result["ips"].get(0) else { return json!({"outcome": "nothing"}) };
        let [address, gateway] = ["address", "gateway"].map(|member| ip[member].as_str().unwrap());
        json!({"outcome": format!("{address} via {gateway}")})
    }
}

#[test]
fn what_is_not_listed_as_a_difference_is_as_with_the_fork() {
    let cases: RecordedCases = serde_json::from_str(include_str!("providers.json")).unwrap();
    let mut comparison = Comparison::with(&cases.reasons);
    for case in &cases.vectors {
        let name = format!("{} ({})", case.id, case.about);
        comparison.add(&name, case.recorded.clone(), &case.differences, &case.play());
    }
    comparison.finish();
}
