//! Fuzzing on stable Rust: a mutation engine over seeds, deterministic and without state.
//!
//! `IPAM_DELEGATED_FUZZ_RUNS` says how many inputs each target gets, `IPAM_DELEGATED_FUZZ_SEED`
//! from which number they are drawn; a long run is
//! `IPAM_DELEGATED_FUZZ_RUNS=10000000 cargo test --release --test fuzz`. An input that breaks an
//! invariant is written to `tests/fuzz_corpus/<target>`, where it is replayed for ever.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::ptr;

use ipam_kit::cni::{Args, Environment, IpamResult, Keep, Requested, Version, address};
use ipam_kit::delegate::answer;
use ipam_kit::host::Settings;
use ipam_kit::pool::{Pool, RangeConfig, RangeRules, RangeSet};
use ipam_kit::{Delegate, Request, Result, Select, Selection, Selector};
use serde_json::{Map, Value, json};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, or zero where there is nothing below.
    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
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

fn mutate_bytes(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
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

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Replays the corpus of a target, then tries new inputs; stops at the first that breaks it.
fn fuzz(target: &str, seeds: &[Vec<u8>], check: impl Fn(&[u8])) {
    fuzz_with(target, seeds, |_, input| input, check);
}

/// As [`fuzz`], with what `finish` makes of an input.
fn fuzz_with(
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
    let runs = number("IPAM_DELEGATED_FUZZ_RUNS", 20_000);
    let mut random = Random(number("IPAM_DELEGATED_FUZZ_SEED", 1));
    for run in 0..runs {
        let input = if run == 0 { Vec::new() } else { mutate(&mut random, &seeds) };
        let input = finish(&mut random, input);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            let mut hash = DefaultHasher::new();
            input.hash(&mut hash);
            let file = folder.join(format!("found-{:016x}", hash.finish()));
            fs::write(&file, &input).expect("the corpus can be written");
            eprintln!("{target}, run {run}: {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
    // Not through the harness, which keeps what a passing test prints.
    let count = format!("{target}: {runs} inputs and {} of the corpus", seeds.len());
    let _ = writeln!(std::io::stderr(), "fuzz {count}");
}

/// Gives what it was given, and reads all there is to read.
struct Mirror;

impl Mirror {
    fn read(request: &Request) -> Result<IpamResult> {
        let mut result = request.prev_result()?;
        for requested in request.requested()? {
            result.extra.insert("requested".to_owned(), requested.address.to_string().into());
        }
        if let Some(Value::Array(pools)) = result.extra.get("pools") {
            for pool in pools {
                let pool = Pool::parse(pool, "prevResult.pools")?;
                if let Some(set) = pool.range_set(RangeRules::OURS, "prevResult.pools")? {
                    check_set(&set, false);
                }
            }
        }
        Ok(result)
    }
}

impl Delegate for Mirror {
    fn add(&self, request: &Request) -> Result<IpamResult> {
        Self::read(request)
    }

    fn del(&self, request: &Request) -> Result<Option<IpamResult>> {
        Self::read(request).map(Some)
    }

    fn check(&self, request: &Request) -> Result<Option<IpamResult>> {
        Self::read(request).map(Some)
    }

    fn gc(&self, request: &Request, keep: &Keep) -> Result<Option<IpamResult>> {
        assert_eq!(keep, &request.network.keep()?);
        Self::read(request).map(|_| None)
    }
}

struct Pools;

#[derive(serde::Deserialize)]
struct PoolsConfig {
    #[serde(default)]
    pools: Vec<Map<String, Value>>,
}

impl Selector for Pools {
    type Config = PoolsConfig;

    fn select(&self, config: PoolsConfig, _request: &Request) -> Result<Selection> {
        let pools = config.pools.into_iter().enumerate();
        let pools = pools.map(|(i, pool)| Pool::parse(&pool.into(), &format!("ipam.pools[{i}]")));
        Ok(Selection::of(pools.collect::<Result<Vec<_>>>()?))
    }
}

/// `KEY=VALUE` lines, an empty line, and stdin.
fn call_of(input: &[u8]) -> (Environment, &[u8]) {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, stdin) = end.map_or((input, &b""[..]), |end| (&input[..end], &input[end + 2..]));
    let lines = head.split(|byte| *byte == b'\n').filter_map(|line| {
        let equals = line.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        Some((text(&line[..equals]), text(&line[equals + 1..])))
    });
    (Environment::new(lines), stdin)
}

fn configs() -> Vec<Vec<u8>> {
    let result = json!({
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 0}, {"address": "fd00::2/64"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1", "mtu": 1400}],
        "dns": {"nameservers": ["10.0.0.53"]},
        "pools": [{"name": "blue", "requested-ip": "10.1.0.9", "index": 1,
            "ranges": [{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.5", "rangeEnd": "10.1.0.50", "gateway": "10.1.0.1", "exclude": ["10.1.0.8/30"]}]}],
    });
    let old = json!({
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "ip6": {"ip": "fd00::2/64"}, "dns": {},
    });
    let config = |version: &str, prev_result: &Value| {
        json!({
            "cniVersion": version, "name": "net", "type": "bridge", "prevResult": prev_result,
            "ipam": {"type": "x", "pools": [{"name": "blue"}, {"ranges": [{"subnet": "fd00::/64"}]}]},
            "runtimeConfig": {"ips": ["10.1.0.9/24"], "ipRanges": [[{"subnet": "10.0.0.0/8"}]]},
            "args": {"cni": {"ips": ["fd00::9"]}},
            "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "eth0"}],
            "cni.dev/attachments": [],
        })
        .to_string()
        .into_bytes()
    };
    let mut configs: Vec<_> =
        Version::ALL.iter().map(|version| config(version.as_str(), &result)).collect();
    configs.push(config("0.1.0", &old));
    configs.push(config("1.1.0", &old));
    configs.push(br#"{"name":"n","ipam":{},"cniVersions":["1.0.0","0.4.0"]}"#.to_vec());
    configs.push(
        format!("{{\"name\":\"n\",\"ipam\":{}1{}}}", "[".repeat(120), "]".repeat(120)).into(),
    );
    configs
}

const HEAD: &str = "CNI_COMMAND=ADD\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\nCNI_NETNS=/run/netns/x\nCNI_PATH=/opt/cni/bin\nCNI_ARGS=IgnoreUnknown=1;IP=10.1.0.9;K8S_POD_NAME=p;";

#[test]
fn an_answer_is_one_object_or_nothing() {
    let verbs = ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"];
    // Corpus files bring their environment along; new inputs get one, changed now and then.
    let finish = |random: &mut Random, input: Vec<u8>| {
        if input.starts_with(b"CNI_") {
            return input;
        }
        let verb = format!("={}\n", random.pick(&verbs));
        let mut head = HEAD.replace("=ADD\n", &verb).into_bytes();
        if random.one_in(4) {
            mutate_bytes(random, &mut head, &[HEAD.as_bytes().to_vec()]);
        }
        [&head[..], b"\n\n", &input].concat()
    };
    fuzz_with("answer", &configs(), finish, |input| {
        let (environment, stdin) = call_of(input);
        check_answer(&Mirror, &environment, stdin);
        check_answer(&Select(Pools), &environment, stdin);
    });
}

fn check_answer(delegate: &dyn Delegate, environment: &Environment, stdin: &[u8]) {
    let reply = answer(delegate, environment.clone(), stdin, Settings::default());
    assert!(reply.exit <= 1);
    if reply.stdout.is_empty() {
        assert_eq!(reply.exit, 0, "an error prints an object");
        return;
    }
    let object: Map<String, Value> = serde_json::from_str(&reply.stdout).expect("one object");
    let version = object["cniVersion"].as_str().expect("a version");
    assert!(Version::ALL.iter().any(|known| known.as_str() == version), "{version}");
    if reply.exit == 1 {
        assert!(object["code"].as_u64().expect("a code") >= 1);
        assert!(!object["msg"].as_str().expect("a message").is_empty());
        return;
    }
    // Unless it came in with prevResult, nothing but an error has a code.
    let config: Value = serde_json::from_slice(stdin).unwrap_or_default();
    assert!(!object.contains_key("code") || config["prevResult"].get("code").is_some());
}

#[test]
fn arguments_are_read_whatever_they_are() {
    let seeds = [
        "IgnoreUnknown=1;K8S_POD_NAME=p;IP=10.0.0.9",
        "IP=10.0.0.9/24,fd00::9;;x=a=b;IP=;ip=::ffff:10.0.0.1/120",
        "CONSUL_IPTABLES_CONFIG={\"a\":\"b=c\"};IP= 10.0.0.1 , ",
    ];
    fuzz("args", &seeds.map(|seed| seed.as_bytes().to_vec()), |input| {
        let text = String::from_utf8_lossy(input);
        let args = Args::parse(&text);
        for pair in text.split(';') {
            match pair.split_once('=') {
                // The last one counts.
                Some((key, _)) => {
                    let last = text.split(';').rev().find_map(|pair| {
                        let (k, value) = pair.split_once('=')?;
                        (k.trim() == key.trim()).then_some(value.trim())
                    });
                    assert_eq!(args.get(key.trim()), last);
                }
                None => continue,
            }
        }
        match Requested::all(&args, &Map::new()) {
            Ok(all) => {
                let mut seen: Vec<IpAddr> = all.iter().map(|r| r.address).collect();
                assert!(seen.iter().all(|address| address.to_canonical() == *address));
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), all.len());
            }
            Err(error) => {
                assert_eq!(error.code().number(), 4);
                assert!(error.to_string().starts_with("CNI_ARGS IP: "));
            }
        }
    });
}

/// What holds of every set that was read.
/// Ranges may overlap and be of both families by the rules of passcod alone.
fn check_set(set: &RangeSet, is_lenient: bool) {
    assert!(!set.ranges().is_empty());
    let mut size = 0_u128;
    for (index, range) in set.ranges().iter().enumerate() {
        let (start, end) = (range.start(), range.end());
        assert!(start <= end && start.is_ipv4() == end.is_ipv4());
        assert!(is_lenient || start.is_ipv4() == set.is_ipv4());
        assert!(range.subnet().contains(&start) && range.subnet().contains(&end));
        let mut counted = 0_u128;
        let mut before: Option<IpAddr> = None;
        for &(first, last) in range.segments() {
            assert!(start <= first && first <= last && last <= end);
            // In order, with at least one address between two.
            if let Some(before) = before {
                assert!(address::distance(before, first).is_some_and(|steps| steps >= 2));
            }
            before = Some(last);
            for edge in [first, last] {
                // Of ranges that overlap, one gives it.
                assert!(range.spans(edge) && set.find(edge).is_some_and(|it| ptr::eq(it, range)));
                assert_eq!(range.usable(edge), range.gateway() != Some(edge));
                assert!(range.exclude().iter().all(|net| !net.contains(&edge)));
            }
            let steps = address::distance(first, last).expect("in order");
            counted = counted.saturating_add(steps.saturating_add(1));
        }
        assert!(range.size() <= counted && counted - range.size() <= 1);
        size = size.saturating_add(range.size());
        for other in &set.ranges()[index + 1..] {
            assert_eq!(range.overlaps(other), other.overlaps(range));
            assert!(is_lenient || !range.overlaps(other));
        }
    }
    assert_eq!(set.size(), size);
}

#[test]
fn ranges_that_are_read_are_in_order() {
    let seeds = [
        json!([{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.17", "gateway": "10.1.2.1", "exclude": ["10.1.2.12/31", "10.1.2.16"]}]),
        json!([{"subnet": "fd00::/64"}, {"subnet": "fd00:1::/64", "exclude": ["fd00:1::/65"]}]),
        json!([{"subnet": "10.0.0.0/31"}, {"subnet": "10.0.0.2/32"}, {"subnet": "10.0.0.128/25"}]),
        json!([{"subnet": "10.1.2.0/24", "gateway": "10.1.2.1"}, {"subnet": "fd00::/64"}, {"subnet": "10.1.0.0/16", "rangeStart": "10.0.0.1", "gateway": "10.1.0.1"}]),
        json!([{"subnet": "::/0"}]),
        json!([{"subnet": "0.0.0.0/0", "rangeEnd": "255.255.255.255"}]),
        json!([{"subnet": "10.1.2.3/24", "gateway": "192.168.0.1", "vlan": 7}]),
    ];
    let rules = [RangeRules::HOST_LOCAL, RangeRules::ETCD, RangeRules::OURS, RangeRules::CONSUL];
    fuzz("ranges", &seeds.map(|seed| seed.to_string().into_bytes()), |input| {
        let Ok(configs) = serde_json::from_slice::<Vec<RangeConfig>>(input) else { return };
        for rules in rules {
            match RangeSet::parse(&configs, rules, "ipam.ranges[0]") {
                Ok(set) => {
                    check_set(&set, rules == RangeRules::CONSUL);
                    let again = RangeSet::parse(&set.to_config(), rules, "r").expect("was valid");
                    assert_eq!(again.to_config(), set.to_config());
                    assert_eq!(again.size(), set.size());
                }
                Err(error) => {
                    assert_eq!(error.code().number(), 7);
                    assert!(error.to_string().starts_with("ipam.ranges[0]"), "{error}");
                }
            }
        }
    });
}

#[test]
fn a_result_is_read_as_it_was_written() {
    let seeds: Vec<_> = configs()
        .iter()
        .filter_map(|config| {
            let config: Value = serde_json::from_slice(config).ok()?;
            Some(config.get("prevResult")?.to_string().into_bytes())
        })
        .collect();
    fuzz("result", &seeds, |input| {
        let Ok(value) = serde_json::from_slice(input) else { return };
        let result = match IpamResult::parse(&value, "prevResult") {
            Ok(result) => result,
            Err(error) => {
                assert!(error.to_string().starts_with("prevResult"), "{error}");
                return;
            }
        };
        for version in Version::ALL {
            let Ok(written) = result.to_json(version) else {
                assert!(version.has_single_addresses());
                continue;
            };
            assert_eq!(written["cniVersion"], version.as_str());
            let read = IpamResult::parse(&written, "r").expect("what is written can be read");
            assert_eq!(read.to_json(version).expect("it had a place"), written);
            assert_eq!(read.ips.len(), result.ips.len());
            assert!(result.ips.iter().all(|ip| read.has(ip.address.addr())));
            assert_eq!(read.routes.len(), result.routes.len());
            assert_eq!((&read.dns, &read.extra), (&result.dns, &result.extra));
        }
    });
}
