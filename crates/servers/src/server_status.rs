use std::time::{Duration, Instant};

/// Why a server did not answer a request, if it did not.
#[derive(Clone, Default)]
pub(super) struct ServerStatus {
    pub reason: String,
    /// It does not do what is asked.
    pub rejected: bool,
    /// It could not be reached.
    pub away: bool,
    /// Until when it wants to be left alone.
    pub again: Option<Instant>,
}

/// What is known of each server since one last answered.
pub(super) struct ServerStatuses(Vec<ServerStatus>);

/// For how many further rounds those that cannot be reached are waited for where another one refuses.
const PATIENT: u32 = 2;

impl ServerStatuses {
    pub(super) fn new(servers: usize) -> Self {
        Self(vec![ServerStatus::default(); servers])
    }

    /// Another request begins: what a server does not do it may not do of one request alone.
    pub(super) fn begin(&mut self) {
        self.0
            .iter_mut()
            .filter(|finding| finding.rejected)
            .for_each(|f| *f = ServerStatus::default());
    }

    pub(super) fn clear(&mut self) {
        self.0.fill(ServerStatus::default());
    }

    pub(super) fn put(&mut self, place: usize, finding: ServerStatus) {
        self.0[place] = finding;
    }

    /// Whether nothing is known of it.
    pub(super) fn is_silent(&self, place: usize) -> bool {
        self.0[place].reason.is_empty()
    }

    /// Whether it is not to be asked in this round.
    pub(super) fn is_left_alone(&self, place: usize, now: Instant) -> bool {
        let finding = &self.0[place];
        finding.rejected || finding.again.is_some_and(|again| again > now)
    }

    /// How long every server that may still do what is asked wants to be left alone.
    pub(super) fn asked_to_wait(&self, now: Instant) -> Option<Duration> {
        let fit = self.0.iter().filter(|finding| !finding.rejected);
        let until = fit.map(|finding| finding.again).collect::<Option<Vec<_>>>()?;
        Some(until.into_iter().min()?.saturating_duration_since(now))
    }

    /// Whether nothing is to be waited for: each server refuses or, for some rounds, cannot be reached.
    pub(super) fn nobody_does(&self, round: u32) -> bool {
        let all = |wanted: fn(&ServerStatus) -> bool| self.0.iter().all(wanted);
        let any = self.0.iter().any(|finding| finding.rejected);
        all(|finding| finding.rejected)
            || (any && round >= PATIENT && all(|finding| finding.rejected || finding.away))
    }

    /// [`ServerStatuses::nobody_does`], after all rounds.
    pub(super) fn are_refusals(&self) -> bool {
        self.nobody_does(PATIENT)
    }

    /// Of each server; empty where it was not asked.
    pub(super) fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|finding| &*finding.reason)
    }
}
