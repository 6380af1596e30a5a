//! Whose programs a history runs: this build's alone, or an earlier one's, too.

use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::world::{World, binary, cni_command};

/// Names a folder with the programs of an earlier build.
const EARLIER: &str = "IPAM_DELEGATED_EARLIER";

/// The programs of this build and, where the environment names them, those of an earlier one. Both
/// serve the same owners then, in the same state folders and on the same store.
pub(super) struct Builds {
    earlier: Option<PathBuf>,
    calls: AtomicUsize,
}

impl Builds {
    /// The builds that the environment asks for.
    pub(super) fn new() -> Self {
        let earlier = std::env::var_os(EARLIER).map(PathBuf::from);
        Self { earlier, calls: AtomicUsize::new(0) }
    }

    /// Puts these delegates into the plugin folders of a world, one for each build.
    #[track_caller]
    pub(super) fn install(&self, world: &World, delegates: &[String]) {
        delegates.iter().for_each(|name| {
            world.install(&binary(name));
        });
        if self.earlier.is_some() {
            fs::create_dir(world.path("bin-earlier")).unwrap();
            for name in delegates {
                symlink(self.earlier(name), world.path("bin-earlier").join(name)).unwrap();
            }
        }
    }

    /// A call of the chain. With two builds, the chain is of one and its delegates are of one, in
    /// all four ways in turn.
    pub(super) fn command(&self, world: &World, verb: &str, container: &str) -> Command {
        const CHAIN: &str = "ipam-delegated";
        let turn = self.calls.fetch_add(1, Ordering::Relaxed);
        let is_mixed = self.earlier.is_some();
        let chain = if is_mixed && turn & 1 != 0 { self.earlier(CHAIN) } else { binary(CHAIN) };
        let plugins = if is_mixed && turn & 2 != 0 { "bin-earlier" } else { "bin" };
        cni_command(&chain, &world.path(plugins), verb, container)
    }

    /// A program of the earlier build. A missing one fails the test.
    #[track_caller]
    fn earlier(&self, name: &str) -> PathBuf {
        let path = self.earlier.clone().unwrap_or_default().join(name);
        assert!(
            path.is_file(),
            "{} is missing, in the folder that {EARLIER} names",
            path.display()
        );
        path
    }
}

impl fmt::Display for Builds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.earlier {
            Some(folder) => write!(f, "this build and {}", folder.display()),
            None => f.write_str("this build"),
        }
    }
}
