//! A preset that is a copy: the pod of the plugin that it replaces writes through links.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Command, Stdio};

use ipam_delegated::presets::PRESETS;
use ipam_testkit::world::{names, start, wait};
use serde_json::json;

use super::{LIST, Site, source};

const NAME: &str = "whereabouts";

/// A site with the plugin, and the delegates of its preset in the release.
fn site() -> Site {
    with_delegates(Site::new())
}

fn with_delegates(site: Site) -> Site {
    site.package(NAME, "the plugin");
    for delegate in ["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-kube"] {
        site.program(delegate, "#!/bin/sh\n");
    }
    site
}

/// What the pod of whereabouts does when it starts.
fn start_old_pod(site: &Site) {
    let program = site.world.path("program of the pod");
    fs::write(&program, "the plugin again").unwrap();
    let mut cp = Command::new("cp");
    assert!(cp.arg("-f").arg(program).arg(site.plugins.join(NAME)).status().unwrap().success());
}

#[track_caller]
fn assert_copied(site: &Site) {
    assert!(!site.is_linked(NAME));
    assert_eq!(fs::metadata(site.plugins.join(NAME)).unwrap().nlink(), 1);
    assert_eq!(site.read(NAME), site.read("ipam-delegated"));
    let list = String::from_utf8(site.read(LIST)).unwrap();
    assert!(list.lines().any(|line| line == NAME), "{list}");
}

#[test]
fn a_pod_that_overwrites_the_copy_leaves_ipam_delegated_as_it_is() {
    let site = site();
    let before = site.contents();
    site.install(&["--preset", NAME]);
    assert_copied(&site);
    assert_eq!(site.read("whereabouts.orig"), b"the plugin");
    let installed = site.contents();
    let again = site.install(&["--preset", NAME]);
    assert!(!again.contains("keep") && !again.contains("copy"), "{again}");
    assert_eq!(site.contents(), installed);

    start_old_pod(&site);
    assert_eq!(site.read(NAME), b"the plugin again");
    assert!(site.read("ipam-delegated").starts_with(b"#!/bin/sh"));
    // Without the preset, an upgrade leaves the plugin, and the list still has the name.
    site.install(&[]);
    assert_eq!(site.read(NAME), b"the plugin again");
    let text = site.install(&["--preset", NAME]);
    assert!(text.contains("keep whereabouts, a plugin, as whereabouts.orig, and drop"), "{text}");
    assert_copied(&site);
    assert_eq!(site.read("whereabouts.orig"), b"the plugin again");

    site.package("whereabouts.orig", "the plugin");
    site.install(&["--uninstall"]);
    assert_eq!(site.contents(), before);

    // The kept plugin is a link to what the copy replaces.
    symlink(NAME, site.plugins.join("whereabouts.orig")).unwrap();
    site.install(&["--preset", NAME]);
    assert_eq!(site.read("whereabouts.orig"), b"the plugin");
}

#[test]
fn an_upgrade_refreshes_a_copy_even_after_a_killed_run() {
    let site = site();
    site.install(&["--preset", NAME]);
    let first = site.read(NAME);
    for version in ["2", "3"] {
        site.version(version);
        let text = site.install(&[]);
        assert!(text.contains("copy ipam-delegated to whereabouts\n"), "{text}");
        assert_copied(&site);
        // As a killed run leaves it.
        fs::write(site.plugins.join(NAME), &first).unwrap();
    }
    site.install(&["--uninstall", "--preset", NAME]);
    assert_eq!(site.read(NAME), b"the plugin");
    assert!(!names(&site.plugins).contains(&"whereabouts.orig".to_owned()));
    assert!(!String::from_utf8(site.read(LIST)).unwrap().contains(&format!("\n{NAME}\n")));
}

#[test]
fn a_link_becomes_a_copy_and_uninstall_leaves_a_plugin_that_overwrote_it() {
    let site = site();
    site.install(&[]);
    let link = site.plugins.join(NAME);
    for is_hard in [true, false] {
        fs::remove_file(&link).unwrap();
        let made = match is_hard {
            true => fs::hard_link(site.plugins.join("ipam-delegated"), &link),
            false => symlink("ipam-delegated", &link),
        };
        made.unwrap();
        site.install(&["--preset", NAME]);
        assert_copied(&site);
    }
    start_old_pod(&site);
    assert!(site.read("ipam-delegated").starts_with(b"#!/bin/sh"));
    let text = site.install(&["--uninstall"]);
    assert!(!text.contains("remove whereabouts"), "{text}");
    assert_eq!(names(&site.plugins), [NAME]);
    assert_eq!(site.read(NAME), b"the plugin again");
}

#[test]
fn the_copies_are_the_presets_that_the_pod_of_a_plugin_overwrites() {
    let script = fs::read_to_string(source("install.sh")).unwrap();
    let copied = script.lines().find_map(|line| line.trim().strip_prefix("copied=")).unwrap();
    let overwritten = PRESETS.iter().filter(|preset| preset.overwritten_by.is_some());
    let overwritten: Vec<&str> = overwritten.map(|preset| preset.name).collect();
    assert_eq!(copied.trim_matches('\''), overwritten.join(" "));
}

#[test]
fn uninstall_waits_for_a_chain_that_runs_by_the_copy() {
    let site = with_delegates(Site::real());
    site.install(&["--preset", NAME]);
    let pools = json!({"pools": [{"ranges": [{"subnet": "10.9.0.0/24"}]}]});
    let selector = format!("{}; printf '{pools}'", site.world.gate("gate"));
    site.world.delegate("ipam-ds-whereabouts", &selector);
    site.world.allocator("ipam-da-kube", "10.9.0.2/24");
    let mut adding = site.world.command_of(&site.plugins.join(NAME), "ADD", "c1");
    adding.env("CNI_PATH", site.world.path("bin"));
    let adding = start(adding, &site.world.network(json!([])));
    site.world.at_gate("gate");
    let mut uninstall = site.command(&["--uninstall", "--preset", NAME]);
    let mut uninstall = uninstall.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(uninstall.stdout.take().unwrap()).lines().map(Result::unwrap);
    let waits = lines.any(|line| line.starts_with("waiting up to 10 s"));
    let is_kept = site.plugins.join("whereabouts.orig").exists();
    site.world.open_gate("gate");
    assert!(waits && is_kept);
    assert_eq!(wait(adding).ips(), ["10.9.0.2/24"]);
    assert!(lines.all(|line| !line.contains("going on")));
    assert!(uninstall.wait().unwrap().success());
    assert_eq!(site.read(NAME), b"the plugin");
}
