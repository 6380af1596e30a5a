use std::net::IpAddr;

use serde_json::{Map, Value};

use super::address::parse_address_or_cidr;
use super::shown;
use crate::error::{Error, ErrorCode, Result};

/// The pairs of `CNI_ARGS`.
///
/// Runtimes send them in any order, with duplicate and unknown keys: Multus sends every key twice.
/// The last value of a repeated key counts, and a part without `=` is ignored.
#[derive(Clone, Debug, Default)]
pub struct Args {
    pairs: Vec<(String, String)>,
}

impl Args {
    /// Splits `K=V;K=V`.
    pub fn parse(text: &str) -> Self {
        let pairs = text
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect();
        Self { pairs }
    }

    /// The pairs, in the order of the runtime.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// The last value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|pair| pair.0 == key).map(|pair| pair.1.as_str())
    }
}

/// An address that the runtime asks for, and where it said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedAddress {
    /// The address.
    pub address: IpAddr,
    /// The first prefix length beside it, if there is one. host-local ignores it.
    pub prefix_len: Option<u8>,
    /// The JSON path or variable, for errors.
    pub path: String,
}

impl RequestedAddress {
    /// The requested addresses of a call, each once: `IP=` (or `ip=`) of `CNI_ARGS`, then
    /// `args.cni.ips`, then `runtimeConfig.ips`.
    pub fn all(args: &Args, config: &Map<String, Value>) -> Result<Vec<Self>> {
        let mut all: Vec<Self> = Vec::new();
        let mut add = |text: &str, path: String, code: ErrorCode| -> Result<()> {
            let (address, prefix_len) = parse_address_or_cidr(text).map_err(|error| {
                Error::new(code, format!("{path}: invalid address {text:?}"))
                    .caused_by(error)
                    .advise("expected an address such as 10.1.2.3 or 10.1.2.3/24")
            })?;
            match all.iter_mut().find(|known| known.address == address) {
                Some(known) => known.prefix_len = known.prefix_len.or(prefix_len),
                None => all.push(Self { address, prefix_len, path }),
            }
            Ok(())
        };
        if let Some(list) = args.get("IP").or_else(|| args.get("ip")) {
            for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
                add(text, "CNI_ARGS IP".to_owned(), ErrorCode::INVALID_ENVIRONMENT)?;
            }
        }
        for keys in [&["args", "cni", "ips"][..], &["runtimeConfig", "ips"][..]] {
            let path = keys.join(".");
            let mut value = config.get(keys[0]);
            for key in &keys[1..] {
                value = value.and_then(|value| value.get(key));
            }
            let Some(value) = value.filter(|value| !value.is_null()) else {
                continue;
            };
            let list = value
                .as_array()
                .ok_or_else(|| Error::config(&path, "expected an array of addresses"))?;
            for (i, entry) in list.iter().enumerate() {
                let path = format!("{path}[{i}]");
                let text = entry.as_str().ok_or_else(|| {
                    Error::config(&path, format!("expected a string, found {}", shown(entry)))
                })?;
                add(text.trim(), path, ErrorCode::INVALID_CONFIG)?;
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(args: &str, config: &str) -> Result<Vec<String>> {
        let all =
            RequestedAddress::all(&Args::parse(args), &serde_json::from_str(config).unwrap())?;
        Ok(all
            .into_iter()
            .map(|r| format!("{} {:?} {}", r.address, r.prefix_len, r.path))
            .collect())
    }

    #[test]
    fn order_and_duplicates_do_not_matter() {
        let args = Args::parse("IgnoreUnknown=true;A=1;;x;A=2;IgnoreUnknown=1;K8S_POD_NAME=p;");
        assert_eq!(args.get("A"), Some("2"));
        assert_eq!(args.get("K8S_POD_NAME"), Some("p"));
        assert_eq!(args.get("x"), None);
    }

    #[test]
    fn an_address_named_in_three_places_counts_once() {
        let config = r#"{"args":{"cni":{"ips":["10.0.0.9/24","fd00::9"]}},
                         "runtimeConfig":{"ips":["10.0.0.9","FD00:0::9/64"]}}"#;
        let all = requested("MAC=x;IP=10.0.0.9/16", config).unwrap();
        assert_eq!(all, ["10.0.0.9 Some(16) CNI_ARGS IP", "fd00::9 Some(64) args.cni.ips[1]"]);
        assert_eq!(requested("ip=10.0.0.8", "{}").unwrap(), ["10.0.0.8 None CNI_ARGS IP"]);
        assert_eq!(requested("IP=", r#"{"runtimeConfig":{"ips":null}}"#).unwrap(), [""; 0]);
    }

    #[test]
    fn a_bad_address_names_its_place() {
        let error = requested("", r#"{"runtimeConfig":{"ips":["10.0.0.1","10.0.0.300"]}}"#);
        assert!(error.unwrap_err().to_string().starts_with("runtimeConfig.ips[1]:"));
        assert_eq!(requested("IP=pear", "{}").unwrap_err().code().number(), 4);
    }
}
