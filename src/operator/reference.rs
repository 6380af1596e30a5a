//! The keys of the reference plugins (github.com/containernetworking/plugins, 1.0 to 1.9), which do
//! not answer `about`. They read keys in upper and lower case.

use ipam_kit::keys::OF_HOST_LOCAL;

/// A reference plugin and the keys that it reads at its own level.
type Plugin = (&'static str, &'static [&'static str]);

/// The keys that an IPAM plugin reads of `ipam`; `None` of a plugin that is not in the table.
pub(super) fn of_ipam(plugin: &str) -> Option<&'static [&'static str]> {
    find(IPAM_PLUGINS, plugin)
}

/// The keys that a plugin of a network reads of its configuration, beside [`EVERY_PLUGIN`]; `None`
/// of a plugin that is not in the table.
pub(super) fn of_plugin(plugin: &str) -> Option<&'static [&'static str]> {
    find(PLUGINS, plugin)
}

fn find(table: &[Plugin], plugin: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(name, _)| *name == plugin).map(|(_, keys)| *keys)
}

/// The keys that CNI has for every plugin. `ipMasq` is one that each may read or ignore.
pub(super) const EVERY_PLUGIN: &[&str] = &[
    "cniVersion",
    "name",
    "type",
    "capabilities",
    "ipam",
    "dns",
    "args",
    "runtimeConfig",
    "prevResult",
    "ipMasq",
];

const IPAM_PLUGINS: &[Plugin] = &[
    ("dhcp", &["daemonSocketPath", "provide", "request", "priority"]),
    ("host-local", OF_HOST_LOCAL),
    ("static", &["routes", "addresses", "dns"]),
];

const PLUGINS: &[Plugin] = &[
    (
        "bridge",
        &[
            "bridge",
            "isGateway",
            "isDefaultGateway",
            "forceAddress",
            "ipMasqBackend",
            "mtu",
            "hairpinMode",
            "promiscMode",
            "vlan",
            "vlanTrunk",
            "preserveDefaultVlan",
            "macspoofchk",
            "enabledad",
            "disableContainerInterface",
            "portIsolation",
        ],
    ),
    ("dummy", &[]),
    ("host-device", &["device", "hwaddr", "dpdkMode", "kernelpath", "pciBusID"]),
    ("ipvlan", &["master", "mode", "mtu", "linkInContainer"]),
    ("loopback", &[]),
    ("macvlan", &["master", "mode", "mtu", "mac", "linkInContainer", "bcqueuelen"]),
    ("ptp", &["ipMasqBackend", "mtu"]),
    ("tap", &["multiQueue", "mtu", "mac", "owner", "group", "selinuxContext", "bridge"]),
    ("vlan", &["master", "vlanId", "mtu", "linkInContainer"]),
    (
        "bandwidth",
        &[
            "ingressRate",
            "ingressBurst",
            "egressRate",
            "egressBurst",
            "unshapedSubnets",
            "shapedSubnets",
        ],
    ),
    ("firewall", &["backend", "iptablesAdminChainName", "firewalldZone", "ingressPolicy"]),
    (
        "portmap",
        &[
            "backend",
            "snat",
            "conditionsV4",
            "conditionsV6",
            "masqAll",
            "markMasqBit",
            "externalSetMarkChain",
        ],
    ),
    ("sbr", &["table", "gateways", "addSourceHints"]),
    ("tuning", &["dataDir", "sysctl", "mac", "promisc", "mtu", "txQLen", "allmulti"]),
    ("vrf", &["vrfname", "table"]),
];
