//! The systems whose place a chain takes under their own name.

use ipam_delegated::chain::{Preset, PresetChain};

/// Every preset.
pub const PRESETS: &[Preset] = &[HOST_LOCAL, CNI_IPAM_ETCD, HOST_ETCD];

const HOST_LOCAL: Preset = Preset {
    name: "host-local",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
    }],
    has_default_place: true,
    differences: HOST_LOCAL_DIFFERENCES,
};

/// cni-ipam-etcd, whose program is called `etcd`.
const CNI_IPAM_ETCD: Preset = Preset {
    name: "etcd",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"cni-ipam-etcd"}"#)],
    }],
    has_default_place: false,
    differences: &[],
};

const HOST_ETCD: Preset = Preset {
    name: "host-etcd",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"host-etcd"}"#)],
    }],
    has_default_place: false,
    differences: &[],
};

/// What changes for a network whose host-local this preset replaces.
pub const HOST_LOCAL_DIFFERENCES: &[&str] = &[
    "An ADD for an attachment that already holds its addresses succeeds and gives them again; \
     host-local fails with \"duplicate allocation is not allowed\", and podman's first start after \
     a reboot with it.",
    "An ADD that requests another address than the one held takes it and gives the old one back; \
     host-local keeps both.",
    "A failed ADD moves no cursor, takes nothing from an earlier ADD, and makes no folder for a \
     request that is refused; host-local moves `last_reserved_ip` on, and may release what the \
     container holds.",
    "DEL uses the configuration of the ADD: the present one may be edited, broken or stripped of \
     all but `type`; host-local needs valid ranges.",
    "CHECK fails when the container no longer holds an address of the result; host-local is \
     content with any address.",
    "GC releases leases of containers that are not in the runtime's list and are older than \
     `gcGrace`; host-local's GC does nothing.",
    "STATUS fails when the leases cannot be written; host-local's always succeeds. Older releases, \
     such as 1.1.1 of Debian 12, know neither GC nor STATUS nor `cniVersion` 1.1.0.",
    "An empty lease file, which a killed host-local leaves and which blocks its address for ever, \
     is used again after 5 minutes.",
    "Errors have the codes of ipam-delegated and name the delegate; host-local answers 999 to \
     nearly everything.",
    "CNI_ARGS may have keys that nobody knows, `ip` for `IP`, and a semicolon at the end; to \
     host-local these are errors.",
    "Keys of the configuration in other letters than the documented, such as `IPAM` or \
     `RANGESTART`, are an error; host-local takes them.",
    "Files in subfolders of the folder of leases are left alone; host-local reads and releases them.",
    "A lock that somebody holds is waited for up to 10 seconds, then ADD, DEL and CHECK fail with \
     code 11; host-local waits for ever.",
    "An ADD also writes a record into `/var/lib/cni/ipam-delegated`, and fails when it cannot.",
    "The folder of leases bears a date long past: a date of today tells ipam-da-local that somebody \
     else has changed it.",
];
