//! `install.sh`: what it puts where, what it keeps, and that containers start all the while.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ipam_testkit::world::{
    Host, Outcome, World, binary, host_local, names, start, until, wait, with, without,
};
use serde_json::{Value, json};

const LIST: &str = ".ipam-delegated.installed";

/// What the program in shell says in its help: it has presets of its own.
const PRESETS: &str = "[ \"$1\" != help ] || echo presets: host-local, etcd, host-etcd, \
     kube-node, node-annotation, rack-local, site-local, absolute, relative, copied, kept\n";

/// A release and a plugin folder, both with a space in their path.
struct Site {
    world: World,
    release: PathBuf,
    plugins: PathBuf,
}

impl Site {
    /// A release of programs in shell, as its archive is unpacked, and no plugin folder yet.
    fn new() -> Self {
        let world = World::new();
        let (release, plugins) = (world.path("a release"), world.path("plugin folder/bin"));
        fs::create_dir_all(release.join("bin")).unwrap();
        fs::create_dir(release.join("examples")).unwrap();
        for file in ["install.sh", "examples/logrotate.conf"] {
            copy(&source(file), &release.join(file));
        }
        let site = Self { world, release, plugins };
        site.version("1");
        site
    }

    /// A site whose release has the real programs, and whose folder has the plugin host-local.
    fn real() -> Self {
        let site = Self::new();
        for entry in fs::read_dir(site.release.join("bin")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for name in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
            copy(&binary(name), &site.release.join("bin").join(name));
        }
        fs::create_dir_all(&site.plugins).unwrap();
        copy(&host_local(), &site.plugins.join("host-local"));
        site
    }

    /// Makes the programs of the release those of another version.
    fn version(&self, version: &str) {
        for name in ["ipam-delegated", "ipam-ds-one", "ipam-da-two"] {
            self.program(name, &format!("#!/bin/sh\necho {name} {version}\n"));
        }
        let text = format!("#!/bin/sh\necho ipam-delegated {version}\n{PRESETS}");
        self.program("ipam-delegated", &text);
    }

    fn program(&self, name: &str, text: &str) {
        let aside = self.world.path("program");
        fs::write(&aside, text).unwrap();
        // By another process, as in `copy`.
        let mut install = Command::new("install");
        install.args(["-m", "755"]).arg(aside).arg(self.release.join("bin").join(name));
        assert!(install.status().unwrap().success());
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.arg(self.release.join("install.sh")).args(arguments);
        command.arg("--dir").arg(&self.plugins).env_remove("CARGO_TARGET_DIR");
        command
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        run(&mut self.command(arguments))
    }

    /// Runs install.sh, which succeeds. What it said.
    #[track_caller]
    fn install(&self, arguments: &[&str]) -> String {
        said(self.run(arguments))
    }

