use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::Version;
use super::address::{parse_address, parse_cidr};
use crate::error::{Error, ErrorCode, Result};
use crate::keys::Key;

/// The member of a result for pools that no delegate has served yet.
pub(crate) const POOLS: &str = "pools";

/// The result of an IPAM plugin, in whatever version it came, with members that are not known
/// here kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IpamResult {
    /// Addresses, in order.
    pub ips: Vec<IpConfig>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Name resolution.
    pub dns: Dns,
    /// Members beyond the specification, such as `pools`.
    pub extra: Map<String, Value>,
}

/// One address of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct IpConfig {
    /// The address with its prefix length.
    pub address: IpNet,
    /// The gateway on its network.
    pub gateway: Option<IpAddr>,
    /// Further members, such as `interface`.
    pub extra: Map<String, Value>,
}

impl IpConfig {
    /// An address and its gateway.
    pub fn new(address: IpNet, gateway: Option<IpAddr>) -> Self {
        Self { address, gateway, extra: Map::new() }
    }

    /// Reads an array of addresses; `path` is its place, for errors.
    pub(crate) fn parse_all(ips: Option<Value>, path: &str) -> Result<Vec<Self>> {
        let ips = array(ips, path)?.into_iter().enumerate();
        ips.map(|(i, ip)| Self::parse(ip, &format!("{path}[{i}]"))).collect()
    }

    fn parse(ip: Value, path: &str) -> Result<Self> {
        let mut extra = into_object(ip, path)?;
        extra.remove("version");
        let address = cidr(extra.remove("address"), &format!("{path}.address"))?;
        let gateway = address_of(extra.remove("gateway"), &format!("{path}.gateway"))?;
        Ok(Self { address, gateway, extra })
    }

    /// The address on the wire.
    pub fn to_json(&self) -> Value {
        let mut object = self.extra.clone();
        object.insert("address".to_owned(), self.address.to_string().into());
        if let Some(gateway) = self.gateway {
            object.insert("gateway".to_owned(), gateway.to_string().into());
        }
        Value::Object(object)
    }
}

/// One route of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The destination, host bits as given.
    pub dst: IpNet,
    /// The next hop; without it main plugins take the address' gateway.
    pub gw: Option<IpAddr>,
    /// Further members: `mtu`, `advmss`, `priority`, `table`, `scope`.
    pub extra: Map<String, Value>,
}

impl Route {
    /// The members of a route, those of the main plugins included.
    pub const KEYS: &'static [Key] = &[
        Key::Value("dst"),
        Key::Value("gw"),
        Key::Value("mtu"),
        Key::Value("advmss"),
        Key::Value("priority"),
        Key::Value("table"),
        Key::Value("scope"),
    ];
}

/// The `dns` of a result: `nameservers`, `domain`, `search`, `options`, kept as they came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dns(pub Map<String, Value>);

impl IpamResult {
    /// Reads a result of any version; `path` is its place, for errors.
    pub fn parse(value: &Value, path: &str) -> Result<Self> {
        Self::from_object(into_object(value.clone(), path)?, path)
    }

    /// [`IpamResult::parse`] of an object.
    pub fn from_object(mut extra: Map<String, Value>, path: &str) -> Result<Self> {
        extra.remove("cniVersion");
        let mut result = Self { extra, ..Self::default() };
        result.take_ips(path)?;
        result.take_single_addresses(path)?;
        result.routes.extend(routes(result.extra.remove("routes"), path)?);
        match result.extra.remove("dns") {
            None | Some(Value::Null) => {}
            Some(Value::Object(dns)) => result.dns = Dns(dns),
            Some(_) => return Err(Error::config(format!("{path}.dns"), "expected an object")),
        }
        Ok(result)
    }

    /// Writes the result in the form of `version`.
    ///
    /// Up to 0.2.0 only one address per family has a place: a second one is an error, since a
    /// dropped address would stay leased without anybody knowing.
    pub fn to_json(&self, version: Version) -> Result<Value> {
        self.clone().into_json(version)
    }

