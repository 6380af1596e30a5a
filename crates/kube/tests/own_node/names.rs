//! Which node object is this machine's, as machines find it that differ in name, machine-id and
//! instance.

use std::fs;

use ipam_testkit::kube::{Kube, Node};
use ipam_testkit::world::{Outcome, with, without};
use serde_json::{Value, json};

use crate::site::{Machine, Site, subnets};

/// A site that may read and list all nodes, on a machine of its own.
struct Lost {
    site: Site,
    machine: Machine,
    network: Value,
}

impl Lost {
    /// The network does not say which node this is, and remembers no subnets.
    fn on(machine: Machine) -> Self {
        let this = Self::allowed(machine, &["get", "list"]);
        let asks = with(&this.network, "cacheTtl", "0s");
        Self { network: asks, ..this }
    }

    fn allowed(machine: Machine, verbs: &[&str]) -> Self {
        let site = Site::without_object(Kube::shared(), "nobody");
        let rule = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": verbs}]);
        site.kube.allow(&site.login, &rule);
        let network = without(&site.network(), &["nodeName"]);
        Self { site, machine, network }
    }

    #[track_caller]
    fn select(&self) -> Outcome {
        self.select_as(None)
    }

    #[track_caller]
    fn select_as(&self, node_name: Option<&str>) -> Outcome {
        let mut command = self.site.selecting();
        command.env("IPAM_DELEGATED_LOG", "debug");
        command.envs(node_name.map(|name| ("NODE_NAME", name)));
        self.site.run(self.machine.run(&command), &self.network)
    }

    /// The subnets, with the lines of the log that tell which node this is.
    #[track_caller]
    fn found(&self) -> (Vec<String>, String) {
        found(self.select())
    }

    /// The requests since it was last asked.
    fn requests(&self, seen: &mut usize) -> Vec<String> {
        let all = self.site.requests();
        let new = all[*seen..].to_vec();
        *seen = all.len();
        new
    }
}

#[track_caller]
fn found(outcome: Outcome) -> (Vec<String>, String) {
    let says = |line: &&str| line.contains("this is node") || line.contains("machine-id");
    let lines: Vec<_> = outcome.stderr.lines().filter(says).map(str::to_owned).collect();
    (subnets(&outcome.success()), lines.join("\n"))
}

fn node(name: &str, cidr: &str) -> Node {
    Node::named(name).cidrs(&[cidr])
}

#[track_caller]
fn make(nodes: &[Node]) {
    nodes.iter().for_each(|node| drop(Kube::shared().create_node(node)));
}

#[test]
fn the_configuration_comes_before_the_variable_and_that_before_the_hosts_name() {
    make(&[
        node("said", "10.1.1.0/24"),
        node("variable", "10.1.2.0/24"),
        node("host-1.example", "10.1.3.0/24"),
    ]);
    let mut lost = Lost::on(Machine::named("Host-1.Example"));
    let mut seen = 0;
    lost.network["ipam"]["nodeName"] = "said".into();
    let (subnets, log) = found(lost.select_as(Some("variable")));
    assert_eq!(subnets, ["10.1.1.0/24"]);
    assert!(log.contains("this is node said, as ipam.nodeName says"), "{log}");
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/said 200"]);

    lost.network["ipam"]["nodeName"] = "".into();
    let (subnets, log) = found(lost.select_as(Some("variable")));
    assert_eq!(subnets, ["10.1.2.0/24"]);
    assert!(log.contains("this is node variable, as NODE_NAME says"), "{log}");
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/variable 200"]);

    let (subnets, log) = found(lost.select_as(Some("")));
    assert_eq!(subnets, ["10.1.3.0/24"]);
    assert!(log.contains("this is node host-1.example, by the host's name"), "{log}");
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/host-1.example 200"]);
}

