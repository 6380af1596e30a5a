//! The verbs that an allocator over a ledger answers to people: who holds what, how full the pools
//! are, and taking leases back.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};

use ipam_kit::allocate::ledger::{Entry, Fault};
use ipam_kit::allocate::{Allocate, Inspect, Ledger, Reach, RequestedPools, inspect, scope};
use ipam_kit::cni::address::parse_address;
use ipam_kit::delegate::{CliCall, Delegate, Request};
use ipam_kit::error::{Error, ErrorCode, Result};
use ipam_kit::keys::Key;
use ipam_kit::pool::{Pool, RangeSet};
use ipam_kit::text::visible;

use crate::lint;
use crate::{
    Column, Glyphs, Known, LeaseRow, LeaseState, POOL_COLUMNS, PoolRow, Row, Words, lease_columns,
    maps, read_file, table, use_percent,
};

const OPTIONS: &[Known] = &[
    Known { name: "json", value: None },
    Known { name: "yes", value: None },
    Known { name: "ascii", value: None },
    Known { name: "config", value: Some("FILE") },
    Known { name: "owner", value: Some("CONTAINER[/IFNAME]") },
    Known { name: "node", value: Some("NODE") },
];

/// Answers a verb that was typed: for `Allocate::answering`.
///
/// `version` and `about` tell the version of this package, not of the program.
pub fn answer<L: Ledger>(call: &CliCall) -> Result<String> {
    let first = call.arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    if !first.starts_with('-') {
        known_verb(call.name, first)?;
    }
    let words = Words::parse(&call.arguments, OPTIONS)?;
    let verb = words.verb().unwrap_or_default();
    known_verb(call.name, verb)?;
    let allowed: &[&str] = match verb {
        "list" | "who" => &["json", "config"],
        "pools" => &["json", "config", "ascii"],
        "release" => &["json", "config", "yes", "owner", "node"],
        "accept" | "lint" => &["json", "config"],
        "about" => &["json"],
        _ => &[],
    };
    words.only(allowed)?;
    match verb {
        "" | "help" => return Ok(help(call.name)),
        "version" => return Ok(format!("{} {}\n", call.name, env!("CARGO_PKG_VERSION"))),
        "about" => return Ok(about::<L>(call, words.has("json"))),
        _ => {}
    }
    let request = request(call, &words)?;
    let mut books = inspect::<L>(&request)?;
    let keys = Allocate::<L>::default().keys().unwrap_or_default();
    let mut desk = InspectCommand { books: &mut books, request: &request, reach: L::REACH, keys };
    match verb {
        "list" => desk.list(&words),
        "who" => desk.who(&words),
        "pools" => desk.pools(&words, Glyphs::of(&call.environment)),
        "accept" => desk.accept(&words),
        "lint" => desk.lint(&words),
        _ => desk.release(&words),
    }
}

/// Refuses a verb that is not answered here; empty is help.
fn known_verb(name: &str, verb: &str) -> Result<()> {
    let refusal = || Words::refusal(format!("{name} has no verb {verb:?}"));
    match verb {
        "" | "list" | "who" | "pools" | "release" | "accept" | "lint" | "about" | "help"
        | "version" => Ok(()),
        "attachments" | "reap" | "reassert" | "forget" | "explain" => {
            Err(refusal().advise(format!("ipam-delegated {verb} does it")))
        }
        _ => Err(refusal()),
    }
}

/// The books of one network.
struct InspectCommand<'a> {
    books: &'a mut dyn Inspect,
    request: &'a Request,
    reach: Reach,
    /// The keys of `ipam` that the allocator reads, where it says so.
    keys: Vec<Key>,
}

