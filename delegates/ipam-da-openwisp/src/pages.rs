//! Lists that are read page by page.

use std::collections::BTreeSet;
use std::io::{self, Read};

use ipam_kit::{Error, ErrorCode, Result};
use ipam_servers::{HttpAnswer, Method, each_element};
use serde::de::DeserializeOwned;

use crate::answers::{Clock, PageEnd, check_absent, check_no_page, nonsense, parse};
use crate::client::{ApiClient, Ask};

/// How many elements a page has: the most that OpenWISP gives.
pub(crate) const PAGE: usize = 100;

/// The longest element of a list, in bytes.
pub(crate) const ELEMENT: usize = 16 * 1024;

/// How many records of a subnet are read. Their ids and addresses stay in memory.
pub(crate) const MOST: usize = 100_000;

/// The longest id, in bytes; OpenWISP's have 36.
const ID: usize = 64;

/// How often a list is read that changes while it is read.
const ROUNDS: u32 = 8;

/// The list of all subnets.
pub(crate) const SUBNETS: &str = "subnet/";

/// An element of a list.
pub(crate) trait Identified {
    /// The server's id.
    fn id(&self) -> &str;
}

/// A page of a list.
pub(crate) struct ListPage<T> {
    /// From 1. With the first page, the list begins anew.
    pub(crate) number: usize,
    pub(crate) elements: Vec<T>,
    pub(crate) clock: Clock,
    /// How many elements the whole list has.
    pub(crate) count: usize,
    is_last: bool,
}

/// How often a list is read. A page is two looks at the database: the server counts the rows, then
/// reads that many of them. A row that is added between pushes the last one out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// Once: elements may be missing.
    One,
    /// Until two rounds in a row show the same elements.
    UntilSame,
}

/// Reads a list, and gives each page to `each`: again from the first, until enough rounds were
/// read. False if the server has no such list.
///
/// # Errors
/// The server cannot be reached, or refuses. The list has too many elements, or changes each time
/// it is read.
pub(crate) fn read_pages<T: DeserializeOwned + Identified>(
    client: &mut ApiClient,
    list: &str,
    rounds: Rounds,
    each: &mut dyn FnMut(ListPage<T>) -> Result<()>,
) -> Result<bool> {
    let read = read_rounds(list, rounds, |number| read_page(client, list, number), each);
    read.map_err(|error| client.redacted(error))
}

/// Two rounds agree if they show the same ids, and as many as each page says. If an element that
/// exists is missing in the second one, another one was added after the server had counted. So one
/// that the first round shows was deleted between, and made again with its id. That takes a server
/// that carries out a write by making a deleted record again.
fn read_rounds<T: Identified>(
    list: &str,
    rounds: Rounds,
    mut read: impl FnMut(usize) -> Result<Option<ListPage<T>>>,
    each: &mut dyn FnMut(ListPage<T>) -> Result<()>,
) -> Result<bool> {
    let mut before: Option<BTreeSet<String>> = None;
    for _ in 0..ROUNDS {
        let (mut ids, mut counts) = (BTreeSet::new(), BTreeSet::new());
        let mut pages = 0;
        loop {
            let Some(mut page) = read(pages + 1)? else {
                if pages == 0 {
                    return Ok(false);
                }
                break;
            };
            pages += 1;
            if let Some(element) = page.elements.iter().find(|element| element.id().len() > ID) {
                let id = element.id();
                return Err(nonsense(format!("an element of {list} has the id {id:?}")));
            }
            page.elements.retain(|element| ids.insert(element.id().to_owned()));
            if ids.len().max(page.count) > MOST {
                return Err(too_many(list));
            }
            counts.insert(page.count);
            // A page without a new element is one that the server repeats.
            let is_last = page.is_last || page.elements.is_empty();
            each(page)?;
            if is_last {
                break;
            }
        }
        let agrees = counts.len() == 1 && counts.contains(&ids.len());
        // The server does not look for rows where it counts none.
        let is_one_look = ids.is_empty();
        if rounds == Rounds::One || agrees && (is_one_look || before.as_ref() == Some(&ids)) {
            return Ok(true);
        }
        before = Some(ids);
    }
    let message = format!("OpenWISP: the list {list} changed each of {ROUNDS} times it was read");
    Err(Error::new(ErrorCode::TRY_AGAIN, message).advise(match list {
        SUBNETS => "call again when no subnets are added or deleted",
        _ => "call again; a user with the right to add subnets reads all records in one request",
    }))
}

/// The error that a list is longer than what fits into memory.
pub(crate) fn too_many(list: &str) -> Error {
    Error::new(ErrorCode::BACKEND, format!("OpenWISP: {list} has more than {MOST} elements"))
        .advise(match list {
            SUBNETS => "use a user who manages fewer organizations",
            _ => "divide the subnet into smaller ones",
        })
}

