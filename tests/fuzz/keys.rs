//! Misspelt keys.

use ipam_kit::keys::{Key, misspelt, nearest};
use ipam_kit::pool::RangeConfig;
use serde_json::{Value, json};

use crate::engine::fuzz;

/// As long and as alike as those of ranges and pools.
const KNOWN: [&str; 10] = [
    "subnet",
    "rangeStart",
    "rangeEnd",
    "gateway",
    "exclude",
    "name",
    "requested-ip",
    "requested_ip",
    "index",
    "gw",
];

const POOL: &[Key] = &[
    Key::All(&[Key::Section("ranges", RangeConfig::KEYS), Key::Value("name")]),
    Key::Foreign("old", RangeConfig::KEYS),
    Key::Value("index"),
];

/// The letters by which keys are compared.
fn letters(key: &str) -> Vec<char> {
    let letter = |c: char| match c {
        'ſ' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    key.chars().map(letter).filter(|c| !"-_".contains(*c)).collect()
}

fn singular(letters: &[char]) -> &[char] {
    match letters {
        [before @ .., 's'] => before,
        all => all,
    }
}

/// The distance as it is defined, with no row saved: by what the first letters of both have come to.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut table = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            table[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let same = usize::from(one[i - 1] != other[j - 1]);
                    let swapped =
                        i > 1 && j > 1 && one[i - 2] == other[j - 1] && one[i - 1] == other[j - 2];
                    let swap = if swapped { table[i - 2][j - 2] + 1 } else { usize::MAX };
                    (table[i - 1][j] + 1)
                        .min(table[i][j - 1] + 1)
                        .min(table[i - 1][j - 1] + same)
                        .min(swap)
                }
            };
        }
    }
    table[one.len()][other.len()]
}

/// How far a key is from a known one, as the documentation has it.
fn apart(key: &str, known: &str) -> Option<usize> {
    let (key, known) = (letters(key), letters(known));
    if singular(&key) == singular(&known) {
        return Some(0);
    }
    // Longer ones are too far, and the table would be large.
    if key.len().abs_diff(known.len()) > 2 {
        return None;
    }
    let limit = if known.len() > 5 { 2 } else { 1 };
    Some(distance(&key, &known)).filter(|distance| *distance <= limit)
}

#[test]
fn a_misspelt_key_means_the_nearest_known_one() {
    let seeds = KNOWN.map(|key| key.as_bytes().to_vec());
    fuzz("keys", &seeds, |input| {
        let key = String::from_utf8_lossy(input);
        let found = nearest(&key, KNOWN);
        if KNOWN.contains(&&*key) {
            assert_eq!(found, None);
            return;
        }
        let all = KNOWN.map(|known| apart(&key, known));
        let place = |found: &str| KNOWN.iter().position(|known| *known == found).unwrap();
        let least = all.iter().flatten().min();
        assert_eq!(found.and_then(|found| all[place(found)]).as_ref(), least, "{key:?}");
        assert_eq!(found.is_some(), least.is_some(), "{key:?}");
        for (known, apart) in KNOWN.iter().zip(all) {
            assert_eq!(nearest(&key, [*known]).is_some(), apart.is_some(), "{key:?} {known}");
            // It does not matter which of both is misspelt, where both are long or both short.
            if apart.is_some() && (letters(&key).len() > 5) == (letters(known).len() > 5) {
                assert_eq!(nearest(known, [&*key]), Some(&*key));
            }
        }
    });
}

#[test]
fn misspelt_keys_are_named_by_their_places() {
    let seeds = [
        json!({"name": "a", "ranges": [{"subnet": "x", "rangeStat": 1}], "indx": 0}),
        json!([[{"ranges": [[{"Subnet": 1}]], "old": {"gatway": 1}}], {"nmae": {"ranges": 1}}]),
        json!({"ranges": {"ranges": [{"excludes": []}]}, "x\n": null}),
    ];
    fuzz("misspelt", &seeds.map(|seed| seed.to_string().into_bytes()), |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return };
        let found = misspelt(&value, POOL, "ipam.pools");
        for one in &found {
            assert!(one.path.starts_with("ipam.pools") && !one.path.contains(char::is_control));
            assert!(one.key != one.meant && apart(&one.key, one.meant).is_some());
            assert_eq!(one.error().code().number(), 7);
            assert!(one.error().to_string().starts_with(&one.path), "{one:?}");
            assert!(!one.foreign || one.path.contains(".old"), "{one:?}");
        }
        // Corrected, the value has fewer of them; a known key is never one.
        let known = ["name", "index", "ranges", "old"];
        if let Value::Object(pool) = &value {
            let own = found.iter().filter(|one| one.path.matches(['.', '[']).count() == 2);
            let keys = pool.keys().filter(|key| nearest(key, known).is_some());
            assert!(own.count() <= keys.count() + pool.len());
            assert!(found.iter().all(|one| !known.contains(&&*one.key) || one.path.len() > 12));
        }
    });
}
