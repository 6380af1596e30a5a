//! One call of the chain, as its verbs share it: its state folder, its node and its planner.

use std::rc::Rc;
use std::time::Duration;

use log::warn;
use serde_json::Value;

use super::Chain;
use super::plan::Plan;
use super::planner::{MissingPrograms, Planner};
use super::process::adopt_orphans;
use super::record::RecordPlace;
use super::unreachable::UnreachableStores;
use ipam_kit::cni::{Attachment, Environment, IpamResult, Verb};
use ipam_kit::contract::DelegateInput;
use ipam_kit::delegate::{Deadline, Request};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{StateDir, parse_duration};

/// One call of the chain.
#[derive(Clone)]
pub(crate) struct Session<'a> {
    pub chain: &'a Chain,
    pub request: &'a Request,
    pub planner: Planner<'a>,
    pub state: StateDir,
    /// This node as leases name it. Empty when it is not known, on a verb that only releases.
    pub node: String,
    /// The stores that did not answer a DEL so far.
    pub unreachable: Rc<UnreachableStores>,
    /// The variables of the call, as delegates get them.
    pub environment: Environment,
}

impl<'a> Session<'a> {
    /// Set for delegates, so that the chain does not run inside itself.
    const MARKER: &'static str = "IPAM_DELEGATED_CHAIN";

    pub(crate) fn open(chain: &'a Chain, request: &'a Request) -> Result<Self> {
        if let Some(outer) = request.environment.text(Self::MARKER) {
            let own = &chain.called;
            return Err(Error::config(
                "ipam.delegates",
                format!("{own} was run by the chain of {outer}, but {own} is ipam-delegated; the replaced {own} was kept as {own}.orig"),
            )
            .advise(format!("name {own}.orig or an allocator ipam-da-… in ipam.delegates")));
        }
        adopt_orphans();
        let state = request.state_dir()?;
        let node = match state.node(&request.settings) {
            Ok(node) => node.id().to_owned(),
            Err(error) if request.verb == Verb::Add => return Err(error),
            // The records are another machine's, whose leases must stay.
            Err(error) if error.code() == ErrorCode::RECORD => return Err(error),
            // Each record names its node.
            Err(_) if request.settings.fault.is_some() => String::new(),
            Err(error) => {
                warn!("{}", error.in_full());
                String::new()
            }
        };
        let planner = Planner {
            names: chain.names,
            preset: chain.preset,
            own_executable: chain.own_executable(),
            path: request.environment.path(),
            environment: &request.environment,
            // A selector that is gone must not hold up a DEL.
            may_be_missing: match request.verb {
                Verb::Del => MissingPrograms::Selectors,
                _ => MissingPrograms::None,
            },
        };
        let mut environment = request.environment.clone();
        environment.set(Self::MARKER, chain.name());
        Ok(Self { chain, request, planner, state, node, unreachable: Rc::default(), environment })
    }

    /// Plans the configured chain.
    pub(crate) fn plan(&self) -> Result<Plan> {
        self.planner.plan(self.request.network.ipam())
    }

    /// Plans the configured chain without the delegates that are not installed.
    ///
    /// # Errors
    /// Something else is wrong with it.
    pub(crate) fn plan_installed(&self) -> Result<Plan> {
        let planner = Planner { may_be_missing: MissingPrograms::All, ..self.planner.clone() };
        let mut plan = planner.plan(self.request.network.ipam())?;
        plan.steps.retain(|step| step.program.exists());
        Ok(plan)
    }

    /// The time the chain has, from now on.
    pub(crate) fn timeout(&self) -> Duration {
        let timeout = self.request.network.ipam().get("timeout").and_then(Value::as_str);
        timeout.and_then(parse_duration).unwrap_or(Deadline::DEFAULT)
    }

    /// The runtime's previous result, without the members that only the chain sets.
    pub(crate) fn prev_result(&self) -> Result<Option<IpamResult>> {
        let mut prev_result = self.request.network.prev_result()?;
        prev_result.iter_mut().for_each(DelegateInput::strip);
        Ok(prev_result)
    }

    pub(crate) fn attachment(&self) -> Result<&Attachment> {
        self.request.attachment()
    }

    pub(crate) fn record_place(&self) -> Result<RecordPlace> {
        Ok(RecordPlace::of(&self.state, self.request.network.name(), self.attachment()?))
    }

    /// Fails for an attachment without a record if the host-wide settings are broken: they may name
    /// another state folder, which may have a record.
    pub(crate) fn refuse_unproved_absence(&self) -> Result<()> {
        let root = self.state.root().display();
        let attachment = self.attachment()?;
        let what =
            format!("the only known state folder is {root}, which has no record of {attachment}");
        self.request.settings.refuse_fault(&what)
    }

    /// The variables of a call about an attachment, which may be another than this call's.
    pub(crate) fn environment_for(&self, attachment: &Attachment) -> Environment {
        let mut environment = self.environment.clone();
        environment.set("CNI_CONTAINERID", attachment.container.as_str());
        environment.set("CNI_IFNAME", attachment.ifname.as_str());
        environment.set("CNI_NETNS", attachment.netns.as_str());
        let is_of_this_call = self.request.attachment.as_ref().is_some_and(|called| {
            (&called.container, &called.ifname) == (&attachment.container, &attachment.ifname)
        });
        if !is_of_this_call {
            environment.set("CNI_ARGS", "");
        }
        environment
    }
}
