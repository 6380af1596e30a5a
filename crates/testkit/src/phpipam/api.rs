//! What the requests do.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::answer::{Outcome, Refusal, Reply, data, members, told, uncaught};
use super::database::{Database, SubnetRow};
use super::filter::filtered;
use super::server::{APP, LockKind, Site, lock};
use crate::servers::relay::Request;

/// How long a change may take between its look and its write.
const BETWEEN: Duration = Duration::from_millis(4);

/// Answers a request.
pub(super) fn answer(site: &Site, request: &Request) -> Reply {
    if *lock(&site.is_broken) {
        return Reply::of(Err(Refusal::Crashed));
    }
    Reply::of(route(site, request))
}

/// What a person with all rights gets, who waits for no lock. `target` has no query.
pub(super) fn by_hand(site: &Site, method: &str, target: &str, body: Option<&Value>) -> Value {
    let parts: Vec<&str> = target.trim_end_matches('/').split('/').collect();
    let outcome = match (method, body) {
        ("GET", _) => read(&lock(&site.database), &parts, &[]),
        (_, Some(Value::Object(members))) => change(site, method, &parts, members.clone()),
        _ => change(site, method, &parts, Map::new()),
    };
    let reply = Reply::of(outcome);
    serde_json::from_str(&reply.body).unwrap_or_default()
}

fn route(site: &Site, request: &Request) -> Outcome {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let query: Vec<(String, String)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (unescape(key), unescape(value)))
        .collect();
    let parts: Vec<String> =
        path.trim_matches('/').split('/').map(unescape).skip_while(|part| part != "api").collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let [_, app, parts @ ..] = &parts[..] else { return told(400, "Request is not valid") };
    if *app != APP {
        return told(400, "Invalid application id");
    }
    let method = &*request.method;
    let mut logins = lock(&site.logins);
    if (method, parts) == ("POST", &["user"]) {
        return logins.log_in(request);
    }
    logins.check(site.options.security, request)?;
    drop(logins);
    let body = body(request)?;
    if method == "GET" {
        return read(&lock(&site.database), parts, &query);
    }
    if site.options.is_read_only {
        return told(401, "invalid permissions");
    }
    let _turn = match site.options.lock {
        LockKind::Disabled => None,
        kind => match site.turn.take(site.options.wait) {
            Some(turn) => Some(turn),
            None => {
                let words = match kind {
                    LockKind::MySql => "MySQL wait timeout exceeded",
                    _ => "Cannot obtain lock for /tmp/phpipam_api_lock.txt",
                };
                let seconds = site.options.wait.as_secs_f64() + 0.0014;
                return uncaught(format!("{words} after {seconds:.4} seconds"));
            }
        },
    };
    change(site, method, parts, body)
}

fn body(request: &Request) -> Result<Map<String, Value>, Refusal> {
    if request.body.trim().is_empty() {
        return Ok(Map::new());
    }
    let kind = request.header("content-type").unwrap_or_default();
    if !kind.starts_with("application/json") {
        return told(415, format!("Invalid Content type {kind}"));
    }
    serde_json::from_str(&request.body)
        .map_err(|_| Refusal::Told(400, "Invalid JSON: Syntax error".to_owned()))
}

