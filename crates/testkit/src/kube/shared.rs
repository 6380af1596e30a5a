//! Servers that last as long as the tests of a test binary.

use std::sync::OnceLock;

use super::server::Kube;
use crate::servers::lasting;

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
        let folders = kube.folders();
        lasting::keep(kube, &folders)
    }
}
