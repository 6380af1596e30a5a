//! The trait of delegates, and the only edge that touches environment, stdin, stdout and exit.
//!
//! A delegate is a CNI IPAM plugin in a chain. It gets the network configuration with the previous
//! delegate's result as `prevResult`, and answers that result with its additions.

mod cli_call;
mod deadline;
mod edge;
mod mark;
mod reach;
mod request;
pub mod selector_keys;

pub use cli_call::CliCall;
pub use deadline::Deadline;
pub use edge::{Reply, answer, run, run_dyn, serve};
pub use mark::Mark;
pub use reach::Reach;
pub use request::Request;

use std::ffi::OsString;

use crate::cni::{IpamResult, ValidAttachments};
use crate::error::Result;
use crate::keys::Key;

/// A program that answers the verbs of CNI as a delegate.
///
/// Most delegates are a [`Selector`](crate::select::Selector), which brings this trait with it.
pub trait Delegate {
    /// ADD: answers `prevResult` with more pools or more addresses.
    fn add(&self, request: &Request) -> Result<IpamResult>;

    /// DEL: releases what the attachment holds. Repeated calls succeed.
    ///
    /// The answer is `prevResult` for the next delegate.
    fn del(&self, request: &Request) -> Result<Option<IpamResult>>;

    /// CHECK: fails when the attachment does not hold what `prevResult` says.
    fn check(&self, request: &Request) -> Result<Option<IpamResult>>;

    /// GC: releases what this node holds on this network beyond `keep`.
    fn gc(&self, _request: &Request, _keep: &ValidAttachments) -> Result<Option<IpamResult>> {
        Ok(None)
    }

    /// STATUS: fails when an ADD could not be served.
    fn status(&self, _request: &Request) -> Result<Option<IpamResult>> {
        Ok(None)
    }

    /// The keys of `ipam` that the delegate reads; `None` claims every key.
    fn keys(&self) -> Option<Vec<Key>> {
        None
    }

    /// Expands the arguments that a person typed, possibly none.
    ///
    /// With an argument `-` stdin is read; with `--json` an error is printed as an object on
    /// stdout.
    fn expand_args(&self, typed: Vec<OsString>) -> Vec<OsString> {
        typed
    }

    /// Answers a call without `CNI_COMMAND` with the text to print; `None` without verbs for
    /// people.
    fn cli(&self, _call: &CliCall) -> Option<Result<String>> {
        None
    }

    /// ADD succeeded, but its result could not be delivered: releases what this ADD took.
    fn undelivered(&self, _request: &Request) -> Result<()> {
        Ok(())
    }
}
