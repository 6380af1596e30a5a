//! The table of the verbs.

use super::call::Operator;
use super::options::{
    ARGS, CACHE_DIR, CLAIM_ONLY, CNI_PATH, CONF_DIR, CONTAINER, IFNAME, NO_CACHE, PINNED,
    STATE_DIR, TIMEOUT,
};
use super::printed::Printed;
use super::{attachments, explain, forget, lint, list, pools, reap, reassert, release, who};
use crate::chain::Names;
use ipam_cli::{Cli, CliVerb, OptionSpec};
use ipam_kit::error::Result;

/// A function that runs a verb.
pub(super) type RunVerb = fn(&Operator) -> Result<Printed>;

const VERBS: &[CliVerb<RunVerb>] = &[
    CliVerb {
        name: "list",
        operands: &["NETWORK"],
        about: "lists which container holds which address, with the state of its record",
        options: &[OptionSpec::JSON],
        run: list::run,
    },
    CliVerb {
        name: "who",
        operands: &["NETWORK", "ADDRESS"],
        about: "shows which container and pod holds one address, or why it is free",
        options: &[OptionSpec::JSON],
        run: who::run,
    },
    CliVerb {
        name: "pools",
        operands: &["NETWORK"],
        about: "shows how full each pool is, with a map",
        options: &[OptionSpec::JSON, OptionSpec::ASCII],
        run: pools::run,
    },
    CliVerb {
        name: "release",
        operands: &["NETWORK", "[ADDRESS…]"],
        about: "releases addresses; a dry run without --yes",
        options: &[OptionSpec::JSON, OptionSpec::YES, OptionSpec::OWNER, OptionSpec::NODE],
        run: release::run,
    },
    CliVerb {
        name: "attachments",
        operands: &["[NETWORK]"],
        about: "lists the records of this node's attachments, with state and reason",
        options: &[OptionSpec::JSON],
        run: attachments::run,
    },
    CliVerb {
        name: "reap",
        operands: &["[NETWORK]"],
        about: "releases addresses of containers that are gone; a dry run without --yes",
        options: &[OptionSpec::JSON, OptionSpec::YES, PINNED, TIMEOUT, CACHE_DIR, NO_CACHE],
        run: reap::run,
    },
    CliVerb {
        name: "reassert",
        operands: &["[NETWORK]"],
        about: "claims recorded addresses in a restored store; a dry run without --yes",
        options: &[OptionSpec::JSON, OptionSpec::YES, CLAIM_ONLY],
        run: reassert::run,
    },
    CliVerb {
        name: "forget",
        operands: &["NETWORK", "CONTAINER", "[IFNAME]"],
        about: "drops a record that no DEL can end; a dry run without --yes",
        options: &[OptionSpec::YES],
        run: forget::run,
    },
    CliVerb {
        name: "lint",
        operands: &["NETWORK"],
        about: "checks a network: its chain, state, pools and unsafe settings",
        options: &[OptionSpec::JSON, CACHE_DIR],
        run: lint::run,
    },
    CliVerb {
        name: "explain",
        operands: &["NETWORK"],
        about: "runs ADD dry: shows the input of each delegate and the answers of selectors",
        options: &[OptionSpec::JSON, CONTAINER, IFNAME, ARGS],
        run: explain::run,
    },
];

/// The calls that `ipam-delegated` takes from people.
pub(super) fn cli(names: Names) -> Cli<RunVerb> {
    let presets: Vec<&str> = names.presets.iter().map(|preset| preset.name).collect();
    let built_in: Vec<&str> = names.built_in.iter().map(|built_in| built_in.name).collect();
    // install.sh reads these lines.
    let mut ending = String::new();
    for (title, names) in [("presets", presets), ("built in", built_in)] {
        if !names.is_empty() {
            ending += &format!("\n{title}: {}\n", names.join(", "));
        }
    }
    Cli {
        program: "ipam-delegated",
        version: env!("CARGO_PKG_VERSION"),
        about: "runs a chain of IPAM delegates; container runtimes call it with \
                CNI_COMMAND set.",
        verbs: VERBS.iter().collect(),
        options: &[CONF_DIR, CNI_PATH, STATE_DIR],
        notes: "\nNETWORK is a network's name, or the path of its configuration file.\n",
        ending,
    }
}
