//! A meta-plugin with presets of your own: a whole chain under one name.
//!
//! Installed as `rack-local` (a symlink), it turns `"ipam": {"type": "rack-local", …}` into the
//! chain below. The same name works among the delegates of a longer chain.

use std::process::ExitCode;

use ipam_delegated::chain::{ChainCondition, Preset, PresetChain};

const PRESETS: &[Preset] = &[Preset {
    name: "rack-local",
    // The first chain whose condition holds is run.
    chains: &[
        // `"scope": "site"`: racks share one store, each has a pool there.
        PresetChain {
            when: ChainCondition::Is("scope", "site"),
            delegates: &["ipam-ds-rack", "ipam-da-site"],
            settings: &[("rackFile", r#""/etc/rack""#)],
            sets: &[],
        },
        // Otherwise each host gives out its own ranges.
        PresetChain {
            when: ChainCondition::Always,
            delegates: &["ipam-ds-static", "host-local"],
            settings: &[("dataDir", r#""/var/lib/cni/rack-local""#)],
            sets: &[],
        },
    ],
    has_default_location: false,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: &[],
}];

fn main() -> ExitCode {
    ipam_delegated::main(PRESETS)
}
