//! Fuzzing on stable Rust: a mutation engine over seeds, deterministic and without state.
//!
//! `IPAM_DELEGATED_FUZZ_RUNS` says how many inputs each target gets, `IPAM_DELEGATED_FUZZ_SEED`
//! from which number they are drawn; a long run is
//! `IPAM_DELEGATED_FUZZ_RUNS=10000000 cargo test --release --test fuzz`. An input that breaks an
//! invariant is written to `tests/fuzz_corpus/<target>`, where it is replayed for ever.

#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod engine;
mod keys;
mod text;
mod walk;

use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use engine::{Random, fuzz, fuzz_with, mutate_bytes};
use ipam_kit::cni::{
    Args, Environment, IpamResult, RequestedAddress, ValidAttachments, Version, address,
};
use ipam_kit::delegate::answer;
use ipam_kit::host::Settings;
use ipam_kit::pool::{Pool, RangeConfig, RangeRules, RangeSet};
use ipam_kit::{Delegate, Request, Result, Select, Selection, Selector};
use serde_json::{Map, Value, json};

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

    fn gc(&self, request: &Request, keep: &ValidAttachments) -> Result<Option<IpamResult>> {
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
fn any_arguments_are_read_or_refused() {
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
        match RequestedAddress::all(&args, &Map::new()) {
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
                let is_given = range.gateway() != Some(edge) && !range.skips(edge);
                assert_eq!(range.usable(edge), is_given);
                assert!(range.exclude().iter().all(|net| !net.contains(&edge)));
            }
            let steps = address::distance(first, last).expect("in order");
            counted = counted.saturating_add(steps.saturating_add(1));
        }
        // The gateway, and one in 256 by the rules of whereabouts, at most one more a segment.
        let withheld = 1 + range.segments().len() as u128 + counted / 256;
        assert!(range.size() <= counted && counted - range.size() <= withheld);
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
        json!([{"subnet": "10.0.0.0/8", "exclude": ["10.0.1.0/32"], "rules": "whereabouts"}]),
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
            // Beside addresses, the old form has a place for routes of their families alone.
            let pools = result.extra.get("pools").and_then(Value::as_array);
            let last = !result.ips.is_empty() && pools.is_none_or(Vec::is_empty);
            let has_place = |v4| result.ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4);
            let kept = result.routes.iter().filter(|route| {
                !(version.has_single_addresses() && last) || has_place(route.dst.addr().is_ipv4())
            });
            assert_eq!(read.routes.len(), kept.count());
            assert_eq!((&read.dns, &read.extra), (&result.dns, &result.extra));
        }
    });
}