fn read(database: &Database, parts: &[&str], query: &[(String, String)]) -> Outcome {
    match parts {
        ["subnets"] => subnets(database, query, |_| true),
        ["sections", section, "subnets"] => {
            let section = section.parse::<u64>().unwrap_or_default();
            subnets(database, query, |row| row.section == section)
        }
        ["sections", section] => match *section {
            "1" | "Kubernetes" => data(json!({"id": 1, "name": "Kubernetes"})),
            _ => told(404, "Section does not exist"),
        },
        ["subnets", "cidr" | "search", address, mask] => {
            let wanted = format!("{address}/{mask}");
            let found = database.subnets.iter().filter(|(_, row)| row.cidr.to_string() == wanted);
            let found: Vec<Value> =
                found.map(|(id, row)| Database::subnet_json(*id, row)).collect();
            if found.is_empty() { told(404, "No subnets found") } else { data(found.into()) }
        }
        ["subnets", id] => {
            let number = id.parse::<u64>().unwrap_or_default();
            let Some(row) = database.subnets.get(&number) else {
                return told(400, format!("Invalid subnet Id ({id})"));
            };
            let mut shown = Database::subnet_json(number, row);
            let mut rows = database.addresses.iter();
            if let Some((id, gateway)) = rows.find(|(_, it)| it.subnet == number && it.is_gateway) {
                shown["gatewayId"] = json!(id);
                shown["gateway"] = json!({"id": id, "ip_addr": gateway.address});
            }
            shown["calculation"] = json!({"Type": "IPv4"});
            data(shown)
        }
        ["subnets", id, rest @ ..] => {
            let number = id.parse::<u64>().unwrap_or_default();
            if !database.subnets.contains_key(&number) {
                return told(404, format!("Invalid subnet Id ({id})"));
            }
            match rest {
                ["addresses"] => addresses(database, query, |row| row.subnet == number),
                ["addresses", address] => {
                    let address = address.parse::<IpAddr>().ok();
                    addresses(database, query, |row| {
                        row.subnet == number && Some(row.address) == address
                    })
                }
                ["slaves"] => {
                    let slaves = database.subnets.iter().filter(|(_, row)| row.parent == number);
                    let slaves: Vec<Value> =
                        slaves.map(|(id, row)| Database::subnet_json(*id, row)).collect();
                    if slaves.is_empty() { told(404, "No slaves") } else { data(slaves.into()) }
                }
                ["first_free"] => match database.first_free(number) {
                    Some(address) => data(json!(address)),
                    None => told(404, "No free addresses found"),
                },
                _ => told(400, "Invalid request"),
            }
        }
        ["addresses", "search_hostname", name] => {
            // The database compares without case, and without spaces at the end.
            let folded = |text: &str| text.trim_end().to_lowercase();
            addresses(database, query, |row| {
                row.columns.get("hostname").is_some_and(|it| folded(it) == folded(name))
            })
            .or_else(|_| told(404, "Hostname not found"))
        }
        ["addresses", id] => {
            let id = id.parse::<u64>().unwrap_or_default();
            match database.addresses.get(&id) {
                Some(row) => data(database.address_json(id, row)),
                None => told(404, "Invalid Id"),
            }
        }
        _ => told(400, "Invalid request"),
    }
}

fn subnets(
    database: &Database,
    query: &[(String, String)],
    is_wanted: impl Fn(&SubnetRow) -> bool,
) -> Outcome {
    let rows = database.subnets.iter().filter(|(_, row)| is_wanted(row));
    let rows: Vec<Value> = rows.map(|(id, row)| Database::subnet_json(*id, row)).collect();
    if rows.is_empty() { told(404, "No subnets found") } else { filtered(rows, query) }
}

fn addresses(
    database: &Database,
    query: &[(String, String)],
    is_wanted: impl Fn(&super::database::AddressRow) -> bool,
) -> Outcome {
    let rows = database.addresses.iter().filter(|(_, row)| is_wanted(row));
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by_key(|(_, row)| row.address);
    let rows: Vec<Value> = rows.iter().map(|(id, row)| database.address_json(**id, row)).collect();
    if rows.is_empty() { told(404, "No addresses found") } else { filtered(rows, query) }
}

