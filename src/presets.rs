//! The systems whose place a chain takes under their own name.

use ipam_delegated::chain::{Preset, PresetChain};

/// Every preset.
pub const PRESETS: &[Preset] = &[HOST_LOCAL];

const HOST_LOCAL: Preset = Preset {
    name: "host-local",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
    }],
    has_default_place: true,
    differences: &[
        "ADD of an attachment that already holds an address succeeds and gives that address again; \
         host-local fails with \"duplicate allocation is not allowed\".",
        "DEL succeeds when the runtime strips the configuration of all but the type; host-local \
         fails with \"no IP ranges specified\".",
        "GC releases what no attachment holds; host-local has no GC.",
    ],
};
