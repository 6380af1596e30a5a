use serde_json::{Value, json};

use super::add_to;
use super::call::SectionCall;
use crate::cni::{IpamResult, Verb};

const NOT_ADD: [Verb; 4] = [Verb::Del, Verb::Check, Verb::Gc, Verb::Status];

#[test]
fn without_pools_and_ranges_there_is_no_offer() {
    for ipam in [
        json!({}),
        json!({"ranges": []}),
        json!({"ranges": null, "pools": null, "subnet": ""}),
        json!({"rangeStart": "10.1.2.3", "routes": [5], "resolvConf": "/nowhere/r"}),
    ] {
        for verb in [Verb::Add].into_iter().chain(NOT_ADD) {
            let call = SectionCall::ipam(ipam.clone()).verb(verb).args("IP=10.1.2.3");
            assert_eq!(call.read().unwrap(), None, "{verb} {ipam}");
        }
    }
}

#[test]
fn routes_are_copied_and_stay_without_gateway() {
    let routes = json!([
        {"dst": "0.0.0.0/0"},
        {"dst": "192.168.0.0/16", "gw": "10.1.2.254", "mtu": 1400, "advmss": 1360,
         "priority": 5, "table": 100, "scope": 0},
    ]);
    let ipam = json!({"subnet": "10.1.2.0/24", "routes": routes});
    assert_eq!(SectionCall::ipam(ipam).ok()["routes"], routes);
}

#[test]
fn bad_routes_name_their_place() {
    for (routes, message) in [
        (json!({}), "ipam.routes: expected an array, found an object"),
        (json!([{"dst": "0.0.0.0/0"}, 5]), "ipam.routes[1]: expected an object"),
        (json!([{"gw": "10.1.2.1"}]), "ipam.routes[0].dst: expected an address"),
        (json!([{"dst": "10.0.0.0"}]), "ipam.routes[0].dst: invalid address \"10.0.0.0\""),
        (json!([{"dst": "::/0", "gw": "x"}]), "ipam.routes[0].gw: invalid address \"x\""),
    ] {
        SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "routes": routes})).err(7, message);
    }
}

#[test]
fn a_file_without_an_end_is_no_name_resolution() {
    let ipam = json!({"subnet": "10.1.2.0/24", "resolvConf": "/dev/zero"});
    let details = SectionCall::ipam(ipam).err(5, "ipam.resolvConf: cannot read /dev/zero");
    assert_eq!(details, "not a regular file");
}

#[test]
fn empty_members_are_left_out() {
    for ipam in [
        json!({"subnet": "10.1.2.0/24"}),
        json!({"subnet": "10.1.2.0/24", "routes": [], "resolvConf": ""}),
        json!({"subnet": "10.1.2.0/24", "routes": null, "resolvConf": null}),
    ] {
        let answer = SectionCall::ipam(ipam).ok();
        assert_eq!(answer.get("routes"), None);
        assert_eq!(answer.get("dns"), None);
    }
}

#[test]
fn name_resolution_comes_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "nameserver 192.0.2.3\n").unwrap();
    let answer =
        SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "resolvConf": file.path()})).ok();
    assert_eq!(answer["dns"], json!({"nameservers": ["192.0.2.3"]}));
}

#[test]
fn a_missing_file_fails_add_alone() {
    let call = || SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "resolvConf": "/nowhere/r"}));
    call().err(5, "ipam.resolvConf: cannot read /nowhere/r");
    for verb in NOT_ADD {
        assert_eq!(call().verb(verb).ok().get("dns"), None, "{verb}");
    }
}

#[test]
fn every_verb_is_offered_the_same_pools() {
    let ipam = json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]});
    let pools = SectionCall::ipam(ipam.clone()).ok()["pools"].clone();
    for verb in NOT_ADD {
        assert_eq!(SectionCall::ipam(ipam.clone()).verb(verb).ok()["pools"], pools, "{verb}");
    }
}

