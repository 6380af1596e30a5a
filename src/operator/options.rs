//! The options that `ipam-delegated` alone has.

use ipam_cli::OptionSpec;

pub(super) const CLAIM_ONLY: OptionSpec = OptionSpec::flag(
    "claim-only",
    "claim, but do not trust the store yet: run this on every node first",
);

pub(super) const CONTAINER: OptionSpec =
    OptionSpec::with_value("container", "ID", "the container id of the dry run");

pub(super) const IFNAME: OptionSpec =
    OptionSpec::with_value("ifname", "IFNAME", "the interface of the dry run");

pub(super) const ARGS: OptionSpec = OptionSpec::with_value(
    "args",
    "CNI_ARGS",
    "the CNI_ARGS of the dry run, as in K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop",
);

pub(super) const CONF_DIR: OptionSpec = OptionSpec::with_value(
    "conf-dir",
    "DIR",
    "where networks are configured, instead of /etc/cni/net.d and /opt/cni/config",
);

pub(super) const CNI_PATH: OptionSpec =
    OptionSpec::with_value("cni-path", "DIRS", "the plugin folders, with : between them");

pub(super) const STATE_DIR: OptionSpec = OptionSpec::with_value(
    "state-dir",
    "DIR",
    "the state folder, where a network configuration sets ipam.stateDir",
);

pub(super) const CACHE_DIR: OptionSpec = OptionSpec::with_value(
    "cache-dir",
    "DIR",
    "the runtimes' result cache, instead of /var/lib/cni/results",
);

pub(super) const NO_CACHE: OptionSpec =
    OptionSpec::flag("no-cache", "use no result cache: no runtime of this host keeps one");

pub(super) const PINNED: OptionSpec =
    OptionSpec::flag("pinned", "also release if no process is in the network namespace");

pub(super) const TIMEOUT: OptionSpec =
    OptionSpec::with_value("timeout", "TIME", "the time for all records, instead of 5m");