    /// [`IpamResult::to_json`] of a result that is not needed any more.
    pub fn into_json(mut self, version: Version) -> Result<Value> {
        let mut object = std::mem::take(&mut self.extra);
        object.insert("cniVersion".to_owned(), version.as_str().into());
        if version.has_single_addresses() {
            self.fits(version)?;
            self.put_single_addresses(&mut object);
        } else {
            self.put_ips(&mut object, version);
        }
        if version < Version::V1_0_0 || !self.dns.0.is_empty() {
            object.insert("dns".to_owned(), Value::Object(self.dns.0));
        }
        Ok(Value::Object(object))
    }

    /// Fails if the form of `version` has no place for an address.
    ///
    /// # Errors
    /// Up to 0.2.0 there is one place for each family.
    pub fn fits(&self, version: Version) -> Result<()> {
        if !version.has_single_addresses() {
            return Ok(());
        }
        let seconds = [true, false]
            .into_iter()
            .filter_map(|v4| self.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == v4).nth(1));
        match seconds.map(|second| second.address).next() {
            None => Ok(()),
            Some(second) => Err(Error::new(
                ErrorCode::INCOMPATIBLE_VERSION,
                format!(
                    "cniVersion {version} allows one address per family: {second} is the second"
                ),
            )
            .advise("use cniVersion 0.3.0 or newer")),
        }
    }

    /// Whether an address is among `ips`.
    pub fn has(&self, address: IpAddr) -> bool {
        self.ips.iter().any(|ip| ip.address.addr() == address)
    }

    fn take_ips(&mut self, path: &str) -> Result<()> {
        let ips = self.extra.remove("ips");
        self.ips.extend(IpConfig::parse_all(ips, &format!("{path}.ips"))?);
        Ok(())
    }

    fn take_single_addresses(&mut self, path: &str) -> Result<()> {
        for key in ["ip4", "ip6"] {
            let path = format!("{path}.{key}");
            let Some(single) = self.extra.remove(key).filter(|single| !single.is_null()) else {
                continue;
            };
            let mut single = into_object(single, &path)?;
            let address = cidr(single.remove("ip"), &format!("{path}.ip"))?;
            let gateway = address_of(single.remove("gateway"), &format!("{path}.gateway"))?;
            self.ips.push(IpConfig::new(address, gateway));
            self.routes.extend(routes(single.remove("routes"), &path)?);
        }
        Ok(())
    }

    fn put_ips(&self, object: &mut Map<String, Value>, version: Version) {
        let mut ips: Vec<Value> = self.ips.iter().map(IpConfig::to_json).collect();
        if version < Version::V1_0_0 {
            for (entry, ip) in ips.iter_mut().zip(&self.ips) {
                let family = if ip.address.addr().is_ipv4() { "4" } else { "6" };
                entry["version"] = family.into();
            }
        }
        object.insert("ips".to_owned(), ips.into());
        if !self.routes.is_empty() {
            object.insert("routes".to_owned(), self.routes.iter().map(Route::to_json).collect());
        }
    }

    fn put_single_addresses(&self, object: &mut Map<String, Value>) {
        for (key, v4) in [("ip4", true), ("ip6", false)] {
            let mut ips = self.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == v4);
            let Some(ip) = ips.next() else { continue };
            let mut entry = json!({ "ip": ip.address.to_string() });
            if let Some(gateway) = ip.gateway {
                entry["gateway"] = gateway.to_string().into();
            }
            // The old form knows a destination and a next hop, nothing else.
            let routes: Vec<Value> = self
                .routes
                .iter()
                .filter(|route| route.dst.addr().is_ipv4() == v4)
                .map(|route| Route { extra: Map::new(), ..route.clone() }.to_json())
                .collect();
            if !routes.is_empty() {
                entry["routes"] = routes.into();
            }
            object.insert(key.to_owned(), entry);
        }
        // A selector has routes before there is an address to hang them on: the next delegate
        // reads them here. The form itself has no place for them.
        let pools = object.get(POOLS).and_then(Value::as_array);
        if !self.ips.is_empty() && pools.is_none_or(Vec::is_empty) {
            return;
        }
        let homeless = |route: &&Route| {
            let v4 = route.dst.addr().is_ipv4();
            !self.ips.iter().any(|ip| ip.address.addr().is_ipv4() == v4)
        };
        let homeless: Vec<Value> =
            self.routes.iter().filter(homeless).map(Route::to_json).collect();
        if !homeless.is_empty() {
            object.insert("routes".to_owned(), homeless.into());
        }
    }
}

