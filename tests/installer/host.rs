//! What a host has around the plugin folder: mounts, log rotation, attachments.

use std::fs;

use ipam_testkit::world::{Host, Outcome, names};
use serde_json::json;

use super::{Site, run, said, source};

/// install.sh in a namespace of its own.
fn run_in(host: &Host, site: &Site, arguments: &[&str]) -> Outcome {
    let inner = site.command(arguments);
    run(host.enter("sh").args(inner.get_args()))
}

#[test]
fn a_folder_that_cannot_be_written_or_is_too_small_is_refused() {
    let (site, host) = (Site::new(), Host::new());
    site.package("host-local", "the plugin");
    let folder = site.plugins.display();
    host.shell(&format!("mount --bind '{folder}' '{folder}'; mount -o remount,bind,ro '{folder}'"));
    for arguments in [&["--preset", "host-local"][..], &["--uninstall"]] {
        let outcome = run_in(&host, &site, arguments);
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
        assert!(outcome.stderr.contains("cannot write to"), "{outcome:?}");
    }
    host.shell(&format!("umount '{folder}'; mount -t tmpfs -o size=16k tmpfs '{folder}'"));
    let outcome = run_in(&host, &site, &["--preset", "host-local"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("KiB are needed; nothing was changed"), "{outcome:?}");
    assert!(names(&host.path(&folder.to_string())).is_empty());
    // Room for everything but the programs.
    site.program("ipam-da-two", &format!("#!/bin/sh\nexit\n{}", "#".repeat(512 * 1024)));
    host.shell(&format!("umount '{folder}'; mount -t tmpfs -o size=256k tmpfs '{folder}'"));
    let outcome = run_in(&host, &site, &["--preset", "host-local"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("KiB are needed; nothing was changed"), "{outcome:?}");
    assert!(names(&host.path(&folder.to_string())).is_empty());
    assert_eq!(names(&site.plugins), ["host-local"]);
}

#[test]
fn log_rotation_comes_only_when_asked_for() {
    let (site, host) = (Site::new(), Host::new());
    host.shell("mkdir -p /etc/logrotate.d && mount -t tmpfs tmpfs /etc/logrotate.d");
    let folder = host.path("/etc/logrotate.d");
    said(run_in(&host, &site, &[]));
    assert!(names(&folder).is_empty());
    said(run_in(&host, &site, &["--logrotate"]));
    assert_eq!(names(&folder), ["ipam-delegated"]);
    let rotation = fs::read(folder.join("ipam-delegated")).unwrap();
    assert_eq!(rotation, fs::read(source("examples/logrotate.conf")).unwrap());
    let text = said(run_in(&host, &site, &["--uninstall"]));
    assert!(text.contains("left /etc/logrotate.d/ipam-delegated"), "{text}");
    said(run_in(&host, &site, &["--uninstall", "--logrotate"]));
    assert!(names(&folder).is_empty());
}

#[test]
fn uninstall_says_when_attachments_are_left() {
    let (site, host) = (Site::real(), Host::new());
    site.world.allocator("a", "10.0.0.2/24");
    let network = ipam_testkit::world::without(&site.world.network(json!(["a"])), &["stateDir"]);
    said(run_in(&host, &site, &[]));
    host.call(&site.world, "ADD", "c1", &network).success();
    let text = said(run_in(&host, &site, &["--uninstall", "--dry-run"]));
    assert!(text.contains("from a chain: 1."), "{text}");
    host.call(&site.world, "DEL", "c1", &network).success();
    let text = said(run_in(&host, &site, &["--uninstall"]));
    assert!(!text.contains("from a chain"), "{text}");
}
