//! The section `etcd` of the allocator: the servers, the login, and the layout of whereabouts.

use ipam_kit::Result;
use ipam_kit::cni::parse_value;
use serde_json::{Map, Value, json};

use crate::config::StoreKeys;
use crate::merged_keys::MergedKeys;
use crate::tolerance::Tolerance;
use crate::written::Written;

/// The results of Multus, which runs whereabouts. By them a DEL of one interface tells the addresses
/// of the container's others, which whereabouts gave.
const RESULTS: &str = "/var/lib/cni/multus/results";

/// The section, and what of its keys has no effect.
#[derive(Debug)]
pub(crate) struct EtcdMembers {
    pub(crate) members: Map<String, Value>,
    /// A text for each key that whereabouts ignores without a second one.
    pub(crate) remarks: Vec<String>,
}

/// Reads the keys of whereabouts as members of the section. Those of the configuration count first;
/// if it names servers, all others are about these.
///
/// whereabouts uses TLS for a certificate with its key, or for https, and ignores its files
/// otherwise, as it does a user without a password.
///
/// # Errors
/// The section of the configuration has the wrong type.
pub(crate) fn read(
    ipam: &Value,
    host: Written<String>,
    keys: &mut MergedKeys<'_, StoreKeys>,
    tolerance: &mut Tolerance,
) -> Result<EtcdMembers> {
    let own: Option<Map<String, Value>> =
        tolerance.allow(parse_value(&ipam["etcd"], "ipam.etcd"))?;
    let mut own = own.unwrap_or_default();
    own.retain(|_, value| !value.is_null());
    let mut members = Map::from_iter([
        ("layout".to_owned(), json!("whereabouts")),
        ("resultCache".to_owned(), json!(RESULTS)),
    ]);
    let mut remarks = Vec::new();
    if !own.contains_key("endpoints") {
        // A list with commas is ours: whereabouts has one server.
        let hosts = host.value.split(',').map(str::trim).filter(|host| !host.is_empty());
        let endpoints: Vec<&str> = hosts.collect();
        let is_https = endpoints.iter().any(|endpoint| is_https(endpoint));
        let mut take =
            |key: &str, of: fn(&mut StoreKeys) -> &mut Option<String>| keys.take(key, of);
        let identity = [
            take("etcd_cert_file", |keys| &mut keys.etcd_cert_file),
            take("etcd_key_file", |keys| &mut keys.etcd_key_file),
        ];
        let authority = take("etcd_ca_cert_file", |keys| &mut keys.etcd_ca_cert_file);
        let login = [
            take("etcd_username", |keys| &mut keys.etcd_username),
            take("etcd_password", |keys| &mut keys.etcd_password),
        ];
        members.insert("endpoints".to_owned(), json!(endpoints));
        let has_own_login = ["username", "password", "passwordFile"];
        let has_own_login = has_own_login.iter().any(|key| own.contains_key(*key));
        if !has_own_login {
            let login = pair(login, ["etcd_username", "etcd_password"], "", &mut remarks);
            if let Some([user, password]) = login {
                members.insert("username".to_owned(), user.into());
                members.insert("password".to_owned(), password.into());
            }
        }
        let without_tls = if is_https { "" } else { ", so TLS is off" };
        let names = ["etcd_cert_file", "etcd_key_file"];
        let identity = pair(identity, names, without_tls, &mut remarks);
        let has_tls = is_https || identity.is_some();
        if let Some([certificate, key]) = identity {
            members.insert("certFile".to_owned(), certificate.into());
            members.insert("keyFile".to_owned(), key.into());
        }
        match authority {
            Some(authority) if has_tls => {
                members.insert("trustedCaFile".to_owned(), authority.value.into());
            }
            Some(authority) => remarks.push(format!(
                "{} has no effect without TLS: name etcd_cert_file and etcd_key_file, or begin \
                 etcd_host with https://",
                authority.place
            )),
            None => {}
        }
    }
    members.retain(|key, _| !own.contains_key(key));
    Ok(EtcdMembers { members, remarks })
}

/// The values of two keys that have an effect together, or a remark on the one that is alone.
fn pair(
    pair: [Option<Written<String>>; 2],
    names: [&str; 2],
    effect: &str,
    remarks: &mut Vec<String>,
) -> Option<[String; 2]> {
    let (alone, other) = match pair {
        [Some(first), Some(second)] => return Some([first.value, second.value]),
        [Some(first), None] => (first, names[1]),
        [None, Some(second)] => (second, names[0]),
        [None, None] => return None,
    };
    let place = alone.place;
    remarks.push(format!("{place} has no effect without {other}{effect}: name both"));
    None
}

