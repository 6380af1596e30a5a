//! The contract between delegates: the members of `prevResult` and of answers, beside the CNI
//! result.
//!
//! The page `docs/contract.md` defines each member and the duties of each side. Only this module
//! has the names of the members:
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
    pub(crate) const REMARKS: &str = "remarks";
    pub(crate) const PRESENT: &str = "present";
    pub(crate) const UNDO: &str = "undo";
    pub(crate) const FENCE: &str = "fence";
    pub(crate) const REASSERT: &str = "reassert";

    /// The members of a delegate's input.
    pub(crate) const OF_INPUT: [&str; 7] = [POOLS, LEASES, STATIC, UNDO, FENCE, REASSERT, PRESENT];

    /// Members that only the chain may set. They are removed from a delegate's answer.
    pub(crate) const OF_THE_CHAIN: [&str; 4] = [UNDO, FENCE, REASSERT, PRESENT];
}
