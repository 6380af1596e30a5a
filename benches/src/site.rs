//! Where a system is measured, and what was measured there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::caller::{Callers, Plugins, VERBS};
use crate::programs::Build;
use crate::table::Row;
use crate::times::Series;

/// The numbers of leases held.
pub const HELD: [usize; 4] = [0, 1_000, 10_000, 50_000];

/// By the leases held.
pub type Sites = Vec<Box<dyn Site>>;

/// A place where leases are held, with those who use it.
pub trait Site {
    fn callers(&self) -> &Callers;

    /// One call of each, in turn.
    fn round(&self, turn: &mut Turn<'_>);

    /// As [`Site::round`], of callers that leave cold caches to the others; after all other sites.
    fn last(&self, _turn: &mut Turn<'_>) {}

    /// What is done before a caller is run many times at once.
    fn before_batch(&self, _caller: &str) {}

    /// Measures what has no rounds, where the most leases are held: prints it, or gives rows for
    /// the table of targets.
    fn more(&self, _stage: &Stage<'_>) -> Vec<Row> {
        Vec::new()
    }
}

/// Folders for one build of the programs.
pub struct Stage<'a> {
    pub build: &'a Build,
    programs: TempDir,
    state: TempDir,
}

/// One round at one site.
pub struct Turn<'a> {
    pub round: usize,
    pub container: &'a str,
    pub series: &'a mut Series,
}

/// All that was measured of one build.
pub struct Results<'a> {
    pub build: &'a Build,
    pub sites: Sites,
    /// By the leases held.
    pub series: Vec<(usize, Series)>,
    /// Calls a second, 20 at a time, by the leases held.
    pub rates: Vec<(usize, Series)>,
}

impl Turn<'_> {
    pub fn push(&mut self, name: &str, time: Duration) {
        self.series.entry(name.to_owned()).or_default().push(time.as_secs_f64() * 1000.0);
    }

    /// One ADD and one DEL of each caller. Each is the first in its round.
    pub fn pairs(&mut self, callers: &Callers, names: &[impl AsRef<str>]) {
        let count = names.len();
        for i in 0..count {
            self.pair(callers, names[(self.round + i) % count].as_ref());
        }
    }

    /// One ADD and one DEL of a caller.
    pub fn pair(&mut self, callers: &Callers, name: &str) {
        for verb in VERBS {
            let time = callers[name].call(verb, self.container);
            self.push(&format!("{name} {verb}"), time);
        }
    }
}

impl<'a> Stage<'a> {
    /// State lies in memory where there is such a place, or in `BENCH_DIR`.
    pub fn new(build: &'a Build) -> Self {
        let memory = || Some("/dev/shm".into()).filter(|path: &PathBuf| path.is_dir());
        let chosen = std::env::var_os("BENCH_DIR").map(Into::into).or_else(memory);
        let state = TempDir::new_in(chosen.unwrap_or_else(std::env::temp_dir)).unwrap();
        Self { build, programs: TempDir::new().unwrap(), state }
    }

    /// A plugin folder of this name with these programs.
    pub fn plugins(&self, name: &str, programs: &[&str]) -> Plugins {
        Plugins::new(&self.programs.path().join(name), self.build, programs)
    }

    /// Where leases and state lie.
    pub fn state(&self) -> &Path {
        self.state.path()
    }
}
