//! The witnesses that a container is gone: the boot, its network namespace and the runtimes' result
//! cache.

use std::cell::OnceCell;
use std::path::Path;

use log::warn;

use super::call::Operator;
use super::options::{CACHE_DIR, NO_CACHE, PINNED};
use crate::chain::record::{AttemptState, Record};
use ipam_cli::usage_error;
use ipam_kit::cni::{Attachment, NetworkName};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{InhabitedNamespaces, Netns, ResultCache, boot_id};

/// The witnesses to ask about each record.
pub(crate) struct Witnesses {
    boot: String,
    /// `None` if the operator says that no runtime keeps one.
    cache: Option<ResultCache>,
    /// Namespaces without a process count as gone, too.
    pinned: bool,
    inhabited: OnceCell<Option<InhabitedNamespaces>>,
}

impl Witnesses {
    /// Checks that each can be asked.
    ///
    /// # Errors
    /// Error 5: the boot id, the processes or the result cache cannot be read, so that running
    /// containers would count as gone.
    pub(super) fn open(operator: &Operator) -> Result<Self> {
        let pinned = operator.arguments.has(&PINNED);
        let cache = cache(operator, pinned)?;
        let boot = boot_id();
        if boot.is_empty() || Path::new("/proc/self/ns/net").symlink_metadata().is_err() {
            let message = "cannot read the boot id and the processes of this host in /proc";
            return Err(
                Error::new(ErrorCode::IO, message).advise("mount /proc, and run reap on the host")
            );
        }
        Ok(Self { boot, cache, pinned, inhabited: OnceCell::new() })
    }

    /// Says why a container is gone; `Err` says why it may be running.
    pub(super) fn why_gone(
        &self,
        record: &Record,
        network: &NetworkName,
        attachment: &Attachment,
    ) -> Result<&'static str, &'static str> {
        if record.attempts.last().is_some_and(|last| !self.is_of_this_boot(last)) {
            return Ok("it is from an earlier boot");
        }
        let mut pinned = false;
        for attempt in &record.attempts {
            if attempt.released.is_some() || !self.is_of_this_boot(attempt) {
                continue;
            }
            let path = &attempt.header.netns;
            match Netns::at(path) {
                Netns::Stands if self.is_inhabited(path) => {
                    return Err("its network namespace exists");
                }
                Netns::Stands => pinned = true,
                Netns::Unknown => return Err("its network namespace cannot be inspected"),
                Netns::Gone => {}
            }
        }
        let is_cached = self
            .cache
            .as_ref()
            .is_some_and(|cache| cache.names(network, &attachment.container, &attachment.ifname));
        match (pinned, is_cached) {
            (true, true) => Err(
                "no process is in its network namespace, but the runtime's result cache names it",
            ),
            (true, false) if self.pinned => Ok("no process is in its network namespace"),
            (true, false) => {
                Err("its network namespace exists, but no process is in it: --pinned releases it")
            }
            (false, true) => {
                Err("its network namespace is gone, but the runtime's result cache names it")
            }
            (false, false) => Ok("its network namespace is gone"),
        }
    }

    /// Whether an attempt is of this boot, or names no boot.
    fn is_of_this_boot(&self, attempt: &AttemptState) -> bool {
        let boot = &attempt.header.boot;
        boot.is_empty() || *boot == self.boot
    }

    /// Whether a process is in a namespace, or may be.
    fn is_inhabited(&self, path: &str) -> bool {
        let inhabited = self.inhabited.get_or_init(|| {
            let namespaces = InhabitedNamespaces::look();
            namespaces
                .inspect_err(|error| warn!("cannot inspect the processes of this host: {error}"))
                .ok()
        });
        inhabited.as_ref().is_none_or(|inhabited| inhabited.has(path))
    }
}

/// Opens the runtimes' result cache; `None` with `--no-cache`.
fn cache(operator: &Operator, pinned: bool) -> Result<Option<ResultCache>> {
    let arguments = &operator.arguments;
    if arguments.has(&NO_CACHE) {
        let alone = !pinned && arguments.value(&CACHE_DIR).is_none();
        let message = "--no-cache cannot be combined with --cache-dir or --pinned";
        return if alone { Ok(None) } else { Err(usage_error(message)) };
    }
    let cache = operator.cache();
    cache.can_be_asked().map_err(|error| {
        let folder = cache.folder().display();
        let message = format!("cannot read the runtimes' result cache {folder}");
        Error::new(ErrorCode::IO, message).caused_by(error).advise(
            "name the cache with --cache-dir DIR, so that reap sees which containers run; if no \
             runtime of this host keeps one, add --no-cache",
        )
    })?;
    Ok(Some(cache))
}
