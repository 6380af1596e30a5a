//! The reach of the allocators' stores.

use std::path::PathBuf;

use crate::chain::plan::Step;
use crate::chain::session::Session;
use crate::operator::about::About;
use ipam_kit::delegate::Reach;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The programs asked so far, with the reach of their stores.
#[derive(Default)]
pub(super) struct Reaches(Vec<(PathBuf, Option<Reach>)>);

impl Reaches {
    /// Says why nothing is claimed from a delegate; `None` for an allocator whose store nodes
    /// share.
    ///
    /// # Errors
    /// Error 110: an allocator of ours does not say the reach of its store.
    pub(super) fn reason_to_skip(
        &mut self,
        session: &Session<'_>,
        step: &Step,
    ) -> Result<Option<&'static str>> {
        match self.of(session, step) {
            Some(Reach::Cluster) => Ok(None),
            Some(Reach::Node) => Ok(Some("its store belongs to this node alone")),
            None if !step.is_allocator() => Ok(Some("it is a standard plugin")),
            None => {
                let program = step.program.display();
                let message = format!("{program}: its answer to about --json has no reach");
                Err(Error::new(ErrorCode::DELEGATE, message).advise(
                    "install a build that says it (node or cluster), then run reassert again",
                ))
            }
        }
    }

    fn of(&mut self, session: &Session<'_>, step: &Step) -> Option<Reach> {
        if let Some((_, reach)) = self.0.iter().find(|(program, _)| *program == step.program) {
            return *reach;
        }
        let reach = About::of(session, step).reach;
        self.0.push((step.program.clone(), reach));
        reach
    }
}
