//! `explain`: a dry run of ADD.

use serde_json::{Map, Value};

use super::call::Operator;
use super::dry_run::{DryRunStage, SelectorOutcome, dry_add};
use super::origins::Origins;
use super::printed::Printed;
use ipam_cli::{Row, push_line};
use ipam_kit::error::Result;
use ipam_kit::text::masked;

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let found = operator.network()?;
    let mut printed = Printed::default();
    let mut reports = Vec::new();
    for plugin in operator.our_plugins(&found)? {
        let stages = dry_add(operator, &plugin)?;
        for stage in &stages {
            printed.failed |= matches!(stage.outcome, SelectorOutcome::Failed(_));
        }
        let head = format!("{}, {}: {}", found.name, plugin.plugin, plugin.kind);
        push_line(&mut printed.text, &head);
        let mut delegates = Vec::new();
        let mut before = Value::Null;
        let origins = Origins::of(&stages);
        for (place, stage) in stages.into_iter().enumerate() {
            let chooses = matches!(stage.outcome, SelectorOutcome::Answered(_));
            let mut delegate = of_stage(stage);
            describe(&delegate, &before, &mut printed.text);
            if chooses {
                origins.describe(place, &mut printed.text);
                delegate.set("pools", origins.to_json(place));
            }
            if !delegate.get("input").is_null() {
                before = delegate.get("input").clone();
            }
            delegates.push(Value::from(delegate));
        }
        let mut report = found.row(&plugin);
        report.set("delegates", delegates.into());
        reports.push(report);
    }
    if operator.prints_json() {
        printed.set_rows(&operator.arguments, &[], reports);
    }
    Ok(printed)
}

/// Describes a delegate, without secrets.
fn of_stage(stage: DryRunStage) -> Row {
    let mut row = Row::default();
    row.set_text("delegate", &stage.step.name);
    row.set_text("program", &stage.step.program.display().to_string());
    row.set("input", masked(stage.input.unwrap_or_default()));
    match stage.outcome {
        SelectorOutcome::Answered(answer) => row.set("output", masked(Value::Object(answer))),
        SelectorOutcome::Failed(error) => row.set_text("error", &error.in_full()),
        SelectorOutcome::NotRun => row.set("output", Value::Null),
    }
    row
}

/// Adds the input that a delegate gets beside the step before it, and its answer.
fn describe(delegate: &Row, before: &Value, text: &mut String) {
    let (name, program) = (delegate.text("delegate"), delegate.text("program"));
    push_line(text, &format!("- {name}  {program}"));
    let (input, output) = (delegate.get("input"), delegate.get("output"));
    let error = delegate.text("error");
    if input.is_null() {
        text.push_str("  is skipped: it serves none of the pools\n");
        return;
    }
    let is_run = !error.is_empty() || output.is_object();
    let gets = if is_run { "  gets\n" } else { "  is not run now; ADD would give it\n" };
    push_section(gets, "  gets the same as the delegate before it\n", text, |text| {
        push_arrivals(before, input, text)
    });
    if !error.is_empty() {
        push_line(text, &format!("  fails, so ADD fails: {error}"));
    } else if let Value::Object(output) = output {
        push_section("  answers\n", "  changes nothing\n", text, |text| {
            push_changes(input, output, text)
        });
    }
}

/// Adds lines below a head; `without` if it has none.
fn push_section(head: &str, without: &str, text: &mut String, lines: impl FnOnce(&mut String)) {
    let mut below = String::new();
    lines(&mut below);
    text.push_str(if below.is_empty() { without } else { head });
    text.push_str(&below);
}

/// Adds the pools, static addresses and settings of an input that differ from the one before it;
/// `null` for a removed setting.
fn push_arrivals(before: &Value, input: &Value, text: &mut String) {
    for key in ["pools", "static"] {
        let after = &input["prevResult"][key];
        if *after != before["prevResult"][key] {
            push_setting(text, &format!("prevResult.{key}"), after);
        }
    }
    let mut all = before["ipam"].as_object().cloned().unwrap_or_default();
    all.extend(input["ipam"].as_object().cloned().unwrap_or_default());
    for key in all.keys() {
        let after = &input["ipam"][key];
        // `type` is the delegate's name, and this report shows the list.
        if !matches!(key.as_str(), "type" | "delegates") && *after != before["ipam"][key] {
            push_setting(text, &format!("ipam.{key}"), after);
        }
    }
}

/// Adds the pools, routes, dns and settings of a selector's answer that differ from its input, and
/// the settings that it only remembers.
fn push_changes(input: &Value, output: &Map<String, Value>, text: &mut String) {
    for key in ["pools", "static", "routes", "dns"] {
        match output.get(key) {
            Some(after) if *after != input["prevResult"][key] => push_setting(text, key, after),
            _ => {}
        }
    }
    if let Some(remembered) = output.get("remembered") {
        push_setting(text, "remembered", remembered);
    }
    for (key, value) in output.get("ipam").and_then(Value::as_object).into_iter().flatten() {
        if *value != input["ipam"][key] {
            push_setting(text, &format!("ipam.{key}"), value);
        }
    }
}

fn push_setting(text: &mut String, key: &str, value: &Value) {
    push_line(text, &format!("    {key} = {value}"));
}