    /// Runs install.sh, which refuses and changes nothing. Why.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.contents();
        let outcome = self.run(arguments);
        assert!(outcome.exit.is_some_and(|exit| exit != 0), "{outcome:?}");
        assert_eq!(self.contents(), before);
        outcome.stderr
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.plugins.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Puts a plugin into the folder as a package does: over what has its name.
    fn package(&self, name: &str, text: &str) {
        fs::create_dir_all(&self.plugins).unwrap();
        let new = self.plugins.join(format!("{name}.dpkg-new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.plugins.join(name)).unwrap();
    }

    fn is_linked(&self, name: &str) -> bool {
        fs::read_link(self.plugins.join(name)).is_ok_and(|to| to == Path::new("ipam-delegated"))
    }

    /// The names in the plugin folder, each with its content and mode, or where it leads.
    fn contents(&self) -> Vec<(String, Vec<u8>, u32)> {
        let entry = |name: String| {
            let path = self.plugins.join(&name);
            let content = fs::read_link(&path).map(|to| to.into_os_string().into_encoded_bytes());
            let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
            (name, content.unwrap_or_else(|_| fs::read(path).unwrap()), mode)
        };
        names(&self.plugins).into_iter().map(entry).collect()
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Copies by another process: what this one has open for writing, a call that another thread
/// starts may hold for a moment, and then nobody can run it.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

fn run(command: &mut Command) -> Outcome {
    wait(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

#[track_caller]
fn said(outcome: Outcome) -> String {
    assert_eq!(outcome.exit, Some(0), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    outcome.stdout
}

#[test]
fn a_folder_is_made_and_gets_every_program() {
    let site = Site::new();
    site.program("ipam-delegated.d", "of cargo");
    site.program("README", "");
    site.install(&[]);
    let programs = ["ipam-da-two", "ipam-delegated", "ipam-ds-one"];
    assert_eq!(names(&site.plugins), [&[LIST][..], &programs].concat());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&site.plugins), 0o755);
    for name in programs {
        assert_eq!(mode(&site.plugins.join(name)), 0o755);
        assert_eq!(site.read(name), fs::read(site.release.join("bin").join(name)).unwrap());
    }
}

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
    assert_eq!(again, format!("nothing of ours is in {}\n", site.plugins.display()));
    assert_eq!(site.contents(), before);
}

#[test]
fn a_second_run_changes_nothing() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local"]);
    let before = site.contents();
    let again = site.install(&["--preset", "host-local"]);
    assert!(!again.contains("keep") && !again.contains("link"), "{again}");
    assert_eq!(site.contents(), before);
}

#[test]
fn an_upgrade_replaces_programs_and_leaves_presets() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local"]);
    site.version("2");
    fs::remove_file(site.release.join("bin/ipam-da-two")).unwrap();
    site.install(&[]);
    let text = format!("#!/bin/sh\necho ipam-delegated 2\n{PRESETS}");
    assert_eq!(site.read("host-local"), text.as_bytes());
    assert_eq!(site.read("ipam-ds-one"), b"#!/bin/sh\necho ipam-ds-one 2\n");
    // A record may still name it.
    assert_eq!(site.read("ipam-da-two"), b"#!/bin/sh\necho ipam-da-two 1\n");
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
    assert!(text.contains("host-local.orig in place of the one kept before\n"), "{text}");
    assert!(site.is_linked("host-local"));
    assert_eq!(site.read("host-local.orig"), b"new");
    // Packages set the time of their files.
    site.package("host-local", "downgraded");
    let file = fs::File::options().append(true).open(site.plugins.join("host-local")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let text = site.install(&["--preset", "host-local"]);
    assert!(text.contains("the one kept before, which is newer\n"), "{text}");
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
    assert!(text.contains("left ipam-ds-site: install.sh did not put it there"), "{text}");
}

#[test]
fn one_preset_is_given_back_alone() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&["--preset", "host-local", "--preset", "site-local"]);
    let text = site.install(&["--uninstall", "--preset", "host-local", "--preset", "bridge"]);
    assert!(text.contains("left bridge: it is no link to ipam-delegated"), "{text}");
    assert_eq!(site.read("host-local"), b"the plugin");
    let all = [LIST, "host-local", "ipam-da-two", "ipam-delegated", "ipam-ds-one", "site-local"];
    assert_eq!(names(&site.plugins), all);
}

#[test]
fn a_dry_run_says_what_the_real_one_does() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    for arguments in [&["--preset", "host-local"][..], &["--uninstall"]] {
        let before = site.contents();
        let dry = site.install(&[arguments, &["--dry-run"]].concat());
        assert_eq!(site.contents(), before);
        assert!(dry.lines().all(|line| line.starts_with("would ")), "{dry}");
        assert_eq!(dry.replace("would ", ""), site.install(arguments));
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    let site = Site::new();
    for arguments in [
        &["--prefix", "/usr"][..],
        &["host-local"],
        &["--preset", "ipam-ds-one"],
        &["--preset", "../host-local"],
        &["--preset", "-x"],
        &["--preset", ""],
        &["--preset", "lock"],
        &["--preset", "bridge", "--no-run"],
        &["--preset", "--dry-run"],
        &["--dry-run=no"],
        &["--uninstall", "--from", "/tmp"],
    ] {
        let outcome = site.run(arguments);
        assert_eq!(outcome.exit, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains("usage:") && !site.plugins.exists(), "{outcome:?}");
    }
    fs::create_dir_all(site.plugins.join("host-local")).unwrap();
    let outcome = site.run(&["--preset", "host-local"]);
    assert!(outcome.stderr.contains("is no file"), "{outcome:?}");
    assert_eq!(names(&site.plugins), ["host-local"]);
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

#[test]
fn a_reader_that_has_seen_enough_does_not_end_the_work_half_way() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    for arguments in [&["--preset", "host-local"][..], &["--uninstall"]] {
        let mut command = site.command(arguments);
        let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(running.stdout.take());
        let outcome = wait(running);
        assert_eq!((outcome.exit, &*outcome.stderr), (Some(0), ""), "{arguments:?}");
        assert_eq!(site.is_linked("host-local"), arguments.len() == 2);
    }
    assert_eq!(names(&site.plugins), ["host-local"]);
}

#[test]
fn a_search_path_of_the_shell_leads_to_no_other_folder() {
    let site = Site::new();
    let mut command = Command::new("sh");
    let folder = site.release.file_name().unwrap();
    command.arg(Path::new(folder).join("install.sh")).arg("--dir").arg(&site.plugins);
    let elsewhere = site.world.path("elsewhere");
    fs::create_dir_all(elsewhere.join(folder)).unwrap();
    command.current_dir(site.release.parent().unwrap()).env("CDPATH", &elsewhere);
    said(run(&mut command));
    assert_eq!(names(&site.plugins), [LIST, "ipam-da-two", "ipam-delegated", "ipam-ds-one"]);
}

#[test]
fn a_program_that_does_not_run_replaces_nothing() {
    let site = Site::new();
    site.install(&[]);
    site.version("2");
    site.program("ipam-ds-one", "#!/bin/sh\necho no such library; exit 127\n");
    let text = site.refused(&["--preset", "host-local"]);
    assert!(text.contains("does not run on this machine: no such library"), "{text}");
    site.install(&["--no-run"]);
    assert!(site.read("ipam-ds-one").ends_with(b"exit 127\n"));
}

#[test]
fn a_damaged_archive_is_refused() {
    let site = Site::new();
    let sums = "cd \"$0\" && sha256sum install.sh bin/* >SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).arg(&site.release).status().unwrap().success());
    site.install(&[]);
    site.program("ipam-ds-one", "#!/bin/sh\n");
    let outcome = site.run(&[]);
    assert!(outcome.stderr.contains("are damaged: unpack the archive again"), "{outcome:?}");
    assert_eq!(site.read("ipam-ds-one"), b"#!/bin/sh\necho ipam-ds-one 1\n");
}

#[test]
fn missing_programs_are_named_with_the_command_that_builds_them() {
    let site = Site::new();
    let bin = site.release.join("bin");
    let elsewhere = site.world.path("programs elsewhere");
    fs::rename(&bin, &elsewhere).unwrap();
    assert!(site.refused(&[]).contains("--from DIR"));
    site.install(&["--from", elsewhere.to_str().unwrap()]);
    fs::remove_file(elsewhere.join("ipam-delegated")).unwrap();
    let text = site.refused(&["--from", elsewhere.to_str().unwrap()]);
    assert!(text.contains("ipam-delegated is not in"), "{text}");

    // A source tree.
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    fs::create_dir_all(site.release.join("delegates/ipam-ds-one")).unwrap();
    let text = site.refused(&[]);
    assert!(text.contains("cargo build --release --workspace --bins)"), "{text}");
    let build = |target: &str, name: &str| {
        let folder = site.release.join("target").join(target).join("release");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), format!("#!/bin/sh\n# {target}\n")).unwrap();
    };
    let musl = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    build("", "ipam-delegated");
    build("", "ipam-ds-one");
    site.install(&[]);
    assert_eq!(site.read("ipam-delegated"), b"#!/bin/sh\n# \n");
    build(&musl, "ipam-delegated");
    let text = site.refused(&[]);
    assert!(text.contains("ipam-ds-one is not in") && text.contains(&format!("--target {musl})")));
    build(&musl, "ipam-ds-one");
    site.install(&[]);
    assert_eq!(site.read("ipam-ds-one"), format!("#!/bin/sh\n# {musl}\n").as_bytes());
}