/// Reads a page; `None` if the list or the page does not exist.
fn read_page<T: DeserializeOwned>(
    client: &mut ApiClient,
    list: &str,
    number: usize,
) -> Result<Option<ListPage<T>>> {
    let path = match number {
        1 => format!("{list}?page_size={PAGE}"),
        _ => format!("{list}?page_size={PAGE}&page={number}"),
    };
    let ask = Ask { method: Method::Get, path: &path, body: &[], ok: &[200, 404] };
    client.read_with(ask, &mut |head: &HttpAnswer, body: &mut dyn Read| {
        if head.status == 404 {
            let check = if number == 1 { check_absent } else { check_no_page };
            return Ok(check(&read_refusal(body)?, &path).map(|()| None));
        }
        let mut elements = Vec::new();
        let rest = each_element(body, Some("results"), ELEMENT, |element| {
            if elements.len() == PAGE {
                return Err(nonsense(format!("a page of {list} has more than {PAGE} elements")));
            }
            elements.push(parse(element, &format!("an element of {list}"))?);
            Ok(())
        })?;
        let page = rest.and_then(|rest| {
            let PageEnd { count, next, .. } = parse(&rest, &format!("the list {list}"))?;
            let clock = Clock::of(head);
            Ok(Some(ListPage { number, elements, clock, count, is_last: next.is_none() }))
        });
        Ok(page)
    })
}

/// The body of an answer without a list.
pub(crate) fn read_refusal(body: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    body.take(ELEMENT as u64).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Identified for String {
        fn id(&self) -> &str {
            self
        }
    }

    /// The page of a list with two elements a page.
    fn page(state: &str, number: usize) -> Option<ListPage<String>> {
        let from = 2 * (number - 1);
        if from > 0 && from >= state.len() {
            return None;
        }
        let end = state.len().min(from + 2);
        let elements = state[from..end].chars().map(String::from).collect();
        let clock = Clock::of(&HttpAnswer::new(200, Vec::new()));
        let is_last = end == state.len();
        Some(ListPage { number, elements, clock, count: state.len(), is_last })
    }

    /// Reads a list of which each request shows the next state: whether it exists, the elements that
    /// were shown, and the number of requests.
    fn read(rounds: Rounds, states: &[&str]) -> (Result<bool>, String, usize) {
        let (mut requests, mut shown) = (0, String::new());
        let outcome = read_rounds::<String>(
            "list",
            rounds,
            |number| {
                let state = states[requests.min(states.len() - 1)];
                requests += 1;
                Ok(page(state, number))
            },
            &mut |page| {
                if page.number == 1 {
                    shown.clear();
                }
                shown.extend(page.elements);
                Ok(())
            },
        );
        (outcome, shown, requests)
    }

    #[test]
    fn a_list_is_read_until_two_rounds_agree() {
        for (states, shown, requests) in [
            (&["ab"][..], "ab", 2),
            (&[""][..], "", 1),
            // The server counts two, then a is added and pushes the last one out.
            (&["ac", "acz"][..], "acz", 5),
            (&["abcd"][..], "abcd", 4),
            // One goes and one comes: c moves to the page that was read, and all counts agree.
            (&["abcd", "bcde"][..], "bcde", 6),
        ] {
            let (outcome, found, sent) = read(Rounds::UntilSame, states);
            assert!(outcome.unwrap());
            assert_eq!((&*found, sent), (shown, requests), "{states:?}");
        }
    }

    #[test]
    fn one_round_is_enough_if_elements_may_be_missing() {
        for (states, shown, requests) in [("ab", "ab", 1), ("abcd", "abcd", 2)] {
            let (outcome, found, sent) = read(Rounds::One, &[states]);
            assert!(outcome.unwrap());
            assert_eq!((&*found, sent), (shown, requests), "{states:?}");
        }
    }

    #[test]
    fn a_list_that_always_changes_is_error_11() {
        let states: Vec<String> =
            (0..100).map(|n: u8| format!("abc{}", char::from(b'A' + n % 26))).collect();
        let states: Vec<&str> = states.iter().map(String::as_str).collect();
        assert_eq!(read(Rounds::UntilSame, &states).0.unwrap_err().code().number(), 11);
    }

    #[test]
    fn a_server_that_repeats_a_page_without_end_gets_few_requests() {
        for (count, code, most) in [(4, 11, 16), (MOST, 11, 16), (MOST + 1, 103, 1)] {
            let mut requests = 0;
            let outcome = read_rounds::<String>(
                "list",
                Rounds::UntilSame,
                |number| {
                    requests += 1;
                    assert!(requests <= most, "{count}: {requests} requests");
                    Ok(page("abcd", 1).map(|page| ListPage { number, count, ..page }))
                },
                &mut |_| Ok(()),
            );
            assert_eq!(outcome.unwrap_err().code().number(), code, "{count}");
        }
    }
}
