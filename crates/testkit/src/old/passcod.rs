//! Passcod's ipam-da-consul, played request by request.
//!
//! As the players in `mod.rs`, for a real Consul. What the program does was read in its sources and
//! compared with its runs: passcod/cni-plugins at d0fc126.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::steps;
use crate::consul::{Answer, Client, decode as decode_base64};

/// What a request ends with that got no answer.
pub const NO_ANSWER: &str = ": no answer";

/// A call: the result or the error that it would have printed, but for `cniVersion`. Each request is
/// told as `METHOD TARGET` with its body.
pub type Call = steps::Call<String, Value, Value>;

type Steps = steps::Steps<Vec<Client>, String>;
type Played<T> = steps::Played<T, Value>;

/// Passcod's plugin with the configuration of a network.
#[derive(Clone, Debug)]
pub struct Passcod {
    servers: Vec<Client>,
    pools: Vec<Pool>,
    delay: Duration,
}

/// An element of `prevResult.pools`; it knows no `requested-ip`.
#[derive(Clone, Debug, Deserialize)]
struct Pool {
    name: String,
    requested_ip: Option<IpAddr>,
}

impl Passcod {
    /// With `ipam.consul_servers` as `ADDRESS:PORT` and one pool.
    pub fn new(servers: &[String], pool: &str) -> Self {
        Self::with_pools(servers, &json!([{"name": pool}]))
    }

    /// The same with `prevResult.pools`.
    #[track_caller]
    pub fn with_pools(servers: &[String], pools: &Value) -> Self {
        let servers = servers.iter().map(|server| Client::to(server)).collect();
        let pools = serde_json::from_value(pools.clone()).unwrap();
        Self { servers, pools, delay: Duration::ZERO }
    }

    /// How long it takes before each of its requests.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// An ADD, which has not begun yet.
    pub fn add(&self, container: &str) -> Call {
        self.call(container, |plugin, pool, id| plugin.add(pool, id))
    }

    /// A DEL, which has not begun yet.
    pub fn del(&self, container: &str) -> Call {
        self.call(container, |plugin, pool, id| plugin.del(&pool.name, id))
    }

    fn call(
        &self,
        container: &str,
        verb: impl FnOnce(&Plugin, &Pool, &str) -> Played<Value> + Send + 'static,
    ) -> Call {
        let Self { servers, pools, delay } = self.clone();
        let container = container.to_owned();
        let count = servers.len();
        Call::new(servers, delay, move |steps| {
            let plugin = Plugin::reaching(steps, count)?;
            let missing = || error(114, "Missing resource", "prevResult::pool at pools[0]");
            verb(&plugin, pools.first().ok_or_else(missing)?, &container)
        })
    }
}

/// The address that a result gives.
#[track_caller]
pub fn given(result: &Value) -> IpAddr {
    let text = result["ips"][0]["address"].as_str().unwrap();
    text.parse::<IpNet>().unwrap().addr()
}

