//! The first steps of a new user: the quick start, its commands pasted, and install.sh after it.

use std::fs;
use std::process::{Command, Stdio};

use ipam_testkit::pages::Page;
use ipam_testkit::world::{Host, names, start, wait};

use super::{Site, copy, run, said, source};

/// The quick start of a site with real programs: its folder is laid out as an archive.
fn quickstart(site: &Site) -> (String, u32) {
    let script = site.release.join("examples/quickstart.sh");
    copy(&source("examples/quickstart.sh"), &script);
    let mut command = Command::new("bash");
    let child = command.arg(&script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    (said(wait(child)), id)
}

#[test]
fn it_shows_a_swap_an_undo_a_broken_configuration_and_a_map() {
    let site = Site::real();
    let before = names(&site.release);
    let (text, id) = quickstart(&site);
    let sections: Vec<&str> = text.split("\n== ").skip(1).collect();
    let section = |title: &str| {
        let found = sections.iter().find(|section| section.starts_with(title));
        found.unwrap_or_else(|| panic!("{title}: {text}"))
    };
    let swap = section("Another selector");
    assert!(swap.contains(r#""address":"10.218.0.100/24""#), "{swap}");
    let map = section("c1 keeps its address");
    assert!(map.contains("10.218.0.2/24    ipam-ds-static,ipam-da-local"), "{map}");
    assert!(map.contains("10.218.0.100/24  ipam-ds-mine,ipam-da-local"), "{map}");
    assert!(map.contains('█'), "{map}");
    let broken = section("DEL with a broken configuration");
    assert!(broken.contains("ipam-ds-removed") && broken.ends_with("last_reserved_ip.0\nlock\n"));
    let undo = section("Two pools and two allocators");
    assert!(undo.contains("ipam-da-broken: cannot connect to ipam.example.com"), "{undo}");
    assert!(!undo.contains("\n10.219.0.2\n"), "{undo}");
    assert!(section("Ping from one").contains(", 0% packet loss"), "{text}");
    let next = section("Done. Next:");
    assert!(next.contains("install.sh") && next.contains("docs/guide.md"), "{next}");

    let mut after = names(&site.release);
    after.retain(|name| name != "quickstart");
    assert_eq!(after, before);
    let namespaces = fs::read_dir("/run/netns").into_iter().flatten();
    let left = namespaces.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(left.into_iter().all(|name| !name.ends_with(&format!("-{id}"))));
}

#[test]
fn each_command_that_it_prints_can_be_pasted_later() {
    let site = Site::real();
    let (text, _) = quickstart(&site);
    // Those with namespaces, which are gone, span two lines.
    let (text, _) = text.split_once("\n== Two network namespaces").unwrap();
    let commands: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(commands.len() > 20 && commands[0].starts_with("cd "), "{commands:?}");
    let script = format!("set -e\n{}\n", commands.join("\n"));
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).env_clear().env("PATH", std::env::var("PATH").unwrap());
    let again = run(&mut shell);
    assert_eq!(again.exit, Some(0), "{again:?}");
    assert!(again.stdout.contains(r#""address":"10.218.0."#), "{again:?}");
}

#[test]
fn it_runs_from_its_folder_whatever_the_shell_has_set() {
    let site = Site::real();
    copy(&source("examples/quickstart.sh"), &site.release.join("examples/quickstart.sh"));
    fs::create_dir_all(site.plugins.join("examples")).unwrap();
    let script = "umask 777; export CDPATH=\"$1\"; exec bash examples/quickstart.sh";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "bash"]).arg(&site.plugins).current_dir(&site.release);
    assert!(said(run(&mut shell)).contains("\n== Done."));

    let mut second = Command::new("flock");
    second.arg(&site.release).arg("bash").arg(site.release.join("examples/quickstart.sh"));
    let second = run(&mut second);
    assert_eq!(second.exit, Some(1), "{second:?}");
    assert!(second.stderr.contains("it runs already"), "{second:?}");
    assert!(site.release.join("quickstart/network.json").exists());
}

#[test]
fn install_sh_works_after_it() {
    let site = Site::real();
    let (text, _) = quickstart(&site);
    let (_, next) = text.split_once("\n== Done. Next:\n").unwrap();
    let command = next.trim_start().split("   ").next().unwrap();
    let dir = site.plugins.display();
    said(run(Command::new("sh").args(["-c", &format!("{command} --dir '{dir}'")])));
    assert!(site.plugins.join("ipam-da-local").exists());
}

#[test]
fn the_first_chain_of_the_guide_runs_as_it_says() {
    let (site, host) = (Site::real(), Host::new());
    host.shell(
        "mkdir -p /opt/cni; mount -t tmpfs tmpfs /opt/cni; mount -t tmpfs tmpfs /usr/local/sbin",
    );
    let example = "examples/10-ipam-delegated-local.conflist";
    copy(&source(example), &site.release.join(example));
    let inside = |command: &str| {
        let script = format!("cd '{}'; {command}", site.release.display());
        said(run(host.enter("/bin/sh").args(["-ec", &script])))
    };
    let text = inside("./install.sh");
    inside(text.lines().last().unwrap());

    let page = Page::read("docs/guide.md");
    let commands = page.commands("Composing a chain", "console");
    assert!(commands.len() == 5, "{commands:?}");
    let mut network = page.json("Composing a chain")["plugins"][0].clone();
    network["name"] = "racknet".into();
    network["cniVersion"] = "1.0.0".into();
    for (command, expected) in commands {
        let printed = inside(&command);
        // The rows that it shows have these addresses and states.
        let shown = expected.split_whitespace().filter(|word| {
            word.starts_with("10.210.") || word.starts_with("ipam-") || *word == "held"
        });
        for word in shown {
            assert!(printed.contains(word), "{command}: {word}: {printed}");
        }
        if command.starts_with("ipam-delegated lint") {
            let mut call = host.command(&site.world, "ADD", "3f9c1e");
            call.env("CNI_PATH", "/opt/cni/bin");
            wait(start(call, &network)).success();
        }
    }
}
