use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;

use crate::cni::Environment;

/// The variable that marks all processes of one call of a chain: the chain's process id, and a
/// number that is unique in that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// Its name.
    pub const VARIABLE: &'static str = "IPAM_DELEGATED_CALL";

    /// The mark of a new call of this process.
    #[must_use]
    pub fn next() -> Self {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        Self(format!("{}.{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed)))
    }

    /// The value of the variable.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The process of the chain that an environment names.
    pub(super) fn chain(environment: &Environment) -> Option<Pid> {
        let (chain, _) = environment.text(Self::VARIABLE)?.split_once('.')?;
        chain.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_names_its_chain() {
        let chain = |mark: &str| Mark::chain(&Environment::new([(Mark::VARIABLE, mark)]));
        let (one, other) = (Mark::next(), Mark::next());
        assert_ne!(one, other);
        assert_eq!(chain(one.as_str()), Some(rustix::process::getpid()));
        for mark in ["", "7", ".0", "0.0", "-7.0", "x.0", "99999999999.0"] {
            assert_eq!(chain(mark), None, "{mark}");
        }
    }
}
