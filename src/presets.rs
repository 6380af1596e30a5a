//! The chains that the program runs under the names of the systems they replace.

use crate::chain::{BuiltIn, ChainCondition, HostProgram, Preset, PresetChain};

/// Every preset.
pub const PRESETS: &[Preset] =
    &[HOST_LOCAL, CNI_IPAM_ETCD, HOST_ETCD, KUBE_NODE, NODE_ANNOTATION, WHEREABOUTS];

/// Every built-in selector.
pub const BUILT_IN: &[BuiltIn] =
    &[BuiltIn { name: "ipam-ds-static", delegate: || Box::new(ipam_ds_static::delegate()) }];

const HOST_LOCAL: Preset = Preset {
    name: "host-local",
    chains: &[PresetChain {
        when: ChainCondition::Always,
        delegates: &["ipam-ds-static", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
        sets: &[],
    }],
    has_default_location: true,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: HOST_LOCAL_DIFFERENCES,
};

/// cni-ipam-etcd, whose program is called `etcd`.
const CNI_IPAM_ETCD: Preset = Preset {
    name: "etcd",
    chains: &[PresetChain {
        when: ChainCondition::Always,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"cni-ipam-etcd"}"#)],
        sets: &[],
    }],
    has_default_location: false,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: CNI_IPAM_ETCD_DIFFERENCES,
};

