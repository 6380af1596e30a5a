//! What the verbs of the chain share: one call, its state folder, and running a delegate.

use std::path::PathBuf;
use std::time::Duration;

use log::{debug, warn};
use serde_json::{Map, Value};

use super::exec::{Call, Failure, adopt_orphans};
use super::plan::{Plan, Planner, Step};
use super::record::{Attempt, RecordFile, Run};
use super::{Chain, now};
use crate::cni::{Attachment, Environment, IpamResult, Network, Verb};
use crate::delegate::{Deadline, Request};
use crate::error::{Error, ErrorCode, Result};
use crate::host::StateDir;

/// One call of the chain.
pub(super) struct Session<'a> {
    pub chain: &'a Chain,
    pub request: &'a Request,
    pub state: StateDir,
    /// This node as leases name it; empty when it could not be told on a verb that only releases.
    pub node: String,
    path: Vec<PathBuf>,
    environment: Environment,
}

impl<'a> Session<'a> {
    /// Set for delegates, so that the chain does not run inside itself.
    const MARKER: &'static str = "IPAM_DELEGATED_CHAIN";

    pub fn open(chain: &'a Chain, request: &'a Request) -> Result<Self> {
        if let Some(outer) = request.environment.text(Self::MARKER) {
            let own = chain.name();
            return Err(Error::config(
                "ipam.delegates",
                format!("{own} was run by the chain of {outer}, but {own} is ipam-delegated; the replaced {own} was kept as {own}.orig"),
            )
            .advise(format!("name {own}.orig, or an allocator of ours, in ipam.delegates")));
        }
        adopt_orphans();
        let state = request.state_dir()?;
        let node = match state.node(&request.settings) {
            Ok(node) => node.id().to_owned(),
            Err(error) if request.verb == Verb::Add => return Err(error),
            Err(error) => {
                warn!("{}", error.in_full());
                String::new()
            }
        };
        let mut environment = request.environment.clone();
        environment.set(Self::MARKER, chain.name());
        Ok(Self { chain, request, state, node, path: request.environment.path(), environment })
    }

    /// The same call with another request.
    pub fn open_with(&self, request: &'a Request) -> Self {
        Self {
            chain: self.chain,
            request,
            state: self.state.clone(),
            node: self.node.clone(),
            path: self.path.clone(),
            environment: self.environment.clone(),
        }
    }

    /// A recorded delegate as a step: found in `CNI_PATH`, else where it was.
    pub fn recorded_step(&self, run: &Run) -> Step {
        Step {
            name: run.delegate.clone(),
            program: self
                .planner()
                .find(&run.delegate)
                .unwrap_or_else(|_| PathBuf::from(&run.program)),
            timeout: None,
            serves: None,
            overrides: Map::new(),
        }
    }

    /// Plans the configured chain.
    pub fn plan(&self) -> Result<Plan> {
        self.planner().plan(self.request.network.ipam())
    }

    /// The time the chain has, from now on.
    pub fn timeout(&self) -> Duration {
        let text = self.request.network.ipam().get("timeout").and_then(Value::as_str);
        text.and_then(crate::host::parse_duration).unwrap_or(Deadline::DEFAULT)
    }

