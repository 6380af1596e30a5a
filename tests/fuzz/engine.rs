//! The engine: inputs that are mutated seeds, drawn by a seeded generator.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, or zero where there is nothing below.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Texts that have meant trouble somewhere.
const TEXTS: &[&str] = &[
    "",
    " ",
    "0",
    "-1",
    "/",
    "..",
    "../x",
    "a/b",
    ":",
    ";",
    "=",
    "a=b;c",
    "\u{0}",
    "\n",
    "ä",
    "\u{feff}",
    "1.0.0",
    "1.1.0",
    "0.1.0",
    "0.2.0",
    "0.3.0",
    "0.4.0",
    "1.0.7",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.255/24",
    "0.0.0.0/0",
    "255.255.255.255/32",
    "255.255.255.254/31",
    "10.0.0.01",
    "::",
    "::/0",
    "::1/128",
    "fd00::1/64",
    "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128",
    "::ffff:10.0.0.1",
    "::ffff:10.0.0.0/104",
    "::ffff:0:0/96",
    "fe80::1%eth0",
    "10.0.0.1/",
    "10.0.0.1/33",
    "name",
    "ipam",
    "prevResult",
    "ips",
    "ip4",
    "ip6",
    "routes",
    "dns",
    "pools",
    "address",
    "gateway",
    "dst",
    "gw",
    "cniVersion",
    "cniVersions",
    "requested-ip",
    "requested_ip",
    "subnet",
    "rangeStart",
    "rangeEnd",
    "exclude",
    "rules",
    "index",
    "runtimeConfig",
    "args",
    "cni",
    "cni.dev/valid-attachments",
    "cni.dev/attachments",
    "containerID",
    "ifname",
    "IP",
    "ip",
    "code",
    "msg",
    "rangeStat",
    "exclude\u{17f}",
    "\u{1b}[2J",
    "\r\n",
    "\u{9b}",
    "\u{202e}",
    "\u{2028}",
    "password",
    "API-Key",
    "http://u:s3cret-w0rd@h/?token=s3cret-w0rd",
    "s3cret-w0rd",
];

/// Changes an input, as bytes or as the JSON it is.
fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(seeds).clone();
    // Most inputs stay JSON, or little would be seen but errors of decoding.
    let json = !random.one_in(4);
    for _ in 0..=random.below(4) {
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(mut value) if json => {
                let donor: &Vec<u8> = random.pick(seeds);
                let donor = serde_json::from_slice(donor).unwrap_or(Value::Null);
                mutate_value(random, &mut value, &donor, 0);
                bytes = value.to_string().into_bytes();
            }
            _ => mutate_bytes(random, &mut bytes, seeds),
        }
    }
    bytes
}

pub fn mutate_bytes(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    match random.below(8) {
        0 => bytes.truncate(at),
        1 | 2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        3 if at < bytes.len() => bytes[at] = random.next() as u8,
        4 => {
            let text = random.pick(TEXTS).as_bytes().to_vec();
            bytes.splice(at..at, text);
        }
        5 => {
            let end = (at + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        6 => {
            let end = (at + random.below(64)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => {
            let other = random.pick(seeds);
            let from = random.below(other.len() + 1);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
    bytes.truncate(64 * 1024);
}

fn mutate_value(random: &mut Random, value: &mut Value, donor: &Value, depth: usize) {
    let inner = match value {
        Value::Object(object) => object.len(),
        Value::Array(array) => array.len(),
        _ => 0,
    };
    if inner > 0 && (depth == 0 || !random.one_in(depth + 2)) {
        let at = random.below(inner);
        match value {
            Value::Object(object) => {
                let key = object.keys().nth(at).expect("below the length").clone();
                match random.below(12) {
                    0 => {
                        let moved = object.remove(&key).unwrap_or_default();
                        object.insert((*random.pick(TEXTS)).to_owned(), moved);
                    }
                    1 => {
                        object.remove(&key);
                    }
                    2 => {
                        object.insert((*random.pick(TEXTS)).to_owned(), invent(random, donor));
                    }
                    _ => mutate_value(random, &mut object[&key], donor, depth + 1),
                }
            }
            Value::Array(array) => match random.below(8) {
                0 => {
                    array.remove(at);
                }
                1 => {
                    let copy = array[at].clone();
                    array.push(copy);
                }
                2 => {
                    let other = random.below(inner);
                    array.swap(at, other);
                }
                _ => mutate_value(random, &mut array[at], donor, depth + 1),
            },
            _ => {}
        }
        return;
    }
    match value {
        Value::String(text) if random.one_in(2) => {
            let mut bytes = text.clone().into_bytes();
            let other = (*random.pick(TEXTS)).into();
            mutate_bytes(random, &mut bytes, &[other]);
            *text = String::from_utf8_lossy(&bytes).into_owned();
        }
        _ => *value = invent(random, donor),
    }
}

fn invent(random: &mut Random, donor: &Value) -> Value {
    match random.below(9) {
        0 => Value::Null,
        1 => json!(random.one_in(2)),
        2 => json!(random.next()),
        3 => json!(-(random.below(1 << 20) as i64)),
        4 => json!(f64::from_bits(random.next())),
        5 => json!([]),
        6 => json!({}),
        7 => part_of(random, donor),
        _ => json!(random.pick(TEXTS)),
    }
}

fn part_of(random: &mut Random, donor: &Value) -> Value {
    let inner: Vec<&Value> = match donor {
        Value::Object(object) => object.values().collect(),
        Value::Array(array) => array.iter().collect(),
        _ => Vec::new(),
    };
    if inner.is_empty() || random.one_in(3) {
        return donor.clone();
    }
    let next = random.below(inner.len());
    part_of(random, inner[next])
}

/// How many inputs a target gets where nothing is said, and targets whose inputs take much longer.
const RUNS: u64 = 100_000;
const HEAVY: [&str; 2] = ["answer", "result"];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Replays the corpus of a target, then tries new inputs; stops at the first that breaks it.
pub fn fuzz(target: &str, seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    fuzz_with(target, seeds, |_, input| input, check);
}

/// As [`fuzz`], with what `finish` makes of an input.
pub fn fuzz_with(
    target: &str,
    seeds: &[Vec<u8>],
    finish: impl Fn(&mut Random, Vec<u8>) -> Vec<u8>,
    check: impl Fn(&[u8]),
) {
    let folder: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz_corpus").join(target);
    let mut seeds = seeds.to_vec();
    for entry in fs::read_dir(&folder).expect("every target has a corpus") {
        let input = fs::read(entry.expect("readable").path()).expect("readable");
        check(&input);
        seeds.push(input);
    }
    let usual = if HEAVY.contains(&target) { RUNS / 5 } else { RUNS };
    let runs = number("IPAM_DELEGATED_FUZZ_RUNS", usual);
    let mut random = Random(number("IPAM_DELEGATED_FUZZ_SEED", 1));
    for run in 0..runs {
        let input = if run == 0 { Vec::new() } else { mutate(&mut random, &seeds) };
        let input = finish(&mut random, input);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            let mut hash = DefaultHasher::new();
            input.hash(&mut hash);
            let file = folder.join(format!("found-{:016x}", hash.finish()));
            fs::write(&file, &input).expect("the corpus can be written");
            let _ = writeln!(std::io::stderr(), "{target}, run {run}: {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
    // Not through the harness, which keeps what a passing test prints.
    let count = format!("{target}: {runs} inputs and {} of the corpus", seeds.len());
    let _ = writeln!(std::io::stderr(), "fuzz {count}");
}
