use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::secret::Secret;
use ipam_kit::Error;
use ipam_kit::text::redacted;

/// The secrets that servers were shown, and may repeat.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

/// Characters of a server's words that are shown.
pub(super) const SHOWN: usize = 300;

/// A user's name that is shorter would hide ordinary words.
const SHORTEST_USER: usize = 4;

impl Secrets {
    /// Adds the value of a header, with what it holds behind its scheme: a token, or for Basic a
    /// user and a password.
    pub(super) fn add(&mut self, header: &Secret) {
        let whole = header.expose();
        let rest = whole.split_once(' ').map(|(_, rest)| rest.trim_start());
        let pair = rest.and_then(|rest| String::from_utf8(STANDARD.decode(rest).ok()?).ok());
        let (user, password) = pair.as_deref().and_then(|pair| pair.split_once(':')).unzip();
        let user = user.filter(|user| user.len() >= SHORTEST_USER);
        // What contains another one comes first.
        let parts = [Some(whole), rest, pair.as_deref(), password, user];
        let plain = parts.into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
        let escaped = plain.iter().flat_map(|part| in_json(part));
        for part in escaped.chain(plain.iter().cloned()) {
            if !self.0.contains(&part) {
                self.0.push(part);
            }
        }
    }

    /// A server's words without the secrets.
    pub(super) fn redacted(&self, text: String) -> String {
        redacted(text, self.0.iter().map(String::as_str))
    }

    /// An error that quotes a server's words, without the secrets.
    pub fn redacted_error(&self, error: Error) -> Error {
        error.map_texts(|text| self.redacted(text))
    }

    /// A server's words in one line, without secrets.
    pub fn shown(&self, said: &[u8]) -> String {
        one_line(&self.redacted(String::from_utf8_lossy(said).into_owned()))
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// A text as the JSON of servers spells it; PHP also escapes each `/`.
fn in_json(text: &str) -> [String; 2] {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    [escaped.replace('/', "\\/"), escaped]
}

/// The first characters, with white space and control characters turned into single spaces.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    line.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_hidden_with_all_its_parts() {
        let basic = format!("Basic {}", STANDARD.encode("operator:pa:ss"));
        for (header, said, shown) in [
            ("s3cret", "token s3cret denied", "token … denied"),
            ("Bearer s3cret", "token s3cret denied", "token … denied"),
            ("bearer  s3cret", "token s3cret denied", "token … denied"),
            ("Token s3cret", "Token s3cret, s3cret", "…, …"),
            (&basic, "operator has no password pa:ss", "… has no password …"),
            (&basic, "b3BlcmF0b3I6cGE6c3M= is operator:pa:ss", "… is …"),
            ("Basic YTpi", "a has the password b", "a has the password …"),
            ("Basic !", "a ! b", "a … b"),
        ] {
            let mut secrets = Secrets::default();
            secrets.add(&Secret::parse(header, "p").unwrap());
            assert_eq!(secrets.shown(said.as_bytes()), shown, "{header}");
        }
    }

    #[test]
    fn a_secret_that_json_escapes_is_hidden() {
        let mut secrets = Secrets::default();
        secrets.add(&Secret::parse(r#"pa"s\s/word"#, "p").unwrap());
        for (said, shown) in [
            (r#"{"p":"pa\"s\\s/word"}"#, r#"{"p":"…"}"#),
            (r#"{"p":"pa\"s\\s\/word"}"#, r#"{"p":"…"}"#),
            (r#"no pa"s\s/word"#, "no …"),
        ] {
            assert_eq!(secrets.shown(said.as_bytes()), shown);
        }
    }

    #[test]
    fn a_secret_that_is_cut_shows_no_beginning() {
        let mut secrets = Secrets::default();
        secrets.add(&Secret::parse("Bearer s3cretive", "p").unwrap());
        assert_eq!(secrets.shown(b"unknown token s3cret"), "unknown token …");
    }
}
