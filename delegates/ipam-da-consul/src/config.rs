use std::path::PathBuf;
use std::time::Duration;

use ipam_kit::host::{ResultCache, parse_duration};
use ipam_kit::keys::Key;
use ipam_kit::{Error, Request, Result};
use ipam_servers::{Named, Secret, Server, Tls, escape};
use serde::Deserialize;

/// The keys of [`Config`].
pub(crate) const KEYS: &[Key] = &[Key::Value("consul_servers"), Key::Section("consul", SECTION)];

const SECTION: &[Key] = &[
    Key::Value("token"),
    Key::Value("tokenFile"),
    Key::Value("datacenter"),
    Key::Value("consistency"),
    Key::Value("caFile"),
    Key::Value("certFile"),
    Key::Value("keyFile"),
    Key::Value("timeout"),
    Key::Value("resultCache"),
    Key::Value("namespace"),
    Key::Value("partition"),
];

/// What this delegate reads of `ipam`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Config {
    consul_servers: Option<Vec<String>>,
    consul: Section,
}

/// `ipam.consul`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Section {
    token: Option<String>,
    token_file: Option<PathBuf>,
    datacenter: Option<String>,
    consistency: Option<String>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    timeout: Option<String>,
    result_cache: Option<PathBuf>,
    namespace: Option<String>,
    partition: Option<String>,
}

/// A store to talk to.
#[derive(Debug)]
pub(crate) struct Site {
    /// At least one.
    pub(crate) servers: Vec<Server>,
    pub(crate) tls: Tls,
    pub(crate) token: Option<Secret>,
    /// Escaped.
    pub(crate) datacenter: Option<String>,
    pub(crate) consistency: Consistency,
    /// How long to go on after the first trouble.
    pub(crate) timeout: Duration,
    /// Where the runtime keeps the results of its calls.
    pub(crate) result_cache: PathBuf,
}

/// How fresh an answer has to be. Claims are always decided by the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    Default,
    /// The leader asks the others whether it still is.
    Consistent,
    /// Any server answers by what it knows.
    Stale,
}

const TIMEOUT: Duration = Duration::from_secs(10);

/// Where Consul's own programs take a token from.
const TOKEN: &str = "CONSUL_HTTP_TOKEN";
const TOKEN_FILE: &str = "CONSUL_HTTP_TOKEN_FILE";

impl Config {
    /// The store that the configuration names.
    ///
    /// # Errors
    /// It names none; a URL, a duration or another setting is malformed; a token's file cannot be read; of a
    /// certificate and its key one is missing.
    pub(crate) fn site(self, request: &Request) -> Result<Site> {
        let servers = self.consul_servers.ok_or_else(|| {
            Error::config("ipam.consul_servers", "missing: no Consul server is named")
                .advise(r#"as in "consul_servers": ["http://127.0.0.1:8500"]"#)
        })?;
        let section = self.consul;
        section.refuse_enterprise()?;
        Ok(Site {
            servers: Server::parse_all(&servers, "ipam.consul_servers", None)?,
            token: section.token(request)?,
            datacenter: section.datacenter.as_deref().filter(|dc| !dc.is_empty()).map(escape),
            consistency: consistency(section.consistency.as_deref())?,
            timeout: timeout(section.timeout.as_deref())?,
            tls: Tls {
                authority: section.ca_file.map(|file| named("caFile", file)),
                identity: identity(section.cert_file, section.key_file)?,
            },
            result_cache: section.result_cache.unwrap_or_else(|| ResultCache::DEFAULT.into()),
        })
    }
}

impl Section {
    /// The configuration goes before the environment, which a runtime scrubs at times.
    fn token(&self, request: &Request) -> Result<Option<Secret>> {
        let given = |text: &&str| !text.trim().is_empty();
        match (self.token.as_deref().filter(given), &self.token_file) {
            (Some(_), Some(_)) => {
                return Err(Error::config("ipam.consul.token", "given together with tokenFile")
                    .advise("give one of them"));
            }
            (Some(token), None) => return Secret::parse(token, "ipam.consul.token").map(Some),
            (None, Some(file)) => {
                return Secret::read(&named("tokenFile", file.clone())).map(Some);
            }
            (None, None) => {}
        }
        if let Some(token) = request.environment.text(TOKEN).filter(given) {
            return Secret::parse(token, TOKEN).map(Some);
        }
        let file = request.environment.text(TOKEN_FILE).filter(given);
        file.map(|file| Secret::read(&Named { path: TOKEN_FILE.to_owned(), file: file.into() }))
            .transpose()
    }

    fn refuse_enterprise(&self) -> Result<()> {
        for (key, value) in [("namespace", &self.namespace), ("partition", &self.partition)] {
            if value.as_ref().is_some_and(|value| !value.is_empty() && value != "default") {
                return Err(Error::config(
                    format_args!("ipam.consul.{key}"),
                    "namespaces and partitions of Consul Enterprise are not supported",
                )
                .advise("leave it out, and keep the pools in the default one"));
            }
        }
        Ok(())
    }
}

fn named(key: &str, file: PathBuf) -> Named {
    Named { path: format!("ipam.consul.{key}"), file }
}

fn identity(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<(Named, Named)>> {
    let missing = |key: &str, given: &str| {
        let message = format!("missing, but ipam.consul.{given} is given");
        Err(Error::config(format_args!("ipam.consul.{key}"), message)
            .advise("give both or neither"))
    };
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some((named("certFile", cert), named("keyFile", key)))),
        (None, None) => Ok(None),
        (Some(_), None) => missing("keyFile", "certFile"),
        (None, Some(_)) => missing("certFile", "keyFile"),
    }
}

fn consistency(text: Option<&str>) -> Result<Consistency> {
    match text {
        None | Some("" | "default") => Ok(Consistency::Default),
        Some("consistent") => Ok(Consistency::Consistent),
        Some("stale") => Ok(Consistency::Stale),
        Some(other) => {
            Err(Error::config("ipam.consul.consistency", format_args!("{other:?} is none"))
                .advise("expected default, consistent or stale"))
        }
    }
}

fn timeout(text: Option<&str>) -> Result<Duration> {
    let Some(text) = text else { return Ok(TIMEOUT) };
    parse_duration(text).ok_or_else(|| {
        Error::config("ipam.consul.timeout", format_args!("{text:?} is no duration"))
            .advise(r#"as in "10s" or "1m30s""#)
    })
}

#[cfg(test)]
mod tests {
    use ipam_kit::keys::names;
    use ipam_testkit::fields::assert_fields;

    use super::*;

    #[test]
    fn every_key_is_declared() {
        assert_fields::<Config>(&names(KEYS));
        assert_fields::<Section>(&names(SECTION));
    }
}
