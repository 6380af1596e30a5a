use std::time::{Duration, Instant};

/// Why a server did not answer, if it did not.
#[derive(Clone, Default)]
pub(super) struct ServerStatus {
    pub reason: String,
    /// It rejects the request.
    pub rejected: bool,
    /// It could not be reached.
    pub unreachable: bool,
    /// Until when it asked not to be called.
    pub again: Option<Instant>,
}

/// The status of each server since one last answered.
pub(super) struct ServerStatuses(Vec<ServerStatus>);

/// For how many further rounds unreachable servers are retried if another one rejects the request.
const PATIENT: u32 = 2;

impl ServerStatuses {
    pub(super) fn new(servers: usize) -> Self {
        Self(vec![ServerStatus::default(); servers])
    }

    /// Begins another request: a server that rejected one may take another.
    pub(super) fn forget_rejections(&mut self) {
        self.0
            .iter_mut()
            .filter(|status| status.rejected)
            .for_each(|f| *f = ServerStatus::default());
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(ServerStatus::default());
    }

    pub(super) fn put(&mut self, index: usize, status: ServerStatus) {
        self.0[index] = status;
    }

    /// Whether nothing is known of it.
    pub(super) fn is_unknown(&self, index: usize) -> bool {
        self.0[index].reason.is_empty()
    }

    /// Whether it is skipped in this round.
    pub(super) fn is_skipped(&self, index: usize, now: Instant) -> bool {
        let status = &self.0[index];
        status.rejected || status.again.is_some_and(|again| again > now)
    }

    /// The shortest wait, if every server that may still take the request asked for one.
    pub(super) fn shortest_wait(&self, now: Instant) -> Option<Duration> {
        let usable = self.0.iter().filter(|status| !status.rejected);
        let until = usable.map(|status| status.again).collect::<Option<Vec<_>>>()?;
        Some(until.into_iter().min()?.saturating_duration_since(now))
    }

    /// Whether waiting is useless: each server rejects the request or has been unreachable for some
    /// rounds.
    pub(super) fn is_hopeless(&self, round: u32) -> bool {
        let rejections = self.0.iter().filter(|status| status.rejected).count();
        let all_fail = self.0.iter().all(|status| status.rejected || status.unreachable);
        rejections == self.0.len() || (rejections > 0 && round >= PATIENT && all_fail)
    }

    /// [`ServerStatuses::is_hopeless`], after all rounds.
    pub(super) fn are_rejections(&self) -> bool {
        self.is_hopeless(PATIENT)
    }

    /// The reason of each server; empty for one that was not asked.
    pub(super) fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|status| &*status.reason)
    }
}
