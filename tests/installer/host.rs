//! What a host has around the plugin folder: mounts, log rotation, attachments.

use std::fs;

use ipam_testkit::world::{Host, Outcome, host_local, names};
use serde_json::json;

use super::{SHORTCUT, Site, copy, run, said, source};

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
        assert!(outcome.stderr.contains("run it as root"), "{outcome:?}");
    }
    host.shell(&format!("umount '{folder}'; mount -t tmpfs -o size=16k tmpfs '{folder}'"));
    let outcome = run_in(&host, &site, &["--preset", "host-local"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("KiB are needed; nothing was changed"), "{outcome:?}");
    assert!(names(&host.path(&folder.to_string())).is_empty());
    // Room for everything but the programs.
    site.program("ipam-da-local", &format!("#!/bin/sh\nexit\n{}", "#".repeat(512 * 1024)));
    host.shell(&format!("umount '{folder}'; mount -t tmpfs -o size=256k tmpfs '{folder}'"));
    let outcome = run_in(&host, &site, &["--preset", "host-local"]);
    assert_eq!(outcome.exit, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("KiB are needed; nothing was changed"), "{outcome:?}");
    assert!(names(&host.path(&folder.to_string())).is_empty());
    assert_eq!(names(&site.plugins), ["host-local"]);
}

