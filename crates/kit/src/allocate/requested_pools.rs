//! The pools that a call is about: those that a delegate before named, else those of `ipam` itself.

use std::net::IpAddr;

use serde_json::Value;

use crate::cni::{Dns, IpConfig, IpamResult, Network, Route};
use crate::contract::InputMembers;
use crate::delegate::Request;
use crate::error::{Error, Result};
use crate::ipam_section::{self, IpamSection, SectionPool};
use crate::keys::{Key, warn_of};
use crate::pool::{Pool, RangeConfig, RangeRules, RangeSet};

const PATH: &str = "prevResult.pools";

/// The pools that a call is about; none where they cannot be read.
pub fn requested_pools(request: &Request) -> Vec<Pool> {
    let requested = request.prev_result().and_then(|before| RequestedPools::of(request, &before));
    requested.map(|requested| requested.pools).unwrap_or_default()
}

/// The ranges of these pools, for a store that does not tell the networks apart. Those that cannot
/// be read are left out.
pub fn requested_sets(request: &Request) -> Vec<RangeSet> {
    let pools = requested_pools(request);
    let sets = pools.iter().filter_map(|pool| pool.range_set(RangeRules::ANY, PATH).ok().flatten());
    sets.collect()
}

/// The pools that an allocator is asked to serve.
#[derive(Debug)]
pub struct RequestedPools {
    /// The pools to serve.
    pub pools: Vec<Pool>,
    /// The static addresses to answer. The result of a main plugin names none.
    pub(crate) static_ips: Vec<IpConfig>,
    /// The path at which a person or a delegate wrote each pool.
    paths: Vec<String>,
    origin: PoolOrigin,
}

#[derive(Debug)]
enum PoolOrigin {
    /// A delegate before this one named them in `prevResult.pools`.
    PrevResult,
    /// `prevResult.pools` is empty.
    EmptyPrevResult(EarlierDelegates),
    /// `ipam` itself, as no delegate before this one named pools.
    Section(Box<SectionRest>),
    /// Neither `prevResult` nor `ipam` names pools.
    Missing(EarlierDelegates),
}

/// The rest of the section `ipam`, beside the pools of this allocator.
#[derive(Debug)]
struct SectionRest {
    routes: Vec<Route>,
    dns: Dns,
    /// Pools that are for another allocator.
    others: Vec<Pool>,
}

/// The delegates before this one, as far as its input names them.
#[derive(Debug)]
struct EarlierDelegates {
    /// The selectors before this delegate in `ipam.delegates`.
    selectors: Vec<String>,
    /// An allocator has answered an address.
    have_allocated: bool,
}

const SELECTOR: &str = "put a selector (ipam-ds-…) before this delegate in ipam.delegates";
const RANGES: &str = r#"give ranges in ipam, such as "ranges": [[{"subnet": "10.1.2.0/24"}]]"#;

impl EarlierDelegates {
    fn of(request: &Request, before: &IpamResult) -> Self {
        let ipam = request.network.ipam();
        let own = ipam.get("type").and_then(Value::as_str);
        let entries = ipam.get("delegates").and_then(Value::as_array).into_iter().flatten();
        let names = entries.map(|entry| entry.as_str().or(entry["type"].as_str()));
        let before_it = names.take_while(|name| *name != own).flatten().map(str::to_owned);
        let selectors = before_it.filter(|name| name.starts_with("ipam-ds-")).collect();
        Self { selectors, have_allocated: !before.ips.is_empty() }
    }

    /// The reason of an error about missing pools.
    fn reason(&self) -> String {
        if self.selectors.is_empty() {
            return "no selector runs before this delegate".to_owned();
        }
        format!("{} returned no pools", self.selectors.join(", "))
    }

    /// The advice of an error about missing pools.
    fn advice(&self) -> String {
        if self.selectors.is_empty() {
            return SELECTOR.to_owned();
        }
        let names = self.selectors.join(", ");
        format!("run ipam-delegated explain NETWORK to see what {names} chooses")
    }
}

