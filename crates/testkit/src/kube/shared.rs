//! Servers that last as long as the tests of a test binary.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use super::server::Kube;
use crate::servers::process;

/// A server, and the shell that removes its folders when the test's process has ended: what lasts is
/// not dropped. The server and its store end with the process anyway.
struct Shared {
    kube: Kube,
    /// It reads from a pipe that the test's process has, and reads its end when that ends.
    _remover: Child,
}

impl Kube {
    /// The server that all tests of this binary share, started by the first that asks. Each test
    /// has objects of its own names in it, and logins of its own by [`Kube::user`]; none stops it.
    #[track_caller]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<&Kube> = OnceLock::new();
        SHARED.get_or_init(Self::lasting)
    }

    /// A server of its own, which lasts until the test's process has ended.
    #[track_caller]
    pub(crate) fn lasting() -> &'static Self {
        let kube = Self::start();
        let _remover = remover(&kube);
        &Box::leak(Box::new(Shared { kube, _remover })).kube
    }
}

fn remover(kube: &Kube) -> Child {
    // The second time for what a process wrote that was about to end.
    let script = r#"trap "" INT TERM HUP; cat; rm -rf "$@"; sleep 1; rm -rf "$@""#;
    let mut command: Command = process::plain("sh");
    command.args(["-c", script, "sh"]).args(kube.folders());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
