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

/// Runs a verb and returns its output.
pub type RunInspect = fn(&InspectCall<'_>) -> Result<String>;

const VERBS: &[CliVerb<RunInspect>] = &[
    CliVerb {
        name: "list",
        operands: &[],
        about: "lists the leases: which container holds which address",
        options: &[OptionSpec::CONFIG, OptionSpec::JSON],
        run: leases::list,
    },
    CliVerb {
        name: "who",
        operands: &["ADDRESS"],
        about: "shows which container holds one address",
        options: &[OptionSpec::CONFIG, OptionSpec::JSON],
        run: leases::who,
    },
    CliVerb {
        name: "pools",
        operands: &[],
        about: "shows how full each pool is, with a map",
        options: &[OptionSpec::CONFIG, OptionSpec::JSON, OptionSpec::ASCII],
        run: pools::pools,
    },
    CliVerb {
        name: "release",
        operands: &["[ADDRESS…]"],
        about: "releases addresses; a dry run without --yes",
        options: &[
            OptionSpec::CONFIG,
            OptionSpec::JSON,
            OptionSpec::YES,
            OptionSpec::OWNER,
            OptionSpec::NODE,
        ],
        run: leases::release,
    },
    CliVerb {
        name: "lint",
        operands: &[],
        about: "checks the configuration, the pools and the entries of the store",
        options: &[OptionSpec::CONFIG, OptionSpec::JSON],
        run: lint::lint,
    },
    CliVerb {
        name: "accept",
        operands: &[],
        about: "trusts a store that was swapped or restored; see ipam-delegated reassert",
        options: &[OptionSpec::CONFIG, OptionSpec::JSON],
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
With list, who, pools, release and lint, ipam-delegated finds a network by its name, and runs its selectors.
";

/// Answers a typed verb: for `Allocate::answering`.
///
/// `version` and `about` print the version of this package, not of the program.
///
/// # Errors
/// Error 4: the call is mistyped; else the verb's own error.
pub fn answer<L: Ledger + 'static>(call: &CliCall) -> Result<String> {
    answer_with::<L>(call, &[])
}

/// Answers a typed verb of an allocator that has more verbs than others.
///
/// # Errors
/// As [`answer`].
pub fn answer_with<L: Ledger + 'static>(
    call: &CliCall,
    more: &'static [CliVerb<RunInspect>],
) -> Result<String> {
    let cli = Cli {
        program: call.name,
        version: env!("CARGO_PKG_VERSION"),
        about: "is a CNI IPAM delegate that gives addresses; runtimes call it with CNI_COMMAND set.",
        verbs: VERBS.iter().chain(more).collect(),
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
pub struct InspectCall<'a> {
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
    /// Opens a ledger of the network that `--config` names, for a verb that the ledger alone has.
    ///
    /// # Errors
    /// The file cannot be read, or the ledger refuses the settings.
    pub fn open_ledger<L: Ledger>(&self) -> Result<L> {
        let request = self.request()?;
        L::open(request.network.settings()?, &request)
    }

    /// The words that the person typed.
    pub fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    fn open(&self) -> Result<NetworkLedger<'_>> {
        let request = self.request()?;
        let ledger = (self.open)(&request)?;
        Ok(NetworkLedger { call: self, request, ledger })
    }

    fn request(&self) -> Result<Request> {
        match self.arguments.value(&OptionSpec::CONFIG).unwrap_or_default() {
            "-" => self.call.request(&self.call.stdin),
            path => {
                let config = read_file(Path::new(path))?;
                self.call.request(&config).map_err(|error| error.within(path))
            }
        }
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
