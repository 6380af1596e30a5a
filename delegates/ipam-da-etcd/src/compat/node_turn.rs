//! Turns among the processes of this node.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipam_kit::delegate::Deadline;
use ipam_kit::host::{StateDir, lock, open_own};
use log::debug;
use rustix::fs::OFlags;

use crate::memory;

/// How long a process of this node may have its turn. After that, others do not wait for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Our turn, in a layout where each claim goes on from the one before.
#[derive(Debug)]
pub(super) struct NodeTurn {
    folder: PathBuf,
    deadline: Deadline,
    file: Option<File>,
}

impl NodeTurn {
    pub(super) fn new(state: &StateDir, deadline: Deadline) -> Self {
        Self { folder: memory::folder(state), deadline, file: None }
    }

    /// Waits for the other processes of this node, so that their claims do not collide. Answers
    /// whether this call has got its turn just now. On timeout it proceeds without a turn.
    pub(super) fn take(&mut self) -> bool {
        if self.file.is_some() {
            return false;
        }
        match self.wait() {
            Ok(Some(file)) => self.file = Some(file),
            Ok(None) => debug!("going on without a turn: another process of this node keeps it"),
            Err(error) => debug!("going on without a turn on this node: {error}"),
        }
        self.file.is_some()
    }

    /// Gives the turn to the next process.
    pub(super) fn end(&mut self) {
        self.file = None;
    }

    fn wait(&self) -> io::Result<Option<File>> {
        let until = Instant::now() + PATIENCE.min(self.deadline.left() / 2);
        memory::make(&self.folder)?;
        let flags = OFlags::WRONLY | OFlags::CREATE;
        let file = open_own(&self.folder.join("turn"), flags, 0o600)?;
        Ok(lock(&file, until)?.then_some(file))
    }
}