#[test]
fn a_node_of_another_name_is_found_by_its_machine_id_once() {
    make(&[
        node("by-id", "10.2.1.0/24").machine_id("1d-by-id"),
        node("beside-by-id", "10.2.2.0/24").machine_id("1d-other"),
    ]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-by-id"));
    let mut seen = 0;
    let (subnets, log) = lost.found();
    assert_eq!(subnets, ["10.2.1.0/24"]);
    assert!(log.contains("this is node by-id, by its machine-id"), "{log}");
    let requests = [
        "get /api/v1/nodes/elsewhere 404",
        "list /api/v1/nodes?limit=100 200",
        "get /api/v1/nodes/by-id 200",
    ];
    assert_eq!(lost.requests(&mut seen), requests);
    let (subnets, log) = lost.found();
    assert_eq!(subnets, ["10.2.1.0/24"]);
    assert!(log.contains("this is node by-id, as found earlier"), "{log}");
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/by-id 200"]);
    // Every network of this machine knows it.
    let mut other = Lost { network: lost.network.clone(), ..lost };
    other.network["name"] = "other".into();
    other.found();
    assert_eq!(other.requests(&mut seen), ["get /api/v1/nodes/by-id 200"]);
}

#[test]
fn a_node_is_found_by_its_provider_id_where_no_machine_id_is_known() {
    make(&[
        node("by-instance", "10.3.1.0/24").provider_id("aws:///eu-west-1a/i-0a1b2c3d4e5f60718"),
        node("beside-instance", "10.3.2.0/24").provider_id("aws:///eu-west-1a/i-0a1b2c3d4e5f60719"),
    ]);
    let lost = Lost::on(Machine::named("ip-10-0-0-1").instance("i-0A1B2C3D4E5F60718"));
    let (subnets, log) = lost.found();
    assert_eq!(subnets, ["10.3.1.0/24"]);
    assert!(log.contains("this is node by-instance, by its provider ID"), "{log}");
    let mut seen = lost.site.requests().len();
    lost.found();
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/by-instance 200"]);
}

#[test]
fn a_machine_id_counts_more_than_a_provider_id() {
    make(&[
        node("more-id", "10.4.1.0/24").machine_id("1d-more"),
        node("less-instance", "10.4.2.0/24").provider_id("x://i-77777777"),
    ]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-more").instance("i-77777777"));
    assert_eq!(lost.found().0, ["10.4.1.0/24"]);
}

#[test]
fn a_node_that_has_the_hosts_name_and_is_another_machine_is_passed_over() {
    make(&[
        node("twin", "10.5.1.0/24").machine_id("1d-of-the-other"),
        node("the-real", "10.5.2.0/24").machine_id("1d-of-this"),
    ]);
    let lost = Lost::on(Machine::named("twin").id("1d-of-this"));
    let (subnets, log) = lost.found();
    assert_eq!(subnets, ["10.5.2.0/24"]);
    assert!(
        log.contains("[WARN]") && log.contains("machine-id 1d-of-the-other of another machine"),
        "{log}"
    );
    assert!(log.contains("this is node the-real"), "{log}");
}

#[test]
fn a_node_of_the_hosts_name_is_taken_where_no_other_has_the_machine_id() {
    make(&[node("container-like", "10.6.1.0/24").machine_id("1d-of-the-host")]);
    let lost = Lost::on(Machine::named("container-like").id("1d-of-the-image"));
    let mut seen = 0;
    let (subnets, log) = lost.found();
    assert_eq!(subnets, ["10.6.1.0/24"]);
    assert!(log.contains("this is node container-like, despite its machine-id"), "{log}");
    assert_eq!(lost.requests(&mut seen).len(), 2);
    // It is not remembered: its own node may still come.
    lost.found();
    assert_eq!(lost.requests(&mut seen).len(), 2);
    make(&[node("joined-late", "10.6.2.0/24").machine_id("1d-of-the-image")]);
    assert_eq!(lost.found().0, ["10.6.2.0/24"]);
}

#[test]
fn the_hosts_name_is_enough_where_nothing_may_be_listed() {
    make(&[node("unlisted", "10.7.1.0/24").machine_id("1d-x")]);
    let named = Machine::named("unlisted");
    for machine in [named.clone(), named.clone().id("1d-x")] {
        assert_eq!(Lost::allowed(machine, &["get"]).found().0, ["10.7.1.0/24"]);
    }
    let (subnets, log) = Lost::allowed(named.id("1d-strange"), &["get"]).found();
    assert_eq!(subnets, ["10.7.1.0/24"]);
    assert!(log.contains("despite its machine-id") && log.contains("(403)"), "{log}");
}

#[test]
fn two_nodes_with_one_machine_id_are_told_by_name() {
    make(&[
        node("clone-a", "10.8.1.0/24").machine_id("1d-cloned"),
        node("clone-b", "10.8.2.0/24").machine_id("1d-cloned"),
    ]);
    // The node that has the host's name is a third machine.
    make(&[node("clone-namesake", "10.8.3.0/24").machine_id("1d-not-cloned")]);
    for host in ["elsewhere", "clone-namesake"] {
        let lost = Lost::on(Machine::named(host).id("1d-cloned"));
        let (code, text) = lost.select().failure();
        assert_eq!(code, 103, "{text}");
        for part in ["2 nodes", "clone-a, clone-b", "machine-id", "nodeName", "NODE_NAME"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    // By its name each is known.
    for (name, subnet) in [("clone-a", "10.8.1.0/24"), ("clone-b", "10.8.2.0/24")] {
        let machine = Machine::named(name).id("1d-cloned");
        assert_eq!(Lost::on(machine).found().0, [subnet]);
    }
}

#[test]
fn a_machine_that_is_no_node_is_told_what_was_looked_for() {
    for machine in [
        Machine::named("no-node").id("1d-of-no-node"),
        Machine::named("no-node"),
        Machine::default(),
        Machine::named("Not a name/../of a node?x=y"),
    ] {
        let lost = Lost::on(machine.clone());
        let (code, text) = lost.select().failure();
        assert_eq!(code, 103, "{text}");
        let id = machine.id.unwrap_or_default();
        for part in ["this machine is not a node", &machine.host_name, &id, "nodeName", "NODE_NAME"]
        {
            assert!(text.contains(part), "{part:?}: {text}");
        }
        assert!(!lost.site.memory("k8snet").exists());
    }
}

#[test]
fn who_may_not_list_is_told_the_rule_and_the_other_way() {
    let lost = Lost::allowed(Machine::named("no-list").id("1d-no-list"), &["get"]);
    let (code, text) = lost.select().failure();
    assert_eq!(code, 103, "{text}");
    for part in ["no-list", "403", r#"\"verbs\": [\"list\"]"#, "nodeName"] {
        assert!(text.replace('"', "\\\"").contains(part), "{part}: {text}");
    }
}

#[test]
fn a_name_that_was_said_is_not_searched_for() {
    let lost = Lost::on(Machine::named("elsewhere").id("1d-said"));
    make(&[node("not-said", "10.9.1.0/24").machine_id("1d-said")]);
    let (code, text) = found_nothing(&lost, Some("gone-1"));
    let file = lost.site.kubeconfig_path().display().to_string();
    assert!(code == 103 && text.contains("node gone-1 not found"), "{code}: {text}");
    assert!(text.contains("NODE_NAME names it") && text.contains(&file), "{text}");
    let mut seen = 0;
    assert_eq!(lost.requests(&mut seen), ["get /api/v1/nodes/gone-1 404"]);
    let mut named = lost;
    named.network["ipam"]["nodeName"] = "gone-2".into();
    let (_, text) = found_nothing(&named, None);
    assert!(text.contains("node gone-2 not found") && text.contains("nodeName names it"), "{text}");
    assert_eq!(named.requests(&mut seen), ["get /api/v1/nodes/gone-2 404"]);
}

fn found_nothing(lost: &Lost, node_name: Option<&str>) -> (u64, String) {
    lost.select_as(node_name).failure()
}

#[test]
fn what_no_node_can_be_called_is_refused_and_nothing_asked() {
    let lost = Lost::on(Machine::named("elsewhere"));
    for odd in ["absent/status", "../../pods/x?y=z", "Absent", "a b", "-", ".."] {
        let network = with(&lost.network, "nodeName", odd);
        lost.site.fails(&network, 7, &["nodeName", odd, "invalid node name"]);
    }
    assert!(lost.site.requests().is_empty());
}

#[test]
fn a_remembered_node_that_has_gone_is_looked_for_again() {
    make(&[node("before", "10.10.1.0/24").machine_id("1d-moved")]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-moved"));
    assert_eq!(lost.found().0, ["10.10.1.0/24"]);
    Kube::shared().delete_node("before");
    make(&[node("after", "10.10.2.0/24").machine_id("1d-moved")]);
    let mut seen = lost.site.requests().len();
    assert_eq!(lost.found().0, ["10.10.2.0/24"]);
    assert_eq!(lost.requests(&mut seen)[0], "get /api/v1/nodes/before 404");
    lost.found();
    assert_eq!(lost.requests(&mut seen).last().unwrap(), "get /api/v1/nodes/after 200");
    // A node of the old name is another machine by now.
    make(&[node("before", "10.10.3.0/24").machine_id("1d-new-one")]);
    assert_eq!(lost.found().0, ["10.10.2.0/24"]);
}

#[test]
fn a_remembered_node_that_has_become_another_machine_is_looked_for_again() {
    make(&[node("reused", "10.11.1.0/24").machine_id("1d-first")]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-first"));
    assert_eq!(lost.found().0, ["10.11.1.0/24"]);
    Kube::shared().set_machine_id("reused", "1d-second");
    let (code, text) = lost.select().failure();
    assert!(code == 103 && text.contains("this machine is not a node"), "{code}: {text}");
}

#[test]
fn a_clone_does_not_take_itself_for_its_original() {
    make(&[
        node("original", "10.12.1.0/24").machine_id("1d-original"),
        node("copy", "10.12.2.0/24").machine_id("1d-copy"),
    ]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-original"));
    assert_eq!(lost.found().0, ["10.12.1.0/24"]);
    // The same state folder, on another machine.
    let copy = Lost { machine: Machine::named("elsewhere").id("1d-copy"), ..lost };
    // What the original was told is not for the copy, not even while nobody else can say.
    copy.site.calls_nobody();
    let mut command = copy.site.selecting();
    command.env("IPAM_DELEGATED_DEADLINE_MS", "1500");
    let (code, text) = copy.site.run(copy.machine.run(&command), &copy.network).failure();
    assert_eq!(code, 105, "{text}");
    copy.site.calls_home();
    assert_eq!(copy.found().0, ["10.12.2.0/24"]);
}

#[test]
fn a_clone_that_is_known_by_its_instance_does_not_either() {
    make(&[
        node("first-instance", "10.15.1.0/24").provider_id("x://i-first-15"),
        node("second-instance", "10.15.2.0/24").provider_id("x://i-second-15"),
    ]);
    for id in [None, Some("1d-of-the-image-15")] {
        let machine = |instance: &str| Machine {
            id: id.map(str::to_owned),
            ..Machine::named("elsewhere").instance(instance)
        };
        let lost = Lost::on(machine("i-first-15"));
        assert_eq!(lost.found().0, ["10.15.1.0/24"]);
        let copy = Lost { machine: machine("i-second-15"), ..lost };
        assert_eq!(copy.found().0, ["10.15.2.0/24"]);
    }
}

#[test]
fn what_was_remembered_of_another_cluster_is_not_believed() {
    make(&[node("of-cluster", "10.13.1.0/24").machine_id("1d-cluster")]);
    let lost = Lost::on(Machine::named("elsewhere").id("1d-cluster"));
    lost.found();
    let other = lost.site.world.path("other-kubeconfig");
    fs::copy(lost.site.kubeconfig_path(), &other).unwrap();
    let moved = Lost { network: with(&lost.network, "kubeconfig", json!(other)), ..lost };
    let mut seen = moved.site.requests().len();
    moved.found();
    assert_eq!(moved.requests(&mut seen)[0], "get /api/v1/nodes/elsewhere 404");
}