#[test]
fn a_delegate_whose_build_needs_more_than_rust_may_be_left_out_of_a_source_tree() {
    let site = Site::new();
    fs::remove_dir_all(site.release.join("bin")).unwrap();
    fs::write(site.release.join("Cargo.toml"), "").unwrap();
    let built = site.release.join("target/release");
    fs::create_dir_all(&built).unwrap();
    fs::create_dir_all(site.release.join("delegates/ipam-da-etcd")).unwrap();
    let text = site.refused(&[]);
    assert!(text.contains("ipam-delegated is not in") && !text.contains("protoc"), "{text}");
    fs::write(built.join("ipam-delegated"), "#!/bin/sh\n").unwrap();
    let text = site.install(&[]);
    assert!(text.contains("left out ipam-da-etcd") && text.contains("libprotobuf-dev"), "{text}");
    assert_eq!(names(&site.plugins), [LIST, "ipam-delegated"]);

    fs::write(built.join("ipam-da-etcd"), "#!/bin/sh\n").unwrap();
    assert!(!site.install(&[]).contains("left out"));
    // An upgrade would leave an old one beside a new chain.
    fs::remove_file(built.join("ipam-da-etcd")).unwrap();
    let text = site.refused(&[]);
    assert!(text.contains("ipam-da-etcd is not in") && text.contains("libprotobuf-dev"), "{text}");
}

