//! The provider of addresses that a file of the host names: a server that has the pools.

use std::path::Path;

use ipam_kit::cni::{Verb, parse_value};
use ipam_kit::keys::Key;
use ipam_kit::pool::Pool;
use ipam_kit::{Error, Request, Result, Selection};
use log::warn;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config::{PoolKeys, StoreKeys};
use crate::flat_file::FlatFile;
use crate::kube_section::require_file;
use crate::merged_keys::MergedKeys;
use crate::offer::{NOT_CLAIMED, read_dns, read_routes, read_static_addresses};
use crate::requests::one_requested;
use crate::tolerance::Tolerance;

/// The file that names the provider, and has the login for the allocator.
pub(crate) const PROVIDER_FILE: &str = "/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf";

const PROVIDER_KEYS: &[Key] = &[
    Key::Value("ipamtype"),
    Key::Value("ipamuser"),
    Key::Value("ipampwd"),
    Key::Value("ipamurl"),
    Key::Value("appid"),
];

/// The key of the file that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProviderKeys {
    ipamtype: Option<String>,
}

/// A provider that an allocator serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderKind {
    PhpIpam,
    OpenWisp,
}

/// A provider, and the file that names it.
#[derive(Clone, Debug)]
pub(crate) struct Provider {
    kind: ProviderKind,
    file: String,
}

impl Provider {
    /// Reads which provider a file names; `None` if the file does not exist, or names another store.
    /// Each error ends a release, too: another store holds nothing, and would answer that all is
    /// released.
    ///
    /// # Errors
    /// Code 7: the file is not trusted or is malformed, or its provider is not supported. Code 5: it
    /// cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(file) = FlatFile::read(path)? else { return Ok(None) };
        file.refuse_other_letters(PROVIDER_KEYS)?;
        let keys: ProviderKeys = parse_value(file.content(), file.path())?;
        let kind = match keys.ipamtype.as_deref().unwrap_or_default() {
            "phpipam" => ProviderKind::PhpIpam,
            "openwisp" => ProviderKind::OpenWisp,
            "nsxtipam" => {
                let error = file.place("ipamtype").error("the provider nsxtipam is not supported");
                return Err(error.advise("keep the old plugin on networks of NSX-T"));
            }
            _ => return Ok(None),
        };
        Ok(Some(Self { kind, file: file.path().to_owned() }))
    }

    /// The settings for the delegates that follow: for the allocator the file, for `ipam-ds-kube-pod`
    /// the annotation `podname` and the login. Those of the configuration count first.
    ///
    /// # Errors
    /// A section of the configuration has the wrong type, or an ADD names a kubeconfig that does not
    /// exist.
    pub(crate) fn sections(
        &self,
        request: &Request,
        keys: &mut MergedKeys<'_, StoreKeys>,
        tolerance: &mut Tolerance,
    ) -> Result<Map<String, Value>> {
        let name = self.kind.section();
        let own = own_section(request, name, tolerance)?;
        let mut server = Map::new();
        if !["url", "urls", "providerFile"].iter().any(|key| own.contains_key(*key)) {
            server.insert("providerFile".to_owned(), json!(self.file));
        }
        let own = own_section(request, "pod", tolerance)?;
        let mut pod = Map::new();
        if !own.contains_key("sticky") {
            pod.insert("sticky".to_owned(), "name".into());
            // As with the fork, the name alone is the name of the record.
            if !own.contains_key("nameScope") {
                pod.insert("nameScope".to_owned(), "cluster".into());
            }
        }
        let login = keys.take("kubernetes.kubeconfig", |keys| {
            &mut keys.kubernetes.get_or_insert_default().kubeconfig
        });
        if let Some(login) = login.filter(|_| !own.contains_key("kubeconfig")) {
            if request.is_strict() {
                require_file(&login, request)?;
            }
            pod.insert("kubeconfig".to_owned(), login.value.into());
        }
        let sections = [(name.to_owned(), server.into()), ("pod".to_owned(), pod.into())];
        Ok(Map::from_iter(sections))
    }

    /// Offers a pod an address of the pool that the network names, beside static addresses, routes and
    /// name resolution.
    ///
    /// # Errors
    /// A key is malformed; the network names no pool; the pod asks for two addresses.
    pub(crate) fn offer(
        &self,
        mut keys: MergedKeys<'_, PoolKeys>,
        request: &Request,
    ) -> Result<Selection> {
        let (routes, dns) = (read_routes(&mut keys)?, read_dns(&mut keys));
        let mut static_addresses = read_static_addresses(&mut keys)?;
        let requested_ip = one_requested(request, &mut static_addresses)?;
        let name = self.pool_name(request)?;
        if request.verb == Verb::Add
            && let Some(range) = keys.take("range", |keys| &mut keys.range)
        {
            warn!(
                "{} is ignored: the pool {name:?} of {} counts",
                range.place,
                self.kind.service()
            );
        }
        let mut pool = Pool::new(Some(name), Vec::new());
        if let Some(pool) = &mut pool {
            pool.requested_ip = requested_ip;
        }
        let is_shared = !static_addresses.is_empty();
        Ok(Selection {
            pools: Some(pool.into_iter().collect()),
            static_addresses,
            routes,
            dns,
            remarks: is_shared.then(|| NOT_CLAIMED.to_owned()).into_iter().collect(),
            ..Selection::default()
        })
    }

    fn pool_name(&self, request: &Request) -> Result<String> {
        let pool = request.network.config().get("args").and_then(|args| args.get("pool"));
        let name: Option<String> = parse_value(pool.unwrap_or(&Value::Null), "args.pool")?;
        name.filter(|name| !name.is_empty()).ok_or_else(|| {
            let service = self.kind.service();
            Error::config("args.pool", format_args!("missing: {} names {service}", self.file))
                .advise(format!(
                    "set \"args\": {{\"pool\": …}} beside ipam, to {} in {service}",
                    self.kind.name_of_pool()
                ))
        })
    }
}

