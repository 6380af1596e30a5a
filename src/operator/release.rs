//! `release`: takes addresses back into their pools, from any owner.

use std::net::IpAddr;

use super::ask::{AllocatorLease, ask_leases};
use super::call::Operator;
use super::list::show;
use super::printed::Printed;
use super::who::{not_held, parse};
use crate::chain::record::{Opened, RecordFile, networks};
use ipam_cli::{NAME_WHOLE_ID, OptionSpec, no_lease_of_node, release_summary, usage_error};
use ipam_kit::cni::NetworkName;
use ipam_kit::cni::address::parse_cidr;
use ipam_kit::error::{Error, ErrorCode, Result};

pub(crate) fn run(operator: &Operator) -> Result<Printed> {
    let options = &operator.arguments;
    let mut typed: Vec<IpAddr> = Vec::new();
    for word in options.operands().iter().skip(1) {
        let address = parse(word)?;
        if !typed.contains(&address) {
            typed.push(address);
        }
    }
    let addresses: Vec<String> = typed.iter().map(IpAddr::to_string).collect();
    let mut question = vec!["release", "--json", "--config", "-"];
    match (options.value(&OptionSpec::OWNER), options.value(&OptionSpec::NODE), &addresses[..]) {
        (Some(owner), None, []) if !owner.is_empty() => question.extend(["--owner", owner]),
        (None, Some(node), []) if !node.is_empty() => question.extend(["--node", node]),
        (None, None, [_, ..]) => question.extend(addresses.iter().map(String::as_str)),
        _ => {
            return Err(usage_error(
                "release needs NETWORK and one of: ADDRESS…, --owner CONTAINER[/IFNAME], --node NODE",
            ));
        }
    }
    let yes = operator.does_it();
    let mut printed = Printed::default();
    if yes {
        let before = look_elsewhere(operator, &question)?;
        if before.failed {
            return Ok(before);
        }
        question.push("--yes");
    }
    let leases = ask_leases(operator, &question, &mut printed)?;
    if !printed.failed {
        for address in &typed {
            if !leases.iter().any(|lease| lease.address == *address) {
                printed.fail(&not_held(operator, *address));
            }
        }
        if let (Some(owner), true) = (options.value(&OptionSpec::OWNER), leases.is_empty()) {
            let message = format!("{owner} holds no address");
            let error = Error::new(ErrorCode::NOT_HELD, message);
            printed.fail(&error.advise(NAME_WHOLE_ID));
        }
    }
    // A store that does not answer does not say that there are no leases.
    if leases.is_empty() && printed.failed {
        return Ok(printed);
    }
    if let (Some(node), true) = (options.value(&OptionSpec::NODE), leases.is_empty()) {
        printed.warnings.push(no_lease_of_node(node));
    }
    for lease in &leases {
        printed.warnings.extend(use_warning(lease));
    }
    show(operator, &leases, &mut printed);
    if !operator.prints_json() {
        printed.text.push_str(release_summary(leases.is_empty(), yes).unwrap_or_default());
    }
    if yes {
        for lease in &leases {
            let noted = remove_from_record(lease).map_err(|error| {
                error.within(format_args!(
                    "{} is released, but its record still names it",
                    lease.address
                ))
            });
            printed.keep(noted);
        }
    }
    if !yes && !leases.is_empty() {
        printed.warnings.push("nothing was released; add --yes to do it".to_owned());
    }
    Ok(printed)
}

/// Removes a released address from the held ones in its owner's record, so that `reassert` does not
/// claim it again. The delegates to send a DEL to stay in the record.
fn remove_from_record(lease: &AllocatorLease) -> Result<()> {
    for place in lease.records()? {
        let opened = RecordFile::open_existing(&place, RecordFile::PATIENCE)?.known()?;
        let Some(Opened { mut file, record }) = opened else { continue };
        let Some((held, _)) = record.held() else { continue };
        let mut left = held.clone();
        for ran in &mut left.runs {
            let Some(granted) = &mut ran.granted else { continue };
            let by_it = ran.run.delegate == lease.row.text("allocator");
            let at = granted.ips.iter().position(|ip| is_address(ip, lease.address));
            let Some(at) = at.filter(|_| by_it) else { continue };
            match &mut ran.run.pools {
                _ if granted.ips.len() == 1 => granted.leases.clear(),
                // Each stays beside its pool.
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

/// Looks at what would be released, since the allocator does not read records. Failures to look are
/// in the answer.
///
/// # Errors
/// Code 102: the record of another network of this node may have a lease.
fn look_elsewhere(operator: &Operator, question: &[&str]) -> Result<Printed> {
    let mut printed = Printed::default();
    if !has_other_records(operator)? {
        return Ok(printed);
    }
    let leases = ask_leases(operator, question, &mut printed)?;
    match leases.iter().find_map(|lease| Some((lease, recorded_elsewhere(lease)?))) {
        Some((lease, network)) => Err(Error::new(ErrorCode::TAKEN, elsewhere(lease, network))),
        None => Ok(printed),
    }
}

/// Whether the state folders of the network have records of other networks.
fn has_other_records(operator: &Operator) -> Result<bool> {
    let found = operator.network()?;
    for plugin in operator.our_plugins(&found)? {
        let request = operator.request(plugin.for_status(), &operator.cni_path())?;
        let mut known = networks(&request.state_dir()?)?.into_iter();
        if known.any(|network| network != *request.network.name()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the other network whose record has a lease.
fn recorded_elsewhere(lease: &AllocatorLease) -> Option<&NetworkName> {
    lease.record_state()?.elsewhere.as_ref()
}

/// Says which network has a lease in its record.
fn elsewhere(lease: &AllocatorLease, network: &NetworkName) -> String {
    let address = lease.address;
    format!(
        "the record of {} on the network {network} may have {address}: after the container has ended, \
         release it there: ipam-delegated release {network} {address} --yes",
        lease.row.text("containerID")
    )
}

/// Warns if a container may be running with the address.
fn use_warning(lease: &AllocatorLease) -> Option<String> {
    let container = lease.row.text("containerID");
    let address = lease.address;
    if let Some(network) = recorded_elsewhere(lease) {
        return Some(elsewhere(lease, network));
    }
    match lease.record_state()?.state {
        "held" => Some(format!(
            "the record of {container} has {address}: the container may be running with it"
        )),
        "none" => Some(format!(
            "{container} holds {address} without a record: it is from before a move, or a leak; \
             check whether it runs"
        )),
        "unreadable" => Some(format!(
            "the records of {container} cannot be read: it may be running with {address}"
        )),
        _ => None,
    }
}

/// Whether an address with its prefix length is this one.
fn is_address(ip: &str, address: IpAddr) -> bool {
    parse_cidr(ip).is_ok_and(|net| net.addr() == address)
}
