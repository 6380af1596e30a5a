//! Options, readers of its output, runs that are killed and runs at the same time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use ipam_testkit::world::{names, wait};

use super::{LIST, Site, run, said};

#[test]
fn a_dry_run_says_what_the_real_one_does() {
    let site = Site::new();
    site.package("host-local", "the plugin");
    for arguments in [&["--preset", "host-local"][..], &["--uninstall"]] {
        let before = site.contents();
        let dry = site.install(&[arguments, &["--dry-run"]].concat());
        assert_eq!(site.contents(), before);
        assert!(dry.lines().all(|line| line.starts_with("would ")), "{dry}");
        let text = site.install(arguments);
        let steps = text.split("\nnext: ").next().unwrap();
        assert_eq!(dry.replace("would ", ""), steps);
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    let site = Site::new();
    for arguments in [
        &["--prefix", "/usr"][..],
        &["host-local"],
        &["--preset", "ipam-ds-static"],
        &["--preset", "../host-local"],
        &["--preset", "-x"],
        &["--preset", ""],
        &["--preset", "lock"],
        &["--preset", "bridge", "--no-run"],
        &["--preset", "--dry-run"],
        &["--dry-run=no"],
        &["--uninstall", "--from", "/tmp"],
        &["--uninstall", "--only", "ipam-ds-static"],
        &["--only", "host-local"],
        &["--only", ","],
    ] {
        let outcome = site.run(arguments);
        assert_eq!(outcome.exit, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains("usage:") && !site.plugins.exists(), "{outcome:?}");
        // The error stays on the screen: what each option does is in --help.
        assert!(outcome.stderr.lines().count() < 10, "{outcome:?}");
    }
    for name in ["host-local", "host-local.orig"] {
        fs::create_dir_all(site.plugins.join(name)).unwrap();
        let outcome = site.run(&["--preset", "host-local"]);
        assert!(outcome.stderr.contains(&format!("{name} is not a regular file")), "{outcome:?}");
        assert_eq!((outcome.exit, names(&site.plugins)), (Some(1), vec![name.to_owned()]));
        fs::remove_dir(site.plugins.join(name)).unwrap();
    }
}

#[test]
fn what_a_killed_run_installed_is_removed_by_uninstall() {
    let site = Site::new();
    // It ends install.sh once the first program is in place.
    let folder = site.world.path("shim");
    fs::create_dir(&folder).unwrap();
    let shim = "#!/bin/sh\n/bin/mv \"$@\" || exit\n\
                for to; do :; done\ncase $to in */ipam-da-local) kill -KILL $PPID ;; esac\n";
    site.world.program("mv", shim);
    fs::rename(site.world.path("bin/mv"), folder.join("mv")).unwrap();
    let mut command = site.command(&[]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", folder.display()));
    assert_eq!(run(&mut command).exit, None);
    let there = names(&site.plugins);
    assert!(there.contains(&"ipam-da-local".to_owned()), "{there:?}");
    assert!(!there.contains(&"ipam-delegated".to_owned()), "{there:?}");
    site.install(&["--uninstall"]);
    assert_eq!(names(&site.plugins), [""; 0]);
}

#[test]
fn a_strict_umask_of_the_caller_leaves_the_programs_open_to_all() {
    let site = Site::new();
    let inner = site.command(&["--preset", "host-local"]);
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec sh \"$@\"", "sh"]).args(inner.get_args());
    said(run(&mut command));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&site.plugins), 0o755);
    for (name, expected) in [(LIST, 0o644), ("ipam-delegated", 0o755), ("ipam-da-local", 0o755)] {
        assert_eq!(mode(&site.plugins.join(name)), expected, "{name}");
    }
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
    assert_eq!(names(&site.plugins), [LIST, "ipam-da-local", "ipam-delegated", "ipam-ds-static"]);
}

#[test]
fn what_a_killed_run_left_is_swept_by_the_next() {
    let site = Site::new();
    site.install(&[]);
    let before = site.contents();
    // The name under which it is tried ends in the process id of install.sh.
    site.program("ipam-da-local", "#!/bin/sh\nkill -KILL ${0##*.}\n");
    assert_eq!(site.run(&[]).exit, None);
    assert!(names(&site.plugins).iter().any(|name| name.starts_with(".ipam-da-local.new.")));
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
