//! The keys of `ipam` that this delegate reads: `consul_servers` and `consul`.

use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::host::ResultCache;
use ipam_kit::keys::Key;
use ipam_kit::{Error, Request, Result};
use ipam_servers::{Secret, Server, ServerSection, ServerSettings, Tls, escape};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The keys of [`ConsulConfig`].
pub(crate) const KEYS: &[Key] =
    &[Key::Value(SECTION.servers), Key::Section(SECTION.name, SECTION.keys)];

const SECTION: ServerSection = ServerSection {
    service: "Consul",
    servers: "consul_servers",
    example: "http://127.0.0.1:8500",
    name: "consul",
    keys: &[Key::All(ServerSection::KEYS), Key::All(OWN)],
    token: "CONSUL_HTTP_TOKEN",
    token_file: Some("CONSUL_HTTP_TOKEN_FILE"),
};

/// The keys of [`ConsulSection`].
const OWN: &[Key] = &[
    Key::Value("datacenter"),
    Key::Value("consistency"),
    Key::Value("resultCache"),
    Key::Value("namespace"),
    Key::Value("partition"),
];

/// The keys of `ipam` that this delegate reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConsulConfig {
    consul_servers: Option<Vec<String>>,
    consul: Option<Map<String, Value>>,
}

/// The keys of `ipam.consul` that are this delegate's alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ConsulSection {
    datacenter: Option<String>,
    consistency: Option<String>,
    result_cache: Option<PathBuf>,
    namespace: Option<String>,
    partition: Option<String>,
}

/// A store, and how to reach it.
#[derive(Debug)]
pub(crate) struct Site {
    /// At least one.
    pub(crate) servers: Vec<Server>,
    pub(crate) tls: Tls,
    pub(crate) token: Option<Secret>,
    /// Escaped for a URL.
    pub(crate) datacenter: Option<String>,
    pub(crate) consistency: Consistency,
    /// How long to go on after the first error.
    pub(crate) timeout: Duration,
    /// The folder in which the runtime keeps results.
    pub(crate) result_cache: PathBuf,
}

/// How fresh an answer has to be. Claims are always decided by the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    Default,
    /// The leader asks the others whether it still leads.
    Consistent,
    /// Any server answers from its own state.
    Stale,
}

impl ConsulConfig {
    /// Reads the store that the configuration names.
    ///
    /// # Errors
    /// As [`ServerSection::read`]; a setting of Consul alone is malformed.
    pub(crate) fn site(self, request: &Request) -> Result<Site> {
        let (settings, own) = SECTION.read::<ConsulSection>(
            self.consul_servers,
            self.consul,
            &request.environment,
        )?;
        let ServerSettings { servers, token, tls, timeout, .. } = settings;
        own.refuse_enterprise()?;
        Ok(Site {
            servers,
            tls,
            token,
            datacenter: own.datacenter.as_deref().filter(|dc| !dc.is_empty()).map(escape),
            consistency: consistency(own.consistency.as_deref())?,
            timeout,
            result_cache: ResultCache::folder_named(own.result_cache),
        })
    }
}

impl ConsulSection {
    fn refuse_enterprise(&self) -> Result<()> {
        for (key, value) in [("namespace", &self.namespace), ("partition", &self.partition)] {
            if value.as_ref().is_some_and(|value| !value.is_empty() && value != "default") {
                return Err(Error::config(
                    format_args!("ipam.consul.{key}"),
                    "namespaces and partitions of Consul Enterprise are not supported",
                )
                .advise("remove this key: pools and leases are in the default one"));
            }
        }
        Ok(())
    }
}

fn consistency(text: Option<&str>) -> Result<Consistency> {
    match text {
        None | Some("" | "default") => Ok(Consistency::Default),
        Some("consistent") => Ok(Consistency::Consistent),
        Some("stale") => Ok(Consistency::Stale),
        Some(other) => {
            let message =
                format!("unknown consistency {other:?}: expected default, consistent or stale");
            Err(Error::config("ipam.consul.consistency", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;

    use super::*;

    #[test]
    fn every_key_is_declared() {
        assert_fields::<ConsulConfig>(&names(KEYS));
        assert_fields::<ConsulSection>(&names(OWN));
    }
}