impl InspectCommand<'_> {
    fn list(&mut self, words: &Words) -> Result<String> {
        no_operands(words)?;
        let entries = self.entries(|_| true)?;
        self.print(words, &entries)
    }

    fn who(&mut self, words: &Words) -> Result<String> {
        let wanted = addresses(words)?;
        let [address] = wanted[..] else {
            return Err(Words::refusal("who: expected one address"));
        };
        let entries = self.entries(|entry| entry.lease.address.addr() == address)?;
        if entries.is_empty() && !words.has("json") {
            return Err(self.nobody_holds(address));
        }
        self.print(words, &entries)
    }

    fn pools(&mut self, words: &Words, glyphs: Glyphs) -> Result<String> {
        no_operands(words)?;
        let asked = self.known_pools()?;
        let pools = &asked.pools;
        let sets = self.books.sets(pools).map_err(|error| asked.explain(error))?;
        let mut held: Vec<Vec<IpAddr>> = vec![Vec::new(); sets.len()];
        self.books.entries(&mut |entry| {
            let address = entry.lease.address.addr();
            for (set, held) in sets.iter().zip(&mut held) {
                if set.refusal(address).is_none() {
                    held.push(address);
                }
            }
            ControlFlow::Continue(())
        })?;
        let rows: Vec<PoolRow> = pools
            .iter()
            .zip(&sets)
            .zip(held)
            .map(|((pool, set), held)| PoolRow::of(pool.name(), set, held))
            .collect();
        let shown = rows.iter().map(|row| {
            let mut shown = row_of(row.to_json());
            shown.value("usePercent", use_percent(row).into());
            shown
        });
        let mut text = print(words, POOL_COLUMNS, shown.collect());
        if !words.has("json") {
            text.push_str(&maps(&rows, if words.has("ascii") { Glyphs::Ascii } else { glyphs }));
        }
        Ok(text)
    }

    fn release(&mut self, words: &Words) -> Result<String> {
        let wanted = addresses(words)?;
        let (owner, node) = (words.value("owner"), words.value("node"));
        if wanted.is_empty() && owner.is_none() && node.is_none() {
            return Err(Words::refusal(
                "release: name addresses, --owner CONTAINER[/IFNAME] or --node NODE",
            ));
        }
        // A store of one node holds no other's leases, and need not name it.
        let this_node = match self.reach {
            Reach::Node => Some(scope(self.request)?.node),
            Reach::Cluster => None,
        };
        let chosen = self.entries(|entry| {
            let by_address = wanted.is_empty() || wanted.contains(&entry.lease.address.addr());
            let is_ours = entry.holder.as_ref().is_none_or(|holder| holder.network.is_none());
            let by_name = owner.is_some() || node.is_some();
            by_address
                && (is_ours || !by_name)
                && owner.is_none_or(|owner| is_of(entry, owner))
                && node.is_none_or(|node| {
                    let holder = entry.holder.as_ref();
                    holder.is_some_and(|h| {
                        h.node.as_ref().or(this_node.as_ref()).is_some_and(|its| its == node)
                    })
                })
        })?;
        if !words.has("json") && owner.is_none() && node.is_none() {
            let nobodys = |address: &&IpAddr| {
                !chosen.iter().any(|entry| entry.lease.address.addr() == **address)
            };
            if let Some(address) = wanted.iter().find(nobodys) {
                return Err(self.nobody_holds(*address));
            }
        }
        if let (Some(owner), true, false) = (owner, chosen.is_empty(), words.has("json")) {
            let message = format!("{owner} holds no address on {}", self.request.network.name());
            return Err(Error::new(ErrorCode::NOT_HELD, message)
                .advise("name the container by its whole id, as list shows it"));
        }
        let rows = if words.has("yes") { self.books.remove(&chosen)? } else { chosen };
        let mut text = self.print(words, &rows)?;
        if !words.has("json") {
            text.push_str(match (rows.is_empty(), words.has("yes")) {
                (true, _) => "nothing to release\n",
                (_, true) => "released\n",
                (_, false) => "not released: add --yes to do it\n",
            });
        }
        Ok(text)
    }

    fn accept(&mut self, words: &Words) -> Result<String> {
        no_operands(words)?;
        let accepted = self.books.accept()?;
        if words.has("json") {
            return Ok(format!("{}\n", json!({"accepted": accepted})));
        }
        Ok(match accepted {
            true => "accepted: the store as it stands is the one to use\n",
            false => "nothing to accept: this store is not told from another\n",
        }
        .to_owned())
    }

    fn lint(&mut self, words: &Words) -> Result<String> {
        no_operands(words)?;
        let asked = self.known_pools()?;
        let rows = lint::findings(self.books, self.request, &self.keys, &asked)?;
        if words.has("json") {
            return Ok(json_array(rows.into_iter().map(Value::from)));
        }
        let line = |row: &Row| {
            let line = [row.text_of("level"), ": ", row.text_of("message")].concat();
            [&visible(&line), "\n"].concat()
        };
        Ok(rows.iter().map(line).collect())
    }

    fn nobody_holds(&mut self, address: IpAddr) -> Error {
        let message = format!("nobody holds {address} on {}", self.request.network.name());
        let error = Error::new(ErrorCode::NOT_HELD, message);
        let sets = self.known_pools().and_then(|asked| self.books.sets(&asked.pools));
        let Ok(sets) = sets else { return error };
        let set = sets.iter().find(|set| set.find(address).is_some());
        let why = set.map_or_else(
            || Some("in no range of the pools".to_owned()),
            |set| set.refusal(address),
        );
        error.advise(format!("it is {}", why.unwrap_or("free".to_owned())))
    }

    fn entries(&mut self, wanted: impl Fn(&Entry) -> bool) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.books.entries(&mut |entry| {
            if wanted(&entry) {
                entries.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        entries.sort_by_key(|entry| entry.lease.address.addr());
        Ok(entries)
    }

    /// The node that the chain named, where the store holds no other's leases.
    fn this_node(&self) -> Option<String> {
        if self.reach == Reach::Cluster {
            return None;
        }
        let node = self.request.network.ipam().get("node")?.as_str()?;
        (!node.is_empty()).then(|| node.to_owned())
    }

    fn known_pools(&self) -> Result<RequestedPools> {
        RequestedPools::of(self.request, &self.request.prev_result()?)
    }

    fn print(&mut self, words: &Words, entries: &[Entry]) -> Result<String> {
        // Pools that cannot be read name no row, and keep nobody from a lease.
        let pools = self.known_pools().map(|asked| asked.pools).unwrap_or_default();
        let sets = self.books.sets(&pools).unwrap_or_default();
        let row = |entry| self.row(entry, &pools, &sets).to_json();
        if words.has("json") {
            return Ok(json_array(entries.iter().map(row)));
        }
        let rows: Vec<Row> = entries.iter().map(|entry| row_of(row(entry))).collect();
        Ok(table(&lease_columns(&rows), &rows))
    }

    fn row(&self, entry: &Entry, pools: &[Pool], sets: &[RangeSet]) -> LeaseRow {
        let address = entry.lease.address.addr();
        let of_pool = || {
            let place = sets.iter().position(|set| set.find(address).is_some())?;
            pools[place].name().map(str::to_owned)
        };
        let holder = entry.holder.as_ref();
        let age = entry.since.and_then(|since| SystemTime::now().duration_since(since).ok());
        LeaseRow {
            address,
            pool: entry.lease.pool.clone().or_else(of_pool),
            container: holder.map(|holder| holder.container.clone()),
            ifname: holder.and_then(|holder| holder.ifname.clone()),
            node: holder.and_then(|holder| holder.node.clone().or_else(|| self.this_node())),
            age: age.map(|age| age.as_secs()),
            state: match entry.fault {
                None => LeaseState::Held,
                Some(Fault::Leftover) => LeaseState::Leftover,
                Some(Fault::Unreadable(_)) => LeaseState::Unreadable,
            },
            note: match &entry.fault {
                Some(Fault::Unreadable(reason)) => Some(reason.clone()),
                _ => None,
            },
        }
    }
}

/// Whether an entry is held by `CONTAINER` or `CONTAINER/IFNAME`.
fn is_of(entry: &Entry, owner: &str) -> bool {
    let Some(holder) = &entry.holder else { return false };
    match owner.split_once('/') {
        None => holder.container == owner,
        Some((container, ifname)) => {
            holder.container == container && holder.ifname.as_deref() == Some(ifname)
        }
    }
}

fn request(call: &CliCall, words: &Words) -> Result<Request> {
    match words.value("config") {
        None => Err(Words::refusal(format!(
            "{}: --config FILE names the network configuration",
            words.verb().unwrap_or_default()
        ))
        .advise("ipam-delegated finds it by the network's name")),
        Some("-") => call.request(&call.stdin),
        Some(path) => {
            let config = read_file(Path::new(path))?;
            call.request(&config).map_err(|error| error.within(path))
        }
    }
}

fn addresses(words: &Words) -> Result<Vec<IpAddr>> {
    let parse = |word: &str| parse_address(word).map_err(|error| Words::refusal(error.to_string()));
    words.operands().into_iter().map(parse).collect()
}

fn no_operands(words: &Words) -> Result<()> {
    match words.operands()[..] {
        [] => Ok(()),
        [first, ..] => Err(Words::refusal(format!("{first:?} is not understood"))),
    }
}

fn row_of(value: Value) -> Row {
    match value {
        Value::Object(members) => Row::from(members),
        _ => Row::default(),
    }
}

fn print(words: &Words, columns: &[Column], rows: Vec<Row>) -> String {
    if words.has("json") {
        return json_array(rows.into_iter().map(Value::from));
    }
    table(columns, &rows)
}

/// An array on one line. Each row becomes text at once: of a large ledger all of them as values
/// would take hundreds of megabytes.
fn json_array(rows: impl Iterator<Item = Value>) -> String {
    let mut text = String::from("[");
    for row in rows {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&row.to_string());
    }
    text + "]\n"
}

