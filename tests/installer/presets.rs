//! Links of presets, the plugins that they replace, and how uninstall gives these back.

use std::fs;
use std::os::unix::fs::symlink;

use ipam_testkit::world::{host_local, names};

use super::{LIST, PRESETS, Site, copy};

#[test]
fn a_preset_keeps_the_plugin_and_uninstall_gives_it_back() {
    let site = Site::new();
    fs::create_dir_all(&site.plugins).unwrap();
    copy(&host_local(), &site.plugins.join("host-local"));
    let before = site.contents();
    site.install(&["--preset", "host-local", "--preset=rack-local"]);
    assert!(site.is_linked("host-local") && site.is_linked("rack-local"));
    assert_eq!(site.read("host-local.orig"), fs::read(host_local()).unwrap());
    site.install(&["--uninstall"]);
    assert_eq!(site.contents(), before);
    let again = site.install(&["--uninstall"]);
    assert_eq!(again, format!("install.sh has installed nothing in {}\n", site.plugins.display()));
    assert_eq!(site.contents(), before);
}

#[test]
fn a_second_run_changes_nothing() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local"]);
    let before = site.contents();
    let again = site.install(&["--preset", "host-local"]);
    let steps = again.split("\nnext: ").next().unwrap();
    assert!(!steps.contains("keep") && !steps.contains("link"), "{again}");
    assert_eq!(site.contents(), before);
}

#[test]
fn an_upgrade_replaces_programs_and_leaves_presets() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local"]);
    site.version("2");
    fs::remove_file(site.release.join("bin/ipam-da-local")).unwrap();
    site.install(&[]);
    let text = format!("#!/bin/sh\necho ipam-delegated 2\n{PRESETS}");
    assert_eq!(site.read("host-local"), text.as_bytes());
    assert!(site.is_linked("ipam-ds-static"));
    // A record may still name it.
    assert_eq!(site.read("ipam-da-local"), b"#!/bin/sh\necho ipam-da-local 1\n");
    assert_eq!(site.read("host-local.orig"), b"the plugin");
    site.install(&["--uninstall"]);
    assert_eq!(names(&site.plugins), ["host-local"]);
}

#[test]
fn a_plugin_that_a_package_put_over_the_link_is_the_one_that_is_kept() {
    let site = Site::new();
    site.package("host-local", "old");
    site.install(&["--preset", "host-local"]);
    site.package("host-local", "new");
    let text = site.install(&["--preset", "host-local"]);
    assert!(text.contains("host-local.orig, and drop the host-local.orig of before\n"), "{text}");
    assert!(site.is_linked("host-local"));
    assert_eq!(site.read("host-local.orig"), b"new");
    // Packages set the time of their files.
    site.package("host-local", "downgraded");
    let file = fs::File::options().append(true).open(site.plugins.join("host-local")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let text = site.install(&["--preset", "host-local"]);
    assert!(text.contains("the host-local.orig of before, which is newer\n"), "{text}");
    site.package("host-local", "not linked again");
    let text = site.install(&["--uninstall"]);
    assert!(text.contains("left host-local.orig"), "{text}");
    assert_eq!(site.read("host-local"), b"not linked again");
    assert_eq!(site.read("host-local.orig"), b"downgraded");
}

#[test]
fn our_own_program_is_never_kept_as_the_plugin() {
    let site = Site::new();
    site.install(&[]);
    symlink(site.plugins.join("ipam-delegated"), site.plugins.join("absolute")).unwrap();
    symlink("./ipam-delegated", site.plugins.join("relative")).unwrap();
    copy(&site.plugins.join("ipam-delegated"), &site.plugins.join("copied"));
    symlink("ipam-delegated", site.plugins.join("kept")).unwrap();
    symlink("ipam-delegated", site.plugins.join("kept.orig")).unwrap();
    site.version("2");
    let presets = ["absolute", "relative", "copied", "kept"];
    site.install(&presets.map(|name| ["--preset", name]).concat());
    for name in presets {
        assert!(site.is_linked(name), "{name}");
    }
    site.install(&["--uninstall"]);
    assert!(names(&site.plugins).is_empty(), "{:?}", site.contents());
}

#[test]
fn a_link_to_a_plugin_elsewhere_is_kept_as_a_link() {
    let site = Site::new();
    fs::create_dir_all(&site.plugins).unwrap();
    symlink("/nowhere/host-local", site.plugins.join("host-local")).unwrap();
    let before = site.contents();
    site.install(&["--preset", "host-local"]);
    assert!(site.is_linked("host-local"));
    site.install(&["--uninstall"]);
    assert_eq!(site.contents(), before);
}

#[test]
fn uninstall_leaves_what_is_not_ours() {
    let site = Site::new();
    for name in ["bridge", "bridge.orig", "ipam-ds-site", "ipam-da-site.sh"] {
        site.package(name, "foreign");
    }
    symlink("bridge", site.plugins.join("alias")).unwrap();
    let before = site.contents();
    site.install(&["--preset", "host-local"]);
    let text = site.install(&["--uninstall"]);
    assert_eq!(site.contents(), before);
    assert!(text.contains("left ipam-ds-site: install.sh did not install it"), "{text}");
}

#[test]
fn one_preset_is_given_back_alone() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local", "--preset", "site-local"]);
    let text = site.install(&["--uninstall", "--preset", "host-local", "--preset", "bridge"]);
    assert!(text.contains("left bridge: it is not ipam-delegated"), "{text}");
    assert_eq!(site.read("host-local"), b"the plugin");
    let all =
        [LIST, "host-local", "ipam-da-local", "ipam-delegated", "ipam-ds-static", "site-local"];
    assert_eq!(names(&site.plugins), all);
}

#[test]
fn only_a_preset_of_the_program_itself_is_linked() {
    let site = Site::real();
    let text = site.refused(&["--preset", "bridge"]);
    assert!(
        text.contains("unknown preset; choose one of host-local etcd host-etcd kube-node"),
        "{text}"
    );
    // Another build has presets of its own, and one that is not tried has ours.
    site.version("1");
    site.install(&["--preset", "rack-local"]);
    site.install(&["--preset", "host-local", "--no-run"]);
    assert!(site.is_linked("rack-local") && site.is_linked("host-local"));
}
