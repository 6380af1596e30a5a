//! Values as a message of a check tells them to people.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::SystemTime;

use ipam_kit::allocate::Lease;
use ipam_kit::allocate::ledger::{Entry, Fault, Need, Scan, Taken};

/// How much of an answer a message repeats.
const LONGEST: usize = 200;

/// The items with commas between them, or `nothing`.
pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "nothing".to_owned() } else { items.join(", ") }
}

/// Each lease with its revision, which tells two leases of one address apart.
pub(crate) fn leases(leases: &[Lease]) -> String {
    list(leases.iter().map(|lease| format!("{} (revision {})", lease.address, lease.revision)))
}

/// Each entry with its holder.
pub(crate) fn entries(entries: &[Entry]) -> String {
    list(entries.iter().map(|entry| format!("{} of {}", entry.lease.address, entry.held_by())))
}

/// Each candidate that was taken, with its holder where the store tells it.
pub(crate) fn taken(taken: &[Taken]) -> String {
    list(taken.iter().map(|taken| {
        let by = taken.holder.as_ref().map(|entry| format!(" by {}", entry.held_by()));
        format!("{}{} for claim {}", taken.address, by.unwrap_or_default(), taken.claim)
    }))
}

/// The value, or `none`.
pub(crate) fn optional<T: Display>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// Windows of addresses, both ends included.
pub(crate) fn windows(windows: &[(IpAddr, IpAddr)]) -> String {
    list(windows.iter().map(|(from, to)| format!("{from} to {to}")))
}

pub(crate) fn look(look: Scan) -> String {
    match look {
        Scan::None => "no addresses".to_owned(),
        Scan::Range(from, to) => windows(&[(from, to)]),
        Scan::Full => "all addresses".to_owned(),
    }
}

pub(crate) fn need(need: Need) -> &'static str {
    match need {
        Need::Claim => "a look",
        Need::Proof => "a proof",
    }
}

pub(crate) fn fault(fault: Option<&Fault>) -> &str {
    match fault {
        None => "nothing is wrong with it",
        Some(Fault::Leftover) => "it is shown as the leftover of a killed plugin",
        Some(Fault::Unreadable(reason) | Fault::Kept(reason)) => reason,
    }
}

/// How long ago it was.
pub(crate) fn ago(since: Option<SystemTime>) -> String {
    match since.map(|since| since.elapsed()) {
        None => "nothing".to_owned(),
        Some(Ok(age)) => format!("{} s ago", age.as_secs()),
        Some(Err(_)) => "a time to come".to_owned(),
    }
}

/// The output of a program, on one line.
pub(crate) fn output(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(LONGEST) {
        _ if line.is_empty() => "nothing".to_owned(),
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_a_word() {
        assert_eq!((list([1, 2]), list([0; 0])), ("1, 2".to_owned(), "nothing".to_owned()));
        assert_eq!((optional(Some(1)), optional(None::<u8>)), ("1".to_owned(), "none".to_owned()));
    }

    #[test]
    fn an_output_stays_on_one_line_of_limited_length() {
        assert_eq!(output(" \n"), "nothing");
        assert_eq!(output("{\n  \"a\": 1\n}\n"), "{ \"a\": 1 }");
        assert_eq!(output(&"ä".repeat(300)).chars().count(), LONGEST + 1);
    }
}
