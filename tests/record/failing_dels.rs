//! DELs whose delegates fail, without a record and with one.

use ipam_testkit::world::World;
use serde_json::json;

#[test]
fn without_a_record_a_failing_selector_is_a_warning_when_the_allocator_released() {
    let world = World::new();
    world.delegate("ipam-ds-x", "printf '{\"code\":103,\"msg\":\"api is away\"}'; exit 1");
    world.allocator("a", "10.0.0.2/24");
    let outcome = world.call("DEL", "c1", &world.network(json!(["ipam-ds-x", "a"])));
    assert!(outcome.stderr.contains("ipam-ds-x: api is away"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["ipam-ds-x DEL", "a DEL"]);
}

#[test]
fn without_a_record_a_selector_that_is_not_installed_any_more_is_a_warning() {
    let world = World::new();
    world.allocator("a", "10.0.0.2/24");
    let network = world.network(json!(["ipam-ds-gone", "a"]));
    let outcome = world.call("DEL", "c1", &network);
    assert!(outcome.stderr.contains("ipam-ds-gone: cannot start"), "{outcome:?}");
    outcome.success();
    assert_eq!(world.take_calls(), ["a DEL"]);
    let (code, text) = world.call("ADD", "c1", &network).failure();
    assert_eq!(code, 7, "{text}");
}

#[test]
fn without_a_record_a_failing_allocator_is_an_error_and_every_later_one_runs() {
    let world = World::new();
    world.delegate("ipam-ds-x", "printf '{\"code\":103,\"msg\":\"api is away\"}'; exit 1");
    world.delegate("a", "printf '{\"code\":103,\"msg\":\"store is away\"}'; exit 1");
    world.allocator("b", "10.0.0.2/24").allocator("c", "10.0.1.2/24");
    let network = world.network(json!(["ipam-ds-x", "a", "b", "c"]));
    let (code, text) = world.call("DEL", "c1", &network).failure();
    assert_eq!(code, 103);
    assert!(text.contains("a: store is away") && text.contains("api is away"), "{text}");
    assert_eq!(world.take_calls(), ["ipam-ds-x DEL", "a DEL", "b DEL", "c DEL"]);
}

#[test]
fn with_a_record_a_failing_allocator_is_an_error_that_names_forget_and_the_record_stays() {
    let world = World::new();
    world.delegate("a", "case $CNI_COMMAND in ADD) printf '{\"ips\":[{\"address\":\"10.0.1.2/24\"}]}';; DEL) printf '{\"code\":103,\"msg\":\"store is away\"}'; exit 1;; esac");
    world.allocator("b", "10.0.0.2/24");
    let network = world.network(json!(["a", "b"]));
    world.call("ADD", "c1", &network).success();
    world.take_calls();
    let (code, text) = world.call("DEL", "c1", &network).failure();
    assert_eq!(code, 103);
    assert!(text.contains("a: store is away"), "{text}");
    assert!(text.contains("ipam-delegated forget net c1 eth0 --yes"), "{text}");
    assert_eq!(world.take_calls(), ["a DEL", "b DEL"]);
    assert!(world.held().is_empty() && world.record("c1").exists());
    world.allocator("a", "10.0.1.2/24");
    world.call("DEL", "c1", &network).success();
    assert!(!world.record("c1").exists());
}