fn change(site: &Site, method: &str, parts: &[&str], body: Map<String, Value>) -> Outcome {
    match (method, parts) {
        ("POST", ["subnets"]) => add_subnet(&mut lock(&site.database), &body),
        ("POST", ["addresses", "first_free", subnet]) => {
            let subnet = subnet.parse::<u64>().unwrap_or_default();
            let address = {
                let database = lock(&site.database);
                if !database.subnets.contains_key(&subnet) {
                    return told(400, "Invalid subnet identifier");
                }
                match database.first_free(subnet) {
                    Some(address) => address,
                    None => return told(404, "No free addresses found"),
                }
            };
            let mut body = body;
            body.entry("description").or_insert_with(|| "API created".into());
            let id = create(site, subnet, address, &body)?;
            members(
                json!({"code": 201, "message": "Address created", "id": id.to_string(), "data": address}),
            )
        }
        ("POST", ["addresses"]) => {
            let (address, subnet) = (body.get("ip"), body.get("subnetId"));
            let subnet = match subnet {
                Some(Value::String(text)) => text.parse::<u64>().ok(),
                Some(other) => other.as_u64(),
                None => None,
            };
            let Some(subnet) = subnet else { return told(400, "SubnetId must be numeric") };
            let Some(cidr) = lock(&site.database).subnets.get(&subnet).map(|row| row.cidr) else {
                return told(404, "Invalid subnet Id");
            };
            let text = address.and_then(Value::as_str).unwrap_or_default();
            let address = text.parse::<IpAddr>().ok().filter(|address| {
                let is_host = cidr.addr().is_ipv6()
                    || cidr.prefix_len() >= 31
                    || (*address != cidr.network() && *address != cidr.broadcast());
                cidr.contains(address) && is_host
            });
            let Some(address) = address else {
                return uncaught(format!("{text} is not a valid address for subnet {cidr}"));
            };
            let id = create(site, subnet, address, &body)?;
            members(json!({"code": 201, "message": "Address created", "id": id.to_string()}))
        }
        ("PATCH", ["addresses", id]) => {
            let id = id.parse::<u64>().unwrap_or_default();
            if body.contains_key("ip") {
                return told(400, "IP address cannot be changed");
            }
            let mut database = lock(&site.database);
            if !database.addresses.contains_key(&id) {
                return told(404, "Address does not exist");
            }
            let columns = database.columns(&body)?;
            database.update(id, columns)?;
            members(json!({"code": 200, "message": "Address updated"}))
        }
        ("DELETE", ["addresses", id]) => {
            let id = id.parse::<u64>().unwrap_or_default();
            match lock(&site.database).addresses.remove(&id) {
                Some(_) => members(json!({"code": 200, "message": "Address deleted"})),
                None => told(404, "Address does not exist"),
            }
        }
        ("DELETE", ["addresses", address, subnet]) => {
            let mut database = lock(&site.database);
            let subnet = subnet.parse::<u64>().unwrap_or_default();
            let found = address.parse().ok().and_then(|address| database.find(subnet, address));
            match found.and_then(|id| database.addresses.remove(&id)) {
                Some(_) => members(json!({"code": 200, "message": "Address deleted"})),
                None => Err(Refusal::Crashed),
            }
        }
        _ => told(400, "Invalid request"),
    }
}

/// Looks whether the address has a record, and then makes one: two steps, between which others come
/// where no lock keeps them out.
fn create(
    site: &Site,
    subnet: u64,
    address: IpAddr,
    body: &Map<String, Value>,
) -> Result<u64, Refusal> {
    if lock(&site.database).find(subnet, address).is_some() {
        return told(409, "IP address already exists");
    }
    if site.options.lock == LockKind::Disabled {
        thread::sleep(BETWEEN);
    }
    let mut database = lock(&site.database);
    let columns = database.columns(body)?;
    database.insert(subnet, address, columns)
}

fn add_subnet(database: &mut Database, body: &Map<String, Value>) -> Outcome {
    let text = |key: &str| match body.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let number = |key: &str| text(key).parse::<u64>().unwrap_or_default();
    let cidr = format!("{}/{}", text("subnet"), text("mask")).parse::<ipnet::IpNet>();
    let Ok(cidr) = cidr else { return told(400, "Invalid CIDR") };
    let (section, parent) = (number("sectionId"), number("masterSubnetId"));
    let description = text("description");
    let id = database.add_subnet(SubnetRow { cidr, description, section, parent });
    members(json!({"code": 201, "message": "Subnet created", "id": id.to_string(), "data": cidr}))
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
