//! What the verbs of the chain share: one call, its state folder, and running a delegate.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use log::{debug, warn};
use serde_json::Value;

use super::Chain;
use super::away::Away;
use super::exec::{Answer, Call, Ending, Failure};
use super::handoff::Handoff;
use super::plan::{Plan, Step};
use super::planner::{Missing, Planner};
use super::process::adopt_orphans;
use super::query::Question;
use super::record::{AttemptHeader, Run, now};
use ipam_kit::cni::{Attachment, Environment, IpamResult, Network, Verb, Version};
use ipam_kit::contract::{DelegateInput, Purpose};
use ipam_kit::delegate::{Deadline, Request};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::host::{StateDir, boot_id, parse_duration};

/// The time for saying what a delegate is.
const ABOUT: Duration = Duration::from_secs(5);

/// One call of the chain.
pub(crate) struct Session<'a> {
    pub chain: &'a Chain,
    pub request: &'a Request,
    pub state: StateDir,
    /// This node as leases name it; empty when it could not be told on a verb that only releases.
    pub node: String,
    /// What did not answer a DEL so far.
    pub away: Rc<Away>,
    path: Vec<PathBuf>,
    environment: Environment,
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
            .advise(format!("name {own}.orig, or an allocator of ours, in ipam.delegates")));
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
        let mut environment = request.environment.clone();
        environment.set(Self::MARKER, chain.name());
        let (path, away) = (request.environment.path(), Rc::default());
        Ok(Self { chain, request, state, node, away, path, environment })
    }

    /// Fails for an attachment without a record where the host-wide settings are broken: they may name
    /// another state folder, so that nothing proves that there is none.
    pub(crate) fn refuse_unproved_absence(&self) -> Result<()> {
        let (root, attachment) = (self.state.root().display(), self.attachment()?);
        let what =
            format!("no state folder is known but {root}, which has no record of {attachment}");
        self.request.settings.refuse_fault(&what)
    }

    /// The same call with another request.
    pub(crate) fn open_with(&self, request: &'a Request) -> Self {
        Self {
            chain: self.chain,
            request,
            state: self.state.clone(),
            node: self.node.clone(),
            away: Rc::clone(&self.away),
            path: self.path.clone(),
            environment: self.environment.clone(),
        }
    }

    /// Plans the configured chain.
    pub(crate) fn plan(&self) -> Result<Plan> {
        self.planner().plan(self.request.network.ipam())
    }

    /// Plans the configured chain without the delegates that are not installed.
    ///
    /// # Errors
    /// Something else is wrong with it.
    pub(crate) fn plan_installed(&self) -> Result<Plan> {
        let planner = Planner { missing: Missing::All, ..self.planner() };
        let mut plan = planner.plan(self.request.network.ipam())?;
        plan.steps.retain(|step| step.program.exists());
        Ok(plan)
    }

    /// The time the chain has, from now on.
    pub(crate) fn timeout(&self) -> Duration {
        let text = self.request.network.ipam().get("timeout").and_then(Value::as_str);
        text.and_then(parse_duration).unwrap_or(Deadline::DEFAULT)
    }

    /// The state before the first delegate of a chain.
    pub(crate) fn carry(&self, result: IpamResult) -> Handoff<'_> {
        let releases = matches!(self.request.verb, Verb::Del | Verb::Gc);
        Handoff::new(&self.request.network, &self.request.settings, &self.node, releases, result)
    }

    /// What plans are made with.
    pub(crate) fn planner(&self) -> Planner<'_> {
        Planner {
            presets: self.chain.presets,
            preset: self.chain.preset,
            own: self.chain.own(),
            path: &self.path,
            environment: &self.request.environment,
            // One that is gone must not hold up a DEL.
            missing: match self.request.verb {
                Verb::Del => Missing::Selectors,
                _ => Missing::None,
            },
        }
    }

    /// The runtime's previous result, without what the chain alone tells delegates.
    pub(crate) fn prev_result(&self) -> Result<Option<IpamResult>> {
        let mut prev_result = self.request.network.prev_result()?;
        prev_result.iter_mut().for_each(DelegateInput::strip);
        Ok(prev_result)
    }

    pub(crate) fn attachment(&self) -> Result<&Attachment> {
        self.request.attachment()
    }

    pub(crate) fn record_path(&self) -> Result<PathBuf> {
        Ok(self.state.record(self.request.network.name(), self.attachment()?))
    }

    /// The first event of an ADD.
    pub(crate) fn attempt(&self, plan: &Plan, after_unreadable: bool) -> Result<AttemptHeader> {
        Ok(AttemptHeader {
            time: now(),
            since: None,
            pid: std::process::id(),
            boot: boot_id(),
            node: self.node.clone(),
            netns: self.attachment()?.netns.clone(),
            cni_version: self.request.network.version().to_string(),
            chain: plan.steps.iter().map(|step| step.name.clone()).collect(),
            after_unreadable,
            reasserted: false,
        })
    }

    /// Runs a delegate for the attachment of this call.
    pub(crate) fn exec(
        &self,
        verb: Verb,
        step: &Step,
        stdin: String,
        time: Duration,
    ) -> Result<Answer, Failure> {
        self.exec_in(self.environment.clone(), verb, step, stdin, time)
    }

    /// Fails where a delegate's program cannot be started, or says that it does not support a version.
    ///
    /// # Errors
    /// Error 1 names the versions that it supports.
    pub(crate) fn refuse_version(
        &self,
        step: &Step,
        version: Version,
        time: Duration,
    ) -> Result<()> {
        let stdin = self.request.network.with("cniVersion", version.as_str().into());
        let stdin = Value::Object(stdin.config().clone()).to_string();
        let answer = match self.exec(Verb::Version, step, stdin, time) {
            Ok(answer) => answer.unwrap_or_default(),
            Err(Failure { error, ending: Ending::NotRun }) => return Err(error),
            // What it does not say is not known.
            Err(Failure { error, .. }) => {
                debug!("{}", error.in_full());
                return Ok(());
            }
        };
        let supported = answer.get("supportedVersions").and_then(Value::as_array);
        let supported: Vec<&str> =
            supported.into_iter().flatten().filter_map(Value::as_str).collect();
        if supported.is_empty() || supported.contains(&version.as_str()) {
            return Ok(());
        }
        let (name, listed) = (&*step.name, supported.join(", "));
        let message = format!("{name} does not support cniVersion {version}, only {listed}");
        let error = Error::new(ErrorCode::INCOMPATIBLE_VERSION, message);
        let newest = Version::ALL.iter().rev().find(|known| supported.contains(&known.as_str()));
        Err(match newest {
            Some(newest) => {
                error.advise(format!("set cniVersion to \"{newest}\", or install a newer {name}"))
            }
            None => error.advise(format!("install another {name}")),
        })
    }

    /// Asks an allocator for its rows, or any delegate what it is; `stdin` is its configuration.
    pub(crate) fn ask(&self, step: &Step, arguments: &[&str], stdin: &str) -> Result<Value> {
        self.ask_within(step, arguments, stdin, self.timeout())
    }

    /// What a delegate answers to `about --json`. A program of others may know no such question and
    /// wait: it gets a few seconds.
    pub(crate) fn about(&self, step: &Step) -> Result<Value> {
        self.ask_within(step, &["about", "--json"], "", self.timeout().min(ABOUT))
    }

    fn ask_within(
        &self,
        step: &Step,
        arguments: &[&str],
        stdin: &str,
        time: Duration,
    ) -> Result<Value> {
        let environment = &self.environment;
        let Step { name, program, .. } = step;
        Question { name, program, arguments, environment, stdin, time }.ask()
    }

    /// DEL of recorded delegates with the leases of each, in what time is left; every one runs even
    /// after one failed. Tells what failed.
    pub(crate) fn release_all(
        &self,
        owner: &Owner<'_>,
        owed: &[Owed<'_>],
        prev_result: &IpamResult,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Vec<Error> {
        let mut errors = Vec::new();
        for (i, Owed { run, leases, only_failed }) in owed.iter().enumerate() {
            let time = deadline.share(owed.len() - i);
            let input =
                DelegateInput { leases: leases.to_vec(), purpose, ..DelegateInput::default() };
            let Err(Failure { error, .. }) = self.release(owner, run, prev_result, input, time)
            else {
                continue;
            };
            self.away.note(run, &error);
            // Nothing can have been taken by settings that are refused.
            if *only_failed && error.code() == ErrorCode::INVALID_CONFIG {
                warn!("{}", error.in_full());
            } else {
                errors.push(error);
            }
        }
        errors
    }

    fn release(
        &self,
        owner: &Owner<'_>,
        run: &Run,
        prev_result: &IpamResult,
        input: DelegateInput,
        time: Duration,
    ) -> Result<(), Failure> {
        let refreshed = self.refresh_run(run, owner.network);
        let input = DelegateInput { present: refreshed.present_ipam.clone(), ..input };
        let run = &refreshed.run;
        let stdin = match run.stdin(owner.network, prev_result, input.clone()) {
            // Old forms have no place for a second address, and no prevResult on DEL.
            Err(error) if error.code() == ErrorCode::INCOMPATIBLE_VERSION => {
                let without = IpamResult { ips: Vec::new(), ..prev_result.clone() };
                run.stdin(owner.network, &without, input)?
            }
            other => other?,
        };
        let environment = self.environment_of(owner.attachment);
        let outcome = self.exec_in(environment, Verb::Del, &self.recorded_step(run), stdin, time);
        outcome.map(drop).map_err(|failure| refreshed.explain_failure(failure))
    }

    /// ADD of a recorded delegate once more, with these very settings, for what it already gave.
    pub(crate) fn add_again(
        &self,
        owner: &Owner<'_>,
        run: &Run,
        leases: &[Value],
    ) -> Result<Answer, Failure> {
        let purpose = Purpose::Reassert;
        let input = DelegateInput { leases: leases.to_vec(), purpose, ..DelegateInput::default() };
        let stdin = run.stdin(owner.network, &IpamResult::default(), input)?;
        let environment = self.environment_of(owner.attachment);
        self.exec_in(environment, Verb::Add, &self.recorded_step(run), stdin, self.timeout())
    }

    /// The variables of a call about an attachment, which may be another than this call's.
    fn environment_of(&self, attachment: &Attachment) -> Environment {
        let mut environment = self.environment.clone();
        environment.set("CNI_CONTAINERID", attachment.container.as_str());
        environment.set("CNI_IFNAME", attachment.ifname.as_str());
        environment.set("CNI_NETNS", attachment.netns.as_str());
        let of_this_call = self.request.attachment.as_ref().is_some_and(|called| {
            (&called.container, &called.ifname) == (&attachment.container, &attachment.ifname)
        });
        if !of_this_call {
            environment.set("CNI_ARGS", "");
        }
        environment
    }

    fn exec_in(
        &self,
        mut environment: Environment,
        verb: Verb,
        step: &Step,
        stdin: String,
        time: Duration,
    ) -> Result<Answer, Failure> {
        environment.set("CNI_COMMAND", verb.as_str());
        let time = step.timeout.map_or(time, |own| own.min(time));
        let call =
            Call { name: &step.name, program: &step.program, verb, environment, stdin, time };
        let began = Instant::now();
        match call.run() {
            Err(failure) if has_nothing_to_say(verb, &failure.error) => {
                debug!("{} does not know {verb}", step.name);
                if verb == Verb::Status {
                    // Older than the version that has STATUS, it may refuse that of an ADD as well.
                    let left = time.saturating_sub(began.elapsed());
                    self.refuse_version(step, self.request.network.version(), left)?;
                }
                Ok(None)
            }
            other => other,
        }
    }
}

/// A delegate that is owed a DEL.
pub(crate) struct Owed<'a> {
    pub run: &'a Run,
    /// What it said it gave.
    pub leases: &'a [Value],
    /// It never gave anything with these settings: every ADD of theirs failed, and was told.
    pub only_failed: bool,
}

/// Whose leases a DEL is about.
pub(crate) struct Owner<'a> {
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
