use super::*;
use serde_json::json;

fn step(name: &str) -> Step {
    Step::new(name, format!("/bin/{name}").into())
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn network(ipam: Value) -> Network {
    Network::new(object(json!({"cniVersion": "1.0.0", "name": "n", "ipam": ipam}))).unwrap()
}

/// Runs answers through a handoff and gives the outcome.
fn chain(answers: &[(Step, Value)]) -> Result<IpamResult> {
    let (network, settings) = (network(json!({})), Settings::default());
    let mut handoff = Handoff::new(&network, &settings, "node", false, IpamResult::default());
    for (step, answer) in answers {
        handoff.take_answer(step, object(answer.clone()))?;
    }
    let steps: Vec<Step> = answers.iter().map(|(step, _)| step.clone()).collect();
    handoff.finish(&steps)
}

fn ips(result: &IpamResult) -> Vec<String> {
    result.ips.iter().map(|ip| ip.address.to_string()).collect()
}

#[test]
fn a_standard_plugin_with_an_address_served_all() {
    let result = chain(&[
        (
            step("ipam-ds-x"),
            json!({"pools": [{"ranges": [{"subnet": "10.0.0.0/24"}]}], "routes": [{"dst": "10.0.0.0/8"}]}),
        ),
        (step("host-local"), json!({"ips": [{"address": "10.0.0.2/24"}]})),
    ])
    .unwrap();
    assert_eq!(ips(&result), ["10.0.0.2/24"]);
    assert_eq!(result.routes.len(), 1);
    assert!(result.extra.is_empty());
}

#[test]
fn a_route_of_another_table_is_no_duplicate() {
    let selector = json!({"pools": [], "routes": [{"dst": "0.0.0.0/0", "table": 100}, {"dst": "0.0.0.0/0", "gw": "10.0.0.9"}]});
    let standard = json!({"ips": [{"address": "10.0.0.2/24"}], "routes": [{"dst": "0.0.0.0/0"}]});
    let result = chain(&[(step("ipam-ds-x"), selector), (step("host-local"), standard)]).unwrap();
    let routes: Vec<Value> = result.routes.iter().map(Route::to_json).collect();
    assert_eq!(routes, [json!({"dst": "0.0.0.0/0"}), json!({"dst": "0.0.0.0/0", "table": 100})]);
}

#[test]
fn settings_of_two_selectors_are_merged_at_every_depth() {
    let (network, settings) =
        (network(json!({"opt": {"a": 1, "b": 2}, "gone": 1})), Settings::default());
    let mut handoff = Handoff::new(&network, &settings, "node", false, IpamResult::default());
    for ipam in [json!({"opt": {"x": 1, "b": null}, "gone": null}), json!({"opt": {"y": 2}})] {
        handoff.take_answer(&step("ipam-ds-x"), object(json!({"ipam": ipam}))).unwrap();
    }
    let ipam = handoff.run_for(&step("a")).unwrap().ipam;
    assert_eq!((&ipam["opt"], ipam.get("gone")), (&json!({"a": 1, "x": 1, "y": 2}), None));
}

#[test]
fn an_allocator_says_which_pools_are_left() {
    let selector = (step("ipam-ds-x"), json!({"pools": [{"name": "a"}, {"name": "b"}]}));
    let one = (
        step("ipam-da-x"),
        json!({"ips": [{"address": "10.0.0.2/24"}], "pools": [{"name": "b"}], "leases": [1]}),
    );
    let error = chain(&[selector.clone(), one.clone()]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::UNSERVED);
    assert!(error.to_string().contains("\"b\""));
    // The second one forgets the first one's address, as standard plugins do.
    let two = (step("ipam-da-y"), json!({"ips": [{"address": "fd00::2/64"}], "pools": []}));
    assert_eq!(ips(&chain(&[selector, one, two]).unwrap()), ["10.0.0.2/24", "fd00::2/64"]);
}

#[test]
fn two_allocators_serve_a_pool_each() {
    let mut blue = step("ipam-da-blue");
    blue.serves = Some(vec!["blue".to_owned()]);
    let (network, settings) = (network(json!({})), Settings::default());
    let mut handoff = Handoff::new(&network, &settings, "node", false, IpamResult::default());
    assert!(handoff.run_for(&blue).is_some(), "unknown pools: the delegate must see for itself");
    handoff
        .take_answer(
            &step("ipam-ds-x"),
            object(json!({"pools": [{"name": "red"}, {"name": "blue"}]})),
        )
        .unwrap();
    assert_eq!(handoff.run_for(&blue).unwrap().pools.unwrap(), [json!({"name": "blue"})]);
    handoff
        .take_answer(&blue, object(json!({"ips": [{"address": "10.0.0.2/24"}], "pools": []})))
        .unwrap();
    assert!(handoff.run_for(&blue).is_none());
    assert!(handoff.finish(&[]).unwrap_err().to_string().contains("\"red\""));
    let mut red = step("host-local");
    red.serves = Some(vec!["red".to_owned()]);
    handoff.take_answer(&red, object(json!({"ips": [{"address": "10.0.0.3/24"}]}))).unwrap();
    assert_eq!(ips(&handoff.finish(&[]).unwrap()), ["10.0.0.2/24", "10.0.0.3/24"]);
}

#[test]
fn answers_against_the_contract_name_what_is_wrong() {
    for (name, answer, part) in [
        ("ipam-ds-x", json!({"ips": [{"address": "10.0.0.2/24"}]}), "a selector gave an address"),
        ("a", json!({"pools": {}}), "answer's pools: expected an array"),
        ("a", json!({"pools": [1]}), "answer's pools: expected an array"),
        ("a", json!({"leases": {}}), "answer's leases: expected an array"),
        ("a", json!({"ipam": []}), "answer's ipam: expected an object"),
        ("a", json!({"ipam": {"x": 1}}), "only a selector may do that"),
        ("ipam-ds-x", json!({"ipam": {"type": "x"}}), "ipam.type"),
        ("ipam-ds-x", json!({"ipam": {"stateDir": null}}), "ipam.stateDir"),
        ("ipam-ds-x", json!({"ipam": {"dataDir": "/etc"}}), "ipam.dataDir"),
        ("a", json!({"ips": [{"address": "10.0.0.2"}]}), "its answer.ips[0].address"),
        (
            "a",
            json!({"ips": [{"address": "10.0.0.2/24"}, {"address": "10.0.0.2/16"}]}),
            "gives 10.0.0.2 twice",
        ),
    ] {
        let error = chain(&[(step(name), answer)]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::DELEGATE);
        assert!(error.to_string().starts_with(&format!("{name}: ")), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(chain(&[]).unwrap_err().code(), ErrorCode::UNSERVED);
}

#[test]
fn a_selector_sets_what_later_delegates_read() {
    let network = network(json!({"type": "ipam-delegated", "subnet": "10.0.0.0/24", "keep": 1}))
        .with("runtimeConfig", json!({"ipRanges": [[{"subnet": "10.9.0.0/24"}]], "mac": "m"}));
    let settings = Settings::default();
    let mut handoff = Handoff::new(&network, &settings, "node-1", false, IpamResult::default());
    assert!(handoff.run_for(&step("host-local")).unwrap().ip_ranges.is_some());
    let patch = json!({"pools": [], "ipam": {"ranges": [[1]], "subnet": null, "dataDir": "/var/lib/cni/x"}});
    handoff.take_answer(&step("ipam-ds-x"), object(patch)).unwrap();
    let run = handoff.run_for(&step("host-local")).unwrap();
    let expected = json!({"type": "host-local", "keep": 1, "ranges": [[1]], "dataDir": "/var/lib/cni/x", "node": "node-1"});
    assert_eq!(Value::from(run.ipam.clone()), expected);
    let input = DelegateInput { leases: vec![json!("l")], ..DelegateInput::default() };
    let stdin: Value =
        serde_json::from_str(&run.stdin(&network, &IpamResult::default(), input).unwrap()).unwrap();
    assert_eq!(stdin["runtimeConfig"], json!({"mac": "m"}));
    assert_eq!(stdin["prevResult"]["pools"], json!([]));
    assert_eq!(stdin["prevResult"]["leases"], json!(["l"]));
}

#[test]
fn an_allocator_answers_static_addresses_beside_one_for_each_pool() {
    let pools = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
    let selector =
        || (step("ipam-ds-x"), json!({"pools": pools, "static": [{"address": "10.0.0.9/24"}]}));
    let allocator = |ips: &[&str]| {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"address": ip})).collect();
        (step("ipam-da-x"), json!({"ips": ips, "pools": []}))
    };
    let result = chain(&[selector(), allocator(&["10.0.0.2/24", "10.0.0.9/24"])]).unwrap();
    assert_eq!((ips(&result).len(), result.extra.len()), (2, 0));
    for (answer, part) in [
        (
            allocator(&["10.0.0.2/24"]),
            "ipam-da-x: no delegate answered the static address 10.0.0.9/24",
        ),
        (allocator(&["10.0.0.9/24"]), "no address for the pool"),
        (
            (step("host-local"), json!({"ips": [{"address": "10.0.0.2/24"}]})),
            "no delegate answered the static address 10.0.0.9/24",
        ),
    ] {
        let error = chain(&[selector(), answer]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::UNSERVED);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_selector_that_names_no_static_address_leaves_those_before_it() {
    let first = json!({"pools": [], "static": [{"address": "10.0.0.9/24"}]});
    let second = json!({"pools": []});
    for (given, answered) in [("10.0.0.9/24", true), ("10.0.0.2/24", false)] {
        let allocator = json!({"ips": [{"address": given}], "pools": []});
        let result = chain(&[
            (step("ipam-ds-x"), first.clone()),
            (step("ipam-ds-y"), second.clone()),
            (step("ipam-da-x"), allocator),
        ]);
        assert_eq!(result.is_ok(), answered, "{result:?}");
    }
}
