//! The commands of docs/operating.md print what the page shows.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use ipam_testkit::pages::{Page, masked};
use ipam_testkit::world::{World, binary, start, wait};
use serde_json::{Value, json};

/// The network of the page.
fn racknet(world: &World) -> Value {
    let mut network = world.network(json!(["ipam-ds-static", "ipam-da-local"]));
    network["name"] = json!("racknet");
    network["ipam"]["pools"] = json!([
        {"name": "blue", "ranges": [{"subnet": "10.210.1.0/28", "exclude": ["10.210.1.9"]}]},
    ]);
    network
}

/// A node of the page: a pod that runs, a container that is gone, and an ADD that failed.
fn node() -> World {
    let world = World::new();
    world.install(&binary("ipam-ds-static")).install(&binary("ipam-da-local"));
    std::fs::create_dir(world.path("results")).unwrap();
    let network = racknet(&world);
    world.conflist("10-racknet.conflist", &network);
    let mut taken = network.clone();
    taken["args"] = json!({"cni": {"ips": ["10.210.1.2"]}});
    for (container, netns, network) in [
        ("3f9c1e", "/proc/self/ns/net", &network),
        ("77ab02", "/run/netns/none", &network),
        ("c0ffee", "/run/netns/none", &taken),
    ] {
        let mut command = world.command("ADD", container);
        command.env("CNI_NETNS", netns);
        if container == "3f9c1e" {
            command.env("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
        }
        wait(start(command, network));
    }
    world
}

/// Runs the commands below a heading, and compares stdout and stderr.
fn follow(world: &World, heading: &str) {
    let page = Page::read("docs/operating.md");
    for (command, expected) in page.commands_of(heading, "ipam-delegated ") {
        assert_eq!(masked(&run(world, &command)), masked(&expected), "{command}");
    }
}

fn run(world: &World, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let mut typed = world.typing(&words);
    typed.env("LANG", "C.UTF-8");
    if ["reap", "lint"].contains(&words[0]) {
        typed.arg(format!("--cache-dir={}", world.path("results").display()));
    }
    let outcome = wait(typed.spawn().unwrap());
    let mut text = outcome.stdout;
    // Processes of others cannot be inspected in every sandbox of tests.
    for line in outcome.stderr.lines().filter(|line| !line.contains("cannot inspect")) {
        text.push_str(line);
        text.push('\n');
    }
    text.replace("/proc/self/ns/net", "/run/netns/cni-5f2c")
}

#[test]
fn the_verbs_print_what_the_page_shows() {
    follow(&node(), "The verbs");
}

#[test]
fn forget_prints_what_the_page_shows() {
    follow(&node(), "When a store is permanently lost");
}

#[test]
fn reap_prints_what_the_page_shows() {
    let world = node();
    for container in ["3f9c1e", "77ab02", "c0ffee"] {
        grow_old(&world, container);
    }
    follow(&world, "When no runtime calls GC");
    let released = run(&world, "ipam-delegated reap --yes");
    assert_eq!(released.matches("  released  ").count(), 2, "{released}");
}

/// Makes a record older than `gcGrace`.
fn grow_old(world: &World, container: &str) {
    let path = world.record_of(&format!("racknet/{container}/eth0"));
    let lines = std::fs::read_to_string(&path).unwrap();
    let older = lines.lines().map(|line| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        if let Some(time) = event["time"].as_u64() {
            event["time"] = (time - 600_000).into();
        }
        format!("{event}\n")
    });
    std::fs::write(&path, older.collect::<String>()).unwrap();
}

#[test]
fn reassert_prints_what_the_page_shows() {
    let world = World::new();
    let allocator = "ipam-da-etcd";
    world.answering(allocator, "10.210.1.2/16");
    world.answer(allocator, "about", &json!({"name": allocator, "reach": "cluster"}));
    world.answer(allocator, "accept", &json!({"accepted": true}));
    let mut network = world.network(json!([allocator]));
    network["name"] = json!("racknet");
    world.conflist("10-racknet.conflist", &network);
    world.call("ADD", "3f9c1e", &network).success();
    follow(&world, "When a store was restored or swapped");
}

#[test]
fn the_metrics_of_the_page_are_those_of_the_node() {
    let world = node();
    let folders = [("conf-dir", "net.d"), ("cni-path", "bin"), ("state-dir", "state")];
    let options =
        folders.map(|(name, folder)| format!("--{name}={}", world.path(folder).display()));
    let program = binary("ipam-delegated");
    let script = format!("#!/bin/sh\nexec {} \"$@\" {}\n", program.display(), options.join(" "));
    world.program("ipam-delegated", &script);
    let path = format!("{}:/usr/bin:/bin", world.path("bin").display());
    let page = Page::read("docs/operating.md");
    let status = std::process::Command::new("sh")
        .args(["-ec", page.blocks("Monitoring", "sh")[0]])
        .env("PATH", path)
        .env("TEXTFILE_DIR", world.path(""))
        .status();
    assert!(status.unwrap().success());
    assert_eq!(
        std::fs::read_to_string(world.path("ipam.prom")).unwrap(),
        "ipam_pool_size{network=\"racknet\",pool=\"blue\"} 12\n\
         ipam_pool_held{network=\"racknet\",pool=\"blue\"} 2\n\
         ipam_attachments{state=\"failed\"} 1\n\
         ipam_attachments{state=\"held\"} 2\n"
    );
}