const HOST_ETCD: Preset = Preset {
    name: "host-etcd",
    chains: &[PresetChain {
        when: ChainCondition::Always,
        delegates: &["ipam-ds-static", "ipam-da-etcd"],
        settings: &[("rangeRules", r#""etcd""#), ("etcd", r#"{"layout":"host-etcd"}"#)],
        sets: &[],
    }],
    has_default_location: false,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: HOST_ETCD_DIFFERENCES,
};

const KUBE_NODE: Preset = Preset {
    name: "kube-node",
    chains: &[PresetChain {
        when: ChainCondition::Always,
        delegates: &["ipam-ds-kube-node", "ipam-da-local"],
        settings: &[("rangeRules", r#""host-local""#)],
        sets: &[],
    }],
    has_default_location: true,
    host_program: None,
    cli: None,
    overwritten_by: None,
    differences: KUBE_NODE_DIFFERENCES,
};

const NODE_ANNOTATION: Preset = Preset {
    name: "node-annotation",
    chains: &[PresetChain {
        when: ChainCondition::Always,
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
    overwritten_by: None,
    differences: NODE_ANNOTATION_DIFFERENCES,
};

const WHEREABOUTS: Preset = Preset {
    name: "whereabouts",
    chains: &[
        AT_PHPIPAM,
        AT_OPENWISP,
        PresetChain { when: filled(&[POD, DATASTORE_ETCD, ETCD_HOST]), ..OF_PODS_IN_ETCD },
        IN_ETCD,
        PresetChain { when: filled(&[POD, DATASTORE]), ..OF_PODS_IN_KUBERNETES },
        PresetChain { when: filled(&[DATASTORE]), ..IN_KUBERNETES },
        PresetChain { when: filled(&[POD, LOGIN]), ..OF_PODS_IN_KUBERNETES },
        PresetChain { when: filled(&[LOGIN]), ..IN_KUBERNETES },
        PresetChain { when: filled(&[POD, ETCD_HOST]), ..OF_PODS_IN_ETCD },
        PresetChain { when: filled(&[ETCD_HOST]), ..IN_ETCD },
        OF_PODS_IN_KUBERNETES,
        IN_KUBERNETES,
    ],
    has_default_location: true,
    host_program: None,
    cli: None,
    overwritten_by: Some("ip-control-loop"),
    differences: WHEREABOUTS_DIFFERENCES,
};

const IN_KUBERNETES: PresetChain = PresetChain {
    when: ChainCondition::Always,
    delegates: &["ipam-ds-whereabouts", "ipam-da-kube"],
    settings: &[("rangeRules", r#""host-local""#)],
    sets: &["kube"],
};

const IN_ETCD: PresetChain = PresetChain {
    when: filled(&[DATASTORE_ETCD, ETCD_HOST]),
    delegates: &["ipam-ds-whereabouts", "ipam-da-etcd"],
    settings: &[("rangeRules", r#""host-local""#)],
    sets: &["etcd"],
};

/// Without a section `pod` no pod chooses anything, and a third process would cost time for nothing.
const OF_PODS_IN_KUBERNETES: PresetChain = PresetChain {
    when: POD,
    delegates: &["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-kube"],
    ..IN_KUBERNETES
};

const OF_PODS_IN_ETCD: PresetChain = PresetChain {
    delegates: &["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-etcd"],
    ..IN_ETCD
};

/// The name of a pod comes from an annotation, without any section `pod`.
const AT_PHPIPAM: PresetChain = PresetChain {
    when: provider("phpipam"),
    delegates: &["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-phpipam"],
    sets: &["phpipam", "pod"],
    ..IN_KUBERNETES
};

const AT_OPENWISP: PresetChain = PresetChain {
    when: provider("openwisp"),
    delegates: &["ipam-ds-whereabouts", "ipam-ds-kube-pod", "ipam-da-openwisp"],
    sets: &["openwisp", "pod"],
    ..IN_KUBERNETES
};

const POD: ChainCondition = ChainCondition::Has("pod");
const DATASTORE: ChainCondition = ChainCondition::Has("datastore");
const DATASTORE_ETCD: ChainCondition = ChainCondition::Is("datastore", "etcd");
const LOGIN: ChainCondition = ChainCondition::Has("kubernetes");
const ETCD_HOST: ChainCondition = ChainCondition::Has("etcd_host");

/// By the file with which the fork of whereabouts names a server of addresses.
const fn provider(name: &'static str) -> ChainCondition {
    let file = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";
    ChainCondition::FileIs { file, key: "ipamtype", text: name }
}

/// By the keys of `ipam` and of whereabouts' flat file.
const fn filled(all: &'static [ChainCondition]) -> ChainCondition {
    ChainCondition::Filled {
        named_by: "configuration_path",
        files: &[
            "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
            "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
        ],
        all,
    }
}

/// The differences for a network when this preset replaces host-local.
pub const HOST_LOCAL_DIFFERENCES: &[&str] = &[
    "A repeated ADD gives the addresses that the attachment holds; host-local fails with \
     \"duplicate allocation is not allowed\", and so does podman's first start after a \
     reboot.",
    "An ADD that requests another address than the one held takes it and releases the old \
     one; host-local keeps both.",
    "A failed ADD leaves `last_reserved_ip` and the leases of an earlier ADD as they are, and \
     a refused request makes no folder; host-local moves `last_reserved_ip`, and may release \
     what the container holds.",
    "DEL uses the configuration of the ADD: the present one may be edited, broken, or reduced \
     to `type`; host-local needs valid ranges.",
    "CHECK fails when the container no longer holds an address of the result; host-local \
     accepts any lease of the container.",
    "GC releases leases that are older than `gcGrace` if the runtime's list lacks their \
     container; host-local's GC does nothing.",
    "STATUS fails when leases cannot be written; host-local's always succeeds. Older \
     releases, such as 1.1.1 of Debian 12, lack GC, STATUS and `cniVersion` 1.1.0.",
    "An empty lease file, which a killed host-local leaves and never uses again, is reused \
     after 5 minutes.",
    "Errors have the codes of ipam-delegated and name the delegate; host-local answers 999 to \
     nearly everything.",
    "CNI_ARGS may have unknown keys, `ip` for `IP`, and a semicolon at the end; host-local \
     rejects them.",
    "Keys in other letters than documented, such as `IPAM` or `RANGESTART`, are an error; \
     host-local accepts them.",
    "Files in subfolders of the lease folder are left alone; host-local reads and releases \
     them.",
    "ADD, DEL and CHECK wait up to 10 seconds for the lock, then fail with code 11; \
     host-local waits without a limit.",
    WRITES_RECORD,
    "The date of the lease folder is set far back: a recent date shows ipam-da-local that another \
     program has changed the folder.",
];

/// The differences for a network when this preset replaces cni-ipam-etcd, the plugin `etcd`.
pub const CNI_IPAM_ETCD_DIFFERENCES: &[&str] = &[
    REPEATED_ADD,
    OWN_INTERFACE,
    BY_RECORD,
    NO_TRACE,
    "A full range set is error 100; cni-ipam-etcd may search it without end, and holds its \
     lock meanwhile.",
    "A call waits for the lock until its deadline, then fails with code 11; cni-ipam-etcd \
     continues without the lock after 40 s.",
    ALWAYS_ANSWERS,
    "`runtimeConfig.ips` is honoured; cni-ipam-etcd ignores it.",
    LENIENT_ARGS,
    STRICT_NAMES,
    CODES,
    VERBS,
    WRITES_RECORD,
    WRITES_KEYS,
];

/// The differences for a network when this preset replaces host-etcd.
pub const HOST_ETCD_DIFFERENCES: &[&str] = &[
    "An address in use is never given twice: a full range is error 100, a request for the \
     address 102; host-etcd overwrites the holder.",
    REPEATED_ADD,
    OWN_INTERFACE,
    BY_RECORD,
    NO_TRACE,
    "An endpoint without a scheme, as in host-etcd's README, means http if no certificates \
     are named; host-etcd hangs.",
    ALWAYS_ANSWERS,
    "`runtimeConfig.ips` and `runtimeConfig.ipRanges` are honoured; host-etcd ignores them.",
    LENIENT_ARGS,
    STRICT_NAMES,
    CODES,
    VERBS,
    WRITES_RECORD,
    WRITES_KEYS,
];

/// The differences for a network when this preset replaces kube-node.
pub const KUBE_NODE_DIFFERENCES: &[&str] = &[
    SAME_ADD,
    "The subnets are read again after a minute (`cacheTtl`); kube-node keeps those it read first.",
    "Each network has its own subnets; kube-node uses those of the first network for all of \
     one `dataDir`.",
    "`routes`, `resolvConf`, `runtimeConfig.ips` and `args.cni.ips` take effect; kube-node \
     drops them.",
    "For an IPv6-only pod, ipam-da-local leaves `last_reserved_ip.0` to IPv4; kube-node \
     writes IPv6 into it.",
    "DEL and CHECK need neither API server nor cache.",
    "VERSION works without stdin; kube-node fails.",
    "A failed ADD leaves `kube-node.json` as it is; kube-node removes the file.",
    "`kubeconfig` (one file, which must exist) and `$KUBECONFIG` come before a pod's service \
     account, and the host's name before its machine-id.",
    "White space around the commas of the annotation is allowed.",
    "`logfile` and `loglevel` are ignored: see `verbose`.",
    CODES_OF_OURS,
    WRITES_RECORD,
];

/// The differences for a network when this preset replaces node-annotation.
pub const NODE_ANNOTATION_DIFFERENCES: &[&str] = &[
    "The annotation is parsed as JSON; node-annotation runs it as a jq program.",
    "An annotation may contain the text null, and the error of a missing or malformed one \
     names it; node-annotation ends without a message.",
    "`dataDir` of an annotation must lie in one of `dataDirs` of \
     `/etc/cni/ipam-delegated.json`, and `resolvConf` in `/etc` or in one of `resolvDirs`.",
    "Without `nextipam`, a key of an annotation that host-local does not have is error 110; a key \
     for logs is error 7.",
    "Only root may own and write the configuration file and the folders above it; a sticky \
     folder may be writable by others.",
    "Without `nextipam`, ipam-da-local gives the addresses, with host-local's files, and a \
     repeated ADD gives those held.",
    "VERSION, DEL and CHECK need no API server: if the annotation is unknown, they search \
     `dataDirs` for the container's leases; node-annotation fails.",
    "DEL and CHECK of a container without a record fail with code 113 while the annotation's \
     `dataDir` lies outside `dataDirs`.",
    "An empty annotation, such as `{}`, is an error, even if `nextipam` needs no ranges.",
    "VERSION works without stdin.",
    "The annotation of one node is read again after a minute (`cacheTtl`); `$NODE_NAME` and \
     the host's name come before the machine-id.",
    CODES_OF_OURS,
    WRITES_RECORD,
];

/// The differences for a network when this preset replaces whereabouts.
pub const WHEREABOUTS_DIFFERENCES: &[&str] = &[
    "An ADD takes an address of each range or none; if one range is full, whereabouts keeps the \
     addresses of those before it.",
    "ADDs of all nodes run at once, without a Lease in the API server; whereabouts runs one after \
     the other.",
    "A range gives neither a gateway, nor one of `addresses`, nor an IPv4 address that ends in \
     .0; whereabouts gives them to pods.",
    "`gateway` goes to addresses of its family; whereabouts adds it to those of both.",
    "`ipRanges` that overlap are an error that names both; whereabouts may give a container one \
     address twice.",
    "A bound of `ipRanges` that is not usable, and a bound of `range` that is not an address, is \
     an error; whereabouts ignores it.",
    "A network that gives a pod no address is an error; whereabouts succeeds without one.",
    "An address that CNI_ARGS, `runtimeConfig.ips` or `args.cni.ips` requests inside a range is \
     claimed, and error 102 if another container holds it; whereabouts reads CNI_ARGS alone, and \
     claims nothing.",
    "Such an address has the prefix length of its range; whereabouts takes the requested one, and \
     fails without one.",
    "A requested gateway, first or last address of a range, or one that ends in .0, and an IPv6 \
     address 2^63 or more beyond the network address, are error 101; whereabouts gives them, the \
     last one again and again.",
    "A pod's next sandbox gets its addresses if the pod has the same uid; whereabouts compares \
     namespace and name.",
    "DEL and CHECK use the record of the ADD: the configuration may be edited or stripped; \
     whereabouts needs it.",
    "The flat file may be missing, and only root may own and write it; whereabouts needs one, and \
     accepts anyone's.",
    "DEL fails while the API server does not answer, and the runtime repeats it; whereabouts \
     succeeds and leaves the address held.",
    "In etcd, DEL releases what one interface holds, and owners are in keys below \
     `ipam-delegated/`; whereabouts releases the first address of the container.",
    "CHECK, GC and STATUS work; whereabouts has no CHECK, and its GC and STATUS do nothing.",
    "Errors are `node_slice_size`, the `ipamtype` nsxtipam in a provider file, `etcd_host` beside a \
     kubeconfig unless `datastore` says where the leases are, and a malformed value in etcd; \
     whereabouts overwrites such a value.",
    "`log_file`, `log_level` and keys that begin with `leader_` have no effect.",
    "CNI_ARGS may name no pod, and have unknown keys, `ip` for `IP` or a semicolon at the end; \
     whereabouts fails.",
    "Keys in other letters than documented, such as `IPAM` or `RANGE`, are an error; whereabouts \
     accepts them.",
    "Errors have the codes of ipam-delegated and name the delegate; whereabouts answers 999 or \
     100 to nearly everything.",
    "A reservation also has labels and annotations with the node, the network and times.",
    WRITES_RECORD,
    "With a provider, a requested address is claimed there, and is the pod's only one of the pool; \
     the fork answers it beside another one, and claims nothing.",
    "With a provider, the record has the owner, and DEL releases by it; the fork releases whatever \
     record has the pod's name.",
    "With a provider, an ADD of a `podname` that another container holds fails until that one has \
     ended, unless `takeover` is true; the fork gives both the same address.",
    "With a provider, a record of the fork with a `podname` alone is taken with `takeover` only; the \
     fork gives its address to each pod of the name.",
    "With OpenWISP, `args.pool` is the name of the subnet; the fork takes the subnet named test.",
];

const SAME_ADD: &str = "A repeated ADD gives the addresses held; host-local refuses it.";
const CODES_OF_OURS: &str = "Errors have the codes of ipam-delegated and name the delegate.";
const WRITES_RECORD: &str =
    "An ADD also writes a record into `/var/lib/cni/ipam-delegated`, and fails if it cannot.";
const REPEATED_ADD: &str = "A repeated ADD gives the addresses held, including the old plugin's if the runtime has \
     cached them; the old plugin gives others and keeps both.";
const OWN_INTERFACE: &str = "DEL releases what one interface holds on one network; the old plugin frees everything \
     that the container id holds.";
const BY_RECORD: &str = "DEL uses the record of the ADD: the configuration may be edited, broken or stripped; the \
     old plugin needs it.";
const NO_TRACE: &str = "A failed ADD moves no cursor and frees nothing of an earlier one; the old \
     plugin may do both.";
const ALWAYS_ANSWERS: &str = "A missing certificate or an unreachable server is an error that says so; the old plugin \
     ends or waits without an answer.";
const LENIENT_ARGS: &str = "CNI_ARGS may have unknown keys, `ip` for `IP`, a semicolon at the end, and a prefix as \
     in `10.1.2.10/24`; the old plugin rejects them.";
const STRICT_NAMES: &str = "A network needs a name; names and container ids consist of letters, digits, `_`, `.` and \
     `-`; an interface has at most 15 bytes, and an endpoint has no path; keys are \
     case-sensitive. The old plugin accepts anything.";
const CODES: &str = "Errors have the codes of ipam-delegated and name the delegate; the old plugin \
     answers 100 to most.";
const VERBS: &str = "CHECK, GC, STATUS and `cniVersion` up to 1.1.0 work; the old plugin supports ADD and DEL \
     up to 0.3.1, and answers 0.2.0 to 0.1.0.";
const WRITES_KEYS: &str = "The node, network and interface of each lease are in separate keys below \
     `ipam-delegated/`, beside the old keys.";