impl Route {
    /// Reads a route; `path` is its place, for errors.
    ///
    /// # Errors
    /// It is not a route; the error names the member.
    pub fn parse(value: Value, path: &str) -> Result<Self> {
        let mut extra = into_object(value, path)?;
        let dst = cidr(extra.remove("dst"), &format!("{path}.dst"))?;
        let gw = address_of(extra.remove("gw"), &format!("{path}.gw"))?;
        Ok(Self { dst, gw, extra })
    }

    /// The route on the wire.
    pub fn to_json(&self) -> Value {
        let mut object = self.extra.clone();
        object.insert("dst".to_owned(), self.dst.to_string().into());
        if let Some(gw) = self.gw {
            object.insert("gw".to_owned(), gw.to_string().into());
        }
        Value::Object(object)
    }
}

/// The member `routes` of the object at `path`.
fn routes(value: Option<Value>, path: &str) -> Result<Vec<Route>> {
    let path = format!("{path}.routes");
    let routes = array(value, &path)?.into_iter().enumerate();
    routes.map(|(i, route)| Route::parse(route, &format!("{path}[{i}]"))).collect()
}

fn array(value: Option<Value>, path: &str) -> Result<Vec<Value>> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(array)) => Ok(array),
        Some(_) => Err(Error::config(path, "expected an array")),
    }
}

fn into_object(value: Value, path: &str) -> Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        _ => Err(Error::config(path, "expected an object")),
    }
}

fn cidr(value: Option<Value>, path: &str) -> Result<IpNet> {
    let Some(Value::String(text)) = value else {
        return Err(Error::config(
            path,
            "expected an address with prefix length, such as 10.1.2.3/24",
        ));
    };
    parse_cidr(&text).map_err(|error| {
        Error::config(
            path,
            format!(
                "invalid address {text:?}: expected one with prefix length, such as 10.1.2.3/24"
            ),
        )
        .caused_by(error)
    })
}

