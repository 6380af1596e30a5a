//! The release of all leases in a record, and the removal of the record.

use std::time::Duration;

use log::warn;

use super::program::is_allocator;
use super::record::{
    Event, Granted, Opened, Record, RecordFile, Released, RepeatList, UNSURE_FOR, now,
};
use super::release::{NetworkAttachment, Release, release_all};
use super::session::Session;
use ipam_kit::cni::{Attachment, IpamResult, NetworkName};
use ipam_kit::contract::Purpose;
use ipam_kit::delegate::Deadline;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The time for the DELs to stores whose leases `reassert` has claimed in other ones.
const SUPERSEDED: Duration = Duration::from_secs(3);

/// DEL to every delegate that may hold a lease by a record, each with its recorded configuration.
pub(crate) struct RecordRelease<'a> {
    pub session: &'a Session<'a>,
    pub target: NetworkAttachment<'a>,
    pub record: &'a Record,
    pub prev_result: &'a IpamResult,
    pub purpose: Purpose,
    pub deadline: Deadline,
}

/// The failures of a release.
#[derive(Default)]
pub(crate) struct ReleaseFailures {
    pub errors: Vec<Error>,
    /// Of standard plugins that never gave anything with the recorded settings: they refuse those of a
    /// DEL as well.
    pub refusals: Vec<Error>,
}

/// How much of a record is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coverage {
    All,
    /// All except leases in a store that `reassert` replaced: that store did not confirm the release.
    AllButSuperseded,
}

impl RecordRelease<'_> {
    /// Releases the leases in the stores in use. Every delegate runs, also after a failure.
    pub(crate) fn release_current(&self) -> ReleaseFailures {
        let current = self.releases(|release| !self.record.is_superseded(release.run));
        let (refusing, others): (Vec<_>, Vec<_>) = current
            .into_iter()
            .partition(|release| release.never_gave && !is_allocator(&release.run.delegate));
        let errors = self.release_all(&others, self.deadline);
        let refusals = self.release_all(&refusing, self.deadline);
        ReleaseFailures { errors, refusals }
    }

    /// Releases the leases in superseded stores, then fails with the errors so far.
    pub(crate) fn finish(&self, errors: Vec<Error>) -> Result<Coverage> {
        let superseded = self.releases(|release| self.record.is_superseded(release.run));
        // The address is in use in another store, so that the runtime need not wait for this one.
        let deadline = Deadline::after(self.deadline.left().min(SUPERSEDED));
        let left = self.release_all(&superseded, deadline);
        for error in &left {
            warn!(
                "GC and reap repeat the release in a store that reassert replaced: {}",
                error.in_full()
            );
        }
        let NetworkAttachment { network, attachment } = self.target;
        Error::join(errors).map_err(|error| error.advise(format!(
            "the runtime repeats DEL; if the store is permanently lost: ipam-delegated forget {} {} {} --yes",
            network.name(), attachment.container, attachment.ifname
        )))?;
        Ok(if left.is_empty() { Coverage::All } else { Coverage::AllButSuperseded })
    }

    /// The DELs that are due by the record, as far as they are meant.
    fn releases(&self, is_meant: impl Fn(&Release<'_>) -> bool) -> Vec<Release<'_>> {
        let mut releases = Vec::new();
        for run in self.record.runs() {
            let granted = self.record.granted(run);
            releases.push(Release {
                run,
                leases: granted.map_or(&[], |granted| &granted.leases),
                static_addresses: granted.map(Granted::static_addresses).unwrap_or_default(),
                purpose: self.purpose,
                never_gave: self.record.only_failed(run),
            });
        }
        releases.retain(is_meant);
        releases
    }

    fn release_all(&self, releases: &[Release<'_>], deadline: Deadline) -> Vec<Error> {
        release_all(self.session, self.target, releases, self.prev_result, deadline)
    }
}

/// Releases the leases of a stale record.
///
/// # Errors
/// A delegate failed. The record stays, and becomes the last in the order of the next GC.
pub(crate) fn release_stale(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    opened: Opened,
    deadline: Deadline,
) -> Result<()> {
    let Opened { file, record, .. } = opened;
    let coverage =
        release_taken(session, target, &record, deadline).inspect_err(|_| file.put_last())?;
    settle(session, target, &record, file, coverage);
    Ok(())
}

/// Releases the leases that the ADDs of a record took. Leases that the attachment got otherwise stay:
/// from a chain without this record, or from the plugin that a preset replaces.
pub(crate) fn release_taken(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    record: &Record,
    deadline: Deadline,
) -> Result<Coverage> {
    let prev_result = &recorded_result(record)?;
    let purpose = match record.window() {
        Some((after, end)) => Purpose::TakenBetween { after, before: Some(end) },
        None => Purpose::Runtime,
    };
    let release = RecordRelease { session, target, record, prev_result, purpose, deadline };
    let ReleaseFailures { mut errors, refusals } = release.release_current();
    errors.extend(refusals);
    release.finish(errors)
}

/// The result of the ADD that holds addresses; empty without one.
pub(crate) fn recorded_result(record: &Record) -> Result<IpamResult> {
    match record.held() {
        Some((_, held)) => IpamResult::parse(&held.result, "recorded result"),
        None => Ok(IpamResult::default()),
    }
}

/// Removes a record whose leases are released, or keeps it if another DEL is due.
pub(crate) fn settle(
    session: &Session<'_>,
    target: NetworkAttachment<'_>,
    record: &Record,
    mut file: RecordFile,
    coverage: Coverage,
) {
    let time = now();
    if record.released().is_some_and(|released| released.due > time) {
        return;
    }
    let (network, attachment) = (target.network.name(), target.attachment);
    // A claim of an ADD before the last DEL may also commit after this one.
    if record.is_unsure() || record.unsure_until().is_some_and(|until| until > time) {
        mark_unsure(session, network, attachment, file);
        return;
    }
    if coverage == Coverage::AllButSuperseded {
        // DEL needs no disk space.
        if record.released().is_none()
            && let Err(error) =
                file.append(&Event::Released(Released { time, due: time, ..Released::default() }))
        {
            warn!("cannot record what reap has to release: {}", error.in_full());
        }
        return;
    }
    remove(file);
    if record.unsure_until().is_some() {
        RepeatList::of(&session.state).remove(network, attachment);
    }
}

/// Keeps a record whose leases are released and plans another DEL: a claim may still commit.
pub(crate) fn mark_unsure(
    session: &Session<'_>,
    network: &NetworkName,
    attachment: &Attachment,
    mut file: RecordFile,
) {
    let time = now();
    let due = time + UNSURE_FOR;
    let listed = RepeatList::of(&session.state).add(due, network, attachment).map_err(|error| {
        Error::new(ErrorCode::RECORD, "cannot write the state folder").caused_by(error)
    });
    let marked = listed.and_then(|()| {
        file.append(&Event::Released(Released { time, due, ..Released::default() }))
    });
    if let Err(error) = marked {
        // DEL needs no disk space: what may still commit is then GC's case.
        warn!("cannot record that the DEL of {attachment} will be repeated: {}", error.in_full());
        remove(file);
    }
}

/// Removes a record. One that stays is released again by the next DEL or GC.
pub(crate) fn remove(file: RecordFile) {
    if let Err(error) = file.remove() {
        warn!("cannot remove the attachment record: {error}");
    }
}