impl RequestedPools {
    /// Reads the pools of the previous result, else those of `ipam`, and the static addresses.
    ///
    /// # Errors
    /// Pools or static addresses are malformed, or the section `ipam` cannot be read.
    pub fn of(request: &Request, before: &IpamResult) -> Result<Self> {
        let members = InputMembers::of_result(before);
        let mut requested = match members.pools()? {
            Some(pools) => Self::of_prev_result(request, before, pools)?,
            None => Self::of_section(request, before)?,
        };
        if members.pools()?.is_some() || !is_a_main_plugins(before) {
            requested.static_ips = members.static_addresses()?;
        }
        Ok(requested)
    }

    fn of_prev_result(request: &Request, before: &IpamResult, pools: &[Value]) -> Result<Self> {
        let refuses_strategy_in_ranges =
            request.is_strict() && !ipam_section::reads_as_replaced(request.network.ipam());
        let paths: Vec<String> = (0..pools.len()).map(|i| format!("{PATH}[{i}]")).collect();
        let mut parsed = Vec::new();
        for (pool, path) in pools.iter().zip(&paths) {
            let pool = Pool::parse(pool, path)?;
            if refuses_strategy_in_ranges {
                RangeConfig::refuse_strategy(pool.ranges(), &format!("{path}.ranges"))?;
            }
            parsed.push(pool);
        }
        let origin = match parsed[..] {
            [] => PoolOrigin::EmptyPrevResult(EarlierDelegates::of(request, before)),
            [..] => PoolOrigin::PrevResult,
        };
        Ok(Self { pools: parsed, static_ips: Vec::new(), paths, origin })
    }

    fn of_section(request: &Request, before: &IpamResult) -> Result<Self> {
        refuse_flat(request.network.ipam().get("ranges"))?;
        let Some(IpamSection { pools, routes, dns }) = IpamSection::read(request)? else {
            let origin = PoolOrigin::Missing(EarlierDelegates::of(request, before));
            return Ok(Self {
                pools: Vec::new(),
                static_ips: Vec::new(),
                paths: Vec::new(),
                origin,
            });
        };
        let (own, others): (Vec<_>, Vec<_>) =
            pools.into_iter().partition(|section| serves(&request.network, &section.pool));
        let paths = own.iter().map(|section| section.path.clone()).collect();
        let pools = own.into_iter().map(SectionPool::into_pool).collect();
        let others = others.into_iter().map(SectionPool::into_pool).collect();
        let origin = PoolOrigin::Section(Box::new(SectionRest { routes, dns, others }));
        Ok(Self { pools, static_ips: Vec::new(), paths, origin })
    }

