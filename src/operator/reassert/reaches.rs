//! Whose the stores of allocators are.

use std::path::PathBuf;

use crate::chain::plan::Step;
use crate::chain::session::Session;
use crate::operator::about::About;
use ipam_kit::delegate::Reach;
use ipam_kit::error::{Error, ErrorCode, Result};

/// What programs have said of the reach of their stores.
#[derive(Default)]
pub(super) struct Reaches(Vec<(PathBuf, Option<Reach>)>);

impl Reaches {
    /// Why nothing is claimed from a delegate; `None` for an allocator whose store nodes share.
    ///
    /// # Errors
    /// An allocator of ours does not say whose its store is.
    pub(super) fn reason_to_skip(
        &mut self,
        session: &Session<'_>,
        step: &Step,
    ) -> Result<Option<&'static str>> {
        match self.of(session, step) {
            Some(Reach::Cluster) => Ok(None),
            Some(Reach::Node) => Ok(Some("its store is this node's")),
            None if !step.is_allocator() => Ok(Some("it is a standard plugin")),
            None => {
                let program = step.program.display();
                let message = format!("{program} about --json does not say whose its store is");
                Err(Error::new(ErrorCode::DELEGATE, message)
                    .advise("install a build that answers it, then repeat this"))
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
