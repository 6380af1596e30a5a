//! Text of others on its way out: to stderr, a log, a table, the message of an error.
//!
//! A terminal obeys some characters instead of showing them, and a log begins a new line at others.
//! Servers, files and programs may send either, so each place that composes a line for people calls
//! [`visible`]. Rows for programs (`--json`) stay as they are.
//!
//! Secrets leave in no form: [`masked`] takes them out of a configuration, [`redacted`] out of the
//! words of a server.

mod secret;
mod utc;

use std::borrow::Cow;

pub use secret::{is_secret, masked, secrets_in};
pub use utc::Utc;

/// A text as a part of one line: each character that moves the cursor, ends the line or turns the
/// direction of writing is escaped as in Rust, such as `\n` and `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// The same for several lines, which keep their ends and their tabs: for what a program says on
/// stderr.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_meant) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_meant(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// The words of a server without the secrets that it may have repeated, and without the beginning
/// of one where the words end: they may have been cut.
pub fn redacted<'a>(text: String, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let secrets: Vec<&str> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
    // Whole ones first: a secret may end like the beginning of another one.
    let mut text = secrets.iter().fold(text, |text, secret| text.replace(secret, "…"));
    let cut = secrets.iter().filter_map(|secret| {
        let mut lengths =
            (LEAST..secret.len()).rev().filter(|length| secret.is_char_boundary(*length));
        lengths.find(|length| text.ends_with(&secret[..*length]))
    });
    if let Some(length) = cut.max() {
        text.truncate(text.len() - length);
        text.push('…');
    }
    text
}

/// Returns whether the names of Kubernetes objects may begin with a text, then `-`, and a range or an
/// address: they are domain names of up to 253 bytes.
pub fn may_begin_object_names(text: &str) -> bool {
    const LONGEST: usize = 200;
    text.len() <= LONGEST && format!("{text}-0").split('.').all(is_label)
}

/// Returns whether a text may be a part of a domain name, and so of the name of a Kubernetes object:
/// lower-case letters, digits and, inside, `-`.
pub fn is_label(label: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inside)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// FNV-1a: the same for every release of every program.
pub fn stable_hash(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// How many bytes of a secret at the end of a text are more than chance.
const LEAST: usize = 4;

/// Whether a terminal or a log obeys a character: controls (ASCII's and C1), the separators of
/// lines and paragraphs, and the marks of bidirectional text.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (text, shown) in [
            ("\u{1b}[2J\rforged\n", r"\u{1b}[2J\rforged\n"),
            ("\0\t\u{7f}\u{9b}31m", r"\u{0}\t\u{7f}\u{9b}31m"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}", r"a\u{202e}b\u{2066}c\u{200f}d\u{61c}"),
            ("\u{2028}\u{2029}", r"\u{2028}\u{2029}"),
            (r"a\b é ✓ 中", r"a\b é ✓ 中"),
            ("", ""),
        ] {
            assert_eq!(visible(text), shown);
            assert_eq!(visible(shown), shown);
        }
        assert_eq!(visible_lines("a\n\tb\r\u{1b}\n"), "a\n\tb\\r\\u{1b}\n");
    }

    #[test]
    fn secrets_leave_no_piece_in_the_words_of_a_server() {
        let secrets = ["s3crét-word", "t0ken", ""];
        for (said, shown) in [
            ("no s3crét-word, no t0ken.", "no …, no …."),
            ("cut at s3cré", "cut at …"),
            ("cut at s3cr", "cut at …"),
            ("cut at t0ke", "cut at …"),
            ("s3c", "s3c"),
        ] {
            assert_eq!(redacted(said.to_owned(), secrets), shown);
        }
    }
}
