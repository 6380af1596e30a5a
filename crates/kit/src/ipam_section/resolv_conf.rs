//! Name resolution out of a file.

use std::path::Path;

use serde_json::{Map, json};

use crate::cni::Dns;
use crate::error::{Error, Result};
use crate::host::read_regular;

/// Reads a file in the form of resolv.conf(5), as host-local does.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> Result<Dns> {
    let bytes = read_regular(path).map_err(|error| {
        Error::io(format!("ipam.resolvConf: cannot read {}", path.display()), error)
    })?;
    Ok(parse(&String::from_utf8_lossy(&bytes)))
}

fn parse(text: &str) -> Dns {
    let (mut nameservers, mut domain, mut search, mut options) = (vec![], None, vec![], vec![]);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut fields = line.split_whitespace();
        match (fields.next(), fields.next()) {
            (Some("nameserver"), Some(server)) => nameservers.push(server),
            (Some("domain"), Some(name)) => domain = Some(name),
            (Some("search"), Some(first)) => search.extend([first].into_iter().chain(fields)),
            (Some("options"), Some(first)) => options.extend([first].into_iter().chain(fields)),
            _ => {}
        }
    }
    let mut dns = Map::new();
    for (key, list) in [("nameservers", nameservers), ("search", search), ("options", options)] {
        if !list.is_empty() {
            dns.insert(key.to_owned(), json!(list));
        }
    }
    dns.extend(domain.map(|domain| ("domain".to_owned(), json!(domain))));
    Dns(dns)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn files_are_read_as_host_local_reads_them() {
        for (text, expected) in [
            ("", json!({})),
            ("# nameserver 1.1.1.1\n;search a\nnameserver\ndomain\nsortlist x\n", json!({})),
            (
                "nameserver 192.0.2.0 tail\n  nameserver\t192.0.2.1\r\n",
                json!({"nameservers": ["192.0.2.0", "192.0.2.1"]}),
            ),
            ("domain a\ndomain b # tail", json!({"domain": "b"})),
            (
                "search a b\nsearch c\noptions x y\noptions z",
                json!({"search": ["a", "b", "c"], "options": ["x", "y", "z"]}),
            ),
        ] {
            assert_eq!(Value::Object(parse(text).0), expected, "{text:?}");
        }
    }
}
