//! The keys that a delegate declares, and the known key that a misspelt one means.

use log::warn;
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A key of a configuration, as its reader declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A key with any value.
    Value(&'static str),
    /// A key of an object with these keys, or of arrays of such objects at any depth.
    Section(&'static str, &'static [Key]),
    /// A section in the form of a replaced system, which ignores a misspelt key.
    Foreign(&'static str, &'static [Key]),
    /// Each key of a list.
    All(&'static [Key]),
}

/// The keys of `ipam` that host-local reads.
pub const OF_HOST_LOCAL: &[&str] =
    &["dataDir", "gateway", "rangeEnd", "rangeStart", "ranges", "resolvConf", "routes", "subnet"];

/// An undeclared key, beside the known one that it resembles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisspeltKey {
    /// Its path, as in `ipam.ranges[0][0].rangeStat`.
    pub path: String,
    /// The key as it is written.
    pub key: String,
    /// The known key.
    pub meant: &'static str,
    /// Whether it is in a section in the form of a replaced system.
    pub foreign: bool,
}

impl MisspeltKey {
    /// The key as an error: code 7.
    pub fn error(&self) -> Error {
        let error =
            Error::config(&self.path, format!("unknown key (did you mean {}?)", self.meant));
        if self.is_in_other_letters() {
            return error.advise(OTHER_LETTERS);
        }
        let key = self.key.escape_debug();
        error.advise(format!("correct {key}; a key of your own needs a name that differs more"))
    }

    /// Whether it differs from the known key in upper and lower case alone.
    fn is_in_other_letters(&self) -> bool {
        is_same_to_go(&self.key, self.meant)
    }

    /// The key as a line of a log.
    pub fn warning(&self) -> String {
        format!("{} is ignored (did you mean {}?)", self.path, self.meant)
    }
}

/// The names of the keys of a list.
pub fn names(keys: &[Key]) -> Vec<&'static str> {
    flat(keys).into_iter().map(|(name, ..)| name).collect()
}

/// Keys as `about --json` says them: each with an object of the keys inside it, or with null.
pub fn to_json(keys: &[Key]) -> Value {
    let mut object = Map::new();
    for (name, inside, _) in flat(keys) {
        let inside = if inside.is_empty() { Value::Null } else { to_json(inside) };
        object.insert(name.to_owned(), inside);
    }
    Value::Object(object)
}

/// The known key that a misspelt one resembles most: it differs in upper and lower case as Go reads
/// it, in `-` or `_`, in a plural `s`, or in at most two letters (one, if the known key has at most
/// five letters). Two swapped letters count as one. `None` for a known key.
pub fn nearest<'a>(
    key: &str,
    known: impl IntoIterator<Item = &'a str, IntoIter: Clone>,
) -> Option<&'a str> {
    let known = known.into_iter();
    if known.clone().any(|known| known == key) {
        return None;
    }
    let written = Letters::of(key);
    let mut nearest: Option<(usize, &str)> = None;
    for known in known {
        let meant = Letters::of(known);
        let Some(distance) = written.distance(&meant) else { continue };
        if nearest.is_none_or(|(least, _)| distance < least) {
            nearest = Some((distance, known));
        }
    }
    nearest.map(|(_, known)| known)
}

/// The misspelt keys of an object and its sections, or of each object in arrays at any depth.
/// `path` is the path of `value`.
pub fn misspelt(value: &Value, keys: &[Key], path: &str) -> Vec<MisspeltKey> {
    let mut found = Vec::new();
    MisspeltSearch { found: &mut found, foreign: false }.value(value, keys, path);
    found
}

/// The misspelt keys in the sections of an object. Its own keys are not searched: other programs
/// read keys of `ipam`, too.
pub fn misspelt_inside(object: &Map<String, Value>, keys: &[Key], path: &str) -> Vec<MisspeltKey> {
    let mut found = Vec::new();
    MisspeltSearch { found: &mut found, foreign: false }.sections(object, &flat(keys), path);
    found
}

/// A key's name, the keys inside it, and whether these are in the form of a replaced system.
type FlatKey = (&'static str, &'static [Key], bool);

/// The keys of a list; a [`Key::All`] is replaced by its keys.
fn flat(keys: &[Key]) -> Vec<FlatKey> {
    let mut all = Vec::new();
    for key in keys {
        match *key {
            Key::Value(name) => all.push((name, &[][..], false)),
            Key::Section(name, inside) => all.push((name, inside, false)),
            Key::Foreign(name, inside) => all.push((name, inside, true)),
            Key::All(keys) => all.extend(flat(keys)),
        }
    }
    all
}

/// A search for misspelt keys.
struct MisspeltSearch<'a> {
    found: &'a mut Vec<MisspeltKey>,
    foreign: bool,
}