#[test]
fn what_a_result_has_already_stays_once() {
    let parse = |value: Value| IpamResult::parse(&value, "r").unwrap();
    let mut result = parse(json!({"routes": [{"dst": "::/0"}], "dns": {"domain": "a"}}));
    let more = parse(json!({"routes": [{"dst": "::/0"}, {"dst": "fd00::/8"}]}));
    add_to(&mut result, more.routes, more.dns);
    let both = json!({"routes": [{"dst": "::/0"}, {"dst": "fd00::/8"}], "dns": {"domain": "a"}});
    assert_eq!(result, parse(both));
    let named = parse(json!({"dns": {"nameservers": ["192.0.2.3"]}}));
    add_to(&mut result, named.routes, named.dns.clone());
    assert_eq!(result.dns, named.dns);
}

#[test]
fn keys_in_other_letters_are_not_passed_over() {
    let details = SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "RangeStart": "10.1.2.9"}))
        .err(7, "ipam.RangeStart: unknown key (did you mean rangeStart?)");
    assert_eq!(details, "keys are case-sensitive");
    SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "DATADIR": "/leases"}))
        .err(7, "ipam.DATADIR: unknown key (did you mean dataDir?)");
    SectionCall::ipam(json!({"ranges": [[], [{"subnet": "10.1.2.0/24", "Gateway": "10.1.2.9"}]]}))
        .err(7, "ipam.ranges[1][0].Gateway: unknown key (did you mean gateway?)");
    SectionCall::ipam(
        json!({"subnet": "10.1.2.0/24", "routes": [{"dst": "::/0", "GW": "fd00::1"}]}),
    )
    .err(7, "ipam.routes[0].GW: unknown key (did you mean gw?)");
}

#[test]
fn keys_of_others_are_none_of_its_business() {
    SectionCall::ipam(json!({"subnet": "10.1.2.0/24", "Server": 1, "subnets": 2})).ok();
    SectionCall::ipam(json!({"ranges": [[{"subnet": "10.1.2.0/24", "comment": "x"}]]})).ok();
}

#[test]
fn a_misspelt_key_is_refused_on_add_and_status_alone() {
    let ranges = json!([[{"subnet": "10.5.0.0/24", "rangeStat": "10.5.0.9"}]]);
    let of_runtime = || {
        SectionCall::ipam(json!({"subnet": "10.1.2.0/24"}))
            .with("runtimeConfig", json!({"ipRanges": ranges}))
    };
    let in_ranges = || SectionCall::ipam(json!({"ranges": ranges}));
    for verb in [Verb::Add, Verb::Status] {
        let place =
            "runtimeConfig.ipRanges[0][0].rangeStat: unknown key (did you mean rangeStart?)";
        of_runtime().verb(verb).err(7, place);
        in_ranges()
            .verb(verb)
            .err(7, "ipam.ranges[0][0].rangeStat: unknown key (did you mean rangeStart?)");
    }
    for verb in [Verb::Del, Verb::Check, Verb::Gc] {
        of_runtime().verb(verb).ok();
        in_ranges().verb(verb).ok();
    }
}

#[test]
fn a_replaced_system_ignores_a_misspelt_key_of_its_own_form() {
    let range = json!({"subnet": "10.1.2.0/24", "gatway": "10.1.2.9"});
    for (rules, refused) in [
        (json!("host-local"), false),
        (json!("etcd"), false),
        (json!("own"), true),
        (json!(null), true),
    ] {
        let ranges = SectionCall::ipam(json!({"rangeRules": rules, "ranges": [[range]]}));
        assert_eq!(ranges.read().is_err(), refused, "{rules}");
        // No replaced system has pools.
        let pools = json!([{"naem": "a", "ranges": [{"subnet": "10.1.2.0/24"}]}]);
        let pools = SectionCall::ipam(json!({"rangeRules": rules, "pools": pools}));
        pools.err(7, "ipam.pools[0].naem: unknown key (did you mean name?)");
    }
}