fn about<L: Ledger>(call: &CliCall, as_json: bool) -> String {
    if as_json {
        let keys = Allocate::<L>::default().keys();
        return format!("{}\n", call.about("allocator", Some(L::REACH), keys.as_deref()));
    }
    let (name, version, reach) = (call.name, env!("CARGO_PKG_VERSION"), L::REACH.as_str());
    format!("{name} {version}: an allocator whose store serves this {reach}\n")
}

fn help(name: &str) -> String {
    format!(
        "\
{name} gives addresses as a CNI IPAM delegate; runtimes call it with CNI_COMMAND set.

usage (FILE is a network configuration, or - for stdin):
  {name} list --config FILE [--json]            who holds which address
  {name} who ADDRESS --config FILE [--json]     who holds one address
  {name} pools --config FILE [--json] [--ascii] how full the pools are
  {name} release (ADDRESS… | --owner CONTAINER[/IFNAME] | --node NODE) --config FILE [--yes] [--json]
                                                takes leases back; a dry run unless --yes
  {name} lint --config FILE [--json]            how the pools stand, and what in them is no lease
  {name} accept --config FILE [--json]          trusts a store that was swapped or restored, see
                                                ipam-delegated reassert
  {name} about [--json] | help | version

The pools are those of prevResult.pools, else what ipam has: pools, ranges or subnet.
ipam-delegated has the same verbs by the network's name, and asks its selectors for the pools.
"
    )
}
