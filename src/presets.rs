//! The chains that the program runs under the names of the systems they replace.

use crate::chain::{HostProgram, Preset, PresetChain};

/// Every preset.
pub const PRESETS: &[Preset] = &[HOST_LOCAL, CNI_IPAM_ETCD, HOST_ETCD, KUBE_NODE, NODE_ANNOTATION];

const HOST_LOCAL: Preset = Preset {
    name: "host-local",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
        sets: &[],
    }],
    has_default_location: true,
    host_program: None,
    cli: None,
    differences: HOST_LOCAL_DIFFERENCES,
};

/// cni-ipam-etcd, whose program is called `etcd`.
const CNI_IPAM_ETCD: Preset = Preset {
    name: "etcd",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"cni-ipam-etcd"}"#)],
        sets: &[],
    }],
    has_default_location: false,
    host_program: None,
    cli: None,
    differences: CNI_IPAM_ETCD_DIFFERENCES,
};

const HOST_ETCD: Preset = Preset {
    name: "host-etcd",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"host-etcd"}"#)],
        sets: &[],
    }],
    has_default_location: false,
    host_program: None,
    cli: None,
    differences: HOST_ETCD_DIFFERENCES,
};

const KUBE_NODE: Preset = Preset {
    name: "kube-node",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-kube-node", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
        sets: &[],
    }],
    has_default_location: true,
    host_program: None,
    cli: None,
    differences: KUBE_NODE_DIFFERENCES,
};

