//! The section `kube` of the allocator: the login, and the names of the objects.

use std::path::Path;

use ipam_kit::cni::parse_value;
use ipam_kit::text::may_begin_object_names;
use ipam_kit::{Error, Request, Result};
use serde_json::{Map, Value};

use crate::config::StoreKeys;
use crate::flat_file::FLAT_FILES;
use crate::merged_keys::MergedKeys;
use crate::tolerance::Tolerance;
use crate::written::Written;

/// The section `kube`, as the keys of whereabouts name it.
#[derive(Debug)]
pub(crate) struct KubePatch {
    /// The members that the section of the configuration does not have.
    pub(crate) members: Map<String, Value>,
    /// Whether the names of objects begin with that of a network.
    pub(crate) has_network_name: bool,
}

impl KubePatch {
    /// Reads the keys of whereabouts. The section of the configuration, if there is one, counts
    /// first.
    ///
    /// # Errors
    /// A value is malformed, or no key names a kubeconfig, or an ADD one that does not exist.
    pub(crate) fn read(
        request: &Request,
        keys: &mut MergedKeys<'_, StoreKeys>,
        tolerance: &mut Tolerance,
    ) -> Result<Self> {
        let own = request.network.ipam().get("kube").unwrap_or(&Value::Null);
        let own: Option<Map<String, Value>> = tolerance.allow(parse_value(own, "ipam.kube"))?;
        let mut own = own.unwrap_or_default();
        // The allocator reads an empty text as missing, too.
        own.retain(|_, value| !value.is_null() && value != "");
        let mut members = Map::new();
        if !own.contains_key("kubeconfig") {
            let login = keys.take("kubernetes.kubeconfig", |keys| {
                &mut keys.kubernetes.get_or_insert_default().kubeconfig
            });
            let login = login.ok_or_else(|| tolerance.ended_by(without_login()))?;
            if request.is_strict() {
                require_file(&login, request)?;
            }
            members.insert("kubeconfig".to_owned(), login.value.into());
        }
        if !own.contains_key("networkName")
            && let Some(name) = keys.take("network_name", |keys| &mut keys.network_name)
            && let Some(name) = tolerance.allow(checked_name(name).map(Some))?
        {
            members.insert("networkName".to_owned(), name.into());
        }
        // That of the flat file has no effect in whereabouts, either.
        if !own.contains_key("overlapCheck")
            && let Some(check) = keys.of_ipam().enable_overlapping_ranges
        {
            members.insert("overlapCheck".to_owned(), check.into());
        }
        let has_network_name =
            members.contains_key("networkName") || own.contains_key("networkName");
        Ok(Self { members, has_network_name })
    }
}

fn without_login() -> Error {
    let message = "missing, and so is etcd_host: neither the network configuration nor a flat file \
                   names a store";
    let [_, file] = FLAT_FILES;
    Error::config("ipam.kubernetes.kubeconfig", message).advise(format!(
        "set it, or \"kubernetes\": {{\"kubeconfig\": …}} in {file}; \
         if the leases are in etcd, set etcd_host in one of both"
    ))
}

/// The allocator would name its own key, which the author of the network has not written. The host
/// may hide from that author which files exist: its refusal comes first.
///
/// # Errors
/// Code 7: the host refuses the file, or it does not exist.
pub(crate) fn require_file(login: &Written<String>, request: &Request) -> Result<()> {
    let Written { value, place } = login;
    let path = Path::new(value);
    request.settings.refuse_kubeconfig(&place.to_string(), path)?;
    if path.is_absolute() && path.is_file() {
        return Ok(());
    }
    let expected = "the absolute path of a file that exists";
    let error = place.error(format!("expected {expected}, found {value:?}"));
    Err(place.shown(error, expected).advise(
        "correct the path; if a DaemonSet writes the file, check that its pod runs on this node",
    ))
}

