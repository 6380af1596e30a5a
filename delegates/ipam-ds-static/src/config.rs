use std::path::{Path, PathBuf};

use ipam_delegated::Result;
use ipam_delegated::cni::Route;
use ipam_delegated::pool::{RangeConfig, RangeRules};
use serde::Deserialize;
use serde_json::Value;

/// What this delegate reads of `ipam`: pools, or host-local's own keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Config {
    /// Pools, handed on as they are.
    pub pools: Option<Value>,
    /// host-local's range sets.
    pub ranges: Option<Vec<Vec<RangeConfig>>>,
    subnet: Option<String>,
    range_start: Option<String>,
    range_end: Option<String>,
    gateway: Option<String>,
    exclude: Option<Vec<String>>,
    range_rules: Option<Rules>,
    routes: Option<Vec<Value>>,
    resolv_conf: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rules {
    HostLocal,
    Etcd,
    Own,
}

impl Config {
    /// The range of host-local's old style, there if `subnet` is.
    pub fn single_range(&self) -> Option<RangeConfig> {
        let subnet = self.subnet.clone().filter(|subnet| !subnet.is_empty())?;
        Some(RangeConfig {
            subnet: Some(subnet),
            range_start: self.range_start.clone(),
            range_end: self.range_end.clone(),
            gateway: self.gateway.clone(),
            exclude: self.exclude.clone().unwrap_or_default(),
            ..RangeConfig::default()
        })
    }

    /// The rules by which ranges are read.
    pub fn rules(&self) -> RangeRules {
        match self.range_rules.unwrap_or(Rules::HostLocal) {
            Rules::HostLocal => RangeRules::HOST_LOCAL,
            Rules::Etcd => RangeRules::ETCD,
            Rules::Own => RangeRules::OURS,
        }
    }

    /// The routes.
    ///
    /// # Errors
    /// One is no route; the error names its place.
    pub fn routes(&self) -> Result<Vec<Route>> {
        let routes = self.routes.iter().flatten().cloned().enumerate();
        routes.map(|(i, route)| Route::parse(route, &format!("ipam.routes[{i}]"))).collect()
    }

    /// The file with the name resolution.
    pub fn resolv_conf(&self) -> Option<&Path> {
        self.resolv_conf.as_deref().filter(|path| !path.as_os_str().is_empty())
    }
}
