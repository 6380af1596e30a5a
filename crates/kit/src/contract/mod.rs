//! The contract between delegates: what travels in `prevResult` and in answers beside the CNI result.
//!
//! The page `docs/contract.md` says what each member means and who must do what. Here is the only place
//! that spells the members: the chain, the roles and the suites read and write them through
//! [`DelegateInput`], [`DelegateAnswer`] and [`Purpose`]. A member that is not of the contract stays
//! where it is, in [`IpamResult::extra`](crate::cni::IpamResult::extra).

mod answer;
mod input;
mod members;
mod purpose;

pub use answer::DelegateAnswer;
pub use input::DelegateInput;
pub use members::Members;
pub use purpose::Purpose;

/// A member of the contract.
pub(crate) mod key {
    pub(crate) use crate::cni::POOLS;

    pub(crate) const LEASES: &str = "leases";
    pub(crate) const STATIC: &str = "static";
    pub(crate) const UNSURE: &str = "unsure";
    pub(crate) const IPAM: &str = "ipam";
    pub(crate) const REMEMBERED: &str = "remembered";
    pub(crate) const PRESENT: &str = "present";
    pub(crate) const UNDO: &str = "undo";
    pub(crate) const FENCE: &str = "fence";
    pub(crate) const REASSERT: &str = "reassert";

    /// What the chain alone tells a delegate. In an answer, and in the runtime's own `prevResult`, it is
    /// data without a meaning.
    pub(crate) const OF_THE_CHAIN: [&str; 4] = [UNDO, FENCE, REASSERT, PRESENT];
}