/// A running call and the server that it has chosen.
struct Plugin {
    steps: Steps,
    server: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
    modify_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Range {
    subnet: IpNet,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

#[derive(Deserialize)]
struct PoolEntry {
    target: String,
}

impl Plugin {
    /// The first server that has the key `ipam/`.
    fn reaching(steps: Steps, servers: usize) -> Played<Self> {
        let mut plugin = Self { steps, server: 0 };
        let mut reason = None;
        for server in 0..servers {
            plugin.server = server;
            match plugin.ask("GET", "kv/ipam/", "") {
                Ok(Answer { status: 200..300, .. }) => return Ok(plugin),
                Ok(Answer { status, .. }) => {
                    let details = format!("error status from consul: {status}");
                    reason = Some(error(100, "ERROR", &details));
                }
                Err(ended @ steps::Ended::Dropped) => return Err(ended),
                Err(ended) => reason = Some(ended),
            }
        }
        let details = "consul_servers: expected list of servers, got: Array([])";
        Err(reason.unwrap_or_else(|| error(107, "Invalid field", details)))
    }

    fn add(&self, pool: &Pool, id: &str) -> Played<Value> {
        let name = &pool.name;
        let ranges = self.ranges(name)?;
        let (address, gateway) = match pool.requested_ip {
            Some(address) => {
                // The last range wins.
                let range = ranges.iter().rfind(|range| range.subnet.contains(&address));
                let details = format!("{name} cannot contain {address}");
                let range = range.ok_or_else(|| error(124, "IP not in pool", &details))?;
                (range.net(address), range.gateway)
            }
            None => {
                let known = self.known(name)?;
                let free = |range: &Range| {
                    let address = range.addresses().find(|ip| !known.contains_key(ip))?;
                    Some((range.net(address), range.gateway))
                };
                let details = format!("{name} does not have any free IP space");
                let full = || error(122, "Pool is full", &details);
                ranges.iter().find_map(free).ok_or_else(full)?
            }
        };
        let cas = if pool.requested_ip.is_some() { "" } else { "?cas=0" };
        let target = format!("kv/ipam/{name}/{}{cas}", address.addr());
        let written: bool =
            decode(self.ask("PUT", &target, &json!({"target": id}).to_string())?)?;
        if !written {
            return Err(write_failed());
        }
        let default = match address {
            IpNet::V4(_) => "0.0.0.0/0",
            IpNet::V6(_) => "::/0",
        };
        let (mut ip, mut route) = (json!({"address": address}), json!({"dst": default}));
        if let Some(gateway) = gateway {
            (ip["gateway"], route["gw"]) = (json!(gateway), json!(gateway));
        }
        Ok(json!({"ips": [ip], "routes": [route], "dns": {}}))
    }

    fn del(&self, pool: &str, id: &str) -> Played<Value> {
        let known = self.known(pool)?;
        let held = known.into_iter().filter(|(_, (target, _))| target == id);
        let operation = |(address, (_, index)): (IpAddr, (String, u64))| {
            let key = format!("ipam/{pool}/{address}");
            json!({"KV": {"Verb": "delete-cas", "Key": key, "Index": index}})
        };
        let body: Value = held.map(operation).collect();
        match self.ask("PUT", "txn", &body.to_string())?.status {
            200 => Ok(json!({"ips": [], "routes": [], "dns": {}})),
            409 => Err(write_failed()),
            status => Err(error(100, "ERROR", &format!("invalid txn return status: {status}"))),
        }
    }

    /// What the key of the pool says.
    fn ranges(&self, pool: &str) -> Played<Vec<Range>> {
        let path = format!("ipam/{pool}");
        let answer = self.ask("GET", &format!("kv/{path}"), "")?;
        let details = format!("consul::pool at {path}");
        let missing = || error(114, "Missing resource", &details);
        let pair = decode::<Vec<Pair>>(answer)?.into_iter().next().ok_or_else(missing)?;
        let invalid =
            |reason: &str| error(117, "Invalid resource", &format!("{details}: {reason}"));
        let text = pair.value.ok_or_else(|| invalid("expected IpRange as JSON, got null"))?;
        serde_json::from_slice(&bytes(&text)).map_err(|e| invalid(&e.to_string()))
    }

    /// Every address below the pool with its container and the index of its key.
    fn known(&self, pool: &str) -> Played<BTreeMap<IpAddr, (String, u64)>> {
        let answer = self.ask("GET", &format!("kv/ipam/{pool}/?recurse"), "")?;
        let mut known = BTreeMap::new();
        for pair in decode::<Vec<Pair>>(answer)? {
            let Some(text) = &pair.value else { continue };
            let invalid = |reason: String| {
                let details = format!("consul::ip-pool at {}: {reason}", pair.key);
                error(117, "Invalid resource", &details)
            };
            let entry: PoolEntry = serde_json::from_slice(&bytes(text))
                .map_err(|e| invalid(format!("expected value to be a JSON string; {e}")))?;
            let last = pair.key.split('/').next_back().unwrap();
            let address = last
                .parse()
                .map_err(|e| invalid(format!("expected key to be an IP address; {e}")))?;
            known.insert(address, (entry.target, pair.modify_index));
        }
        Ok(known)
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> Played<Answer> {
        let line = format!("{method} /v1/{target} {body}");
        let request = |servers: &Vec<Client>| {
            Ok(servers[self.server].try_ask(method, target, body.as_bytes()))
        };
        let answer = self.steps.step(request, |answer| match answer {
            Ok(_) => line.trim_end().to_owned(),
            Err(_) => format!("{line}{NO_ANSWER}"),
        })?;
        answer.map_err(|e| error(111, "HTTP", &e.to_string()))
    }
}

impl Range {
    fn net(&self, address: IpAddr) -> IpNet {
        IpNet::new(address, self.subnet.prefix_len()).unwrap()
    }

    /// Those of the whole subnet, but for what the range leaves out.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let first = self.range_start.unwrap_or(self.subnet.network()).max(self.subnet.network());
        let last = self.range_end.unwrap_or(self.subnet.broadcast()).min(self.subnet.broadcast());
        let gateway = self.gateway;
        let next = |address: &IpAddr| match address {
            IpAddr::V4(address) => {
                address.to_bits().checked_add(1).map(|n| Ipv4Addr::from(n).into())
            }
            IpAddr::V6(address) => {
                address.to_bits().checked_add(1).map(|n| Ipv6Addr::from(n).into())
            }
        };
        std::iter::successors(Some(first), next)
            .take_while(move |address| *address <= last)
            .filter(move |address| Some(*address) != gateway)
    }
}

fn bytes(text: &str) -> Vec<u8> {
    decode_base64(text).into_bytes()
}

/// An answer's body, whatever its status.
fn decode<T: DeserializeOwned>(answer: Answer) -> Played<T> {
    serde_json::from_slice(&answer.body).map_err(|e| error(111, "HTTP", &e.to_string()))
}

fn error(code: u32, msg: &str, details: &str) -> steps::Ended<Value> {
    steps::Ended::Failed(json!({"code": code, "msg": msg, "details": details}))
}

fn write_failed() -> steps::Ended<Value> {
    error(125, "KV PUT", "consul write failed")
}
