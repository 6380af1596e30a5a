//! `repair`: the reservations that entries of pools lack.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use ipam_cli::{CliVerb, Column, InspectCall, OptionSpec, Row, RunInspect, print_rows};
use ipam_kit::allocate::removal::may_be_held;
use ipam_kit::{Error, ErrorCode, Result};
use ipnet::IpNet;

use crate::lease_mark::ReservationMark;
use crate::ledger::IpPools;
use crate::objects::{GROUP, PoolEntry, Reservation, ReservationSpec};
use crate::read_pool::ReadPool;
use crate::session::LeaseSession;
use crate::store::Outcome;
use crate::view::all_pools;

/// The verb.
pub(crate) const REPAIR: CliVerb<RunInspect> = CliVerb {
    name: "repair",
    operands: &["[POOL]"],
    about: "makes the missing reservations of an IPPool, or of those of the configuration; a dry run without --yes",
    options: &[OptionSpec::CONFIG, OptionSpec::JSON, OptionSpec::YES],
    run: repair,
};

const COLUMNS: &[Column] = &[
    Column::text("ADDRESS", "address"),
    Column::text("POOL", "pool"),
    Column::text("CONTAINER", "containerID"),
    Column::text("IFNAME", "ifname"),
    Column::text("RESERVATION", "reservation"),
    Column::text("NOTE", "note"),
];

fn repair(call: &InspectCall<'_>) -> Result<String> {
    let arguments = call.arguments();
    let mut session = call.open_ledger::<IpPools>()?.into_session();
    let mut flaws = session.flaws(arguments.operand(0))?;
    let is_done = arguments.has(&OptionSpec::YES);
    if is_done {
        session.mend(&mut flaws)?;
    }
    let mut text = print_rows(arguments, COLUMNS, flaws.iter().map(Flaw::to_row));
    if !arguments.has(&OptionSpec::JSON) {
        let doubtful = flaws.iter().filter(|flaw| matches!(flaw.state, FlawState::Doubtful(_)));
        let doubtful = doubtful.count();
        if doubtful > 0 {
            text.push_str(&format!("left alone, because doubtful: {doubtful}\n"));
        }
        text.push_str(match (doubtful == flaws.len(), is_done) {
            (true, _) => "nothing to repair\n",
            (false, true) => "repaired\n",
            (false, false) => "nothing was repaired; add --yes to do it\n",
        });
    }
    Ok(text)
}

/// An entry without a reservation of its own.
#[derive(Clone, Debug)]
struct Flaw {
    pool: String,
    subnet: IpNet,
    address: IpAddr,
    entry: PoolEntry,
    state: FlawState,
}

#[derive(Clone, Debug)]
enum FlawState {
    Missing,
    /// It exists now. Its state, if this call may have made it.
    Made(Option<ReservationMark>),
    /// It is not known which holder has the address, for this reason.
    Doubtful(String),
}

impl Flaw {
    fn to_row(&self) -> Row {
        let mut row = Row::default();
        row.set_text("address", &self.address.to_string());
        row.set_text("pool", &self.pool);
        row.set_text_or_null("containerID", self.entry.id.as_deref());
        row.set_text_or_null("ifname", self.entry.ifname.as_deref());
        let (state, note) = match &self.state {
            FlawState::Missing => ("missing", None),
            FlawState::Made(_) => ("made", None),
            FlawState::Doubtful(reason) => ("doubtful", Some(reason.as_str())),
        };
        row.set_text("reservation", state);
        row.set_text_or_null("note", note);
        row
    }
}

/// How often the reservation of an address is tried at most.
const TRIES: usize = 4;

/// How long a DEL may take from the reservation to the entry.
const DEL_TIME: Duration = Duration::from_secs(5);

/// Passes on what a selector makes of a configuration.
const FROM_SELECTOR: &str = "if a selector makes the ranges, as for whereabouts, send what it makes: `ipam-delegated explain \
     NETWORK --json | jq '.[0].delegates[-1].input' | ipam-da-kube repair --config -`";

impl LeaseSession {
    /// Finds the entries of a pool, or of those of the configuration, that have no reservation of
    /// their own, by address.
    ///
    /// # Errors
    /// The server does not answer; the network keeps no reservations; the pool is unknown.
    fn flaws(&mut self, pool: Option<&str>) -> Result<Vec<Flaw>> {
        if !self.overlap_check {
            let message = "false: the addresses of this network have no reservations";
            return Err(Error::config("ipam.kube.overlapCheck", message)
                .advise("set it to true on all nodes first"));
        }
        let pools = all_pools(self)?;
        let chosen = self.chosen_pools(pool, &pools)?;
        let reservations = self.reservations("")?;
        let mut holders: BTreeMap<IpAddr, Vec<(&str, &PoolEntry)>> = BTreeMap::new();
        for (name, pool) in &pools {
            for (_, address, entry) in pool.entries() {
                if let Some(address) = address {
                    holders.entry(address).or_default().push((name, entry));
                }
            }
        }
        let mut flaws = Vec::new();
        for (name, pool) in pools.iter().filter(|(name, _)| chosen.contains(*name)) {
            for (key, address, entry) in pool.entries() {
                let Some(address) = address.filter(|_| entry.id.is_some()) else { continue };
                let state = match reservations.get(&address) {
                    Some(reservation) if reservation.is_of(entry) => continue,
                    _ if key == "0" => FlawState::Doubtful(
                        "the fork of whereabouts writes the key 0 for several addresses".to_owned(),
                    ),
                    reservation => match doubt(name, &holders[&address], reservation) {
                        Some(reason) => FlawState::Doubtful(reason),
                        None => FlawState::Missing,
                    },
                };
                let (pool, subnet, entry) = (name.clone(), pool.subnet, entry.clone());
                flaws.push(Flaw { pool, subnet, address, entry, state });
            }
        }
        flaws.sort_by_key(|flaw| flaw.address);
        Ok(flaws)
    }

