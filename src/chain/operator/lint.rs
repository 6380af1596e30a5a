//! `lint`: which chain a network runs on which state, and what is unsafe about it.

use serde_json::Value;

use super::super::patch::masked;
use super::super::plan::Step;
use super::super::session::Session;
use super::dry_run::dry_run;
use super::findings::{Findings, Reach};
use super::network::Found;
use super::ours::Ours;
use super::{Operator, Printed, line};
use crate::cni::Verb;
use crate::error::Result;
use crate::operate::{Column, Words, object, table};

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("lint takes one network"));
    }
    let found = operator.network()?;
    let mut printed = Printed::default();
    let mut reports = Vec::new();
    for ours in operator.ours_and_replaceable(&found)? {
        let report = report(operator, &found, &ours, &mut printed.failed)?;
        describe(&report, &mut printed.text);
        reports.push(report);
    }
    if operator.words.has("json") {
        printed.set_rows(operator, &[], reports);
    }
    Ok(printed)
}

/// What is to be said of one plugin.
fn report(operator: &Operator, found: &Found, ours: &Ours, failed: &mut bool) -> Result<Value> {
    let request = operator.request(ours.for_status(), &operator.cni_path())?;
    let session = Session::open(&ours.chain, &request)?;
    let mut findings = Findings::default();
    let chain = match chain(&session, ours, &mut findings) {
        Ok(chain) => chain,
        Err(error) => {
            findings.error(&error);
            sketch(&session)
        }
    };
    findings.of_presets(&session, ours);
    findings.of_state(&session);
    findings.of_version(ours.network.version());
    *failed |= findings.failed;
    let mut keys = masked(&Value::Object(ours.network.ipam().clone()));
    if let Value::Object(keys) = &mut keys {
        // The chain's own, which the rest of the report is about.
        for key in ["type", "delegates", "stateDir"] {
            keys.remove(key);
        }
    }
    let differences = ours.chain.preset.map_or(&[][..], |preset| preset.differences);
    Ok(object([
        ("network", found.name.as_str().into()),
        ("file", found.file.display().to_string().into()),
        ("plugin", ours.plugin.as_str().into()),
        ("type", ours.kind.as_str().into()),
        ("chain", chain.into()),
        ("stateDir", session.state.root().display().to_string().into()),
        ("ipam", keys),
        ("differences", differences.into()),
        ("findings", findings.list.into()),
    ]))
}

const COLUMNS: &[Column] = &[
    Column::text("DELEGATE", "delegate"),
    Column::text("ROLE", "role"),
    Column::text("LEDGER OF", "reach"),
    Column::text("PROGRAM", "program"),
];

fn describe(report: &Value, text: &mut String) {
    let member = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let of = |key: &str| member(report, key);
    let list = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let mut say = |parts: &[&str]| text.push_str(&parts.concat());
    say(&[&of("network"), " (", &of("file"), "), ", &of("plugin"), ": ", &of("type"), "\n"]);
    say(&[&table(COLUMNS, &list("chain")), "state folder ", &of("stateDir"), "\n"]);
    for (key, value) in report["ipam"].as_object().into_iter().flatten() {
        line("ipam.", key, value, text);
    }
    for difference in list("differences") {
        text.push_str(&["differs: ", difference.as_str().unwrap_or_default(), "\n"].concat());
    }
    for finding in list("findings") {
        let parts = [&member(&finding, "level"), ": ", &member(&finding, "message"), "\n"];
        text.push_str(&parts.concat());
    }
}

/// The planned chain; its selectors have been tried.
fn chain(session: &Session<'_>, ours: &Ours, findings: &mut Findings) -> Result<Vec<Value>> {
    let plan = ours.plan(session)?;
    findings.of_selectors(&dry_run(session, &plan, Verb::Status)?);
    let mut chain = Vec::new();
    for step in &plan.steps {
        let reach = if step.is_selector() { None } else { Some(Reach::of(session, step)) };
        findings.shared |= reach == Some(Reach::Cluster);
        let program = step.program.display().to_string();
        chain.push(link(&step.name, role(step), reach, Some(program)));
    }
    Ok(chain)
}

/// The chain as configured, where no plan can be made of it.
fn sketch(session: &Session<'_>) -> Vec<Value> {
    let planner = session.planner();
    let mut chain = Vec::new();
    for name in planner.names(session.request.network.ipam()) {
        let program = planner.find(&name).ok();
        let own = program.as_ref().is_some_and(|program| planner.own.is(program));
        let role = match &program {
            None => "missing",
            Some(_) if own => "this program itself",
            Some(program) => role(&Step::new(&name, program.clone())),
        };
        chain.push(link(&name, role, None, program.map(|it| it.display().to_string())));
    }
    chain
}

fn link(name: &str, role: &str, reach: Option<Reach>, program: Option<String>) -> Value {
    object([
        ("delegate", name.into()),
        ("role", role.into()),
        ("reach", reach.map(Reach::as_str).into()),
        ("program", program.into()),
    ])
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