fn address_of(value: Option<Value>, path: &str) -> Result<Option<IpAddr>> {
    match value {
        None | Some(Value::Null) => Ok(None),
        // Go's encoder writes an unset address as an empty text.
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => parse_address(&text).map(Some).map_err(|error| {
            Error::config(path, format!("invalid address {text:?}")).caused_by(error)
        }),
        Some(_) => Err(Error::config(path, "expected an address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> IpamResult {
        let value = json!({
            "cniVersion": "1.1.0",
            "ips": [{"address": "10.9.3.4/16", "gateway": "10.9.0.1", "interface": 0},
                    {"address": "fd00:0::4/64"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0", "gw": "fd00::1", "mtu": 1400}],
            "dns": {"nameservers": ["10.9.0.53"]},
            "pools": [],
        });
        IpamResult::parse(&value, "result").unwrap()
    }

    #[test]
    fn each_version_has_its_form() {
        let new = sample().to_json(Version::V1_1_0).unwrap();
        assert_eq!(new["ips"][1], json!({"address": "fd00::4/64"}));
        assert_eq!(new["routes"][1]["mtu"], 1400);
        assert_eq!(new["pools"], json!([]));

        let middle = sample().to_json(Version::V0_3_1).unwrap();
        assert_eq!(middle["ips"][0]["version"], "4");
        assert_eq!(middle["ips"][1]["version"], "6");

        let old = sample().to_json(Version::V0_1_0).unwrap();
        assert_eq!(old["cniVersion"], "0.1.0");
        assert_eq!(
            old["ip4"],
            json!({"ip": "10.9.3.4/16", "gateway": "10.9.0.1", "routes": [{"dst": "0.0.0.0/0"}]})
        );
        assert_eq!(old["ip6"]["routes"], json!([{"dst": "::/0", "gw": "fd00::1"}]));
        assert!(old.get("ips").is_none() && old.get("routes").is_none());
    }

    #[test]
    fn an_old_form_keeps_routes_that_have_no_address_yet() {
        let mut selected = sample();
        selected.ips.clear();
        let written = selected.to_json(Version::V0_2_0).unwrap();
        assert_eq!(IpamResult::parse(&written, "prevResult").unwrap(), selected);
        // The other family's allocator comes next.
        let mut between = sample();
        between.ips.truncate(1);
        between.extra.insert("pools".to_owned(), json!([{"name": "six"}]));
        let written = between.to_json(Version::V0_2_0).unwrap();
        assert_eq!(written["routes"], json!([{"dst": "::/0", "gw": "fd00::1", "mtu": 1400}]));
    }

    #[test]
    fn an_old_form_drops_routes_of_a_family_without_address() {
        let mut four = sample();
        four.ips.truncate(1);
        for result in [four.clone(), IpamResult { extra: Map::new(), ..four }] {
            let written = result.to_json(Version::V0_2_0).unwrap();
            assert_eq!(written["ip4"]["routes"], json!([{"dst": "0.0.0.0/0"}]));
            assert_eq!((written.get("routes"), written.get("ip6")), (None, None));
        }
    }

    #[test]
    fn dns_is_left_out_where_the_version_allows() {
        let empty = IpamResult::default();
        assert_eq!(empty.to_json(Version::V0_4_0).unwrap()["dns"], json!({}));
        assert!(empty.to_json(Version::V1_0_0).unwrap().get("dns").is_none());
    }

    #[test]
    fn an_old_form_never_drops_an_address() {
        let mut two = sample();
        two.ips[1] = two.ips[0].clone();
        let error = two.to_json(Version::V0_2_0).unwrap_err();
        assert_eq!(error.code(), ErrorCode::INCOMPATIBLE_VERSION);
        assert!(two.to_json(Version::V0_3_0).is_ok());
    }

    #[test]
    fn every_form_is_read_back() {
        for version in Version::ALL {
            let written = sample().to_json(version).unwrap();
            let read = IpamResult::parse(&written, "result").unwrap();
            assert_eq!(read.ips.len(), 2, "{version}");
            assert_eq!(read.ips[0].gateway, sample().ips[0].gateway);
            assert_eq!(read.routes.len(), 2);
            assert_eq!(read.to_json(version).unwrap(), written);
        }
    }

    #[test]
    fn errors_name_the_path() {
        for (value, path) in [
            (json!([]), "r"),
            (json!({"ips": {}}), "r.ips"),
            (json!({"ips": [{}]}), "r.ips[0].address"),
            (json!({"ips": [{"address": "10.0.0.1"}]}), "r.ips[0].address"),
            (json!({"ips": [{"address": "10.0.0.1/24", "gateway": 1}]}), "r.ips[0].gateway"),
            (json!({"ip4": {"ip": "x"}}), "r.ip4.ip"),
            (json!({"routes": [{"dst": "0.0.0.0/0", "gw": "x"}]}), "r.routes[0].gw"),
            (json!({"dns": []}), "r.dns"),
        ] {
            let error = IpamResult::parse(&value, "r").unwrap_err();
            assert!(error.to_string().starts_with(&format!("{path}: ")), "{error}");
        }
    }
}
