//! `release`: takes addresses back into their pools, whoever holds them.

use super::ask::{Lease, ask_leases};
use super::list::show;
use super::who::parse;
use super::{Operator, Printed, say};
use crate::error::{Error, ErrorCode, Result};
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let words = &operator.words;
    let operands = words.operands();
    let mut addresses = Vec::new();
    for word in operands.iter().skip(1) {
        let address = parse(word)?.to_string();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    let mut arguments = vec!["release", "--json", "--config", "-"];
    match (words.value("owner"), words.value("node"), &addresses[..]) {
        (Some(owner), None, []) if !owner.is_empty() => arguments.extend(["--owner", owner]),
        (None, Some(node), []) if !node.is_empty() => arguments.extend(["--node", node]),
        (None, None, [_, ..]) => arguments.extend(addresses.iter().map(String::as_str)),
        _ => {
            return Err(Words::refusal(
                "release takes a network, and either addresses, --owner or --node",
            ));
        }
    }
    let yes = words.has("yes");
    if yes {
        arguments.push("--yes");
    }
    let mut printed = Printed::default();
    let leases = ask_leases(operator, &arguments, &mut printed)?;
    if !printed.failed {
        for address in &addresses {
            if leases.iter().any(|lease| lease.address.to_string() == *address) {
                continue;
            }
            let message = ["nobody holds ", address].concat();
            printed.fail(&Error::new(ErrorCode::NOT_HELD, message));
        }
        if leases.is_empty() && printed.failed {
            return Ok(printed);
        }
    }
    for lease in &leases {
        printed.warnings.extend(in_use(lease));
    }
    show(operator, &leases, &mut printed);
    if !words.has("json") {
        say(
            &mut printed.text,
            &[match (leases.is_empty(), yes) {
                (true, _) => "nothing to release\n",
                (false, true) => "released\n",
                (false, false) => "",
            }],
        );
    }
    if !yes && !leases.is_empty() {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    Ok(printed)
}

/// Why a container may be running with the address.
fn in_use(lease: &Lease) -> Option<String> {
    let (container, address) = (lease.row.text_of("containerID"), lease.address.to_string());
    let parts = match lease.says()?.state {
        "held" => [
            "the record of ",
            container,
            " says that it holds ",
            &address,
            ": its container may be running with it",
        ],
        "none" => [
            "there is no record of ",
            container,
            ", which holds ",
            &address,
            ": it is from before a take-over, or a leak: look whether it runs",
        ],
        _ => return None,
    };
    Some(parts.concat())
}
