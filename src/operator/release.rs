//! `release`: takes addresses back into their pools, whoever holds them.

use super::ask::{Lease, ask_leases};
use super::list::show;
use super::who::parse;
use super::{Operator, Printed, say};
use crate::chain::record::{Opened, RecordFile};
use ipam_cli::Words;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::error::{Error, ErrorCode, Result};

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
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
        if let (Some(owner), true) = (words.value("owner"), leases.is_empty()) {
            let message = [owner, " holds no address"].concat();
            let error = Error::new(ErrorCode::NOT_HELD, message);
            printed.fail(&error.advise("name the container by its whole id, as list shows it"));
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
    if yes {
        for lease in &leases {
            let noted = strike(lease).map_err(|error| {
                error.within(format_args!("{} is released, but not noted", lease.address))
            });
            printed.keep(noted);
        }
    }
    if !yes && !leases.is_empty() {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    Ok(printed)
}

/// Takes a released address out of what the record of its owner says is held, so that `reassert` does
/// not claim it again. What the delegates are owed at a DEL stays.
fn strike(lease: &Lease) -> Result<()> {
    let is_it = |ip: &String| parse_cidr(ip).is_ok_and(|net| net.addr() == lease.address);
    for path in lease.records()? {
        let opened = RecordFile::open_existing(&path, RecordFile::PATIENCE)?.known()?;
        let Some(Opened { mut file, record, .. }) = opened else { continue };
        let Some((held, _)) = record.held() else { continue };
        let mut left = held.clone();
        for ran in &mut left.runs {
            let Some(granted) = &mut ran.granted else { continue };
            let by_it = ran.run.delegate == lease.row.text_of("allocator");
            let Some(at) = granted.ips.iter().position(is_it).filter(|_| by_it) else { continue };
            match &mut ran.run.pools {
                _ if granted.ips.len() == 1 => granted.leases.clear(),
                // Each stays beside the pool that it is of.
                Some(pools) if pools.len() == granted.ips.len() => drop(pools.remove(at)),
                _ => {}
            }
            granted.ips.remove(at);
        }
        if left != *held {
            left.events().iter().try_for_each(|event| file.append(event))?;
        }
    }
    Ok(())
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
