//! The contract between delegates: what travels in `prevResult` and in answers beside the CNI result.
//!
//! The page `docs/contract.md` says what each member means and who must do what. The names of the
//! members are in this module alone:
//!
//! | | writes | reads |
//! |---|---|---|
//! | input, in `prevResult` | the chain: [`DelegateInput`], with a [`Purpose`] | a delegate: [`InputMembers`] |
//! | answer, beside the CNI result | a delegate: [`DelegateAnswer`] | the chain: [`DelegateAnswer`] |
//!
//! A member that is not of the contract stays where it is, in
//! [`IpamResult::extra`](crate::cni::IpamResult::extra).

mod answer;
mod input;
mod members;
mod purpose;

pub use answer::DelegateAnswer;
pub use input::DelegateInput;
pub use members::InputMembers;
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

    /// What the chain tells a delegate.
    pub(crate) const OF_INPUT: [&str; 7] = [POOLS, LEASES, STATIC, UNDO, FENCE, REASSERT, PRESENT];

    /// What only the chain may say. A delegate's answer cannot: there it is removed.
    pub(crate) const OF_THE_CHAIN: [&str; 4] = [UNDO, FENCE, REASSERT, PRESENT];
}
