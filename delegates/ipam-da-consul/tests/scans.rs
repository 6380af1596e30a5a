//! What a view reads, where the view before has shown something.

#![allow(clippy::unwrap_used, reason = "a test")]

use ipam_da_consul::Consul;
use ipam_kit::Request;
use ipam_kit::allocate::ledger::{Need, View, ViewQuery};
use ipam_kit::allocate::{Ledger, Owner, Scope};
use ipam_kit::cni::{ContainerId, Environment, IfName, NetworkName, Verb};
use ipam_kit::host::Settings;
use ipam_testkit::consul::{Consul as Server, Relay};
use serde_json::json;
use tempfile::TempDir;

type Token = <Consul as Ledger>::Token;

/// A ledger that an ADD has opened.
fn ledger(relay: &Relay, state: &TempDir) -> Consul {
    let ipam = json!({
        "consul_servers": [format!("http://{}", relay.endpoint())],
        "stateDir": state.path(),
    });
    let config = json!({"cniVersion": "1.1.0", "name": "lan", "ipam": ipam}).to_string();
    let environment = Environment::new([
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/c1"),
    ]);
    let request =
        Request::parse(Verb::Add, environment, config.as_bytes(), Settings::default()).unwrap();
    Consul::open(request.network.settings().unwrap(), &request).unwrap()
}

fn owner() -> Owner {
    Owner {
        scope: Scope { node: "n1".to_owned(), network: NetworkName::parse("lan").unwrap() },
        container: ContainerId::parse("c1").unwrap(),
        ifname: IfName::parse("eth0").unwrap(),
    }
}

fn view(ledger: &mut Consul, need: Need, earlier: Option<Token>) -> View<Token> {
    let owner = owner();
    let query =
        ViewQuery { owner: &owner, known: &[], requests: &[], scans: &[], may_guess: false, need };
    ledger.view(&query, earlier).unwrap()
}

#[test]
fn what_the_view_before_has_read_is_read_again_for_a_proof_alone() {
    let server = Server::start();
    let relay = Relay::to(&server.endpoint());
    let state = TempDir::new().unwrap();
    let mut ledger = ledger(&relay, &state);
    let mut token = None;
    let mut views = |need, earlier: &mut Option<Token>| {
        let mut sure = None;
        let lines = relay.during(|| {
            let view = view(&mut ledger, need, earlier.take());
            sure = Some(view.sure);
            *earlier = Some(view.token);
        });
        (lines.len(), lines.iter().any(|line| line.contains("consistent")), sure.unwrap())
    };
    assert_eq!(views(Need::Claim, &mut token), (1, false, false));
    assert_eq!(views(Need::Claim, &mut token), (0, false, false));
    assert_eq!(views(Need::Proof, &mut token), (1, true, true));
    assert_eq!(views(Need::Proof, &mut token), (0, false, true));
    assert_eq!(views(Need::Proof, &mut None), (1, true, true));
}
