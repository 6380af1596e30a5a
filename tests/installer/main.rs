//! `install.sh`: what it puts where, what it keeps, and that containers start all the while.

#![allow(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod copied;
mod host;
mod only;
mod presets;
mod programs;
mod quickstart;
mod running;
mod traffic;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ipam_testkit::world::{Outcome, World, binary, host_local, names, wait};

const LIST: &str = ".ipam-delegated.installed";

/// What it says about a link in PATH.
const SHORTCUT: &str = "to call it without its folder";

/// What the program in shell says in its help: it has presets of its own.
const PRESETS: &str = "[ \"$1\" != help ] || printf 'presets: host-local, etcd, host-etcd, \
     kube-node, node-annotation, whereabouts, rack-local, site-local, absolute, relative, copied, \
     kept\\nbuilt in: ipam-ds-static\\n'\n";

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
        for name in ["ipam-delegated", "ipam-ds-static", "ipam-da-local"] {
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
