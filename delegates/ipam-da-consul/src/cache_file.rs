//! The file of a pool's cache: a state on the first line, and an event on each line since.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipam_kit::cni::address::{self, parse_address};
use serde::{Deserialize, Serialize};

use crate::definition::Definition;

/// A node's memory of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CachedPool {
    /// Its definition, if the ranges are in Consul.
    pub(crate) definition: Option<Definition>,
    /// The ranges that came with the request.
    pub(crate) ranges: Option<String>,
    /// Some addresses that were free, less those that this node has taken since.
    pub(crate) free: BTreeSet<IpAddr>,
    /// Whether enough addresses were listed for a contended pool.
    pub(crate) wide: bool,
    /// The address that this node has taken last.
    pub(crate) cursor: Option<IpAddr>,
    /// Whether a race was lost not long ago.
    pub(crate) contended: bool,
}

/// How many addresses are remembered.
pub(crate) const HINTS: usize = 1024;

/// How many claims after a lost race choose random addresses.
pub(crate) const CONTENDED_CLAIMS: u32 = 8;

/// The first line.
#[derive(Serialize, Deserialize)]
struct CacheHead {
    /// When the pool was read, in milliseconds since 1970.
    #[serde(rename = "read")]
    read_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    definition: Option<Definition>,
    #[serde(default, rename = "brought", skip_serializing_if = "Option::is_none")]
    ranges: Option<String>,
    /// Stretches of free addresses, as `FROM-TO`.
    free: Vec<String>,
    #[serde(default)]
    wide: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cursor: Option<IpAddr>,
    #[serde(default, rename = "crowd")]
    contended_claims: u32,
}

/// A whole file.
pub(crate) struct CacheFile {
    head: CacheHead,
    events: Vec<CacheEvent>,
    /// In bytes.
    pub(crate) length: usize,
}

/// A line after the first.
#[derive(Clone, Copy)]
pub(crate) enum CacheEvent {
    /// This node has chosen an address.
    Chosen(IpAddr),
    /// A requested address is taken.
    Taken(IpAddr),
    /// An address of this node is free again.
    PutBack(IpAddr),
    /// Others claim addresses at the same time.
    Contended,
}

impl CacheFile {
    /// Parses a file. Lines that cannot be read are skipped.
    pub(crate) fn parse(content: &str) -> Option<Self> {
        let mut lines = content.lines();
        let head = serde_json::from_str(lines.next()?).ok()?;
        let events = lines.filter_map(CacheEvent::parse).collect();
        Some(Self { head, events, length: content.len() })
    }

    /// When the pool was read, in milliseconds since 1970.
    pub(crate) fn read_at(&self) -> u64 {
        self.head.read_at
    }

    /// Returns the state after all events.
    pub(crate) fn into_pool(self) -> CachedPool {
        let cursor = self.cursor();
        let contended = self.contended_claims() > 0;
        let stretches = self.head.free.iter().filter_map(|stretch| parse_stretch(stretch));
        let mut free: BTreeSet<IpAddr> = stretches.flat_map(addresses_of).collect();
        for event in self.events {
            match event {
                CacheEvent::Chosen(address) | CacheEvent::Taken(address) => {
                    free.remove(&address);
                }
                CacheEvent::PutBack(address) => {
                    free.insert(address);
                }
                CacheEvent::Contended => {}
            }
        }
        let CacheHead { definition, ranges, wide, .. } = self.head;
        CachedPool { definition, ranges, free, wide, cursor, contended }
    }

    /// Returns whether an address is free after all events, without [`CacheFile::into_pool`].
    pub(crate) fn is_free(&self, address: IpAddr) -> bool {
        for event in self.events.iter().rev() {
            match *event {
                CacheEvent::Chosen(other) | CacheEvent::Taken(other) if other == address => {
                    return false;
                }
                CacheEvent::PutBack(other) if other == address => return true,
                _ => {}
            }
        }
        let mut stretches = self.head.free.iter().filter_map(|stretch| parse_stretch(stretch));
        stretches.any(|(first, last)| first <= address && address <= last)
    }

    /// Returns the address that this node has taken last.
    pub(crate) fn cursor(&self) -> Option<IpAddr> {
        let chosen = self.events.iter().rev().find_map(|event| match *event {
            CacheEvent::Chosen(address) => Some(address),
            _ => None,
        });
        chosen.or(self.head.cursor)
    }

    /// Returns how many more claims choose random addresses.
    pub(crate) fn contended_claims(&self) -> u32 {
        let mut claims = self.head.contended_claims;
        for event in &self.events {
            claims = match event {
                CacheEvent::Contended => CONTENDED_CLAIMS,
                CacheEvent::Chosen(_) => claims.saturating_sub(1),
                CacheEvent::Taken(_) | CacheEvent::PutBack(_) => claims,
            };
        }
        claims
    }
}

impl CacheEvent {
    /// Returns the line of the event, with its end.
    pub(crate) fn to_line(self) -> String {
        match self {
            Self::Chosen(address) => format!("-{address}\n"),
            Self::Taken(address) => format!("={address}\n"),
            Self::PutBack(address) => format!("+{address}\n"),
            Self::Contended => "!\n".to_owned(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let kind = line.get(..1)?;
        if kind == "!" {
            return Some(Self::Contended);
        }
        let address = parse_address(line.get(1..)?).ok()?;
        match kind {
            "-" => Some(Self::Chosen(address)),
            "=" => Some(Self::Taken(address)),
            "+" => Some(Self::PutBack(address)),
            _ => None,
        }
    }
}

/// Returns the first line of a file, with its end.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn first_line(
    read_at: u64,
    pool: &CachedPool,
    contended_claims: u32,
) -> io::Result<Vec<u8>> {
    let head = CacheHead {
        read_at,
        definition: pool.definition.clone(),
        ranges: pool.ranges.clone(),
        free: stretches(&pool.free),
        wide: pool.wide,
        cursor: pool.cursor,
        contended_claims,
    };
    let mut line = serde_json::to_vec(&head).map_err(io::Error::other)?;
    line.push(b'\n');
    Ok(line)
}

/// Returns addresses as stretches without holes, each written `FROM-TO`.
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

/// Returns the first and the last address of a stretch.
fn parse_stretch(stretch: &str) -> Option<(IpAddr, IpAddr)> {
    let (first, last) = stretch.split_once('-')?;
    Some((parse_address(first).ok()?, parse_address(last).ok()?))
}

fn addresses_of((first, last): (IpAddr, IpAddr)) -> impl Iterator<Item = IpAddr> {
    let addresses = std::iter::successors(Some(first), |address| address::next(*address));
    addresses.take_while(move |address| *address <= last).take(HINTS)
}