#[test]
fn a_preset_needs_the_allocator_of_the_server_that_a_file_of_the_node_names() {
    let (site, host) = (Site::new(), Host::new());
    for delegate in ["ipam-ds-whereabouts", "ipam-ds-kube-pod"] {
        site.program(delegate, "#!/bin/sh\n");
    }
    host.shell("mkdir -p /etc/cni/net.d/whereabouts.d");
    let file = host.path("/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf");
    let try_install = || run_in(&host, &site, &["--preset", "whereabouts"]);
    for (named, allocator) in [
        (r#"{"ipamtype":"phpipam","ipampwd":"a"}"#, "ipam-da-phpipam"),
        ("{\n \"ipamurl\": \"h\",\n \"ipamtype\"\n:\t\"openwisp\" }\n", "ipam-da-openwisp"),
        (r#"{"ipamtype": ""}"#, "ipam-da-kube"),
    ] {
        fs::write(&file, named).unwrap();
        let outcome = try_install();
        assert_eq!(outcome.exit, Some(1), "{outcome:?}");
        let told = format!("the preset whereabouts needs {allocator}, which is neither in");
        assert!(outcome.stderr.contains(&told), "{outcome:?}");
        site.program(allocator, "#!/bin/sh\n");
        said(try_install());
        said(run_in(&host, &site, &["--uninstall"]));
        fs::remove_file(site.release.join("bin").join(allocator)).unwrap();
    }
    site.program("ipam-da-kube", "#!/bin/sh\n");
    fs::write(&file, r#"{"ipamtype": "nsxtipam"}"#).unwrap();
    let outcome = try_install();
    let told = "names nsxtipam, which the preset whereabouts does not support";
    assert!(outcome.exit == Some(1) && outcome.stderr.contains(told), "{outcome:?}");
    assert!(names(&site.plugins).is_empty());
    fs::remove_file(file).unwrap();
    said(try_install());
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
fn the_commands_after_next_can_be_pasted() {
    let (site, host) = (Site::real(), Host::new());
    let example = "examples/10-ipam-delegated-local.conflist";
    copy(&source(example), &site.release.join(example));
    copy(&host_local(), &site.plugins.join("portmap"));
    copy(&host_local(), &site.plugins.join("bridge"));
    let text = said(run_in(&host, &site, &[]));
    let (_, next) = text.split_once("\nnext: copy an example network").unwrap();
    let (next, _) = next.split_once(SHORTCUT).unwrap();
    let commands: Vec<&str> = next.lines().skip(1).collect();
    assert!(commands.len() == 2 && commands[1].ends_with("ipam-delegated' lint racknet"), "{text}");
    host.shell(&commands.join("\n"));

    // Later there are networks, and with a preset those of its name.
    let text = said(run_in(&host, &site, &[]));
    assert!(text.contains("\nnext: check each of your networks:\n"), "{text}");
    let text = said(run_in(&host, &site, &["--preset", "host-local"]));
    assert!(text.contains("\nnext: check each network whose ipam.type is host-local:\n"), "{text}");
    assert!(text.contains("ipam-delegated' lint NETWORK\n"), "{text}");
}

#[test]
fn a_user_who_is_not_root_is_told_to_run_it_as_root() {
    let (site, host) = (Site::new(), Host::new());
    let release = site.release.display();
    let script = format!(
        "mkdir -m 755 /etc/cni/r; cp -r '{release}'/* /etc/cni/r; mkdir /etc/cni/bin; cd /etc/cni\n\
         ! setpriv --reuid 65534 --clear-groups r/install.sh --dir /etc/cni/bin 2>/etc/cni/said"
    );
    host.shell(&script);
    let said = fs::read_to_string(host.path("/etc/cni/said")).unwrap();
    assert!(said.contains("cannot write to /etc/cni/bin: run it as root"), "{said}");
}

#[test]
fn the_proposed_link_is_removed_by_uninstall_and_a_foreign_one_stays() {
    let (site, host) = (Site::real(), Host::new());
    host.shell("mount -t tmpfs tmpfs /usr/local/sbin");
    let text = said(run_in(&host, &site, &[]));
    let (_, rest) = text.split_once(SHORTCUT).unwrap();
    let command = rest.lines().nth(1).unwrap();
    host.shell(command);
    host.shell("/usr/local/sbin/ipam-delegated help >/dev/null");
    assert!(!said(run_in(&host, &site, &[])).contains(SHORTCUT));
    let text = said(run_in(&host, &site, &["--uninstall"]));
    assert!(text.contains("remove /usr/local/sbin/ipam-delegated\n"), "{text}");
    let folder = host.path("/usr/local/sbin");
    assert!(names(&folder).is_empty());

    host.shell("ln -s /opt/elsewhere/ipam-delegated /usr/local/sbin/");
    assert!(!said(run_in(&host, &site, &[])).contains(SHORTCUT));
    said(run_in(&host, &site, &["--uninstall"]));
    assert_eq!(names(&folder), ["ipam-delegated"]);

    // One to a program that install.sh did not install.
    copy(&site.release.join("bin/ipam-delegated"), &site.plugins.join("ipam-delegated"));
    let program = site.plugins.join("ipam-delegated");
    host.shell(&format!("ln -sfn '{}' /usr/local/sbin/ipam-delegated", program.display()));
    said(run_in(&host, &site, &["--uninstall"]));
    assert_eq!(names(&folder), ["ipam-delegated"]);
}

#[test]
fn the_proposed_link_has_the_path_that_uninstall_looks_for() {
    let (site, host) = (Site::real(), Host::new());
    host.shell("mount -t tmpfs tmpfs /usr/local/sbin");
    let folder = format!("{}/./new//bin/", site.plugins.parent().unwrap().display());
    let text = said(run_in(&host, &site, &["--dir", &folder]));
    let (_, rest) = text.split_once(SHORTCUT).unwrap();
    host.shell(rest.lines().nth(1).unwrap());
    said(run_in(&host, &site, &["--uninstall", "--dir", &folder]));
    assert!(names(&host.path("/usr/local/sbin")).is_empty());
}

#[test]
fn uninstall_says_when_attachments_are_left() {
    let (site, host) = (Site::real(), Host::new());
    site.world.allocator("a", "10.0.0.2/24");
    let network = ipam_testkit::world::without(&site.world.network(json!(["a"])), &["stateDir"]);
    said(run_in(&host, &site, &[]));
    host.call(&site.world, "ADD", "c1", &network).success();
    let text = said(run_in(&host, &site, &["--uninstall", "--dry-run"]));
    assert!(text.contains("records of attachments on this node: 1."), "{text}");
    host.call(&site.world, "DEL", "c1", &network).success();
    let text = said(run_in(&host, &site, &["--uninstall"]));
    assert!(!text.contains("records of attachments"), "{text}");
}
