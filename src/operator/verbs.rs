//! The verbs and their options, and the help that shows them.

use super::{
    Operator, Printed, attachments, explain, forget, lint, list, pools, reap, reassert, release,
    say, who,
};
use crate::chain::Preset;
use ipam_cli::Known;
use ipam_kit::error::Result;

/// A verb, as the help shows it.
pub(crate) struct Verb {
    pub name: &'static str,
    operands: &'static str,
    about: &'static str,
    pub options: &'static [&'static str],
    pub run: fn(&Operator) -> Result<Printed>,
}

/// Options that find a network and its programs.
pub(crate) const FIND: [&str; 3] = ["conf-dir", "cni-path", "state-dir"];

pub(crate) const VERBS: &[Verb] = &[
    Verb {
        name: "list",
        operands: "NETWORK",
        about: "who holds which address, and what this node's records say of it",
        options: &["json"],
        run: list::run,
    },
    Verb {
        name: "who",
        operands: "NETWORK ADDRESS",
        about: "who holds one address",
        options: &["json"],
        run: who::run,
    },
    Verb {
        name: "pools",
        operands: "NETWORK",
        about: "how full the pools are, with a map of each",
        options: &["json", "ascii"],
        run: pools::run,
    },
    Verb {
        name: "release",
        operands: "NETWORK ADDRESS…",
        about: "takes addresses back into their pools; a dry run unless --yes",
        options: &["json", "yes", "owner", "node"],
        run: release::run,
    },
    Verb {
        name: "attachments",
        operands: "[NETWORK]",
        about: "what this node's records say of its attachments",
        options: &["json"],
        run: attachments::run,
    },
    Verb {
        name: "reap",
        operands: "[NETWORK]",
        about: "releases what containers that are gone have left; a dry run unless --yes",
        options: &["json", "yes", "pinned", "timeout", "cache-dir", "no-cache"],
        run: reap::run,
    },
    Verb {
        name: "reassert",
        operands: "[NETWORK]",
        about: "claims again in a restored store what containers hold; a dry run unless --yes",
        options: &["json", "yes", "claim-only"],
        run: reassert::run,
    },
    Verb {
        name: "forget",
        operands: "NETWORK CONTAINER [IFNAME]",
        about: "drops a record that no DEL can end; a dry run unless --yes",
        options: &["yes"],
        run: forget::run,
    },
    Verb {
        name: "lint",
        operands: "NETWORK",
        about: "which chain a network runs on which state, and what is unsafe about it",
        options: &["json", "cache-dir"],
        run: lint::run,
    },
    Verb {
        name: "explain",
        operands: "NETWORK",
        about: "a dry run of ADD: what each delegate would get, and what selectors answer",
        options: &["json", "container", "ifname", "args"],
        run: explain::run,
    },
];

/// Every option, and what the help says of it.
pub(crate) const KNOWN: &[(Known, &str)] = &[
    (alone("json"), "for programs"),
    (alone("yes"), "do it; without, the verb only shows what it would do"),
    (
        alone("claim-only"),
        "claim, but do not trust the store yet: first on every node, then again without it",
    ),
    (alone("ascii"), "draw the map without Unicode blocks"),
    (with("owner", "OWNER"), "instead of ADDRESS: what CONTAINER or CONTAINER/IFNAME holds"),
    (with("node", "NODE"), "instead of ADDRESS: what a node holds"),
    (with("container", "ID"), "the container id of the dry run"),
    (with("ifname", "IFNAME"), "the interface of the dry run"),
    (
        with("args", "CNI_ARGS"),
        "the CNI_ARGS of the dry run, as in K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop",
    ),
    (
        with("conf-dir", "DIR"),
        "where networks are configured, instead of /etc/cni/net.d and /opt/cni/config",
    ),
    (with("cni-path", "DIRS"), "the plugin folders, with : between them"),
    (
        with("state-dir", "DIR"),
        "the state folder, where a network configuration sets ipam.stateDir",
    ),
    (with("cache-dir", "DIR"), "the runtimes' result cache, instead of /var/lib/cni/results"),
    (alone("no-cache"), "no runtime of this host keeps a result cache"),
    (alone("pinned"), "release also where no process lives in the network namespace"),
    (with("timeout", "TIME"), "the time for all records, instead of 5m"),
];

const fn alone(name: &'static str) -> Known {
    Known { name, value: None }
}

const fn with(name: &'static str, value: &'static str) -> Known {
    Known { name, value: Some(value) }
}

/// What there is to type, a line each.
pub(crate) fn help(presets: &[Preset]) -> String {
    let mut text = String::from(
        "ipam-delegated runs a chain of IPAM delegates; container runtimes call it with \
         CNI_COMMAND set.\n\nusage: ipam-delegated VERB …\n",
    );
    for verb in VERBS {
        let left = [verb.name, verb.operands].join(" ");
        say(&mut text, &["  ", &padded(left, 34), verb.about, "\n"]);
    }
    text.push_str(
        "  help, version\n\n\
         NETWORK is a network's name, or the path of its configuration file.\n\noptions:\n",
    );
    for (known, about) in KNOWN {
        let left = ["--", known.name, " ", known.value.unwrap_or_default()].concat();
        let verbs: Vec<&str> = VERBS
            .iter()
            .filter(|verb| verb.options.contains(&known.name))
            .map(|verb| verb.name)
            .collect();
        say(&mut text, &["  ", &padded(left, 18), about]);
        if !verbs.is_empty() && verbs.len() < VERBS.len() / 2 {
            say(&mut text, &[" (", &verbs.join(", "), ")"]);
        }
        text.push('\n');
    }
    if !presets.is_empty() {
        let names: Vec<&str> = presets.iter().map(|preset| preset.name).collect();
        // install.sh reads this line.
        text.push('\n');
        say(&mut text, &["presets: ", &names.join(", "), "\n"]);
    }
    text
}

fn padded(mut left: String, width: usize) -> String {
    while left.chars().count() < width {
        left.push(' ');
    }
    left + " "
}
