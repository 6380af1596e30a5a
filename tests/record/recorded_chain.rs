//! DEL and CHECK use the recorded chain, whatever configuration and environment say now.

use ipam_testkit::world::{World, start, wait, with, without};
use serde_json::{Value, json};

#[test]
fn an_allocator_edited_out_of_the_chain_stays_owed_a_del() {
    let world = World::new();
    world.allocator("old", "10.0.0.2/24").allocator("new", "10.0.1.2/24");
    let before = with(&world.network(json!(["old"])), "store", "http://old");
    let after = with(&world.network(json!(["new"])), "store", "http://new");
    world.call("ADD", "c1", &before).success();
    assert_eq!(world.call("ADD", "c1", &after).ips(), ["10.0.1.2/24"]);
    world.take_calls();
    world.call("DEL", "c1", &after).success();
    assert!(world.held().is_empty(), "{:?}", world.held());
    let stores: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["store"].clone()).collect();
    assert_eq!(stores, ["http://old", "http://new"]);
}

#[test]
fn an_edited_store_gets_a_del_with_each_of_its_recorded_settings() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let plain = world.network(json!(["a"]));
    for store in ["http://old", "http://new"] {
        world.call("ADD", "c1", &with(&plain, "store", store)).success();
    }
    world.take_calls();
    world.call("DEL", "c1", &with(&plain, "store", "http://newest")).success();
    let stores: Vec<Value> =
        world.calls().iter().map(|call| call["stdin"]["ipam"]["store"].clone()).collect();
    assert_eq!(stores, ["http://old", "http://new"]);
}

#[test]
fn del_uses_the_recorded_chain_whatever_the_configuration_names_now() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24").allocator("other", "10.0.1.2/24");
    let network = world.network(json!(["a"]));
    for edited in [
        world.network(json!(["other"])),
        world.network(json!(["not-installed"])),
        world.network(json!([])),
        without(&network, &["delegates"]),
    ] {
        world.call("ADD", "c1", &network).success();
        world.take_calls();
        world.call("DEL", "c1", &edited).success();
        assert_eq!(world.take_calls(), ["a DEL"], "{edited}");
        assert!(world.held().is_empty() && !world.record("c1").exists());
    }
}

#[test]
fn del_without_cni_path_runs_the_recorded_program() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["a"]));
    world.call("ADD", "c1", &network).success();
    let mut command = world.command("DEL", "c1");
    command.env_remove("CNI_PATH").env_remove("CNI_NETNS");
    wait(start(command, &network)).success();
    assert!(world.held().is_empty());
}

#[test]
fn a_delegate_found_by_a_relative_path_is_found_from_another_folder() {
    let world = World::new();
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["one"]));
    let mut add = world.command("ADD", "c1");
    add.env("CNI_PATH", "bin").current_dir(world.path(""));
    assert_eq!(wait(start(add, &network)).ips(), ["10.0.0.2/24"]);
    let mut del = world.command("DEL", "c1");
    del.env_remove("CNI_PATH").current_dir("/");
    wait(start(del, &network)).success();
    assert!(world.held().is_empty());
}

#[test]
fn del_takes_secrets_from_stdin_and_all_else_from_the_record() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = |password: &str, user: &str| {
        let deep = json!({"user": user, "apiToken": password});
        let plain = world.network(json!([{"type": "a", "own_secret": password, "path": user}]));
        with(&with(&with(&plain, "dbPassword", password), "user", user), "server", deep)
    };
    world.call("ADD", "c1", &network("old", "before")).success();
    world.take_calls();
    world.call("DEL", "c1", &network("rotated", "after")).success();
    let ipam = &world.calls()[0]["stdin"]["ipam"];
    assert_eq!(ipam["dbPassword"], "rotated");
    assert_eq!(ipam["server"], json!({"user": "before", "apiToken": "rotated"}));
    assert_eq!(ipam["own_secret"], "rotated");
    assert_eq!((&ipam["user"], &ipam["path"]), (&json!("before"), &json!("before")));
}

#[test]
fn check_takes_a_rotated_secret_of_the_object_form_too() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = |secret: &str| world.network(json!([{"type": "a", "password": secret}]));
    world.call("ADD", "c1", &network("old")).success();
    world.take_calls();
    world.call("CHECK", "c1", &network("rotated")).success();
    assert_eq!(world.calls()[0]["stdin"]["ipam"]["password"], "rotated");
}

#[test]
fn an_unsure_del_is_repeated_though_the_clock_was_set_back() {
    let world = World::new();
    world.delegate("dies", "[ $CNI_COMMAND != ADD ] || kill -9 $$");
    world.allocator("one", "10.0.0.2/24");
    let network = world.network(json!(["dies"]));
    world.call("ADD", "c1", &network).failure();
    world.call("DEL", "c1", &network).success();
    assert_eq!(world.state_of("c1"), "unsure");
    world.take_calls();
    // In the year 2100, by a clock that was wrong.
    world.make_due_at(4_102_444_800_000);
    world.call("ADD", "c2", &world.network(json!(["one"]))).success();
    assert_eq!(world.take_calls(), ["dies DEL", "one ADD"]);
    assert_eq!((world.state_of("c1").as_str(), world.unsure()), ("none", 0));
}
