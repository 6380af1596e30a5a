//! What the file of a pool's cache says: a state on its first line, and an event on each line
//! since.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipam_kit::cni::address::{self, parse_address};
use serde::{Deserialize, Serialize};

use crate::pool::Definition;

/// What is remembered of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// Its ranges, where they stand in Consul.
    pub(crate) definition: Option<Definition>,
    /// The ranges that a pool brought with it.
    pub(crate) brought: Option<String>,
    /// Some addresses that were free, less those that this node has taken since.
    pub(crate) free: BTreeSet<IpAddr>,
    /// Whether so much was looked at as is for a crowd.
    pub(crate) wide: bool,
    /// The address given last by this node.
    pub(crate) cursor: Option<IpAddr>,
    /// Others were met not long ago.
    pub(crate) crowded: bool,
}

/// How many addresses are remembered.
pub(crate) const HINTS: usize = 1024;

/// For how many claims after a lost race addresses are random_candidates.
pub(crate) const CROWD: u32 = 8;

/// The first line.
#[derive(Serialize, Deserialize)]
struct State {
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
    #[serde(default)]
    crowd: u32,
}

/// What the file says.
pub(crate) struct Content {
    state: State,
    events: Vec<Event>,
    /// In bytes.
    pub(crate) length: usize,
}

/// A line that was added to the file.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// This node has chosen an address.
    Chosen(IpAddr),
    /// An address that was asked for is taken.
    Taken(IpAddr),
    /// This node has given an address back.
    GivenBack(IpAddr),
    /// Others take addresses at the same time.
    Crowd,
}

impl Content {
    /// Reads a whole file.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let state = serde_json::from_str(lines.next()?).ok()?;
        Some(Self { state, events: lines.filter_map(Event::read).collect(), length: text.len() })
    }

    /// When the pool was read, in milliseconds since 1970.
    pub(crate) fn read_at(&self) -> u64 {
        self.state.read
    }

    /// What is remembered by it.
    pub(crate) fn known(self) -> Known {
        let (cursor, crowded) = (self.cursor(), self.crowd() > 0);
        let stretches = self.state.free.iter().filter_map(|stretch| ends(stretch));
        let mut free: BTreeSet<IpAddr> = stretches.flat_map(addresses).collect();
        for event in self.events {
            match event {
                Event::Chosen(address) | Event::Taken(address) => {
                    free.remove(&address);
                }
                Event::GivenBack(address) => {
                    free.insert(address);
                }
                Event::Crowd => {}
            }
        }
        let State { definition, brought, wide, .. } = self.state;
        Known { definition, brought, free, wide, cursor, crowded }
    }

    /// Whether [`Content::known`] would tell this address to be free.
    pub(crate) fn is_free(&self, address: IpAddr) -> bool {
        let told = self.events.iter().rev().find_map(|event| match *event {
            Event::Chosen(its) | Event::Taken(its) => (its == address).then_some(false),
            Event::GivenBack(its) => (its == address).then_some(true),
            Event::Crowd => None,
        });
        let spans = |(first, last)| first <= address && address <= last;
        told.unwrap_or_else(|| self.state.free.iter().filter_map(|text| ends(text)).any(spans))
    }

    /// The address given last by this node.
    pub(crate) fn cursor(&self) -> Option<IpAddr> {
        let chosen = self.events.iter().rev().find_map(|event| match *event {
            Event::Chosen(address) => Some(address),
            _ => None,
        });
        chosen.or(self.state.cursor)
    }

    /// For how many claims more addresses are random_candidates.
    pub(crate) fn crowd(&self) -> u32 {
        self.events.iter().fold(self.state.crowd, |crowd, event| match event {
            Event::Crowd => CROWD,
            Event::Chosen(_) => crowd.saturating_sub(1),
            Event::Taken(_) | Event::GivenBack(_) => crowd,
        })
    }
}

impl Event {
    /// As a line of the file.
    pub(crate) fn to_line(self) -> String {
        match self {
            Self::Chosen(address) => format!("-{address}\n"),
            Self::Taken(address) => format!("={address}\n"),
            Self::GivenBack(address) => format!("+{address}\n"),
            Self::Crowd => "!\n".to_owned(),
        }
    }

    fn read(line: &str) -> Option<Self> {
        let address = || parse_address(line.get(1..)?).ok();
        match line.get(..1)? {
            "-" => address().map(Self::Chosen),
            "=" => address().map(Self::Taken),
            "+" => address().map(Self::GivenBack),
            "!" => Some(Self::Crowd),
            _ => None,
        }
    }
}

/// The first line of a file, with its end.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn first_line(read: u64, known: &Known, crowd: u32) -> io::Result<Vec<u8>> {
    let state = State {
        read,
        definition: known.definition.clone(),
        brought: known.brought.clone(),
        free: stretches(&known.free),
        wide: known.wide,
        cursor: known.cursor,
        crowd,
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
