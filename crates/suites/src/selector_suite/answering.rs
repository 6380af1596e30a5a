//! Checks of a selector's answer to each verb, and of its errors.

use serde_json::{Value, json};

use super::calls::{CallError, SelectorCalls, VARIABLES, failure, pools_of};
use super::checks;
use crate::CheckResult;
use crate::bench::expect;
use crate::plain;

checks!(
    stdout_has_one_object_and_nothing_else,
    the_answer_has_the_version_of_the_configuration,
    an_add_needs_no_namespace_and_no_arguments,
    version_is_answered_without_stdin,
    status_answers_as_an_add,
    del_and_check_answer_pools_or_an_error_object,
    gc_answers_pools_or_nothing,
    an_unknown_verb_is_error_4,
    stdin_without_an_object_is_an_error_object,
    a_broken_section_is_an_error_object,
);

/// The limit of one object on stdout.
const LONGEST: usize = 1 << 20;

fn stdout_has_one_object_and_nothing_else(calls: &SelectorCalls<'_>) -> CheckResult {
    let whole = |verb: &str, stdin: &str| {
        let stdout = calls.output(verb, &VARIABLES, stdin)?.stdout;
        let is_object = serde_json::from_str::<Value>(&stdout).is_ok_and(|it| it.is_object());
        expect(is_object, || format!("{verb} has on stdout {}", plain::output(&stdout)))?;
        expect(stdout.len() <= LONGEST, || format!("{verb} has {} bytes on stdout", stdout.len()))
    };
    whole("ADD", &json!(calls.config).to_string())?;
    whole("VERSION", "")?;
    whole("ADD", "")
}

fn the_answer_has_the_version_of_the_configuration(calls: &SelectorCalls<'_>) -> CheckResult {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let answer = calls.add(&calls.with("cniVersion", json!(version)))?;
        expect(answer["cniVersion"] == version, || {
            format!("cniVersion is {}, in the configuration it is {version}", answer["cniVersion"])
        })?;
    }
    Ok(())
}

fn an_add_needs_no_namespace_and_no_arguments(calls: &SelectorCalls<'_>) -> CheckResult {
    let first = calls.pools()?;
    // The namespace that CNI_NETNS names is missing.
    let stdin = json!(calls.config).to_string();
    let output = calls.output("ADD", &VARIABLES[..3], &stdin)?;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    expect(output.success && answer["pools"] == json!(first), || {
        format!(
            "without a namespace and without CNI_ARGS it answers {}",
            plain::output(&output.stdout)
        )
    })
}

fn version_is_answered_without_stdin(calls: &SelectorCalls<'_>) -> CheckResult {
    let output = calls.output("VERSION", &[], "")?;
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
    let known = answer["supportedVersions"].as_array().cloned().unwrap_or_default();
    expect(output.success && known.contains(&json!("1.0.0")), || {
        format!("VERSION answers {}, without 1.0.0", plain::output(&output.stdout))
    })
}

fn status_answers_as_an_add(calls: &SelectorCalls<'_>) -> CheckResult {
    let first = calls.pools()?;
    match calls.call("STATUS", &calls.config)? {
        Ok(answer) => {
            let pools = pools_of(&answer.unwrap_or_default())?;
            expect(pools == first, || format!("STATUS {}, ADD {}", json!(pools), json!(first)))
        }
        Err(CallError { code, message }) => {
            Err(format!("STATUS fails where an ADD succeeds: {code} {message}").into())
        }
    }
}

fn del_and_check_answer_pools_or_an_error_object(calls: &SelectorCalls<'_>) -> CheckResult {
    let recorded = json!({"cniVersion": "1.1.0", "ips": [{"address": "192.0.2.9/24"}]});
    for verb in ["DEL", "CHECK"] {
        for config in [calls.config.clone(), calls.with("prevResult", recorded.clone())] {
            if let Ok(answer) = calls.call(verb, &config)? {
                pools_of(&answer.unwrap_or_default())?;
            }
        }
    }
    Ok(())
}

fn gc_answers_pools_or_nothing(calls: &SelectorCalls<'_>) -> CheckResult {
    match calls.call("GC", &calls.with("cni.dev/valid-attachments", json!([])))? {
        Ok(None) => Ok(()),
        Ok(Some(answer)) => pools_of(&answer).map(drop),
        Err(CallError { code, message }) => Err(format!("GC fails: {code} {message}").into()),
    }
}

fn an_unknown_verb_is_error_4(calls: &SelectorCalls<'_>) -> CheckResult {
    match calls.call("CONFORMANCE", &calls.config)? {
        Err(CallError { code: 4, .. }) => Ok(()),
        Err(CallError { code, message }) => {
            Err(format!("the error is {code}, not 4: {message}").into())
        }
        Ok(_) => Err("an unknown CNI_COMMAND succeeds".to_owned().into()),
    }
}

fn stdin_without_an_object_is_an_error_object(calls: &SelectorCalls<'_>) -> CheckResult {
    for stdin in ["", "{", "[]", "{} {}"] {
        refused(calls, stdin, &format!("stdin {stdin:?}"))?;
    }
    Ok(())
}

fn a_broken_section_is_an_error_object(calls: &SelectorCalls<'_>) -> CheckResult {
    for section in [json!("text"), json!([1])] {
        let stdin = json!(calls.with("ipam", section.clone())).to_string();
        refused(calls, &stdin, &format!("ipam {section}"))?;
    }
    // Each key that it may read, with a value that it cannot read.
    let keys = calls.config["ipam"].as_object().cloned().unwrap_or_default();
    for key in keys.keys().filter(|key| *key != "type") {
        for broken in [json!({"conformance.example": [[]]}), json!(-7.5)] {
            let mut config = calls.config.clone();
            config["ipam"][key] = broken;
            let _ = calls.call("ADD", &config)?;
        }
    }
    Ok(())
}

/// An ADD fails by an error object.
fn refused(calls: &SelectorCalls<'_>, stdin: &str, what: &str) -> CheckResult {
    let output = calls.output("ADD", &VARIABLES, stdin)?;
    expect(!output.success, || format!("an ADD with {what} succeeds"))?;
    failure(&output, serde_json::from_str(&output.stdout).ok()).map(drop)
}
