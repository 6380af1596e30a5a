//! The pools that a call is about: those that a delegate before named, else those of `ipam` itself.

use serde_json::Value;

use crate::cni::{Dns, IpamResult, Network, Route};
use crate::contract::Members;
use crate::delegate::Request;
use crate::error::{Error, Result};
use crate::ipam_section::{self, IpamSection, SectionPool};
use crate::keys::{Key, warn_of};
use crate::pool::{Pool, RangeConfig, RangeRules, RangeSet};

const PATH: &str = "prevResult.pools";

/// The pools that a call is about; none where they cannot be read.
pub fn requested_pools(request: &Request) -> Vec<Pool> {
    let asked = request.prev_result().and_then(|before| RequestedPools::of(request, &before));
    asked.map(|asked| asked.pools).unwrap_or_default()
}

/// The ranges of these pools, for a store that does not tell the networks apart. Those that cannot be
/// read are left out.
pub fn requested_sets(request: &Request) -> Vec<RangeSet> {
    let pools = requested_pools(request);
    let sets = pools.iter().filter_map(|pool| pool.range_set(RangeRules::ANY, PATH).ok().flatten());
    sets.collect()
}

/// What is asked of an allocator.
#[derive(Debug)]
pub struct RequestedPools {
    /// The pools to serve.
    pub pools: Vec<Pool>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// `prevResult.pools`; with what ran before, where they are empty.
    Before(Option<Earlier>),
    /// `ipam`: no delegate before named pools.
    Alone(Box<Alone>),
    /// There are none anywhere.
    Nowhere(Earlier),
}

/// What ran before this delegate, as far as its input tells.
#[derive(Debug)]
struct Earlier {
    /// The selectors before this delegate in `ipam.delegates`.
    selectors: Vec<String>,
    /// An address was given.
    gave: bool,
}

impl Earlier {
    fn of(request: &Request, before: &IpamResult) -> Self {
        let ipam = request.network.ipam();
        let own = ipam.get("type").and_then(Value::as_str);
        let entries = ipam.get("delegates").and_then(Value::as_array).into_iter().flatten();
        let names = entries.map(|entry| entry.as_str().or(entry["type"].as_str()));
        let before_it = names.take_while(|name| *name != own).flatten().map(str::to_owned);
        let selectors = before_it.filter(|name| name.starts_with("ipam-ds-")).collect();
        Self { selectors, gave: !before.ips.is_empty() }
    }

    /// Why no pools came, and what to do about it.
    fn explain(&self) -> (String, String) {
        if self.selectors.is_empty() {
            return ("nothing says which pools to serve".to_owned(), SELECTOR.to_owned());
        }
        let names = self.selectors.join(", ");
        (
            [&names, " answered no pools"].concat(),
            format!("look at what {names} chooses: ipam-delegated explain NETWORK"),
        )
    }
}

const SELECTOR: &str = "put a selector (ipam-ds-…) before this delegate in ipam.delegates";

#[derive(Debug)]
struct Alone {
    routes: Vec<Route>,
    dns: Dns,
    /// Where the pools stand that are to be served.
    places: Vec<String>,
    /// Pools that are for another allocator.
    others: Vec<Pool>,
}

impl RequestedPools {
    /// Reads the pools of the previous result, else the offer of `ipam`.
    ///
    /// # Errors
    /// Pools are malformed, or the offer cannot be read.
    pub fn of(request: &Request, before: &IpamResult) -> Result<Self> {
        match Members::of_result(before).pools()? {
            None => Self::alone(request, before),
            Some(pools) => {
                let judged =
                    request.is_judged() && !ipam_section::reads_as_replaced(request.network.ipam());
                let parse = |(i, pool)| {
                    let path = format!("{PATH}[{i}]");
                    let pool = Pool::parse(pool, &path)?;
                    if judged {
                        RangeConfig::refuse_strategy(pool.ranges(), &format!("{path}.ranges"))?;
                    }
                    Ok(pool)
                };
                let pools: Vec<Pool> =
                    pools.iter().enumerate().map(parse).collect::<Result<_>>()?;
                // Most calls are shown some, and need not say why there are none.
                let earlier = pools.is_empty().then(|| Earlier::of(request, before));
                Ok(Self { pools, source: Source::Before(earlier) })
            }
        }
    }

    fn alone(request: &Request, before: &IpamResult) -> Result<Self> {
        refuse_flat(request.network.ipam().get("ranges"))?;
        let Some(IpamSection { pools, routes, dns }) = IpamSection::read(request)? else {
            let source = Source::Nowhere(Earlier::of(request, before));
            return Ok(Self { pools: Vec::new(), source });
        };
        let is_ours = |offered: &SectionPool| serves(&request.network, &offered.pool);
        let (ours, others): (Vec<_>, Vec<_>) = pools.into_iter().partition(is_ours);
        let places = ours.iter().map(|offered| offered.path.clone()).collect();
        let others = others.into_iter().map(SectionPool::into_pool).collect();
        let alone = Alone { routes, dns, places, others };
        let pools = ours.into_iter().map(SectionPool::into_pool).collect();
        Ok(Self { pools, source: Source::Alone(Box::new(alone)) })
    }

