//! `lint`: the chain of a network, its state, and its unsafe settings.

mod allocators;
mod compare;
mod findings;
mod misspelt;
mod overlaps;
mod plan;
mod presets;
mod records;
mod refusals;
mod routes;
mod two_selectors;
mod unclaimed;

use serde_json::Value;

use self::compare::compare;
use self::findings::Findings;

use super::about::About;
use super::call::Operator;
use super::dry_run::dry_run;
use super::our_plugin::OurPlugin;
use super::printed::Printed;
use crate::chain::plan::Step;
use crate::chain::session::Session;
use ipam_cli::{Column, Row, push_findings, push_line, table};
use ipam_kit::cni::Verb;
use ipam_kit::delegate::Reach;
use ipam_kit::error::Result;
use ipam_kit::text::masked;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    // Nothing about a network is right while this file is broken.
    operator.settings()?;
    let found = operator.network()?;
    let mut printed = Printed::default();
    let mut reports = Vec::new();
    for ours in operator.our_plugins_and_replaceable(&found)? {
        let mut report = PluginReport::of(operator, &ours)?;
        if reports.is_empty() {
            report.findings.of_plugins(&found.plugins);
        }
        printed.failed |= report.findings.failed;
        let mut row = found.row(&ours);
        report.describe(&row, &mut printed.text);
        report.into_row(&mut row);
        reports.push(row);
    }
    if operator.prints_json() {
        printed.set_rows(&operator.arguments, &[], reports);
    }
    Ok(printed)
}

/// The report on one plugin.
struct PluginReport {
    chain: Vec<Row>,
    state_dir: String,
    /// The section `ipam` without the keys of the chain itself.
    keys: Value,
    differences: &'static [&'static str],
    findings: Findings,
}

const COLUMNS: &[Column] = &[
    Column::text("DELEGATE", "delegate"),
    Column::text("ROLE", "role"),
    Column::text("LEDGER OF", "reach"),
    Column::text("PROGRAM", "program"),
];

impl PluginReport {
    fn of(operator: &Operator, ours: &OurPlugin) -> Result<Self> {
        let request = operator.request(ours.for_status(), &operator.cni_path())?;
        let session = Session::open(&ours.chain, &request)?;
        let mut findings = Findings::default();
        let chain = match planned_chain(operator, &session, ours, &mut findings) {
            Ok(chain) => chain,
            Err(error) => {
                findings.of_unplanned(&session, &error);
                findings.of_chain_keys(&session);
                unplanned_chain(&session)
            }
        };
        findings.of_presets(&session, ours);
        findings.of_state(&session);
        findings.of_records(&session);
        findings.of_version(ours.network.version());
        let mut keys = ours.network.ipam().clone();
        // The chain's own keys: the rest of the report shows them.
        for key in ["type", "delegates", "stateDir"] {
            keys.remove(key);
        }
        Ok(Self {
            chain,
            state_dir: session.state.root().display().to_string(),
            keys: masked(Value::Object(keys)),
            differences: ours.chain.preset.map_or(&[], |preset| preset.differences),
            findings,
        })
    }

    fn describe(&self, plugin: &Row, text: &mut String) {
        let [network, file] = ["network", "file"].map(|key| plugin.text(key));
        let [plugin, kind] = ["plugin", "type"].map(|key| plugin.text(key));
        push_line(text, &format!("{network} ({file}), {plugin}: {kind}"));
        text.push_str(&table(COLUMNS, &self.chain));
        push_line(text, &format!("state folder {}", self.state_dir));
        for (key, value) in self.keys.as_object().into_iter().flatten() {
            push_line(text, &format!("  ipam.{key} = {value}"));
        }
        for difference in self.differences {
            push_line(text, &format!("differs: {difference}"));
        }
        push_findings(text, &self.findings.list);
    }

    fn into_row(self, row: &mut Row) {
        row.set("chain", values(self.chain));
        row.set_text("stateDir", &self.state_dir);
        row.set("ipam", self.keys);
        row.set("differences", self.differences.into());
        row.set("findings", values(self.findings.list));
    }
}

fn values(rows: Vec<Row>) -> Value {
    Value::Array(rows.into_iter().map(Value::from).collect())
}

/// The planned chain; its selectors and allocators have been tried with STATUS, and their stores
/// compared with the runtimes' result cache.
fn planned_chain(
    operator: &Operator,
    session: &Session<'_>,
    ours: &OurPlugin,
    findings: &mut Findings,
) -> Result<Vec<Row>> {
    let plan = ours.plan(session)?;
    findings.of_plan(session, &plan, ours);
    let stages = dry_run(session, &plan, Verb::Status)?;
    findings.of_selectors(&stages);
    findings.of_answers(&stages);
    findings.of_unserved(&stages);
    findings.of_two_selectors(&stages);
    findings.of_overlaps(operator, ours, &stages);
    if !findings.failed {
        findings.of_gateways(ours, &stages);
        findings.of_latecomers(session, &stages);
        // An empty list says that the pools depend on the container.
        if stages.iter().all(|stage| stage.pools.is_none()) {
            findings.of_nothing_asked(operator, session, ours);
        }
    }
    let abouts: Vec<About> = plan.steps.iter().map(|step| About::of(session, step)).collect();
    findings.of_keys(session, &stages, &abouts);
    let mut chain = Vec::new();
    for (step, about) in plan.steps.iter().zip(&abouts) {
        findings.shared |= about.reach == Some(Reach::Cluster);
        let reach = about.reach.map_or("unknown", Reach::as_str);
        let reach = Some(reach).filter(|_| !step.is_selector());
        let program = step.program.display().to_string();
        chain.push(link_row(&step.name, role(step), reach, Some(&program)));
    }
    // An allocator needs the selectors' pools for a sensible answer.
    if !findings.failed && findings.of_allocators(session, &stages, plan.timeout) {
        findings.of_pools(session, &stages);
        compare(&operator.cache(), session, &stages, findings);
    }
    findings.of_misspelt(&ours.network, &stages);
    Ok(chain)
}

/// The chain as configured, where no plan can be made of it.
fn unplanned_chain(session: &Session<'_>) -> Vec<Row> {
    let planner = &session.planner;
    let mut chain = Vec::new();
    for name in planner.names(session.request.network.ipam()) {
        let program = planner.find(&name).ok();
        let own = program.as_ref().is_some_and(|program| {
            planner.own_executable.is(program) && planner.built_in(&name, program).is_none()
        });
        let role = match &program {
            None => "missing",
            Some(_) if own => "this program itself",
            Some(program) => role(&Step::new(&name, program.clone())),
        };
        let program = program.map(|it| it.display().to_string());
        chain.push(link_row(&name, role, None, program.as_deref()));
    }
    chain
}

fn link_row(name: &str, role: &str, reach: Option<&str>, program: Option<&str>) -> Row {
    let mut row = Row::default();
    row.set_text("delegate", name);
    row.set_text("role", role);
    row.set_text_or_null("reach", reach);
    row.set_text_or_null("program", program);
    row
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