    /// What plans are made with.
    pub fn planner(&self) -> Planner<'_> {
        Planner {
            presets: self.chain.presets,
            preset: self.chain.preset,
            own: self.chain.own(),
            path: &self.path,
        }
    }

    pub fn attachment(&self) -> Result<&Attachment> {
        self.request.attachment()
    }

    pub fn record_path(&self) -> Result<PathBuf> {
        Ok(self.state.record(self.request.network.name(), self.attachment()?))
    }

    /// The first event of an ADD.
    pub fn attempt(&self, plan: &Plan, after_unreadable: bool) -> Result<Attempt> {
        Ok(Attempt {
            time: now(),
            pid: std::process::id(),
            boot: boot_id(),
            node: self.node.clone(),
            netns: self.attachment()?.netns.clone(),
            cni_version: self.request.network.version().to_string(),
            chain: plan.steps.iter().map(|step| step.name.clone()).collect(),
            after_unreadable,
        })
    }

    /// Runs a planned delegate.
    pub fn exec(
        &self,
        verb: Verb,
        step: &Step,
        stdin: String,
        time: Duration,
    ) -> Result<Answer, Failure> {
        let mut environment = self.environment.clone();
        environment.set("CNI_COMMAND", verb.as_str());
        let time = step.timeout.map_or(time, |own| own.min(time));
        let call = Call {
            name: &step.name,
            program: &step.program,
            verb,
            environment: &environment,
            stdin,
            time,
        };
        let answer = call.run();
        match answer {
            Err(failure) if has_nothing_to_say(verb, &failure.error) => {
                debug!("{} does not know {verb}", step.name);
                Ok(None)
            }
            other => other,
        }
    }

    /// DEL of a recorded delegate.
    pub fn release(
        &self,
        owner: &Owner<'_>,
        run: &Run,
        prev_result: &IpamResult,
        leases: &[Value],
        time: Duration,
    ) -> Result<(), Failure> {
        let refuse = |error| Failure { error, unsure: false };
        let mut run = run.clone();
        run.refresh_secrets(&self.newer_ipam(&run.delegate));
        let program = self.recorded_step(&run).program;
        let stdin = match run.stdin(owner.network, prev_result, leases) {
            // Old forms have no place for a second address, and no prevResult on DEL.
            Err(error) if error.code() == ErrorCode::INCOMPATIBLE_VERSION => {
                let without = IpamResult { ips: Vec::new(), ..prev_result.clone() };
                run.stdin(owner.network, &without, leases)
            }
            other => other,
        };
        let stdin = stdin.map_err(refuse)?;
        let mut environment = self.environment.clone();
        environment.set("CNI_COMMAND", Verb::Del.as_str());
        environment.set("CNI_CONTAINERID", owner.attachment.container.as_str());
        environment.set("CNI_IFNAME", owner.attachment.ifname.as_str());
        environment.set("CNI_NETNS", owner.attachment.netns.as_str());
        let call = Call {
            name: &run.delegate,
            program: &program,
            verb: Verb::Del,
            environment: &environment,
            stdin,
            time,
        };
        call.run().map(drop)
    }

    /// The present configuration for a delegate, for secrets that have changed.
    fn newer_ipam(&self, delegate: &str) -> Map<String, Value> {
        let mut ipam = self.request.network.ipam().clone();
        let listed = ipam.get("delegates").and_then(Value::as_array).cloned().unwrap_or_default();
        let own =
            listed.iter().find(|entry| entry.get("type").and_then(Value::as_str) == Some(delegate));
        if let Some(Value::Object(own)) = own {
            ipam.extend(own.clone());
        }
        ipam
    }
}

/// What a delegate printed: an object, or nothing.
pub(super) type Answer = Option<Map<String, Value>>;

/// Whose leases a DEL is about.
pub(super) struct Owner<'a> {
    pub network: &'a Network,
    pub attachment: &'a Attachment,
}

/// Whether a standard plugin's error only says that it does not know the verb.
fn has_nothing_to_say(verb: Verb, error: &Error) -> bool {
    match verb {
        Verb::Check | Verb::Gc | Verb::Status => {
            let no_container =
                !verb.has_attachment() && error.code() == ErrorCode::UNKNOWN_CONTAINER;
            no_container
                || error.code() == ErrorCode::INVALID_ENVIRONMENT
                || error.in_full().contains("unknown CNI_COMMAND")
        }
        _ => false,
    }
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

/// Opens a record for a verb that only releases or looks: a full or read-only disk is no error.
pub(super) fn open_record(path: &std::path::Path) -> Result<Option<super::record::Opened>> {
    match RecordFile::open(path) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.code() == ErrorCode::TRY_AGAIN => Err(error),
        Err(error) => {
            warn!("{}", error.in_full());
            RecordFile::open_read_only(path)
        }
    }
}