#[test]
fn a_preset_is_not_installed_without_a_delegate_that_may_be_missing() {
    let site = Site::new();
    for (preset, delegate) in [
        ("etcd", "ipam-da-etcd"),
        ("host-etcd", "ipam-da-etcd"),
        ("kube-node", "ipam-ds-kube-node"),
        ("node-annotation", "ipam-ds-node-annotation"),
    ] {
        site.package(preset, "old");
        let text = site.refused(&["--preset", preset]);
        assert!(text.contains(&format!("the preset {preset} needs {delegate}")), "{text}");
    }
    site.program("ipam-da-etcd", "#!/bin/sh\n");
    site.install(&["--preset", "etcd"]);
    // One that is there already will do.
    fs::remove_file(site.release.join("bin/ipam-da-etcd")).unwrap();
    site.install(&["--preset", "host-etcd"]);
    assert!(site.is_linked("etcd") && site.is_linked("host-etcd"));
}

#[test]
fn what_the_quick_start_builds_needs_rust_alone() {
    let script = fs::read_to_string(source("examples/quickstart.sh")).unwrap();
    let builds: Vec<&str> = script.lines().filter(|line| line.starts_with("cargo build")).collect();
    let chosen = ["-p", "ipam-delegated", "-p", "ipam-ds-static", "-p", "ipam-da-local"];
    assert_eq!(builds, [format!("cargo build --release {} --bins", chosen.join(" "))]);
    // Neither does all but one, nor what the root builds without any option.
    for packages in [&chosen[..], &["--workspace", "--exclude", "ipam-da-etcd"], &[]] {
        let mut tree = Command::new(env!("CARGO"));
        tree.args(["tree", "--offline", "--locked", "--prefix=none", "--edges=normal,build"]);
        let output = tree.args(packages).current_dir(source("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let crates = String::from_utf8(output.stdout).unwrap();
        assert!(crates.contains("serde_json ") && !crates.contains("prost"), "{crates}");
    }
}

#[test]
fn what_a_killed_run_left_is_swept_by_the_next() {
    let site = Site::new();
    site.install(&[]);
    let before = site.contents();
    // The name under which it is tried ends in the process id of install.sh.
    site.program("ipam-ds-one", "#!/bin/sh\nkill -KILL ${0##*.}\n");
    assert_eq!(site.run(&[]).exit, None);
    assert!(names(&site.plugins).iter().any(|name| name.starts_with(".ipam-ds-one.new.")));
    site.version("1");
    site.install(&[]);
    assert_eq!(site.contents(), before);
}

#[test]
fn what_a_run_left_that_was_killed_while_it_kept_a_plugin_is_swept_by_uninstall() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    site.install(&[]);
    fs::hard_link(site.plugins.join("host-local"), site.plugins.join(".host-local.orig.new.4711"))
        .unwrap();
    site.install(&["--uninstall"]);
    assert_eq!(names(&site.plugins), ["host-local"]);
}

#[test]
fn runs_at_the_same_time_wait_for_each_other() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| site.install(&["--preset", "host-local"]));
        }
    });
    assert_eq!(site.read("host-local.orig"), b"the plugin");
    site.install(&["--uninstall"]);
    assert_eq!(names(&site.plugins), ["host-local"]);
}

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