    /// Returns the names of the pools to look at.
    fn chosen_pools(
        &self,
        pool: Option<&str>,
        pools: &BTreeMap<String, ReadPool>,
    ) -> Result<BTreeSet<String>> {
        match pool {
            Some(name) if pools.contains_key(name) => Ok(BTreeSet::from([name.to_owned()])),
            Some(name) => {
                let namespace = self.store.namespace();
                let message =
                    format!("the namespace {namespace} has no IPPool {name:?} of the network");
                Err(Error::new(ErrorCode::INVALID_ENVIRONMENT, message)
                    .advise(format!("`kubectl get ippools.{GROUP} -n {namespace}` lists them"))
                    .advise(FROM_SELECTOR))
            }
            None if self.subnets.is_empty() => {
                let error = Error::config("ipam.ranges", "missing, so the pools are not known");
                Err(error.advise("name an IPPool").advise(FROM_SELECTOR))
            }
            None => Ok(self.subnets.iter().map(|subnet| self.pool_of(*subnet)).collect()),
        }
    }

    /// Makes the missing reservations. An entry that is released meanwhile gets none.
    ///
    /// # Errors
    /// The server does not answer. The reservations that were made for present entries stay.
    fn mend(&mut self, flaws: &mut Vec<Flaw>) -> Result<()> {
        let mut outcome = Ok(());
        for flaw in flaws.iter_mut().filter(|flaw| matches!(flaw.state, FlawState::Missing)) {
            match self.reserve_entry(flaw.address, &flaw.entry) {
                Ok(state) => flaw.state = state,
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if flaws.iter().any(|flaw| matches!(flaw.state, FlawState::Made(_))) {
            sleep(DEL_TIME);
        }
        // Nothing else finds a reservation whose entry is gone: look even after an error.
        let looked = self.withdraw_from_released(flaws);
        outcome.and(looked)
    }

    /// Takes away the entries that were released since they were found, with the reservations that
    /// were made for them: the release has looked for one before.
    fn withdraw_from_released(&mut self, flaws: &mut Vec<Flaw>) -> Result<()> {
        let mut present = BTreeMap::new();
        for flaw in &*flaws {
            if !present.contains_key(&flaw.pool) {
                present.insert(flaw.pool.clone(), ReadPool::read(self, &flaw.pool, flaw.subnet)?);
            }
        }
        let (left, gone) = flaws.drain(..).partition(|flaw| {
            // Releases since 0.8 replace the id of an entry for the pod's next sandbox.
            let holder = ReservationSpec::of(&flaw.entry);
            let mut entries = present[&flaw.pool].entries();
            entries.any(|(_, address, entry)| address == Some(flaw.address) && holder.is_of(entry))
        });
        *flaws = left;
        let mut outcome = Ok(());
        for flaw in gone {
            if let FlawState::Made(Some(mark)) = &flaw.state {
                outcome = outcome.and(self.delete_reservation(flaw.address, mark).map(drop));
            }
        }
        outcome
    }

    /// Makes the reservation of an entry, or finds it.
    fn reserve_entry(&mut self, address: IpAddr, entry: &PoolEntry) -> Result<FlawState> {
        let name = self.names.reservation(address);
        let mut may_be_made = false;
        for _ in 0..TRIES {
            match self.store.create_plain_reservation(&name, entry)? {
                Outcome::Done(head) => {
                    return Ok(FlawState::Made(Some(ReservationMark::of_metadata(&head.metadata))));
                }
                Outcome::Unknown => may_be_made = true,
                Outcome::Lost | Outcome::Missing => {}
            }
            match self.read_reservation(address)? {
                Some(present) if present.is_of(entry) => {
                    let mark = may_be_made.then(|| ReservationMark::of(&present));
                    return Ok(FlawState::Made(mark));
                }
                Some(present) => return Ok(FlawState::Doubtful(reserved_for(&present))),
                None => {}
            }
        }
        Err(may_be_held([address]))
    }
}

/// Returns why it is not known which holder has an address, if so.
fn doubt(
    pool: &str,
    holders: &[(&str, &PoolEntry)],
    reservation: Option<&Reservation>,
) -> Option<String> {
    if let Some((other, entry)) = holders.iter().find(|(name, _)| *name != pool) {
        let id = entry.id.as_deref().unwrap_or("an entry without id");
        return Some(format!("{other} has an entry of it, too: {id}"));
    }
    reservation.map(reserved_for)
}

fn reserved_for(reservation: &Reservation) -> String {
    let spec = &reservation.spec;
    let holder = spec.podref.as_ref().filter(|podref| !podref.is_empty());
    let holder = holder.or(spec.containerid.as_ref()).map_or("another holder", String::as_str);
    format!("reserved for {holder}")
}
