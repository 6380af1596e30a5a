//! The stores that records and configurations name, each once for a network, and telling their allocators to trust
//! them as they stand.

use serde_json::{Map, Value};

use super::super::plan::Step;
use super::super::record::Run;
use super::super::session::Session;
use super::dry_run::{Outcome, dry_run};
use super::ours::Ours;
use super::{Operator, Printed};
use crate::cni::{IpamResult, Verb};
use crate::delegate::Request;
use crate::error::{Error, ErrorCode, Result};

/// The question by which an allocator trusts its store from now on.
const ACCEPT: [&str; 4] = ["accept", "--json", "--config", "-"];

/// Keys of `ipam` that are about the chain or an attachment, and not about a store.
const OF_NO_STORE: [&str; 6] =
    ["node", "delegates", "timeout", "verbose", "requested-ip", "requested_ip"];

/// Every store, in the order in which they were found.
#[derive(Default)]
pub(super) struct Stores(Vec<Store>);

/// A store behind an allocator.
pub(super) struct Store {
    pub step: Step,
    /// A call on a network that uses it.
    pub request: Request,
    /// The allocator's configuration.
    stdin: String,
    /// The section `ipam` as far as it is about the store.
    settings: Map<String, Value>,
}

impl Stores {
    /// Every store.
    pub fn all(&self) -> &[Store] {
        &self.0
    }

    /// Adds the store of a recorded delegate.
    pub fn add_recorded(&mut self, session: &Session<'_>, run: &Run) -> Result<()> {
        let run = session.with_newer_secrets(run, &session.request.network);
        self.add(session, session.recorded_step(&run), &run, false)
    }

    /// Adds the stores of a plugin as it is configured; `printed` gets what its selectors failed with.
    pub fn add_configured(
        &mut self,
        operator: &Operator,
        ours: &Ours,
        printed: &mut Printed,
    ) -> Result<()> {
        let request = operator.request(ours.for_status(), &operator.cni_path())?;
        let session = Session::open(&ours.chain, &request)?;
        for stage in dry_run(&session, &ours.plan(&session)?, Verb::Status)? {
            if let Outcome::Failed(error) = &stage.outcome {
                printed.warnings.push(error.in_full());
            }
            // One that no pool is for today has a store all the same.
            let run =
                stage.run.or_else(|| session.carry(IpamResult::default()).run_of(&stage.step));
            if let Some(run) = run {
                self.add(&session, stage.step, &run, true)?;
            }
        }
        Ok(())
    }

    /// Adds a store. One that is `in_use` comes after those of records: what an allocator accepts last
    /// is what it takes addresses from.
    fn add(&mut self, session: &Session<'_>, step: Step, run: &Run, in_use: bool) -> Result<()> {
        let mut settings = run.ipam.clone();
        for key in OF_NO_STORE {
            settings.remove(key);
        }
        // What a node remembers of a store, it remembers for each network.
        let network = session.request.network.name();
        let known = |store: &Store| {
            store.step.name == step.name
                && store.request.network.name() == network
                && store.settings == settings
        };
        match self.0.iter().position(known) {
            Some(place) if in_use => {
                let store = self.0.remove(place);
                self.0.push(store);
            }
            None if step.is_allocator() => {
                let stdin = run.stdin(&session.request.network, &IpamResult::default(), &[])?;
                self.0.push(Store { step, request: session.request.clone(), stdin, settings });
            }
            _ => {}
        }
        Ok(())
    }
}

impl Store {
    /// Makes the allocator trust the store as it stands; false where that means nothing to it.
    ///
    /// # Errors
    /// The allocator's own error, or 110 when it does not know the question.
    pub fn accept(&self, session: &Session<'_>) -> Result<bool> {
        match session.ask(&self.step, &ACCEPT, &self.stdin)? {
            Value::Object(answer) => Ok(answer.get("accepted") != Some(&Value::Bool(false))),
            _ => {
                let message = [&self.step.name, ": its answer is no object"].concat();
                Err(Error::new(ErrorCode::DELEGATE, message))
            }
        }
    }
}