/// Containers that start and stop without pause, through programs of the plugin folder.
struct Traffic<'a> {
    site: &'a Site,
    path: String,
    network: Value,
    rounds: [AtomicUsize; 3],
    over: AtomicBool,
}

impl<'a> Traffic<'a> {
    fn new(site: &'a Site, path: String, delegates: Value) -> Self {
        let ranges = json!([[{"subnet": "10.9.0.0/24"}]]);
        let network = with(&site.world.network(delegates), "ranges", ranges);
        let network = with(&network, "type", "host-local");
        Self { site, path, network, rounds: Default::default(), over: AtomicBool::new(false) }
    }

    fn call(&self, program: &str, verb: &str, container: &str) -> Outcome {
        let program = self.site.plugins.join(program);
        let mut command = self.site.world.command_of(&program, verb, container);
        command.env("CNI_PATH", &self.path);
        // The replaced plugin and the preset in its place read the same configuration.
        let own = !program.ends_with("ipam-delegated");
        let left_out = if own { &["delegates"][..] } else { &[] };
        wait(start(command, &without(&self.network, left_out)))
    }

    /// Starts and stops containers by one program each, while `work` goes on.
    fn during(&self, programs: [&str; 3], work: impl FnOnce()) {
        /// Ends the traffic also when the work has failed.
        struct Ending<'b>(&'b AtomicBool);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let ending = Ending(&self.over);
            for (number, program) in programs.into_iter().enumerate() {
                scope.spawn(move || {
                    // A failed call ends the work as well: no round is counted any more.
                    while !self.over.load(Ordering::Relaxed) {
                        let round = self.rounds[number].load(Ordering::Relaxed);
                        self.round(program, &format!("c{number}-{round}"));
                        self.rounds[number].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            work();
            drop(ending);
        });
        let leases = names(&self.site.world.path("data/net"));
        assert!(leases.iter().all(|name| name.parse::<IpAddr>().is_err()), "{leases:?}");
    }

    fn round(&self, program: &str, container: &str) {
        if program.starts_with("ipam-ds-") {
            assert!(self.call(program, "VERSION", container).success().is_object());
            return;
        }
        let ips = self.call(program, "ADD", container).ips();
        assert_eq!(ips.len(), 1, "{ips:?}");
        self.call(program, "DEL", container).success();
    }

    /// Waits until each has begun and ended a round since.
    fn flows(&self) {
        for rounds in &self.rounds {
            let before = rounds.load(Ordering::Relaxed);
            until("containers start", || rounds.load(Ordering::Relaxed) >= before + 2);
        }
    }
}

#[test]
fn uninstall_waits_for_a_chain_that_is_under_way() {
    let site = Site::real();
    site.install(&["--preset", "host-local"]);
    let gate = site.world.gate("gate");
    let pools = json!({"pools": [{"ranges": [{"subnet": "10.9.0.0/24"}]}]});
    site.world.delegate("ipam-ds-static", &format!("{gate}; printf '{pools}'"));
    let path = format!("{}:{}", site.world.path("bin").display(), site.plugins.display());
    let traffic = Traffic::new(&site, path, json!([]));
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| traffic.call("host-local", "ADD", "c1").ips());
        site.world.at_gate("gate");
        let mut uninstall = site.command(&["--uninstall"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(uninstall.stdout.take().unwrap()).lines();
        let mut lines = lines.map(Result::unwrap);
        let waits = lines.any(|line| line.starts_with("waiting up to 10 s"));
        let there = [!site.is_linked("host-local"), site.plugins.join("host-local.orig").exists()];
        site.world.open_gate("gate");
        assert!(waits && there == [true, true], "{waits} {there:?}");
        assert_eq!(adding.join().unwrap(), ["10.9.0.2/24"]);
        assert!(lines.all(|line| !line.contains("going on")));
        assert!(uninstall.wait().unwrap().success());
    });
    assert_eq!(names(&site.plugins), ["host-local"]);
    // The plugin that is restored knows the lease.
    traffic.call("host-local", "DEL", "c1").success();
    assert!(!site.world.path("data/net/10.9.0.2").exists());
}

