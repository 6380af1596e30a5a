//! The delegate as a process.

mod common;

use std::process::Command;

use ipam_testkit::world::Outcome;
use serde_json::{Value, json};

use common::call;

fn config() -> String {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge",
        "ipam": {"type": "ipam-ds-static", "subnet": "10.1.2.0/24", "exclude": ["10.1.2.9"],
                 "routes": [{"dst": "0.0.0.0/0"}]},
    })
    .to_string()
}

#[track_caller]
fn answer(outcome: Outcome, exit: i32) -> Value {
    assert_eq!(outcome.exit, Some(exit), "{outcome:?}");
    // Errors, and nothing else, are also lines of the log.
    let stderr = &outcome.stderr;
    assert_eq!(stderr.contains("[ERROR] ipam-ds-static: "), exit != 0, "{stderr}");
    assert_eq!(stderr.lines().count(), usize::from(exit != 0), "{stderr}");
    outcome.json()
}

fn expected(pool: Value) -> Value {
    let range = |start, end| json!({"subnet": "10.1.2.0/24", "rangeStart": start, "rangeEnd": end, "gateway": "10.1.2.1"});
    json!({
        "cniVersion": "1.0.0", "ips": [], "routes": [{"dst": "0.0.0.0/0"}], "pools": [pool],
        "ipam": {
            "subnet": null, "rangeStart": null, "rangeEnd": null, "gateway": null,
            "ranges": [[range("10.1.2.1", "10.1.2.8"), range("10.1.2.10", "10.1.2.254")]],
        },
    })
}

#[test]
fn add_and_del_answer_with_the_pools() {
    let range = json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.1", "rangeEnd": "10.1.2.254",
        "gateway": "10.1.2.1", "exclude": ["10.1.2.9/32"]});
    let mut pool = json!({"index": 0, "ranges": [range]});
    assert_eq!(answer(call("DEL", "IP=10.1.2.9", &config()), 0), expected(pool.clone()));
    pool["requested-ip"] = json!("10.1.2.7");
    pool["requested_ip"] = json!("10.1.2.7");
    assert_eq!(answer(call("ADD", "IP=10.1.2.7", &config()), 0), expected(pool));
}

#[test]
fn version_needs_no_stdin() {
    let answer = answer(call("VERSION", "", ""), 0);
    assert_eq!(answer["supportedVersions"].as_array().unwrap().len(), 7);
}

#[test]
fn a_start_by_hand_tells_name_and_version() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ipam-ds-static"));
    let output = command.env_remove("CNI_COMMAND").output().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let told = format!(
        "ipam-ds-static {version}: a CNI IPAM delegate. Runtimes call it with CNI_COMMAND set and \
         a network configuration on stdin.\n"
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), told);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

#[test]
fn an_error_is_an_object_on_stdout() {
    assert_eq!(
        answer(call("ADD", "IP=10.1.2.9", &config()), 1),
        json!({
            "cniVersion": "1.0.0", "code": 101,
            "msg": "CNI_ARGS IP: 10.1.2.9 is excluded from 10.1.2.1-10.1.2.254 by 10.1.2.9/32",
        })
    );
}
