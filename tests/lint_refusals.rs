//! Chains by which every ADD fails: `lint` exits with 1 and says what to do, and so do ADD and, where it
//! can tell, STATUS.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use ipam_testkit::world::{World, binary, host_local, with};
use serde_json::{Value, json};

/// A node with the selector and the allocator of the disk, and a network of one pool.
fn world() -> (World, Value) {
    let world = World::new();
    for name in ["ipam-ds-static", "ipam-da-local"] {
        world.install(&binary(name));
    }
    world.install(&host_local());
    let network = world.network(json!([]));
    (
        world,
        with(&network, "pools", json!([{"name": "red", "ranges": [{"subnet": "10.60.0.0/24"}]}])),
    )
}

/// What `lint` finds of a network, as `level: message`, and how it ends.
fn lint(world: &World, network: &Value) -> (Option<i32>, Vec<String>) {
    world.conflist("10-net.conflist", network);
    let outcome = world.typed(&["lint", "net", "--json"]);
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let found = outcome.json()[0]["findings"].as_array().unwrap().clone();
    let found = found.iter().map(|it| format!("{}: {}", text(it, "level"), text(it, "message")));
    (outcome.exit, found.collect())
}

/// The only error of `lint`, beside an ADD that fails.
#[track_caller]
fn refused(world: &World, network: &Value) -> (String, String) {
    let (exit, found) = lint(world, network);
    let errors: Vec<&String> = found.iter().filter(|it| it.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{found:#?}") };
    assert_eq!(exit, Some(1), "{found:#?}");
    let (_, add) = world.call("ADD", "c1", network).failure();
    (error.clone(), add)
}

#[track_caller]
fn accepted(world: &World, network: &Value) {
    let (exit, found) = lint(world, network);
    assert!(exit == Some(0) && !found.iter().any(|it| it.starts_with("error: ")), "{found:#?}");
    world.call("ADD", "c1", network).success();
    world.call("DEL", "c1", network).success();
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|it| assert!(text.contains(it), "{it} is not in {text}"));
}

#[test]
fn pools_that_no_delegate_is_shown_fail_status_as_they_fail_add() {
    let (world, network) = world();
    let before = json!(["ipam-da-local", "ipam-ds-static"]);
    let other = json!(["ipam-ds-static", {"type": "ipam-da-local", "serves": ["blue"]}]);
    for (delegates, advice) in [
        (before, "put ipam-da-local after ipam-ds-static"),
        (other, "serves of ipam-da-local names \"blue\": correct serves or the pool's name"),
    ] {
        let network = with(&network, "delegates", delegates);
        let (error, add) = refused(&world, &network);
        let (code, told) = world.status(&network).failure();
        assert_eq!(code, 112, "{told}");
        for text in [error, add, told] {
            has(&text, &["no delegate served the pool \"red\"", advice]);
        }
    }
    // The first is not run, and the second serves all.
    let both =
        json!(["ipam-ds-static", {"type": "ipam-da-local", "serves": ["blue"]}, "ipam-da-local"]);
    let network = with(&network, "delegates", both);
    accepted(&world, &network);
    let (_, found) = lint(&world, &network);
    let note = "note: ipam-da-local is skipped with the pools that selectors answer on STATUS: its serves names blue";
    assert!(found.iter().any(|it| it == note), "{found:#?}");
    world.status(&network).success();
}

#[test]
fn a_sticky_name_or_a_cooldown_that_the_allocator_does_not_know_is_an_error() {
    let (world, network) = world();
    world.install(&binary("ipam-da-consul"));
    let mut sticky = network.clone();
    sticky["ipam"]["pools"][0]["sticky"] = "web-0".into();
    let consul = |network: &Value| with(network, "consul_servers", json!(["http://127.0.0.1:1"]));
    for (network, allocator, parts) in [
        (&sticky, "ipam-da-local", ["pools[0].sticky", "name ipam-da-kube as the allocator"]),
        (
            &sticky,
            "host-local",
            ["host-local keeps no names", "name ipam-da-kube as the allocator"],
        ),
        (
            &consul(&with(&network, "cooldown", json!("30s"))),
            "ipam-da-consul",
            ["ipam.cooldown: this allocator does not know", "remove it, or name ipam-da-local"],
        ),
    ] {
        let network = with(network, "delegates", json!(["ipam-ds-static", allocator]));
        let (error, add) = refused(&world, &network);
        has(&error, &parts);
        has(&add, &parts);
    }
    // A standard plugin reads no cooldown.
    let plain = with(&network, "delegates", json!(["ipam-ds-static", "host-local"]));
    let (_, found) = lint(&world, &with(&plain, "cooldown", json!("30s")));
    let warning = "warning: ipam.cooldown: no delegate of the chain reads it";
    assert!(found.iter().any(|it| it.starts_with(warning)), "{found:#?}");
}

#[test]
fn a_selector_behind_an_allocator_may_name_pools_for_the_next_one() {
    let (world, network) = world();
    world.selector("ipam-ds-x", &json!([{"name": "blue", "ranges": [{"subnet": "10.61.0.0/24"}]}]));
    let delegates = json!(["ipam-ds-static", "ipam-da-local", "ipam-ds-x", {"type": "ipam-da-local", "serves": ["blue"]}]);
    let network = with(&network, "delegates", delegates);
    accepted(&world, &network);
    world.status(&network).success();
}

#[test]
fn one_allocator_twice_is_an_error_that_says_that_the_first_serves_all() {
    let (world, network) = world();
    let twice =
        with(&network, "delegates", json!(["ipam-ds-static", "ipam-da-local", "ipam-da-local"]));
    let (error, add) = refused(&world, &twice);
    let (code, told) = world.status(&twice).failure();
    assert_eq!(code, 7, "{told}");
    for text in [error, told] {
        has(&text, &["names ipam-da-local twice, and the first serves every pool", "remove one"]);
    }
    has(&add, &["an earlier delegate has served every pool", "remove this delegate"]);
    let alone = with(&network, "delegates", json!(["ipam-da-local", "ipam-da-local"]));
    has(&refused(&world, &alone).0, &["names ipam-da-local twice"]);
    let entry = |pool: &str| json!({"type": "ipam-da-local", "serves": [pool]});
    let each = json!(["ipam-ds-static", entry("red"), entry("blue")]);
    let each = with(&network, "delegates", each);
    accepted(&world, &each);
    world.status(&each).success();
}

#[test]
fn a_delegate_behind_one_that_serves_all_is_an_error() {
    let (world, network) = world();
    let at = |folder: &str| json!({"type": "ipam-da-local", "dataDir": world.path(folder)});
    for (chain, first, second) in [
        (json!([at("a"), at("b")]), "ipam-da-local", "ipam-da-local"),
        (json!(["host-local", "ipam-da-local"]), "host-local", "ipam-da-local"),
        (json!(["ipam-da-local", "host-local"]), "ipam-da-local", "host-local"),
    ] {
        let mut delegates = vec![json!("ipam-ds-static")];
        delegates.extend(chain.as_array().unwrap().clone());
        let (error, _) = refused(&world, &with(&network, "delegates", json!(delegates)));
        let expected = format!("{second} gets no pool: {first} before it serves all of them");
        has(&error, &[&expected, &format!("remove {second}")]);
    }
    // One of another make may leave what it does not know.
    world.delegate("ipam-da-x", r#"printf '%s' "$in" | sed 's/.*"prevResult"://; s/}$//'"#);
    let delegates = json!(["ipam-ds-static", "ipam-da-x", "ipam-da-local"]);
    let (_, found) = lint(&world, &with(&network, "delegates", delegates));
    assert!(!found.iter().any(|it| it.contains("gets no pool")), "{found:#?}");
}

#[test]
fn a_standard_plugin_that_does_not_support_the_version_is_an_error_that_names_those_it_does() {
    let (world, network) = world();
    let mut network = with(&network, "delegates", json!(["ipam-ds-static", "host-local"]));
    accepted(&world, &network);
    network["cniVersion"] = json!("1.1.0");
    let versions = r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}"#;
    let refusal = r#"{"code":1,"msg":"incompatible CNI versions","details":"config is \"1.1.0\""}"#;
    let unknown = r#"{"code":4,"msg":"unknown CNI_COMMAND"}"#;
    let body = format!(
        "case $CNI_COMMAND in VERSION) echo '{versions}'; exit;; STATUS) echo '{unknown}';; *) echo '{refusal}';; esac; exit 1"
    );
    world.delegate("host-local", "").delegate("older", &body);
    let network = with(&network, "delegates", json!(["ipam-ds-static", "older"]));
    let (error, add) = refused(&world, &network);
    let (code, told) = world.status(&network).failure();
    assert_eq!(code, 1, "{told}");
    for text in [error, told] {
        has(
            &text,
            &[
                "older does not support cniVersion 1.1.0, only 0.4.0, 1.0.0",
                "set cniVersion to \"1.0.0\"",
            ],
        );
    }
    has(&add, &["older: incompatible CNI versions", "set cniVersion"]);
}

#[test]
fn a_selector_that_answers_no_pools_is_an_error_where_the_allocator_needs_them() {
    let (world, mut network) = world();
    network["ipam"].as_object_mut().unwrap().remove("pools");
    let empty = "[ \"$CNI_COMMAND\" = DEL ] || printf '{}'";
    world.delegate("ipam-ds-x", empty);
    let chain = with(&network, "delegates", json!(["ipam-ds-x", "ipam-da-local"]));
    let (error, add) = refused(&world, &chain);
    for text in [error, add] {
        has(&text, &["ipam-ds-x returned no pools", "ipam-delegated explain NETWORK"]);
    }
    let ranges = json!([[{"subnet": "10.60.0.0/24"}]]);
    accepted(&world, &with(&chain, "ranges", ranges.clone()));
    let plain = with(&network, "delegates", json!(["ipam-ds-x", "host-local"]));
    has(&refused(&world, &plain).0, &["host-local needs ranges"]);
    accepted(&world, &with(&plain, "ranges", ranges));
    let alone = with(&network, "delegates", json!(["ipam-da-local"]));
    has(&refused(&world, &alone).0, &["put a selector", "or give ranges in ipam"]);
}

#[test]
fn a_selector_may_know_real_containers_alone() {
    let (world, mut network) = world();
    network["ipam"].as_object_mut().unwrap().remove("pools");
    let answer = json!({"pools": [{"ranges": [{"subnet": "10.60.0.0/24"}]}]});
    let fails = "printf '{\"code\":3,\"msg\":\"no such container\"}'; exit 1";
    for (status, unknown, tried) in
        [("{}", fails, 1), ("{\"pools\":[]}", fails, 0), ("{\"pools\":[]}", "exit 0", 0)]
    {
        world.delegate(
            "ipam-ds-x",
            &format!(
                "case $CNI_COMMAND-$CNI_CONTAINERID in STATUS-*) printf '{status}';; \
                 *-c1) printf '%s' '{answer}';; *) {unknown};; esac"
            ),
        );
        let network = with(&network, "delegates", json!(["ipam-ds-x", "ipam-da-local"]));
        accepted(&world, &network);
        let calls = world.calls();
        let of_nobody =
            calls.iter().filter(|call| call["verb"] == "ADD" && call["container"] != "c1");
        assert_eq!(of_nobody.count(), tried, "{status}");
        world.take_calls();
    }
}

#[test]
fn all_delegates_that_are_missing_or_may_not_be_run_are_named_at_once() {
    let (world, network) = world();
    world.delegate("ipam-da-idle", "");
    let idle = world.path("bin/ipam-da-idle");
    fs::set_permissions(&idle, fs::Permissions::from_mode(0o644)).unwrap();
    let delegates = json!(["ipam-ds-none", "ipam-ds-static", "ipam-da-idle", "none"]);
    let network = with(&network, "delegates", delegates);
    let (exit, found) = lint(&world, &network);
    assert_eq!(exit, Some(1));
    let errors: Vec<&String> = found.iter().filter(|it| it.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 3, "{found:#?}");
    has(errors[0], &["ipam-ds-none is not in CNI_PATH", "install ipam-ds-none there"]);
    has(errors[1], &["ipam-da-idle is not executable", &format!("chmod +x {}", idle.display())]);
    has(errors[2], &["none is not in CNI_PATH"]);
}

#[test]
fn a_list_of_plugins_on_stdin_is_told_what_to_send() {
    let (world, network) = world();
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [network]});
    let (code, text) = world.call("ADD", "c1", &list).failure();
    assert_eq!(code, 7);
    has(&text, &["ipam: missing", "this is a list of plugins: send one of them"]);
}

#[test]
fn a_standard_plugin_whose_interpreter_is_missing_is_an_error() {
    let (world, network) = world();
    world.program("older", "#!/no/such/interpreter\n");
    let network = with(&network, "delegates", json!(["ipam-ds-static", "older"]));
    let (error, add) = refused(&world, &network);
    for text in [error, add] {
        has(&text, &["its interpreter \"/no/such/interpreter\" does not exist"]);
    }
}
