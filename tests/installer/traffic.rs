//! Containers start while programs and presets come and go.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ipam_testkit::world::{Outcome, binary, host_local, names, start, until, wait, with, without};
use serde_json::{Value, json};

use super::{Site, copy};

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
