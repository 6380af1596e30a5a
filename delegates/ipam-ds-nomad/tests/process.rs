//! The program against Nomad's API.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use ipam_testkit::certificates::Certificates;
use ipam_testkit::kube::{End, Speaker};
use ipam_testkit::pages::Page;
use ipam_testkit::world::{World, start, wait};
use serde_json::{Value, json};

use common::{ID, Nomad, Reply, allocation, call, command, network, usual};

/// The URL of nobody.
fn closed() -> String {
    format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap())
}

/// `network`, with `ipam.nomad`.
fn with(mut network: Value, section: Value) -> Value {
    network["ipam"]["nomad"] = section;
    network
}

fn chosen() -> Value {
    json!([{"name": "pool-name", "requested-ip": "10.0.21.100", "requested_ip": "10.0.21.100"}])
}

#[test]
fn every_verb_of_an_attachment_answers_with_the_groups_pool() {
    let nomad = Nomad::with(ID, &usual());
    let mut network = network(&[&nomad.url]);
    for verb in ["ADD", "CHECK", "DEL"] {
        let result = call(verb, ID, &network).success();
        assert_eq!(result, json!({"cniVersion": "1.1.0", "ips": [], "pools": chosen()}), "{verb}");
    }
    assert_eq!(nomad.requests(), vec![format!("GET /v1/allocation/{ID}"); 3]);
    // The addresses of delegates before it stay.
    network["prevResult"]["ips"] = json!([{"address": "10.9.9.9/24"}]);
    assert_eq!(call("DEL", ID, &network).ips(), ["10.9.9.9/24"]);
}

#[test]
fn what_nomad_says_of_itself_comes_before_the_configuration() {
    let nomad = Nomad::with(ID, &usual());
    let section = json!({"token": "s3cret", "namespace": "of-config", "region": "eu"});
    let network = with(network(&[&nomad.url]), section);
    call("DEL", ID, &network).success();
    let mut add = command(&World::new(), "ADD", "not-the-id");
    let args =
        format!("IgnoreUnknown=true;NOMAD_NAMESPACE=shop;NOMAD_REGION=us;NOMAD_ALLOC_ID={ID}");
    add.env("CNI_ARGS", args);
    wait(start(add, &network)).success();
    assert_eq!(
        nomad.requests(),
        [
            format!("GET /v1/allocation/{ID}?namespace=of-config&region=eu (s3cret)"),
            format!("GET /v1/allocation/{ID}?namespace=shop&region=us (s3cret)"),
        ]
    );
}

#[test]
fn servers_are_tried_in_order() {
    let (broken, strange) =
        (Nomad::saying(500, "No cluster leader"), Nomad::saying(404, "alloc not found"));
    let elsewhere = Nomad::start(|_, _| Reply::Redirect("http://elsewhere/".to_owned()));
    let (silent, good) = (Nomad::start(|_, _| Reply::Silence), Nomad::with(ID, &usual()));
    let nobody = closed();
    let urls = [&nobody, &broken.url, &strange.url, &elsewhere.url, &silent.url, &good.url]
        .map(String::as_str);
    let result = call("ADD", ID, &network(&urls)).success();
    assert_eq!(result["pools"], chosen());
    for asked in [&broken, &strange, &elsewhere, &silent, &good] {
        assert_eq!(asked.requests(), [format!("GET /v1/allocation/{ID}")]);
    }
}

#[test]
fn a_slow_server_is_waited_for() {
    let slow = Nomad::start(|_, _| {
        std::thread::sleep(Duration::from_millis(700));
        Reply::Say(200, usual().to_string())
    });
    assert_eq!(call("ADD", ID, &network(&[&slow.url])).success()["pools"], chosen());
    assert_eq!(slow.requests().len(), 1);
}

