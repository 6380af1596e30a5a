//! The verbs of an allocator over a ledger that people type: leases, the use of pools, and taking
//! leases back.

mod leases;
mod lint;
mod pools;

use std::ops::ControlFlow;
use std::path::Path;

use serde_json::json;

use ipam_kit::allocate::ledger::Entry;
use ipam_kit::allocate::{Allocate, Inspect, Ledger, Reach, RequestedPools, inspect};
use ipam_kit::delegate::{CliCall, Delegate, Request};
use ipam_kit::error::Result;
use ipam_kit::keys::Key;

use crate::{Arguments, Cli, CliRequest, CliVerb, OptionSpec, read_file};

const CONFIG: OptionSpec = OptionSpec::with_value(
    "config",
    "FILE",
    "the file of the network's configuration; - for stdin",
)
.required();

/// Runs a verb and returns its output.
type RunInspect = fn(&InspectCall<'_>) -> Result<String>;

const VERBS: &[CliVerb<RunInspect>] = &[
    CliVerb {
        name: "list",
        operands: &[],
        about: "lists the leases: which container holds which address",
        options: &[CONFIG, OptionSpec::JSON],
        run: leases::list,
    },
    CliVerb {
        name: "who",
        operands: &["ADDRESS"],
        about: "shows which container holds one address",
        options: &[CONFIG, OptionSpec::JSON],
        run: leases::who,
    },
    CliVerb {
        name: "pools",
        operands: &[],
        about: "shows how full each pool is, with a map",
        options: &[CONFIG, OptionSpec::JSON, OptionSpec::ASCII],
        run: pools::pools,
    },
    CliVerb {
        name: "release",
        operands: &["[ADDRESS…]"],
        about: "releases addresses; a dry run without --yes",
        options: &[CONFIG, OptionSpec::JSON, OptionSpec::YES, OptionSpec::OWNER, OptionSpec::NODE],
        run: leases::release,
    },
    CliVerb {
        name: "lint",
        operands: &[],
        about: "checks the configuration, the pools and the entries of the store",
        options: &[CONFIG, OptionSpec::JSON],
        run: lint::lint,
    },
    CliVerb {
        name: "accept",
        operands: &[],
        about: "trusts a store that was swapped or restored; see ipam-delegated reassert",
        options: &[CONFIG, OptionSpec::JSON],
        run: accept,
    },
    CliVerb {
        name: "about",
        operands: &[],
        about: "describes this program",
        options: &[OptionSpec::JSON],
        run: about,
    },
];

/// The verbs that `ipam-delegated` alone has.
const VERBS_OF_THE_CHAIN: [&str; 5] = ["attachments", "reap", "reassert", "forget", "explain"];

/// The verbs that `ipam-delegated` has too.
const VERBS_OF_A_NETWORK: [&str; 5] = ["list", "who", "pools", "release", "lint"];

const NOTES: &str = "
Pools are read from prevResult.pools; if that is missing, from pools, ranges or subnet in ipam.
ipam-delegated has the same verbs: it finds a network by its name, and runs its selectors.
";

/// Answers a typed verb: for `Allocate::answering`.
///
/// `version` and `about` print the version of this package, not of the program.
///
/// # Errors
/// Error 4: the call is mistyped; else the verb's own error.
pub fn answer<L: Ledger + 'static>(call: &CliCall) -> Result<String> {
    let cli = Cli {
        program: call.name,
        version: env!("CARGO_PKG_VERSION"),
        about: "is a CNI IPAM delegate that gives addresses; runtimes call it with CNI_COMMAND set.",
        verbs: VERBS,
        options: &[],
        notes: NOTES,
        ending: String::new(),
    };
    let parsed = cli.parse(&call.arguments).map_err(|error| {
        let first = call.arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
        let has_config = call.arguments.iter().any(|word| word.to_string_lossy() == "--config");
        if VERBS_OF_THE_CHAIN.contains(&first) {
            error.advise(format!("ipam-delegated {first} does it"))
        } else if VERBS_OF_A_NETWORK.contains(&first) && !has_config {
            error.advise(format!("ipam-delegated {first} finds the file by the network's name"))
        } else {
            error
        }
    })?;
    match parsed {
        CliRequest::Text(text) => Ok(text),
        CliRequest::Verb(run, arguments) => run(&InspectCall {
            call,
            arguments,
            reach: L::REACH,
            keys: Allocate::<L>::default().keys(),
            open: |request| Ok(Box::new(inspect::<L>(request)?)),
        }),
    }
}

/// A person's call of an allocator.
struct InspectCall<'a> {
    call: &'a CliCall,
    arguments: Arguments,
    reach: Reach,
    /// The keys of `ipam` that the allocator reads; `None` if it does not say.
    keys: Option<Vec<Key>>,
    open: fn(&Request) -> Result<Box<dyn Inspect>>,
}

/// The ledger of the network that a call is about.
struct NetworkLedger<'a> {
    call: &'a InspectCall<'a>,
    request: Request,
    ledger: Box<dyn Inspect>,
}

impl InspectCall<'_> {
    /// Opens the ledger of the network that `--config` names.
    fn open(&self) -> Result<NetworkLedger<'_>> {
        let request = match self.arguments.value(&CONFIG).unwrap_or_default() {
            "-" => self.call.request(&self.call.stdin)?,
            path => {
                let config = read_file(Path::new(path))?;
                self.call.request(&config).map_err(|error| error.within(path))?
            }
        };
        let ledger = (self.open)(&request)?;
        Ok(NetworkLedger { call: self, request, ledger })
    }

    fn has(&self, option: &OptionSpec) -> bool {
        self.arguments.has(option)
    }

    fn prints_json(&self) -> bool {
        self.has(&OptionSpec::JSON)
    }
}

impl NetworkLedger<'_> {
    /// The entries that are wanted, by address.
    fn entries(&mut self, is_wanted: impl Fn(&Entry) -> bool) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.ledger.entries(&mut |entry| {
            if is_wanted(&entry) {
                entries.push(entry);
            }
            ControlFlow::Continue(())
        })?;
        entries.sort_by_key(|entry| entry.lease.address.addr());
        Ok(entries)
    }

    fn requested_pools(&self) -> Result<RequestedPools> {
        RequestedPools::of(&self.request, &self.request.prev_result()?)
    }
}

fn accept(call: &InspectCall<'_>) -> Result<String> {
    let accepted = call.open()?.ledger.accept()?;
    if call.prints_json() {
        return Ok(format!("{}\n", json!({"accepted": accepted})));
    }
    Ok(match accepted {
        true => "accepted: the store is trusted as it is\n",
        false => "nothing to accept: the store has no identity that could change\n",
    }
    .to_owned())
}

fn about(call: &InspectCall<'_>) -> Result<String> {
    if call.prints_json() {
        let about = call.call.about("allocator", Some(call.reach), call.keys.as_deref());
        return Ok(format!("{about}\n"));
    }
    let (name, version) = (call.call.name, env!("CARGO_PKG_VERSION"));
    let reach = call.reach.as_str();
    Ok(format!("{name} {version}: an allocator whose store serves this {reach}\n"))
}
