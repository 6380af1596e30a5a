//! What the file of a pool's cache says: a state on its first line, and an event on each line
//! since.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipam_kit::cni::address::{self, parse_address};
use serde::{Deserialize, Serialize};

use crate::definition::Definition;

/// What is remembered of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CachedPool {
    /// Its ranges, where they stand in Consul.
    pub(crate) definition: Option<Definition>,
    /// The ranges that a pool brought with it.
    pub(crate) brought: Option<String>,
    /// Some addresses that were free, less those that this node has taken since.
    pub(crate) free: BTreeSet<IpAddr>,
    /// Whether so much was looked at as contention needs.
    pub(crate) wide: bool,
    /// The address given last by this node.
    pub(crate) cursor: Option<IpAddr>,
    /// Others were met not long ago.
    pub(crate) contended: bool,
}

/// How many addresses are remembered.
pub(crate) const HINTS: usize = 1024;

/// For how many claims after a lost race addresses are random_candidates.
pub(crate) const CONTENDED_CLAIMS: u32 = 8;

/// The first line.
#[derive(Serialize, Deserialize)]
struct CacheHead {
    /// When the pool was read, in milliseconds since 1970.
    read: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    definition: Option<Definition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    brought: Option<String>,
    /// Stretches of free addresses, as `FROM-TO`.
    free: Vec<String>,
    #[serde(default)]
    wide: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cursor: Option<IpAddr>,
    #[serde(default, rename = "crowd")]
    contended_claims: u32,
}

/// What the file says.
pub(crate) struct CacheFile {
    state: CacheHead,
    events: Vec<CacheEvent>,
    /// In bytes.
    pub(crate) length: usize,
}

/// A line that was added to the file.
#[derive(Clone, Copy)]
pub(crate) enum CacheEvent {
    /// This node has chosen an address.
    Chosen(IpAddr),
    /// An address that was asked for is taken.
    Taken(IpAddr),
    /// This node has given an address back.
    GivenBack(IpAddr),
    /// Others take addresses at the same time.
    Contended,
}

impl CacheFile {
    /// Reads a whole file.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let state = serde_json::from_str(lines.next()?).ok()?;
        Some(Self {
            state,
            events: lines.filter_map(CacheEvent::read).collect(),
            length: text.len(),
        })
    }

    /// When the pool was read, in milliseconds since 1970.
    pub(crate) fn read_at(&self) -> u64 {
        self.state.read
    }

    /// What is remembered by it.
    pub(crate) fn known(self) -> CachedPool {
        let (cursor, contended) = (self.cursor(), self.contended_claims() > 0);
        let stretches = self.state.free.iter().filter_map(|stretch| ends(stretch));
        let mut free: BTreeSet<IpAddr> = stretches.flat_map(addresses).collect();
        for event in self.events {
            match event {
                CacheEvent::Chosen(address) | CacheEvent::Taken(address) => {
                    free.remove(&address);
                }
                CacheEvent::GivenBack(address) => {
                    free.insert(address);
                }
                CacheEvent::Contended => {}
            }
        }
        let CacheHead { definition, brought, wide, .. } = self.state;
        CachedPool { definition, brought, free, wide, cursor, contended }
    }

    /// Whether [`CacheFile::known`] would tell this address to be free.
    pub(crate) fn is_free(&self, address: IpAddr) -> bool {
        let told = self.events.iter().rev().find_map(|event| match *event {
            CacheEvent::Chosen(its) | CacheEvent::Taken(its) => (its == address).then_some(false),
            CacheEvent::GivenBack(its) => (its == address).then_some(true),
            CacheEvent::Contended => None,
        });
        let spans = |(first, last)| first <= address && address <= last;
        told.unwrap_or_else(|| self.state.free.iter().filter_map(|text| ends(text)).any(spans))
    }

    /// The address given last by this node.
    pub(crate) fn cursor(&self) -> Option<IpAddr> {
        let chosen = self.events.iter().rev().find_map(|event| match *event {
            CacheEvent::Chosen(address) => Some(address),
            _ => None,
        });
        chosen.or(self.state.cursor)
    }

    /// For how many claims more addresses are random_candidates.
    pub(crate) fn contended_claims(&self) -> u32 {
        self.events.iter().fold(
            self.state.contended_claims,
            |contended_claims, event| match event {
                CacheEvent::Contended => CONTENDED_CLAIMS,
                CacheEvent::Chosen(_) => contended_claims.saturating_sub(1),
                CacheEvent::Taken(_) | CacheEvent::GivenBack(_) => contended_claims,
            },
        )
    }
}

impl CacheEvent {
    /// As a line of the file.
    pub(crate) fn to_line(self) -> String {
        match self {
            Self::Chosen(address) => format!("-{address}\n"),
            Self::Taken(address) => format!("={address}\n"),
            Self::GivenBack(address) => format!("+{address}\n"),
            Self::Contended => "!\n".to_owned(),
        }
    }

    fn read(line: &str) -> Option<Self> {
        let address = || parse_address(line.get(1..)?).ok();
        match line.get(..1)? {
            "-" => address().map(Self::Chosen),
            "=" => address().map(Self::Taken),
            "+" => address().map(Self::GivenBack),
            "!" => Some(Self::Contended),
            _ => None,
        }
    }
}

/// The first line of a file, with its end.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn first_line(
    read: u64,
    known: &CachedPool,
    contended_claims: u32,
) -> io::Result<Vec<u8>> {
    let state = CacheHead {
        read,
        definition: known.definition.clone(),
        brought: known.brought.clone(),
        free: stretches(&known.free),
        wide: known.wide,
        cursor: known.cursor,
        contended_claims,
    };
    let mut line = serde_json::to_vec(&state).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

fn stretches(addresses: &BTreeSet<IpAddr>) -> Vec<String> {
    let mut found: Vec<(IpAddr, IpAddr)> = Vec::new();
    for address in addresses {
        match found.last_mut() {
            Some((_, last)) if address::next(*last) == Some(*address) => *last = *address,
            _ => found.push((*address, *address)),
        }
    }
    found.iter().map(|(first, last)| format!("{first}-{last}")).collect()
}

/// The first and the last address of a stretch.
fn ends(stretch: &str) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = stretch.split_once('-')?;
    Some((parse_address(first).ok()?, parse_address(last).ok()?))
}

fn addresses((first, last): (IpAddr, IpAddr)) -> impl Iterator<Item = IpAddr> {
    let next = move |address: &IpAddr| address::next(*address).filter(|next| *next <= last);
    std::iter::successors(Some(first), next).take(HINTS)
}