/// The names of objects are this one, `-`, and a range or an address.
fn checked_name(name: Written<String>) -> Result<String> {
    let Written { value: name, place } = name;
    if may_begin_object_names(&name) {
        return Ok(name);
    }
    let error = place.error(format!("invalid name {name:?} for an object of Kubernetes"));
    Err(place.shown(error, "a name for objects of Kubernetes").advise(
        "use lower-case letters, digits, - and ., \
         beginning with a letter or a digit, and at most 200 characters",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::testing::Call;

    #[test]
    fn the_keys_of_whereabouts_become_the_section() {
        let ipam = json!({
            "range": "10.0.0.0/24", "kubernetes": {"kubeconfig": "/k"}, "network_name": "blue.a",
            "enable_overlapping_ranges": false,
        });
        let section = json!({"kubeconfig": "/k", "networkName": "blue.a", "overlapCheck": false});
        for verb in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            let answer = Call::ipam(ipam.clone()).verb(verb).ok();
            assert_eq!(answer["ipam"], json!({"kube": section}), "{verb}");
        }
        let answer = Call::ipam(json!({"range": "10.0.0.0/24", "network_name": ""})).ok();
        assert_eq!(answer["ipam"], json!({"kube": {"kubeconfig": "/k"}}));
    }

    #[test]
    fn a_section_of_the_configuration_counts_first() {
        let kube = json!({"kubeconfig": "/own", "networkName": "red", "overlapCheck": true});
        let ipam = json!({
            "range": "10.0.0.0/24", "network_name": "blue", "enable_overlapping_ranges": false,
            "kube": kube,
        });
        assert_eq!(Call::bare(ipam.clone()).ok().get("ipam"), None);
        let mut some = ipam;
        let patch = json!({"kube": {"kubeconfig": "/k", "networkName": "blue"}});
        for missing in [json!(null), json!("")] {
            some["kube"] = json!({"overlapCheck": true, "networkName": missing, "timeout": "5s"});
            some["kube"]["kubeconfig"] = missing;
            assert_eq!(Call::ipam(some.clone()).ok()["ipam"], patch);
        }
        let nameless = json!({"range": "::/64", "kube": {"networkName": ""}});
        Call::ipam(nameless).err(7, "ipam.range: ::/64 gives invalid names");
        Call::ipam(json!({"kube": "/k"})).err(7, "ipam.kube: expected an object, found a string");
    }

    #[test]
    fn the_login_comes_from_the_flat_file_when_a_runtime_strips_the_configuration() {
        let flat = json!({"kubernetes": {"kubeconfig": "/flat"}, "network_name": "blue"});
        let answer = Call::bare(json!({})).flat(flat).verb("DEL").ok();
        let section = json!({"kube": {"kubeconfig": "/flat", "networkName": "blue"}});
        assert_eq!((&answer["ipam"], &answer["pools"]), (&section, &json!([])));
        for verb in ["ADD", "DEL"] {
            let call = Call::bare(json!({"range": "10.0.0.0/24"})).verb(verb);
            let details = call.err(7, "ipam.kubernetes.kubeconfig: missing, and so is etcd_host");
            assert!(details.contains("/etc/cni/net.d/whereabouts.d/whereabouts.conf"), "{details}");
            let empty = json!({"range": "10.0.0.0/24", "datastore": "etcd", "etcd_host": ""});
            let details = Call::bare(empty).verb(verb).err(7, "ipam.kubernetes.kubeconfig: ");
            assert!(details.contains("in etcd, set etcd_host"), "{details}");
        }
    }

    #[test]
    fn a_kubeconfig_that_does_not_exist_is_an_error_of_the_key_that_names_it() {
        let named = |path: &str| json!({"kubernetes": {"kubeconfig": path}});
        for path in ["/nowhere/kubeconfig", "k", "/"] {
            for verb in ["ADD", "STATUS"] {
                let expected = "expected the absolute path of a file that exists";
                let own = Call::ipam(named(path)).verb(verb);
                let message = format!("ipam.kubernetes.kubeconfig: {expected}, found {path:?}");
                let own = own.err(7, &message);
                let flat = Call::bare(json!({})).flat(named(path)).verb(verb);
                let flat = flat.err(7, &format!("FLAT.kubernetes.kubeconfig: {expected}"));
                for details in [own, flat] {
                    assert!(details.contains("check that its pod runs"), "{details}");
                }
            }
            for verb in ["DEL", "GC", "CHECK"] {
                let answer = Call::ipam(named(path)).verb(verb).ok();
                assert_eq!(answer["ipam"]["kube"]["kubeconfig"], path);
            }
        }
    }

    #[test]
    fn a_name_that_no_object_can_have_is_refused() {
        let long = "a".repeat(201);
        for name in ["Blue", "-a", ".a", "a.", "a..b", "a.-b", "a-.b", "a_b", "a/b", "ü", &long] {
            let call = Call::ipam(json!({"range": "10.0.0.0/24", "network_name": name}));
            call.err(7, "ipam.network_name: invalid name ");
        }
        for name in ["a", "0", "a-", "a.b-1", &long[1..]] {
            Call::ipam(json!({"range": "10.0.0.0/24", "network_name": name})).ok();
        }
        for (key, value, found) in [
            ("network_name", json!(5), "expected a string, found a number"),
            ("enable_overlapping_ranges", json!("no"), "expected a boolean, found a string"),
            ("kubernetes", json!("/k"), "expected an object, found a string"),
        ] {
            Call::ipam(json!({key: value})).err(7, &format!("ipam.{key}: {found}"));
        }
        Call::ipam(json!({"kubernetes": {"kubeconfig": 5}})).err(7, "ipam.kubernetes.kubeconfig: ");
    }
}
