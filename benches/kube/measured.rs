use std::path::PathBuf;
use std::time::Duration;

use super::common::plugins::{Plugins, measure};
use super::common::times::Times;
use super::site::{SELECTORS, Site};

/// The times of all that is run in turn.
pub struct Measured {
    /// One, two and three bare processes that do nothing.
    pub bare: [Times; 3],
    /// A bare process with one GET, by login.
    pub floor: [Times; 2],
    /// The selectors alone that ask, by login.
    pub cold_alone: [[Times; 2]; 2],
    pub warm_alone: [Times; 2],
    /// Chains, each of ADD and DEL.
    pub still: [Times; 2],
    pub warm: [[Times; 2]; 2],
    pub cold: [[Times; 2]; 2],
    /// Other clients that are installed here, with the client certificate.
    pub others: Vec<(&'static str, Times)>,
}

pub const CHAIN: &str = "ipam-delegated";

impl Measured {
    pub fn new() -> Self {
        let [floor, warm_alone, still] = [const { [const { Times::new() }; 2] }; 3];
        let [cold_alone, warm, cold] = [const { [const { [const { Times::new() }; 2] }; 2] }; 3];
        Self {
            bare: [const { Times::new() }; 3],
            floor,
            cold_alone,
            warm_alone,
            still,
            warm,
            cold,
            others: OTHERS.iter().map(|other| (other.0, Times::new())).collect(),
        }
    }

    /// One call of each, and one DEL for each ADD of a chain.
    pub fn round(&mut self, plugins: &Plugins, site: &Site, container: &str) {
        for (processes, times) in (1..).zip(&mut self.bare) {
            times.push(plugins.bare(processes));
        }
        for login in 0..2 {
            let arguments = site.floor(&site.logins[login]);
            self.floor[login].push(with_arguments(plugins, "kube-floor", &arguments));
            for (i, selector) in SELECTORS.iter().enumerate() {
                let network = &site.cold_alone[i][login];
                self.cold_alone[i][login].push(plugins.call(selector, "ADD", container, network));
            }
        }
        for (i, selector) in SELECTORS.iter().enumerate() {
            let time = plugins.call(selector, "ADD", container, &site.warm_alone[i]);
            self.warm_alone[i].push(time);
        }
        plugins.pair(CHAIN, &site.still, container, &mut self.still);
        for i in 0..2 {
            plugins.pair(CHAIN, &site.warm[i], container, &mut self.warm[i]);
            plugins.pair(CHAIN, &site.cold[i], container, &mut self.cold[i]);
        }
        for ((name, arguments), (_, times)) in OTHERS.iter().zip(&mut self.others) {
            if let Some(program) = installed(name) {
                let program = program.display().to_string();
                times.push(with_arguments(plugins, &program, &arguments(site)));
            }
        }
    }
}

/// Where a client is installed.
pub fn installed(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The name of another client, and what gives its arguments.
type Client = (&'static str, fn(&Site) -> Vec<String>);

const OTHERS: [Client; 2] = [("curl", Site::curl), ("kubectl", Site::kubectl)];

fn with_arguments(plugins: &Plugins, program: &str, arguments: &[String]) -> Duration {
    let mut command = plugins.command(program, "", "");
    command.args(arguments);
    measure(command, "").0
}