fn is_https(endpoint: &str) -> bool {
    endpoint.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::Call;

    #[track_caller]
    fn section(ipam: Value, flat: Value) -> Value {
        let call = || {
            let call = Call::bare(ipam.clone()).flat(&flat);
            call.ipam_key("range", json!("10.0.0.0/24"))
        };
        let answer = call().ok()["ipam"].clone();
        for verb in ["DEL", "CHECK", "GC", "STATUS"] {
            assert_eq!(call().verb(verb).ok()["ipam"], answer, "{verb}");
        }
        answer["etcd"].clone()
    }

    fn at(endpoints: &[&str]) -> Value {
        json!({
            "layout": "whereabouts", "resultCache": "/var/lib/cni/multus/results",
            "endpoints": endpoints,
        })
    }

    #[test]
    fn the_keys_of_whereabouts_become_the_section() {
        let ipam = json!({
            "etcd_host": "10.0.0.1:2379, 10.0.0.2:2379,", "etcd_cert_file": "/c",
            "etcd_key_file": "/k", "etcd_ca_cert_file": "/a", "etcd_username": "u",
        });
        let flat = json!({"etcd_host": "other", "etcd_password": "p", "etcd_cert_file": "/other"});
        let mut expected = at(&["10.0.0.1:2379", "10.0.0.2:2379"]);
        for (key, value) in [
            ("certFile", "/c"),
            ("keyFile", "/k"),
            ("trustedCaFile", "/a"),
            ("username", "u"),
            ("password", "p"),
        ] {
            expected[key] = value.into();
        }
        assert_eq!(section(ipam, flat), expected);
    }

    #[test]
    fn files_count_with_a_certificate_and_its_key_or_https() {
        for keys in [
            json!({"etcd_ca_cert_file": "/a", "etcd_cert_file": "/c"}),
            json!({"etcd_ca_cert_file": "/a", "etcd_key_file": "/k"}),
            json!({"etcd_username": "u", "etcd_cert_file": "/c", "etcd_key_file": ""}),
        ] {
            let mut ipam = keys;
            ipam["etcd_host"] = "a:2379".into();
            assert_eq!(section(ipam, json!({})), at(&["a:2379"]));
        }
        let ipam = json!({"etcd_host": "HTTPS://a", "etcd_ca_cert_file": "/a"});
        let mut secured = at(&["HTTPS://a"]);
        secured["trustedCaFile"] = "/a".into();
        assert_eq!(section(ipam, json!({})), secured);
    }

    #[test]
    fn status_remarks_on_a_key_that_needs_another_one() {
        let lone = |name: &str, other: &str, effect: &str| {
            format!("ipam.{name} has no effect without {other}{effect}: name both")
        };
        let ca = "FLAT.etcd_ca_cert_file has no effect without TLS: name etcd_cert_file and \
                  etcd_key_file, or begin etcd_host with https://";
        let off = ", so TLS is off";
        for (host, key, flat, expected) in [
            ("a", "etcd_cert_file", json!({}), vec![lone("etcd_cert_file", "etcd_key_file", off)]),
            ("a", "etcd_key_file", json!({}), vec![lone("etcd_key_file", "etcd_cert_file", off)]),
            (
                "https://a",
                "etcd_cert_file",
                json!({"etcd_ca_cert_file": "/a"}),
                vec![lone("etcd_cert_file", "etcd_key_file", "")],
            ),
            ("a", "etcd_username", json!({}), vec![lone("etcd_username", "etcd_password", "")]),
            ("a", "etcd_password", json!({}), vec![lone("etcd_password", "etcd_username", "")]),
            ("a", "range_start", json!({"etcd_ca_cert_file": "/a"}), vec![ca.to_owned()]),
            (
                "a",
                "etcd_cert_file",
                json!({"etcd_key_file": "/k", "etcd_ca_cert_file": "/a"}),
                vec![],
            ),
        ] {
            let mut ipam = json!({"etcd_host": host, "range": "10.0.0.0/24"});
            ipam[key] = "10.0.0.9".into();
            let call = || Call::bare(ipam.clone()).flat(&flat);
            let expected = if expected.is_empty() { Value::Null } else { json!(expected) };
            assert_eq!(call().verb("STATUS").ok()["remarks"], expected, "{ipam} {flat}");
            assert_eq!(call().ok().get("remarks"), None);
        }
    }

    #[test]
    fn a_section_of_the_configuration_counts_first() {
        let host = json!({"etcd_host": "a", "etcd_username": "u", "etcd_password": "p"});
        let ipam = json!({"etcd": {"resultCache": "/r", "endpoints": ["b"]}});
        assert_eq!(section(ipam, host.clone()), json!({"layout": "whereabouts"}));
        let ipam = json!({"etcd": {"username": "own", "layout": null}});
        assert_eq!(section(ipam, host.clone()), at(&["a"]));
        let wrong = Call::bare(json!({"etcd": "a"})).flat(&host);
        wrong.err(7, "ipam.etcd: expected an object, found a string");
    }
}
