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

/// Reads the keys of whereabouts as members of the section. Those of the configuration count first;
/// if it names servers, all others are about these.
///
/// whereabouts uses TLS for a certificate with its key, or for https, and ignores its files
/// otherwise, as it does a user without a password.
///
/// # Errors
/// The section of the configuration has the wrong type.
pub(crate) fn members(
    ipam: &Value,
    host: Written<String>,
    keys: &mut MergedKeys<'_, StoreKeys>,
    tolerance: &mut Tolerance,
) -> Result<Map<String, Value>> {
    let own: Option<Map<String, Value>> =
        tolerance.allow(parse_value(&ipam["etcd"], "ipam.etcd"))?;
    let mut own = own.unwrap_or_default();
    own.retain(|_, value| !value.is_null());
    let mut members = Map::from_iter([
        ("layout".to_owned(), json!("whereabouts")),
        ("resultCache".to_owned(), json!(RESULTS)),
    ]);
    if !own.contains_key("endpoints") {
        // A list with commas is ours: whereabouts has one server.
        let hosts = host.value.split(',').map(str::trim).filter(|host| !host.is_empty());
        let endpoints: Vec<&str> = hosts.collect();
        let is_https = endpoints.iter().any(|endpoint| is_https(endpoint));
        let mut take = |key: &str, of: fn(&mut StoreKeys) -> &mut Option<String>| {
            keys.take(key, of).map(|written| written.value)
        };
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
        if let ([Some(user), Some(password)], false) = (login, has_own_login) {
            members.insert("username".to_owned(), user.into());
            members.insert("password".to_owned(), password.into());
        }
        let has_tls = is_https || identity.iter().all(Option::is_some);
        if let [Some(certificate), Some(key)] = identity {
            members.insert("certFile".to_owned(), certificate.into());
            members.insert("keyFile".to_owned(), key.into());
        }
        if let Some(authority) = authority.filter(|_| has_tls) {
            members.insert("trustedCaFile".to_owned(), authority.into());
        }
    }
    members.retain(|key, _| !own.contains_key(key));
    Ok(members)
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
