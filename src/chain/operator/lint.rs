//! `lint`: which chain a network runs on which state, and what is unsafe about it.

use serde_json::{Map, Value, json};

use super::super::patch::masked;
use super::super::plan::{Plan, Step};
use super::super::session::Session;
use super::dry_run::dry_run;
use super::findings::{Finding, Level, Reach, of_presets, of_selectors, of_state, of_version};
use super::network::Found;
use super::ours::Ours;
use super::{Operator, Printed};
use crate::cni::Verb;
use crate::error::Result;
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("lint takes one network"));
    }
    let found = operator.network()?;
    let ours = operator.ours_and_replaceable(&found)?;
    let reports: Vec<Report> =
        ours.iter().map(|ours| Report::of(operator, ours)).collect::<Result<_>>()?;
    let text = if operator.words.has("json") {
        let reports: Value = reports.iter().map(|report| report.to_json(&found)).collect();
        format!("{reports}\n")
    } else {
        reports.iter().map(|report| report.for_people(&found)).collect()
    };
    let is_error = |finding: &Finding| finding.level == Level::Error;
    let failed = reports.iter().flat_map(|report| &report.findings).any(is_error);
    Ok(Printed { text, failed, ..Printed::default() })
}

/// What is to be said of one plugin.
struct Report {
    plugin: String,
    kind: String,
    chain: Vec<Link>,
    state_dir: String,
    /// The keys of `ipam` that no selector sets, without those of the chain itself.
    keys: Map<String, Value>,
    differences: &'static [&'static str],
    findings: Vec<Finding>,
}

/// One delegate of the chain.
struct Link {
    name: String,
    /// `None` when it is missing.
    program: Option<String>,
    role: &'static str,
    /// Of an allocator.
    reach: Option<Reach>,
}

impl Report {
    fn of(operator: &Operator, ours: &Ours) -> Result<Self> {
        let request = operator.request(ours.for_status(), &operator.cni_path())?;
        let session = Session::open(&ours.chain, &request)?;
        let mut findings = Vec::new();
        let chain = match chain(&session, ours, &mut findings) {
            Ok(chain) => chain,
            Err(error) => {
                findings.push(Finding { level: Level::Error, message: error.in_full() });
                sketch(&session)
            }
        };
        of_presets(&session, ours, &mut findings);
        let reaches: Vec<Reach> = chain.iter().filter_map(|link| link.reach).collect();
        of_state(&session, &reaches, &mut findings);
        of_version(ours.network.version(), &mut findings);
        let mut keys = ours.network.ipam().clone();
        keys.retain(|key, _| !matches!(key.as_str(), "type" | "delegates" | "stateDir"));
        Ok(Self {
            plugin: ours.plugin.clone(),
            kind: ours.kind.clone(),
            chain,
            state_dir: session.state.root().display().to_string(),
            keys,
            differences: ours.preset().map_or(&[], |preset| preset.differences),
            findings,
        })
    }

    fn to_json(&self, found: &Found) -> Value {
        let link = |link: &Link| {
            json!({
                "delegate": link.name,
                "program": link.program,
                "role": link.role,
                "reach": link.reach.map(Reach::as_str),
            })
        };
        let finding = |it: &Finding| json!({"level": it.level.as_str(), "message": it.message});
        json!({
            "network": found.name,
            "file": found.file.display().to_string(),
            "plugin": self.plugin,
            "type": self.kind,
            "chain": self.chain.iter().map(link).collect::<Value>(),
            "stateDir": self.state_dir,
            "ipam": masked(&Value::Object(self.keys.clone())),
            "differences": self.differences,
            "findings": self.findings.iter().map(finding).collect::<Value>(),
        })
    }

    fn for_people(&self, found: &Found) -> String {
        let mut text =
            format!("{} ({}), {}: {}\n", found.name, found.file.display(), self.plugin, self.kind);
        for link in &self.chain {
            let program = link.program.as_deref().unwrap_or("missing");
            text.extend(["  ", &link.name, "  ", program, "  ", link.role]);
            match link.reach {
                Some(Reach::Unknown) => text.push_str(", its reach is not known"),
                Some(reach) => text.extend([", its ledger is the ", reach.as_str(), "'s"]),
                None => {}
            }
            text.push('\n');
        }
        text.extend(["  state folder ", &self.state_dir, "\n"]);
        if let Value::Object(keys) = masked(&Value::Object(self.keys.clone())) {
            for (key, value) in &keys {
                text.extend(["  ipam.", key, " = ", &value.to_string(), "\n"]);
            }
        }
        for difference in self.differences {
            text.extend(["  differs: ", difference, "\n"]);
        }
        for finding in &self.findings {
            text.extend(["  ", finding.level.as_str(), ": ", &finding.message, "\n"]);
        }
        if self.findings.is_empty() {
            text.push_str("  nothing to complain of\n");
        }
        text
    }
}

/// The planned chain; its selectors have been tried.
fn chain(session: &Session<'_>, ours: &Ours, findings: &mut Vec<Finding>) -> Result<Vec<Link>> {
    let plan: Plan = ours.plan(session)?;
    of_selectors(&dry_run(session, &plan, Verb::Status)?, findings);
    let link = |step: &Step| Link {
        name: step.name.clone(),
        program: Some(step.program.display().to_string()),
        role: role(step),
        reach: (!step.is_selector()).then(|| Reach::of(session, step)),
    };
    Ok(plan.steps.iter().map(link).collect())
}

/// The chain as configured, where no plan can be made of it.
fn sketch(session: &Session<'_>) -> Vec<Link> {
    let planner = session.planner();
    let link = |name: String| {
        let program = planner.find(&name).ok();
        let step = Step::new(&name, program.clone().unwrap_or_default());
        let own = program.as_ref().is_some_and(|program| planner.own.is(program));
        let role = if own { "this program itself" } else { role(&step) };
        Link { name, program: program.map(|it| it.display().to_string()), role, reach: None }
    };
    planner.names(session.request.network.ipam()).into_iter().map(link).collect()
}

fn role(step: &Step) -> &'static str {
    if step.is_selector() {
        "selector"
    } else if step.is_allocator() {
        "allocator"
    } else {
        "standard plugin"
    }
}