    /// Judges the sections of `ipam` that an allocator with these keys of its own reads, and those of an
    /// offer where it serves one. Warns of misspelt keys in the pools of a delegate before, and where a
    /// replaced system ignores them.
    ///
    /// # Errors
    /// A key is misspelt elsewhere.
    pub(crate) fn judge(&self, request: &Request, keys: &'static [Key]) -> Result<()> {
        if !request.is_judged() {
            return Ok(());
        }
        let ipam = request.network.ipam();
        let is_alone = !matches!(self.source, Source::Before(_));
        let offered = if is_alone { ipam_section::KEYS } else { &[] };
        let keys = [Key::All(keys), Key::All(offered)];
        let mut found = ipam_section::misspelt_settings(&request.network, &keys);
        ipam_section::refuse(ipam, &found)?;
        // Where a preset says how ranges are read, its selector has told.
        if !is_alone && !ipam_section::reads_as_replaced(ipam) {
            let pools: Vec<Value> = self.pools.iter().map(Pool::to_json).collect();
            found.extend(Pool::misspelt(&pools, PATH));
        }
        warn_of(&found);
        Ok(())
    }

    /// Fails when nothing is asked of this allocator, nor of another.
    ///
    /// # Errors
    /// Error 7, which says who named no pools.
    pub fn refuse_nothing(&self) -> Result<()> {
        const RANGES: &str =
            r#"give ranges in ipam, as in "ranges": [[{"subnet": "10.1.2.0/24"}]]"#;
        let (why, advice) = match &self.source {
            Source::Before(None) | Source::Alone(_) => return Ok(()),
            Source::Before(Some(Earlier { gave: true, .. })) => (
                "an earlier delegate has served every pool".to_owned(),
                "remove this delegate from ipam.delegates, or name in serves of each which pools it serves"
                    .to_owned(),
            ),
            Source::Before(Some(earlier)) => earlier.explain(),
            Source::Nowhere(earlier) => {
                let (why, advice) = earlier.explain();
                (why, [&advice, ", or ", RANGES].concat())
            }
        };
        let message = ["missing or empty: ", &why].concat();
        Err(Error::config(PATH, message).advise(advice))
    }

    /// The result to append addresses to, and the pools that are left to others.
    pub(crate) fn begin(self, before: IpamResult) -> (IpamResult, Vec<Value>) {
        let mut result = before;
        let mut left = Vec::new();
        if let Source::Alone(alone) = self.source {
            if is_a_main_plugins(&result) {
                result = IpamResult::default();
            }
            ipam_section::add_to(&mut result, alone.routes, alone.dns);
            left.extend(alone.others.iter().map(Pool::to_json));
        }
        (result, left)
    }

    /// An error about these pools, with the places at which a person has written them.
    pub fn explain(&self, error: Error) -> Error {
        let Source::Alone(alone) = &self.source else { return error };
        let mut message = error.to_string();
        if !message.contains(PATH) {
            return error;
        }
        for (i, place) in alone.places.iter().enumerate() {
            message = message.replace(&format!("{PATH}[{i}]"), place);
        }
        Error::new(error.code(), message).advise(error.details())
    }
}

/// Who writes a range where a set of ranges belongs is told the form.
fn refuse_flat(ranges: Option<&Value>) -> Result<()> {
    let place = match ranges {
        Some(Value::Object(_)) => String::new(),
        Some(Value::Array(sets)) => match sets.iter().position(Value::is_object) {
            Some(place) => format!("[{place}]"),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    let message = r#"expected a set of ranges, as in "ranges": [[{"subnet": "10.1.2.0/24"}]]"#;
    Err(Error::config(format_args!("ipam.ranges{place}"), message)
        .advise("ranges is an array of sets, and one address is taken from each"))
}

/// Where the chain has several allocators, it tells each the names of its pools.
fn serves(network: &Network, pool: &Pool) -> bool {
    let Some(Value::Array(names)) = network.ipam().get("serves") else { return true };
    pool.name().is_some_and(|name| names.iter().any(|served| served == name))
}

/// Whether a result is that of a plugin that our caller is chained behind: its addresses and routes
/// are not ours to answer.
fn is_a_main_plugins(result: &IpamResult) -> bool {
    !result.ips.is_empty() || result.extra.contains_key("interfaces")
}
