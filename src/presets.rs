use ipam_delegated::chain::{Preset, PresetChain};

/// The systems whose place a chain takes under their own name.
pub const PRESETS: &[Preset] = &[Preset {
    name: "host-local",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-local"],
        settings: &[("rangeRules", "\"host-local\"")],
    }],
    has_default_place: true,
}];
