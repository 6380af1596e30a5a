//! The stores that records and configurations name, each once for a network, and the question to
//! their allocators to trust them.

use serde_json::{Map, Value};

use crate::chain::handoff::Handoff;
use crate::chain::plan::Step;
use crate::chain::query;
use crate::chain::record::Run;
use crate::chain::refreshed_run::{recorded_step, refresh_run};
use crate::chain::session::Session;
use crate::chain::unreachable::store_of;
use crate::operator::call::Operator;
use crate::operator::dry_run::{SelectorOutcome, dry_run};
use crate::operator::our_plugin::OurPlugin;
use crate::operator::printed::Printed;
use ipam_kit::cni::{IpamResult, NetworkName, Verb};
use ipam_kit::contract::DelegateInput;
use ipam_kit::delegate::Request;
use ipam_kit::error::{Error, ErrorCode, Result};

/// The arguments that make an allocator trust its store.
const ACCEPT: [&str; 4] = ["accept", "--json", "--config", "-"];

/// Every store, in the order in which they were found.
#[derive(Default)]
pub(crate) struct Stores(Vec<AllocatorStore>);

/// A store behind an allocator.
pub(crate) struct AllocatorStore {
    pub step: Step,
    /// A call on a network that uses it.
    pub request: Request,
    /// Only for the store of a network as it is configured.
    pub present: Option<ConfiguredRun>,
    /// The allocator's configuration.
    stdin: String,
    /// The section `ipam` as far as it is about the store.
    settings: Map<String, Value>,
}

/// The present configuration of an allocator.
pub(crate) struct ConfiguredRun {
    run: Run,
    /// A selector before it failed, whose settings may be missing.
    partial: bool,
}

impl Stores {
    /// Every store.
    pub(super) fn all(&self) -> &[AllocatorStore] {
        &self.0
    }

    /// Adds the store of a recorded delegate, unless its network has a present one of that name.
    pub(super) fn add_recorded(&mut self, session: &Session<'_>, run: &Run) -> Result<()> {
        let network = session.request.network.name();
        if self.present_of(network, &run.delegate).next().is_some() {
            return Ok(());
        }
        let run = refresh_run(session, run, &session.request.network).run;
        self.add(session, recorded_step(session, &run), run, None)
    }

    /// Adds the stores of a plugin as it is configured; `printed` gets what its selectors failed
    /// with.
    pub(super) fn add_configured(
        &mut self,
        operator: &Operator,
        ours: &OurPlugin,
        printed: &mut Printed,
    ) -> Result<()> {
        let request = operator.request(ours.for_status(), &operator.cni_path())?;
        let session = Session::open(&ours.chain, &request)?;
        let mut partial = false;
        for stage in dry_run(&session, &ours.plan(&session)?, Verb::Status)? {
            if let SelectorOutcome::Failed(error) = &stage.outcome {
                printed.warnings.push(error.in_full());
                partial = true;
            }
            // A delegate without a pool at present has a store, too.
            let run = stage
                .run
                .or_else(|| Handoff::of(&session, IpamResult::default()).run_for(&stage.step));
            if let Some(run) = run {
                self.add(&session, stage.step, run, Some(partial))?;
            }
        }
        Ok(())
    }

    /// A recorded delegate with the section `ipam` that it has on its network now, for the node
    /// that the record names; `None` where the network has no delegate of that name any more.
    ///
    /// # Errors
    /// Error 7: several sections may be meant, or its settings are unknown.
    pub(super) fn present(&self, session: &Session<'_>, run: &Run) -> Result<Option<Run>> {
        let network = session.request.network.name();
        let all: Vec<_> = self.present_of(network, &run.delegate).collect();
        let mut meant = all.clone();
        meant.retain(|(_, present)| present.run.ipam.get("serves") == run.ipam.get("serves"));
        if meant.is_empty() {
            meant = all;
        }
        // An unchanged one is preferred.
        let recorded = store_of(&refresh_run(session, run, &session.request.network).run);
        let unchanged = meant.iter().find(|(store, _)| store.settings == recorded).copied();
        let present = match (unchanged, &meant[..]) {
            (Some((_, present)), _) => present,
            (None, []) => return Ok(None),
            (None, [(_, present)]) if !present.partial => present,
            (None, [_]) => {
                return Err(unclear(run, "its settings are unknown while a selector fails")
                    .advise("correct the failure of the selector, then run reassert again"));
            }
            (None, _) => {
                return Err(unclear(
                    run,
                    "several entries of ipam.delegates may be the recorded one",
                )
                .advise("give each the `serves` that the record has, then run reassert again"));
            }
        };
        let Run { program, source, mut ipam, .. } = present.run.clone();
        ipam.remove("node");
        ipam.extend(run.ipam.get("node").map(|node| ("node".to_owned(), node.clone())));
        Ok(Some(Run { program, source, ipam, ..run.clone() }))
    }

    /// The present stores of a network behind allocators of a name.
    fn present_of<'a>(
        &'a self,
        network: &'a NetworkName,
        delegate: &'a str,
    ) -> impl Iterator<Item = (&'a AllocatorStore, &'a ConfiguredRun)> {
        self.0.iter().filter_map(move |store| {
            let is_meant = store.step.name == delegate && store.request.network.name() == network;
            store.present.as_ref().filter(|_| is_meant).map(|present| (store, present))
        })
    }

    /// Adds a store, a present one with whether a selector before it failed.
    fn add(
        &mut self,
        session: &Session<'_>,
        step: Step,
        run: Run,
        partial: Option<bool>,
    ) -> Result<()> {
        let settings = store_of(&run);
        // A node remembers stores for each network.
        let network = session.request.network.name();
        let is_known = self.0.iter().any(|store| {
            store.step.name == step.name
                && store.request.network.name() == network
                && store.settings == settings
        });
        if step.is_allocator() && !is_known {
            let stdin = run.stdin(
                &session.request.network,
                &IpamResult::default(),
                DelegateInput::default(),
            )?;
            let present = partial.map(|partial| ConfiguredRun { run, partial });
            let request = session.request.clone();
            self.0.push(AllocatorStore { step, request, present, stdin, settings });
        }
        Ok(())
    }
}

fn unclear(run: &Run, why: &str) -> Error {
    let message = format!("{}: {why}; no store of the network is accepted", run.delegate);
    Error::new(ErrorCode::INVALID_CONFIG, message)
}

impl AllocatorStore {
    /// Makes the allocator trust the store as it is; false if it cannot tell stores apart.
    ///
    /// # Errors
    /// The allocator's own error, or 110 when it does not know the question.
    pub(super) fn accept(&self, session: &Session<'_>) -> Result<bool> {
        match query::ask(session, &self.step, &ACCEPT, &self.stdin)? {
            Value::Object(answer) => Ok(answer.get("accepted") != Some(&Value::Bool(false))),
            _ => {
                let message = format!("{}: its answer: expected an object", self.step.name);
                Err(Error::new(ErrorCode::DELEGATE, message))
            }
        }
    }
}
