use std::cell::RefCell;
use std::time::{Duration, Instant};

/// Why a server did not answer a request, if it did not.
#[derive(Clone, Default)]
pub(super) struct Finding {
    pub reason: String,
    /// It does not do what is asked.
    pub unfit: bool,
    /// It could not be reached.
    pub away: bool,
    /// Until when it wants to be left alone.
    pub again: Option<Instant>,
}

/// What is known of each server since one last answered.
pub(super) struct Findings(RefCell<Vec<Finding>>);

/// For how many further rounds those that cannot be reached are waited for where another one refuses.
const PATIENT: u32 = 2;

impl Findings {
    pub(super) fn new(servers: usize) -> Self {
        Self(RefCell::new(vec![Finding::default(); servers]))
    }

    /// Another request begins: what a server does not do it may not do of one request alone.
    pub(super) fn begin(&self) {
        let mut findings = self.0.borrow_mut();
        findings.iter_mut().filter(|finding| finding.unfit).for_each(|f| *f = Finding::default());
    }

    pub(super) fn clear(&self) {
        self.0.borrow_mut().fill(Finding::default());
    }

    pub(super) fn put(&self, place: usize, finding: Finding) {
        self.0.borrow_mut()[place] = finding;
    }

    /// Whether nothing is known of it.
    pub(super) fn is_silent(&self, place: usize) -> bool {
        self.0.borrow()[place].reason.is_empty()
    }

    /// Whether it is not to be asked in this round.
    pub(super) fn is_left_alone(&self, place: usize, now: Instant) -> bool {
        let finding = &self.0.borrow()[place];
        finding.unfit || finding.again.is_some_and(|again| again > now)
    }

    /// How long every server that may still do what is asked wants to be left alone.
    pub(super) fn asked_to_wait(&self) -> Option<Duration> {
        let findings = self.0.borrow();
        let fit = findings.iter().filter(|finding| !finding.unfit);
        let until = fit.map(|finding| finding.again).collect::<Option<Vec<_>>>()?;
        Some(until.into_iter().min()?.saturating_duration_since(Instant::now()))
    }

    /// Whether nothing is to be waited for: each server refuses or, for some rounds, cannot be reached.
    pub(super) fn nobody_does(&self, round: u32) -> bool {
        let findings = self.0.borrow();
        let all = |wanted: fn(&Finding) -> bool| findings.iter().all(wanted);
        let any = findings.iter().any(|finding| finding.unfit);
        all(|finding| finding.unfit)
            || (any && round >= PATIENT && all(|finding| finding.unfit || finding.away))
    }

    /// [`Findings::nobody_does`], after all rounds.
    pub(super) fn are_refusals(&self) -> bool {
        self.nobody_does(PATIENT)
    }

    /// Of each server; empty where it was not asked.
    pub(super) fn reasons(&self) -> Vec<String> {
        self.0.borrow().iter().map(|finding| finding.reason.clone()).collect()
    }
}