/// Makes the programs of a release differ, and still run.
fn append(folder: &Path, text: &str) {
    for name in names(folder) {
        let script =
            "cp \"$0\" \"$0.new\" && printf '%s' \"$1\" >>\"$0.new\" && mv \"$0.new\" \"$0\"";
        let done =
            Command::new("sh").args(["-c", script]).arg(folder.join(name)).arg(text).status();
        assert!(done.unwrap().success());
    }
}

#[test]
fn containers_start_while_programs_are_replaced() {
    let site = Site::real();
    site.install(&["--preset", "host-local"]);
    let package = site.world.path("package");
    fs::create_dir(&package).unwrap();
    // The link and what a package puts over it read this same configuration; and from the first
    // preset on there is a plugin that was kept.
    let delegates = json!(["ipam-ds-static", "host-local.orig"]);
    let traffic = Traffic::new(&site, site.plugins.display().to_string(), delegates);
    traffic.during(["ipam-delegated", "host-local", "ipam-ds-static"], || {
        for version in ["2", "3", "4", "5"] {
            append(&site.release.join("bin"), version);
            site.install(&[]);
            copy(&host_local(), &package.join("host-local"));
            append(&package, version);
            fs::rename(package.join("host-local"), site.plugins.join("host-local")).unwrap();
            traffic.flows();
            let text = site.install(&["--preset", "host-local"]);
            assert!(text.contains("keep host-local"), "{text}");
            traffic.flows();
        }
    });
}

#[test]
fn containers_start_while_a_preset_comes_and_goes() {
    let site = Site::real();
    // These two stand in a folder that comes first and that nobody touches: a chain under way at
    // an uninstall finds its delegates, and the plugin that is restored needs none.
    site.world.install(&binary("ipam-da-local")).install(&binary("ipam-ds-static"));
    let path = format!("{}:{}", site.world.path("bin").display(), site.plugins.display());
    let traffic = Traffic::new(&site, path, json!([]));
    let before = site.contents();
    traffic.during(["host-local"; 3], || {
        for version in ["2", "3", "4", "5"] {
            site.install(&["--preset", "host-local"]);
            traffic.flows();
            append(&site.release.join("bin"), version);
            site.install(&["--preset", "host-local"]);
            site.install(&["--uninstall"]);
            assert!(!site.is_linked("host-local"));
            traffic.flows();
        }
    });
    assert_eq!(site.contents(), before);
}
