//! `explain`: a dry run of ADD.

use serde_json::{Map, Value, json};

use super::super::patch::masked;
use super::super::session::Session;
use super::dry_run::{Outcome, Stage, dry_run};
use super::ours::Ours;
use super::{Operator, Printed};
use crate::cni::{Args, ContainerId, IfName, Verb};
use crate::error::Result;
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    if operator.words.operands().len() > 1 {
        return Err(Words::refusal("explain takes one network"));
    }
    let found = operator.network()?;
    let (mut text, mut all, mut failed) = (String::new(), Vec::new(), false);
    for ours in operator.ours(&found)? {
        let (timeout, stages) = explain(operator, &ours)?;
        failed |= stages.iter().any(|stage| matches!(stage.outcome, Outcome::Failed(_)));
        let plugin = &ours.plugin;
        if operator.words.has("json") {
            all.push(json!({
                "network": found.name,
                "file": found.file.display().to_string(),
                "plugin": plugin,
                "type": ours.kind,
                "timeout": timeout,
                "delegates": stages.iter().map(to_json).collect::<Value>(),
            }));
            continue;
        }
        let head = format!("{}, {plugin}: {} in {timeout}\n", found.name, ours.kind);
        text.push_str(&head);
        for (i, stage) in stages.iter().enumerate() {
            let place = format!("{}. {}  {}", i + 1, stage.step.name, stage.step.program.display());
            text.extend([&place, "\n", &described(stage)]);
        }
    }
    if operator.words.has("json") {
        text = format!("{}\n", Value::from(all));
    }
    Ok(Printed { text, failed, ..Printed::default() })
}

fn explain(operator: &Operator, ours: &Ours) -> Result<(String, Vec<Stage>)> {
    let words = &operator.words;
    let container = ContainerId::parse(words.value("container").unwrap_or("explain"))?;
    let ifname = IfName::parse(words.value("ifname").unwrap_or("eth0"))?;
    let args = words.value("args").unwrap_or_default();
    let mut request = operator.request(ours.network.clone(), &operator.cni_path())?;
    request.args = Args::parse(args);
    let variables = [
        ("CNI_CONTAINERID", container.as_str()),
        ("CNI_IFNAME", ifname.as_str()),
        // ADD needs one; a selector has no business in it.
        ("CNI_NETNS", "/proc/self/ns/net"),
        ("CNI_ARGS", args),
    ];
    for (name, value) in variables {
        request.environment.set(name, value);
    }
    let session = Session::open(&ours.chain, &request)?;
    let plan = ours.plan(&session)?;
    let stages = dry_run(&session, &plan, Verb::Add)?;
    Ok((format!("{:?}", plan.timeout), stages))
}

fn to_json(stage: &Stage) -> Value {
    let mut row = json!({
        "delegate": stage.step.name,
        "program": stage.step.program.display().to_string(),
        "input": stage.input.as_ref().map(masked),
    });
    match &stage.outcome {
        Outcome::Answered(answer) => row["output"] = masked(&Value::Object(answer.clone())),
        Outcome::Failed(error) => row["error"] = error.in_full().into(),
        Outcome::NotRun => row["output"] = Value::Null,
    }
    row
}

fn described(stage: &Stage) -> String {
    let Some(input) = &stage.input else {
        return "   is not run: no pool is for it\n".to_owned();
    };
    match &stage.outcome {
        Outcome::Answered(answer) => {
            let changes = changes(input, answer);
            if changes.is_empty() { "   changes nothing\n".to_owned() } else { changes }
        }
        Outcome::Failed(error) => format!("   fails, and ADD with it: {}\n", error.in_full()),
        Outcome::NotRun => {
            let mut text = String::from("   is not run here; it would get\n");
            let pools = masked(&input["prevResult"]["pools"]);
            if !pools.is_null() {
                text.push_str(&line("prevResult.pools", &pools));
            }
            for (key, value) in input["ipam"].as_object().into_iter().flatten() {
                text.push_str(&line(&["ipam", key].join("."), &hidden(key, value)));
            }
            text
        }
    }
}

/// What a selector's answer adds to what it got: pools, routes, dns, and settings.
fn changes(input: &Value, answer: &Map<String, Value>) -> String {
    let mut text = String::new();
    for key in ["pools", "routes", "dns"] {
        let before = &input["prevResult"][key];
        match answer.get(key) {
            Some(after) if after != before => text.push_str(&line(key, &masked(after))),
            _ => {}
        }
    }
    for (key, value) in answer.get("ipam").and_then(Value::as_object).into_iter().flatten() {
        if *value != input["ipam"][key] {
            text.push_str(&line(&["ipam", key].join("."), &hidden(key, value)));
        }
    }
    text
}

/// A member's value, masked by its key and by the keys inside.
fn hidden(key: &str, value: &Value) -> Value {
    let member = Value::Object(Map::from_iter([(key.to_owned(), value.clone())]));
    masked(&member)[key].clone()
}

fn line(what: &str, value: &Value) -> String {
    format!("   {what} = {value}\n")
}