impl MisspeltSearch<'_> {
    fn value(&mut self, value: &Value, keys: &[Key], path: &str) {
        match value {
            Value::Object(object) => {
                let keys = flat(keys);
                for key in object.keys() {
                    let known = keys.iter().map(|(name, ..)| *name);
                    let Some(meant) = nearest(key, known) else { continue };
                    // A key of others may hold control characters.
                    let path = format!("{path}.{}", key.escape_debug());
                    let foreign = self.foreign;
                    self.found.push(MisspeltKey { path, key: key.clone(), meant, foreign });
                }
                self.sections(object, &keys, path);
            }
            Value::Array(values) => {
                for (i, value) in values.iter().enumerate() {
                    self.value(value, keys, &format!("{path}[{i}]"));
                }
            }
            _ => {}
        }
    }

    fn sections(&mut self, object: &Map<String, Value>, keys: &[FlatKey], path: &str) {
        for (name, inside, foreign) in keys.iter().filter(|(_, inside, _)| !inside.is_empty()) {
            let Some(value) = object.get(*name) else { continue };
            let foreign = self.foreign || *foreign;
            MisspeltSearch { found: &mut *self.found, foreign }.value(
                value,
                inside,
                &format!("{path}.{name}"),
            );
        }
    }
}

/// Logs misspelt keys in one line.
pub fn warn_of(found: &[MisspeltKey]) {
    if !found.is_empty() {
        warn!("{}", Error::listed(found.iter().map(MisspeltKey::warning), "; "));
    }
}

const OTHER_LETTERS: &str = "keys are case-sensitive";

/// Refuses keys of an object that differ from known ones in upper and lower case alone, which a
/// system written in Go reads.
///
/// # Errors
/// There is such a key; the error names its path.
pub fn refuse_other_letters(object: &Map<String, Value>, known: &[&str], path: &str) -> Result<()> {
    for key in object.keys().filter(|key| !known.contains(&key.as_str())) {
        if let Some(meant) = known.iter().find(|known| is_same_to_go(key, known)) {
            let path = format!("{path}.{}", key.escape_debug());
            return Err(Error::config(path, format!("unknown key (did you mean {meant}?)"))
                .advise(OTHER_LETTERS));
        }
    }
    Ok(())
}

/// As [`refuse_other_letters`], for an object and its sections, or for each object in arrays at any
/// depth.
///
/// # Errors
/// There is such a key; the error names its path.
pub fn refuse_other_letters_inside(value: &Value, keys: &[Key], path: &str) -> Result<()> {
    let refused = misspelt(value, keys, path).into_iter().find(MisspeltKey::is_in_other_letters);
    refused.map_or(Ok(()), |it| Err(it.error()))
}

/// Whether two keys are one to Go.
pub(crate) fn is_same_to_go(key: &str, other: &str) -> bool {
    folded(key).eq(folded(other))
}

/// The letters of a key as Go compares them: regardless of case, also of two letters beyond ASCII.
pub(crate) fn folded(key: &str) -> impl Iterator<Item = char> {
    key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        letter => letter.to_ascii_lowercase(),
    })
}

/// The letters of a key that count in a comparison.
struct Letters(Vec<char>);

impl Letters {
    fn of(key: &str) -> Self {
        Self(folded(key).filter(|letter| !matches!(letter, '-' | '_')).collect())
    }

    /// How many letters differ from a known key's; `None` for too many.
    fn distance(&self, known: &Self) -> Option<usize> {
        if self.singular() == known.singular() {
            return Some(0);
        }
        let limit = if known.0.len() > 5 { 2 } else { 1 };
        if self.0.len().abs_diff(known.0.len()) > limit {
            return None;
        }
        Some(optimal_string_alignment(&self.0, &known.0)).filter(|distance| *distance <= limit)
    }

    fn singular(&self) -> &[char] {
        self.0.strip_suffix(&['s']).unwrap_or(&self.0)
    }
}

