//! The server that lasts as long as the tests of a test binary.

use std::sync::OnceLock;

use super::server::OpenWisp;
use crate::servers::lasting;

impl OpenWisp {
    /// The server that all tests of this binary share, started by the first that asks. Each test
    /// has subnets of its own in it, which overlap no others; none stops it.
    #[track_caller]
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<&OpenWisp> = OnceLock::new();
        SHARED.get_or_init(|| {
            let server = Self::start();
            let folder = server.folder();
            lasting::keep(server, &[folder])
        })
    }
}