    /// The static addresses, which no pool leases.
    pub(super) fn static_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.static_ips.iter().map(|ip| ip.address.addr())
    }

    /// Each pool with its path.
    pub(super) fn with_paths(&self) -> impl Iterator<Item = (&str, &Pool)> {
        self.paths.iter().map(String::as_str).zip(&self.pools)
    }

    /// An error with the path in `ipam.pools` of each pool that the delegate before passed on. It may
    /// have added an address that it requests. A pool with another change keeps its path in
    /// `prevResult`.
    pub(super) fn as_written(&self, request: &Request, error: Error) -> Error {
        if !matches!(self.origin, PoolOrigin::PrevResult) {
            return error;
        }
        let plain = |mut pool: Pool| {
            (pool.index, pool.requested_ip) = (None, None);
            pool
        };
        let written = request.network.ipam().get("pools").and_then(Value::as_array);
        let written: Vec<Option<Pool>> = written
            .into_iter()
            .flatten()
            .map(|pool| Pool::parse(pool, "").ok().map(plain))
            .collect();
        let place_of = |pool: &Pool| {
            let pool = Some(plain(pool.clone()));
            written.iter().position(|written| *written == pool)
        };
        error.map_texts(|text| {
            self.with_paths().fold(text, |text, (path, pool)| match place_of(pool) {
                Some(place) => text.replace(path, &format!("ipam.pools[{place}]")),
                None => text,
            })
        })
    }

    /// Checks the keys in the sections of `ipam` that an allocator with these keys of its own
    /// reads; also those of pools in `ipam`, where it serves them. Warns of misspelt keys in the
    /// pools of a delegate before, and where a replaced system ignores them.
    ///
    /// # Errors
    /// A key is misspelt elsewhere.
    pub(crate) fn check_keys(&self, request: &Request, own: &'static [Key]) -> Result<()> {
        if !request.is_strict() {
            return Ok(());
        }
        let ipam = request.network.ipam();
        let is_chained =
            matches!(self.origin, PoolOrigin::PrevResult | PoolOrigin::EmptyPrevResult(_));
        let of_pools = if is_chained { &[] } else { ipam_section::KEYS };
        let keys = [Key::All(own), Key::All(of_pools)];
        let mut found = ipam_section::misspelt_settings(&request.network, &keys);
        ipam_section::refuse(ipam, &found)?;
        // Where a preset says how ranges are read, its selector has warned.
        if is_chained && !ipam_section::reads_as_replaced(ipam) {
            let pools: Vec<Value> = self.pools.iter().map(Pool::to_json).collect();
            found.extend(Pool::misspelt(&pools, PATH));
        }
        warn_of(&found);
        Ok(())
    }

    /// Fails when nothing is requested: no static address, and no pool of this allocator or of
    /// another.
    ///
    /// # Errors
    /// Error 7, which says who named no pools.
    pub fn require_pools(&self) -> Result<()> {
        if !self.static_ips.is_empty() {
            return Ok(());
        }
        let (reason, advice) = match &self.origin {
            PoolOrigin::PrevResult | PoolOrigin::Section(_) => return Ok(()),
            PoolOrigin::EmptyPrevResult(earlier) if earlier.have_allocated => (
                "an earlier delegate has served every pool".to_owned(),
                "remove this delegate from ipam.delegates, or set serves of each allocator to the pools that it serves"
                    .to_owned(),
            ),
            PoolOrigin::EmptyPrevResult(earlier) => (earlier.reason(), earlier.advice()),
            PoolOrigin::Missing(earlier) => {
                (earlier.reason(), format!("{}, or {RANGES}", earlier.advice()))
            }
        };
        Err(Error::config(PATH, format!("missing or empty: {reason}")).advise(advice))
    }

    /// The result to append addresses to, and the pools that are left to others.
    pub(crate) fn into_result(self, before: IpamResult) -> (IpamResult, Vec<Value>) {
        let PoolOrigin::Section(section) = self.origin else { return (before, Vec::new()) };
        let mut result = if is_a_main_plugins(&before) { IpamResult::default() } else { before };
        ipam_section::add_to(&mut result, section.routes, section.dns);
        (result, section.others.iter().map(Pool::to_json).collect())
    }
}

/// Refuses a range where a set of ranges belongs; the error shows the expected form.
fn refuse_flat(ranges: Option<&Value>) -> Result<()> {
    let index = match ranges {
        Some(Value::Object(_)) => String::new(),
        Some(Value::Array(sets)) => match sets.iter().position(Value::is_object) {
            Some(index) => format!("[{index}]"),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    let message = r#"expected a set of ranges, such as "ranges": [[{"subnet": "10.1.2.0/24"}]]"#;
    Err(Error::config(format_args!("ipam.ranges{index}"), message)
        .advise("ranges is an array of sets: an ADD takes one address from each"))
}

/// Where the chain has several allocators, it tells each the names of its pools.
fn serves(network: &Network, pool: &Pool) -> bool {
    let Some(Value::Array(names)) = network.ipam().get("serves") else { return true };
    pool.name().is_some_and(|name| names.iter().any(|served| served == name))
}

/// Whether a result came from a main plugin that runs before our caller: its addresses and routes
/// are not ours to answer.
fn is_a_main_plugins(result: &IpamResult) -> bool {
    !result.ips.is_empty() || result.extra.contains_key("interfaces")
}