impl ProviderKind {
    /// The section of `ipam` that its allocator reads.
    fn section(self) -> &'static str {
        match self {
            Self::PhpIpam => "phpipam",
            Self::OpenWisp => "openwisp",
        }
    }

    fn service(self) -> &'static str {
        match self {
            Self::PhpIpam => "phpIPAM",
            Self::OpenWisp => "OpenWISP",
        }
    }

    fn name_of_pool(self) -> &'static str {
        match self {
            Self::PhpIpam => "the description of a subnet",
            Self::OpenWisp => "the name of a subnet",
        }
    }
}

/// A section of the configuration, without keys that are null.
fn own_section(
    request: &Request,
    name: &str,
    tolerance: &mut Tolerance,
) -> Result<Map<String, Value>> {
    let section = request.network.ipam().get(name).unwrap_or(&Value::Null);
    let section: Option<Map<String, Value>> =
        tolerance.allow(parse_value(section, &format!("ipam.{name}")))?;
    let mut section = section.unwrap_or_default();
    section.retain(|_, value| !value.is_null());
    Ok(section)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::Call;

    const VERBS: [&str; 5] = ["ADD", "CHECK", "STATUS", "DEL", "GC"];

    fn call(provider: &str, ipam: &Value) -> Call {
        let file = json!({"ipamtype": provider, "ipampwd": "pa55", "ipamurl": "10.0.0.9"});
        Call::ipam(ipam.clone()).provider(file).with("args", json!({"pool": "pool1"}))
    }

    #[test]
    fn the_pool_of_the_network_comes_from_the_provider() {
        let providers = ["phpipam", "openwisp"].into_iter();
        for (provider, verb) in providers.flat_map(|it| VERBS.map(|verb| (it, verb))) {
            let ipam = json!({
                "range": "10.1.0.0/24", "routes": [{"dst": "::/0"}], "dns": {"domain": "a"},
                "addresses": [{"address": "10.9.9.9/24"}],
            });
            let answer = call(provider, &ipam).verb(verb).ok();
            assert_eq!(answer["pools"], json!([{"name": "pool1"}]), "{verb}");
            let pod = json!({"sticky": "name", "nameScope": "cluster", "kubeconfig": "/k"});
            let file = json!({"providerFile": "PROVIDER"});
            assert_eq!(answer["ipam"], json!({provider: file, "pod": pod}), "{verb}");
            assert_eq!(answer["routes"], ipam["routes"]);
            assert_eq!(answer["dns"], ipam["dns"]);
            assert_eq!(answer["static"], json!([{"address": "10.9.9.9/24"}]));
        }
    }

    #[test]
    fn sections_of_the_configuration_count_first() {
        for (ipam, expected) in [
            (
                json!({"phpipam": {"section": "2"}, "pod": {"sticky": "off"}}),
                json!({"phpipam": {"providerFile": "PROVIDER"}, "pod": {"kubeconfig": "/k"}}),
            ),
            (
                json!({"phpipam": {"url": "https://a"}, "pod": {"nameScope": "namespace"}}),
                json!({"pod": {"sticky": "name", "kubeconfig": "/k"}}),
            ),
            (
                json!({"phpipam": {"providerFile": "/p"}, "pod": {"kubeconfig": "/own"}}),
                json!({"pod": {"sticky": "name", "nameScope": "cluster"}}),
            ),
        ] {
            assert_eq!(call("phpipam", &ipam).ok()["ipam"], expected, "{ipam}");
        }
        let wrong = json!({"phpipam": "x"});
        call("phpipam", &wrong).err(7, "ipam.phpipam: expected an object, found a string");
        call("phpipam", &wrong).verb("DEL").ok();
    }

    #[test]
    fn a_network_without_a_pool_is_told_what_to_set() {
        for (args, message) in [
            (json!(null), "args.pool: missing: PROVIDER names phpIPAM"),
            (json!({}), "args.pool: missing"),
            (json!({"pool": ""}), "args.pool: missing"),
            (json!({"pool": 5}), "args.pool: expected a string, found a number"),
        ] {
            for verb in ["ADD", "CHECK", "STATUS"] {
                let call = call("phpipam", &json!({})).with("args", args.clone()).verb(verb);
                let details = call.err(7, message);
                let is_told = details.contains("description of a subnet in phpIPAM");
                assert!(is_told || args["pool"] == 5, "{details}");
            }
            for verb in ["DEL", "GC"] {
                let answer = call("phpipam", &json!({})).with("args", args.clone()).verb(verb).ok();
                assert_eq!(answer["pools"], json!([]));
                assert_eq!(answer["ipam"]["phpipam"]["providerFile"], "PROVIDER");
            }
        }
    }

    #[test]
    fn an_address_that_a_pod_asks_for_is_the_one_that_it_gets() {
        let ipam = json!({"addresses": [{"address": "10.9.9.9/24"}]});
        let answer = call("openwisp", &ipam).args("IP=10.1.0.7,10.9.9.9;GATEWAY=10.9.9.1").ok();
        assert_eq!(answer["pools"][0]["requested-ip"], "10.1.0.7");
        assert_eq!(answer["static"], json!([{"address": "10.9.9.9/24", "gateway": "10.9.9.1"}]));
        let two = call("openwisp", &ipam).args("IP=10.1.0.7,10.1.0.8");
        two.err(101, "CNI_ARGS IP: 10.1.0.8 is the second request, after 10.1.0.7");
        let answer = call("openwisp", &ipam).args("IP=10.1.0.7,10.1.0.8").verb("DEL").ok();
        assert_eq!(answer["pools"], json!([{"name": "pool1"}]));
    }

    #[test]
    fn each_error_of_the_file_ends_every_call() {
        for (content, message) in [
            (
                json!({"ipamtype": "nsxtipam", "ipampwd": "pa55"}),
                "PROVIDER.ipamtype: the provider nsxtipam is not supported",
            ),
            (json!({"ipamtype": 5}), "PROVIDER.ipamtype: expected a string, found a number"),
            (
                json!({"IpamType": "phpipam"}),
                "PROVIDER.IpamType: unknown key (did you mean ipamtype?)",
            ),
            (json!("pa55"), "PROVIDER is JSON but not an object"),
        ] {
            for verb in VERBS {
                let call =
                    Call::ipam(json!({"range": "10.1.0.0/24"})).provider(&content).verb(verb);
                let details = call.err(7, message);
                assert!(!details.contains("pa55"), "{details}");
            }
        }
        for content in [json!({"ipamtype": ""}), json!({"ipamtype": "kubernetes"}), json!({})] {
            let answer = Call::ipam(json!({"range": "10.1.0.0/24"})).provider(content).ok();
            assert_eq!(answer["ipam"], json!({"kube": {"kubeconfig": "/k"}}));
        }
    }

    #[test]
    fn status_names_the_keys_that_a_provider_leaves_without_effect() {
        let ipam = json!({
            "range": "10.1.0.0/24", "exclude": ["10.1.0.1"], "gateway": "10.1.0.9",
            "datastore": "kubernetes", "etcd_host": "e:2379", "node_slice_size": "/26",
            "network_name": "blue", "log_level": "debug",
            "kubernetes": {"kubeconfig": "/k", "k8s_api_root": "https://h"},
        });
        let mut keys =
            vec!["log_level", "range", "exclude", "gateway", "network_name", "datastore"];
        keys.extend(["node_slice_size", "etcd_host", "kubernetes.k8s_api_root"]);
        let remarks: Vec<String> =
            keys.iter().map(|key| format!("ipam.{key} has no effect")).collect();
        assert_eq!(call("phpipam", &ipam).verb("STATUS").ok()["remarks"], json!(remarks));
        assert_eq!(call("phpipam", &ipam).ok().get("remarks"), None);
    }
}
