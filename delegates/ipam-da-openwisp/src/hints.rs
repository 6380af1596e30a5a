//! The node's memory of answers: whether the server refuses a user an export, and whether it limits
//! a user's requests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::allocate::owner_index::now;
use ipam_kit::allocate::store_memory::{StoreMemory, is_refusal_recent};
use serde::{Deserialize, Serialize};

/// The memory of answers, for one user.
#[derive(Debug)]
pub(crate) struct AnswerHints {
    memory: StoreMemory<HintRecord>,
    user: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct HintRecord {
    /// When each user was refused an export, in milliseconds since 1970.
    refusals: BTreeMap<String, u64>,
    /// When each user last sent too many requests, in milliseconds since 1970.
    limits: BTreeMap<String, u64>,
}

/// For how long a limit of requests is of interest, in milliseconds.
const DAY: u64 = 86_400_000;

impl AnswerHints {
    pub(crate) fn read(path: PathBuf, user: &str) -> Self {
        Self { memory: StoreMemory::read(path), user: user.to_owned() }
    }

    /// Whether the user may export: the server has not refused it lately.
    pub(crate) fn may_export(&self) -> bool {
        let refused = self.memory.record().refusals.get(&self.user);
        !refused.copied().is_some_and(is_refusal_recent)
    }

    pub(crate) fn remember_refusal(&mut self) {
        let Self { memory, user } = self;
        memory.remember_hint(|record| {
            record.refusals.retain(|_, refused| is_refusal_recent(*refused));
            record.refusals.insert(user.clone(), now());
        });
    }

    /// How long ago the user last sent too many requests, if that was within a day.
    pub(crate) fn limited(&self) -> Option<Duration> {
        let age = now().abs_diff(*self.memory.record().limits.get(&self.user)?);
        (age < DAY).then(|| Duration::from_millis(age))
    }

    pub(crate) fn remember_limit(&mut self) {
        let Self { memory, user } = self;
        memory.remember_hint(|record| {
            record.limits.retain(|_, limited| now().abs_diff(*limited) < DAY);
            record.limits.insert(user.clone(), now());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_and_a_limit_count_for_the_user_who_met_them() {
        let folder = tempfile::tempdir().unwrap();
        let hints = |user: &str| AnswerHints::read(folder.path().join("answers.json"), user);
        hints("a").remember_refusal();
        hints("a").remember_limit();
        assert!(!hints("a").may_export() && hints("b").may_export());
        assert!(hints("a").limited().is_some() && hints("b").limited().is_none());
    }
}