const NODE_ANNOTATION: Preset = Preset {
    name: "node-annotation",
    chains: &[PresetChain {
        when: None,
        delegates: &["ipam-ds-node-annotation", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
        sets: &[],
    }],
    has_default_location: true,
    host_program: Some(HostProgram {
        file: "/etc/cni/node-annotation.conf",
        variable: "NODE_ANNOTATION_CFG",
        key: "nextipam",
    }),
    cli: Some("ipam-ds-node-annotation"),
    differences: NODE_ANNOTATION_DIFFERENCES,
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
    WRITES_RECORD,
    "The folder of leases bears a date long past: a date of today tells ipam-da-local that somebody \
     else has changed it.",
];

/// What changes for a network whose cni-ipam-etcd, the plugin `etcd`, this preset replaces.
pub const CNI_IPAM_ETCD_DIFFERENCES: &[&str] = &[
    REPEATED_ADD,
    OWN_INTERFACE,
    BY_RECORD,
    NO_TRACE,
    "A full range set is error 100; cni-ipam-etcd may search it for ever, with its lock held.",
    "Its lock is waited for as long as the call has time, then error 11; cni-ipam-etcd goes on without it after 40 s.",
    ALWAYS_ANSWERS,
    "`runtimeConfig.ips` is honoured; cni-ipam-etcd passes over it.",
    LENIENT_ARGS,
    STRICT_NAMES,
    CODES,
    VERBS,
    WRITES_RECORD,
    WRITES_KEYS,
];

/// What changes for a network whose host-etcd this preset replaces.
pub const HOST_ETCD_DIFFERENCES: &[&str] = &[
    "An address in use is given to nobody else: a full range is error 100, a request for it 102; host-etcd overwrites \
     the holder.",
    REPEATED_ADD,
    OWN_INTERFACE,
    BY_RECORD,
    NO_TRACE,
    "An endpoint without a scheme, as in host-etcd's README, is http where no certificates are named; host-etcd hangs.",
    ALWAYS_ANSWERS,
    "`runtimeConfig.ips` and `runtimeConfig.ipRanges` are honoured; host-etcd passes over them.",
    LENIENT_ARGS,
    STRICT_NAMES,
    CODES,
    VERBS,
    WRITES_RECORD,
    WRITES_KEYS,
];

/// What changes for a network whose kube-node this preset replaces.
pub const KUBE_NODE_DIFFERENCES: &[&str] = &[
    SAME_ADD,
    "The subnets are read again after a minute (`cacheTtl`); kube-node keeps those it read first.",
    "Each network has its own subnets; kube-node gives all of one `dataDir` those of the first.",
    "`routes`, `resolvConf`, `runtimeConfig.ips` and `args.cni.ips` count; kube-node drops them.",
    "An IPv6-only pod leaves ipam-da-local's `last_reserved_ip.0` to IPv4; kube-node writes IPv6 into it.",
    "DEL and CHECK need neither API server nor cache.",
    "VERSION needs nothing on stdin; kube-node fails there.",
    "A failed ADD leaves `kube-node.json` as it is; kube-node removes the file.",
    "`kubeconfig` (one file, which must be there) and `$KUBECONFIG` come before a pod's service account, the host's name before its machine-id.",
    "White space around the commas of the annotation is allowed.",
    "`logfile` and `loglevel` are not used: see `verbose`.",
    CODES_OF_OURS,
    WRITES_RECORD,
];

/// What changes for a network whose node-annotation this preset replaces.
pub const NODE_ANNOTATION_DIFFERENCES: &[&str] = &[
    "The annotation is parsed; node-annotation runs it as a program of jq.",
    "An annotation may hold the letters null; one that is missing or malformed is named; node-annotation ends without a word.",
    "`dataDir` in an annotation must lie in one of `dataDirs` of `/etc/cni/ipam-delegated.json`, `resolvConf` in `/etc` or in one of `resolvDirs`.",
    "A key in an annotation that host-local does not have is error 110 without `nextipam`; a key for logs is error 7.",
    "The configuration file must be root's, and nobody else may write it, or a folder on the way that is not sticky.",
    "Without `nextipam`, ipam-da-local gives the addresses, on host-local's files, and gives an ADD again what it holds.",
    "VERSION, DEL and CHECK need no API server: where the annotation is not known, the container's \
     leases are looked for in `dataDirs`; node-annotation fails.",
    "DEL and CHECK of a container without a record are error 113 while `dataDir` of the annotation lies \
     outside of `dataDirs`.",
    "An empty annotation, as `{}`, is an error, also where `nextipam` needs no ranges.",
    "VERSION needs nothing on stdin.",
    "The annotation is read again after a minute (`cacheTtl`), of one node, by `$NODE_NAME` or the host's name before its machine-id.",
    CODES_OF_OURS,
    WRITES_RECORD,
];

const SAME_ADD: &str = "An ADD again gives the addresses held; host-local refuses it.";
const CODES_OF_OURS: &str = "Errors have the codes of ipam-delegated and name the delegate.";
const WRITES_RECORD: &str =
    "An ADD also writes a record into `/var/lib/cni/ipam-delegated`, and fails when it cannot.";
const REPEATED_ADD: &str = "An ADD again gives the addresses held, the old plugin's as far as the \
                            runtime has cached them; the old plugin gives others and keeps both.";
const OWN_INTERFACE: &str = "DEL releases what one interface holds on one network; the old plugin \
                             frees all that the container id holds.";
const BY_RECORD: &str = "DEL goes by the record of the ADD: the configuration may be edited, broken \
                         or stripped; the old plugin needs it.";
const NO_TRACE: &str = "A failed ADD moves no cursor and frees nothing of an earlier one; the old \
                        plugin may do both.";
const ALWAYS_ANSWERS: &str = "A missing certificate that https needs, or a server that is away, \
                              is an error that says so; the old plugin ends or waits without an \
                              answer.";
const LENIENT_ARGS: &str = "CNI_ARGS may have unknown keys, `ip` for `IP` and a last semicolon, \
                            and requests a prefix as in `10.1.2.10/24`; the old plugin refuses.";
const STRICT_NAMES: &str = "Networks need a name, names and container ids are letters, digits, \
                            `_`, `.`, `-`, an interface has 15 bytes at most, an endpoint no \
                            path, and keys no other letters; the old plugin takes anything.";
const CODES: &str = "Errors have the codes of ipam-delegated and name the delegate; the old plugin \
                     answers 100 to most.";
const VERBS: &str = "CHECK, GC, STATUS and `cniVersion` up to 1.1.0 work; the old plugin knows \
                     ADD and DEL, 0.3.1 at most, and answers 0.2.0 to 0.1.0.";
const WRITES_KEYS: &str = "The node, network and interface of each lease stand in keys of ours, \
                           below `ipam-delegated/` beside the old ones.";