#[test]
fn no_server_that_can_be_reached_is_told_from_one_that_fails() {
    let nomad = Nomad::saying(500, "rpc error: No cluster leader");
    let hiding = Nomad::saying(500, &format!("Unknown allocation \"{ID}\""));
    let url = closed();
    for (url, code, reason) in [
        (url.as_str(), 105, "Connection refused"),
        (&nomad.url, 11, "HTTP 500: rpc error: No cluster leader"),
        (
            &hiding.url,
            11,
            &format!("HTTP 500: Unknown allocation \"{ID}\" (the token may lack the right"),
        ),
    ] {
        let network = with(network(&[url]), json!({"timeout": "300ms"}));
        let (found, text) = call("ADD", ID, &network).failure();
        assert_eq!(found, code, "{text}");
        let start = format!("allocation {ID}: no Nomad server answers; {url}: {reason}");
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn what_all_servers_refuse_is_told_at_once() {
    for (status, said, advice) in [
        (403, "Permission denied", "a token with read-job in the allocation's namespace"),
        (404, "alloc not found", "unknown allocation: it belongs to another region"),
        (404, "404 page not found", "the server may not be Nomad: check host, port and path"),
    ] {
        let (one, other) = (Nomad::saying(status, said), Nomad::saying(status, said));
        let (code, text) = call("ADD", ID, &network(&[&one.url, &other.url])).failure();
        assert_eq!(code, 103, "{text}");
        for server in [&one, &other] {
            let line = format!("{}: HTTP {status}: {said} (", server.url);
            assert!(text.contains(&line) && text.contains(advice), "{text}");
            assert_eq!(server.requests().len(), 1);
        }
    }
}

#[test]
fn an_unusable_allocation_is_refused_with_the_reason() {
    let cni = json!([{"Mode": "cni/example"}]);
    let pool = json!({"network-pool": "p"});
    for (answer, code, message) in [
        (allocation(pool.clone(), Value::Null), 7, "network: the group has no network block"),
        (
            allocation(pool, json!([{"Mode": "bridge"}])),
            7,
            "network.mode: expected cni/NAME, found \"bridge\"",
        ),
        (allocation(Value::Null, cni.clone()), 7, "meta.network-pool: missing"),
        (
            allocation(json!({"network-pool": "p", "network-ip": "x"}), cni),
            7,
            "meta.network-ip: \"x\" is not an IP address",
        ),
        (json!([]), 103, "cannot parse Nomad's answer"),
        (json!({"ID": ID, "TaskGroup": "g", "Job": {"TaskGroups": []}}), 103, "has no group \"g\""),
    ] {
        let nomad = Nomad::with(ID, &answer);
        let (found, text) = call("ADD", ID, &network(&[&nomad.url])).failure();
        assert_eq!(found, code, "{text}");
        assert!(text.contains(message), "{text}");
        assert_eq!(nomad.requests().len(), 1);
    }
}

#[test]
fn an_id_that_is_none_of_nomads_asks_nobody() {
    let nomad = Nomad::with("5456bd7a", &usual());
    for container in ["abc", "5456bd7a"] {
        let (code, text) = call("ADD", container, &network(&[&nomad.url])).failure();
        assert_eq!(code, 4);
        assert!(
            text.starts_with(&format!("CNI_CONTAINERID: {container:?} is not the id")),
            "{text}"
        );
    }
    assert!(nomad.requests().is_empty());
}

#[test]
fn a_group_in_another_network_is_served_with_a_warning() {
    let meta = json!({"network-pool": "p"});
    let nomad = Nomad::with(ID, &allocation(meta, json!([{"Mode": "cni/other"}])));
    let outcome = call("ADD", ID, &network(&[&nomad.url]));
    assert!(
        outcome.stderr.contains("[WARN]") && outcome.stderr.contains("\"other\", not \"example\""),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.success()["pools"], json!([{"name": "p"}]));
}

#[test]
fn status_is_ready_when_the_servers_have_a_leader() {
    let elected = Nomad::start(|_, number| {
        Reply::Say(200, if number < 2 { "\"\"" } else { "\"10.20.30.40:4647\"" }.to_owned())
    });
    let status = |network: &Value| call("STATUS", "", network);
    let eu = with(network(&[&elected.url]), json!({"region": "eu"}));
    status(&eu).success();
    assert_eq!(elected.requests(), ["GET /v1/status/leader?region=eu"; 3]);

    let url = closed();
    let dead = with(network(&[&url]), json!({"timeout": "300ms"}));
    let (code, text) = status(&dead).failure();
    assert_eq!(code, 50);
    assert!(
        text.starts_with(&format!("no Nomad server answers; {url}: Connection refused")),
        "{text}"
    );
    let (code, _) = status(&network(&[])).failure();
    assert_eq!(code, 7);
}

#[test]
fn a_server_that_cannot_be_trusted_is_asked_for_nothing() {
    let (certificates, body) = (Certificates::make(), usual().to_string());
    let server = Speaker::saying(&certificates, Speaker::answer("200 OK", "", &body), End::Closed);
    let trusting = |authority: PathBuf| {
        with(network(&[&server.url()]), json!({"caFile": authority, "token": "secret"}))
    };
    call("ADD", ID, &trusting(certificates.authority())).success();
    let asked = server.requests().len();
    let page = Page::read("delegates/ipam-ds-nomad/README.md");
    page.assert_codes_of_an_untrusted_server(|verb| {
        call(verb, ID, &trusting(certificates.other_authority())).failure().0
    });
    assert_eq!(server.requests().len(), asked);
}

#[test]
fn gc_asks_nobody() {
    let nomad = Nomad::with(ID, &usual());
    let mut network = network(&[&nomad.url]);
    network["cni.dev/valid-attachments"] = json!([]);
    call("GC", "", &network).success();
    assert!(nomad.requests().is_empty());
}
