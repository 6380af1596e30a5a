//! `release`: takes addresses back into their pools, whoever holds them.

use super::ask::ask_leases;
use super::list::show;
use super::who::parse;
use super::{Operator, Printed};
use crate::error::Result;
use crate::operate::Words;

pub(super) fn run(operator: &Operator) -> Result<Printed> {
    let words = &operator.words;
    let operands = words.operands();
    let mut addresses = Vec::new();
    for word in operands.iter().skip(1) {
        addresses.push(parse(word)?.to_string());
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
    for lease in &leases {
        if lease.says().is_some_and(|says| says.state == "held") {
            let (container, address) = (lease.row.text_of("containerID"), lease.address);
            printed.warnings.push(format!(
                "the record of {container} says that it holds {address}: its container may be running with it"
            ));
        }
    }
    show(operator, &leases, &mut printed);
    if !yes && !leases.is_empty() {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    Ok(printed)
}