/// Letters to insert, remove, replace or swap with their neighbours, each letter once.
fn optimal_string_alignment(one: &[char], other: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let replaced = last[j] + usize::from(a != b);
            let mut least = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i - 1] == *b && other[j - 1] == *a {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RANGE: &[Key] = &[
        Key::Value("subnet"),
        Key::Value("rangeStart"),
        Key::Value("rangeEnd"),
        Key::Value("gateway"),
        Key::Value("exclude"),
    ];
    const IPAM: &[Key] = &[
        Key::All(&[Key::Section("ranges", RANGE)]),
        Key::Section("pools", &[Key::Value("name"), Key::Foreign("ranges", RANGE)]),
        Key::Value("timeout"),
    ];

    #[test]
    fn the_key_that_is_meant_is_found() {
        let known = ["timeout", "routes", "rangeStart", "rangeEnd", "exclude", "name", "tokenFile"];
        for (key, meant) in [
            ("rangeStat", "rangeStart"),
            ("range_start", "rangeStart"),
            ("RANGE-END", "rangeEnd"),
            ("excludes", "exclude"),
            ("route", "routes"),
            ("rouets", "routes"),
            ("timeot", "timeout"),
            ("tiemotu", "timeout"),
            ("tokenfile", "tokenFile"),
            ("to\u{212a}enFile\u{17f}", "tokenFile"),
            ("nmae", "name"),
            ("names", "name"),
        ] {
            assert_eq!(nearest(key, known), Some(meant), "{key}");
        }
    }

    #[test]
    fn a_key_of_another_author_is_left_alone() {
        let known = ["timeout", "routes", "rangeStart", "exclude", "name", "index", "gw"];
        for key in
            ["node", "vlan", "time", "rangeSize", "", "_", "s", "comment", "Ü", "name", "vrf"]
        {
            assert_eq!(nearest(key, known), None, "{key}");
        }
        assert_eq!(nearest(&"s".repeat(1 << 20), known), None);
    }

    #[test]
    fn the_nearest_of_several_counts() {
        assert_eq!(nearest("rangeEn", ["rangeIn", "rangeEnd"]), Some("rangeIn"));
        assert_eq!(nearest("rangesEnd", ["rangeSend", "rangeEnd"]), Some("rangeSend"));
        assert_eq!(nearest("certfile", ["keyFile", "certFile"]), Some("certFile"));
        assert_eq!(nearest("requestedip", ["requested-ip", "requested_ip"]), Some("requested-ip"));
    }

    #[test]
    fn a_misspelt_key_is_named_by_its_place_at_any_depth() {
        let ipam = json!({
            "timeot": 1, "range": [[{"rangeStat": 1}]],
            "ranges": [[{"subnet": 1, "vlan": 7}], [{"Subnet": 1}, {"gatway": 1, "excludes": []}]],
            "pools": [{"nmae": "a", "ranges": [{"range\n-start": 1}]}, 5],
        });
        let found = misspelt_inside(ipam.as_object().unwrap(), IPAM, "ipam");
        let found: Vec<_> = found.iter().map(|it| format!("{}: {}", it.path, it.meant)).collect();
        let expected = [
            "ipam.ranges[1][0].Subnet: subnet",
            "ipam.ranges[1][1].excludes: exclude",
            "ipam.ranges[1][1].gatway: gateway",
            "ipam.pools[0].nmae: name",
            "ipam.pools[0].ranges[0].range\\n-start: rangeStart",
        ];
        assert_eq!(found, expected);
        let foreign = misspelt_inside(ipam.as_object().unwrap(), IPAM, "ipam");
        let foreign: Vec<_> = foreign.iter().map(|it| it.foreign).collect();
        assert_eq!(foreign, [false, false, false, false, true]);
        let all = misspelt(&ipam, IPAM, "ipam");
        assert_eq!((all.len(), all[1].path.as_str()), (7, "ipam.timeot"));
    }

    #[test]
    fn errors_and_warnings_say_what_to_write() {
        let of = |range: Value| misspelt(&range, RANGE, "p").remove(0);
        let error = of(json!({"rangeStat": 1})).error();
        assert_eq!(
            (error.to_string().as_str(), error.code().number()),
            ("p.rangeStat: unknown key (did you mean rangeStart?)", 7)
        );
        assert_eq!(
            error.details(),
            "correct rangeStat; a key of your own needs a name that differs more"
        );
        let letters = of(json!({"SUBNET": 1}));
        assert_eq!(letters.error().details(), OTHER_LETTERS);
        assert_eq!(letters.warning(), "p.SUBNET is ignored (did you mean subnet?)");
    }

    #[test]
    fn other_letters_are_refused_as_go_reads_them() {
        let refused = |key: &str| {
            let object = json!({ key: 1, "other": 2 });
            refuse_other_letters(object.as_object().unwrap(), &["subnet"], "ipam")
        };
        for key in ["Subnet", "\u{17f}ubnet"] {
            let error = refused(key).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("ipam.{key}: unknown key (did you mean subnet?)")
            );
        }
        assert!(refused("subnet").is_ok() && refused("subnets").is_ok());
    }

    #[test]
    fn other_letters_are_refused_at_any_depth() {
        let refused =
            |ipam: Value| refuse_other_letters_inside(&ipam, IPAM, "ipam").unwrap_err().to_string();
        for (ipam, place) in [
            (json!({"TimeOut": 1}), "TimeOut"),
            (json!({"ranges": [[{}], [{"excludes": [], "Exclude": []}]]}), "ranges[1][0].Exclude"),
            (json!({"pools": [{"ranges": [{"Gateway": 1}]}]}), "pools[0].ranges[0].Gateway"),
        ] {
            assert!(refused(ipam).starts_with(&format!("ipam.{place}: unknown key")));
        }
        let misspelt = json!({"timeot": 1, "ranges": [{"excludes": []}]});
        assert!(refuse_other_letters_inside(&misspelt, IPAM, "ipam").is_ok());
    }
}
