//! Reads the configuration of whereabouts.

use std::path::PathBuf;

use ipam_kit::cni::Verb;
use ipam_kit::keys::{Key, refuse_other_letters_inside};
use ipam_kit::{Request, Result, Selection, Selector};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::config::{KEYS, StoreKeys};
use crate::etcd_section;
use crate::flat_file::FlatFile;
use crate::kube_section::KubePatch;
use crate::merged_keys::MergedKeys;
use crate::offer;
use crate::other_stores::Datastore;
use crate::provider::PROVIDER_FILE;
use crate::remarks;
use crate::tolerance::Tolerance;

/// The selector. It keeps no state and sends no request.
#[derive(Clone, Debug)]
pub(crate) struct FromWhereabouts {
    /// The file that names the provider.
    pub(crate) provider_file: PathBuf,
}

impl Default for FromWhereabouts {
    fn default() -> Self {
        Self { provider_file: PROVIDER_FILE.into() }
    }
}

impl Selector for FromWhereabouts {
    /// It reads the section by itself: a release skips a key of the wrong type.
    type Config = IgnoredAny;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, _: IgnoredAny, request: &Request) -> Result<Selection> {
        let mut tolerance = Tolerance::of(request.verb);
        let ipam = &request.network.config()["ipam"];
        let own: StoreKeys = tolerance.keys(ipam, "ipam")?;
        let flat = tolerance.allow(FlatFile::find(own.configuration_path.as_deref()))?;
        if request.is_strict() {
            refuse_other_letters_inside(ipam, KEYS, "ipam")?;
            flat.iter().try_for_each(|file| file.refuse_other_letters(KEYS))?;
        }
        let mut store = MergedKeys::new(own, flat.as_ref(), &mut tolerance)?;
        let datastore = Datastore::read(&self.provider_file, ipam, &mut store, &mut tolerance)?;
        let mut of_etcd = Vec::new();
        // Keys of etcd are of values, which no name makes invalid.
        let mut has_network_name = true;
        let mut sections = match &datastore {
            Datastore::Kubernetes => {
                let kube = KubePatch::read(request, &mut store, &mut tolerance)?;
                has_network_name = kube.has_network_name;
                section("kube", kube.members)
            }
            Datastore::Etcd(host) => {
                let etcd = etcd_section::read(ipam, host.clone(), &mut store, &mut tolerance)?;
                of_etcd = etcd.remarks;
                section("etcd", etcd.members)
            }
            Datastore::Provider(provider) => {
                provider.sections(request, &mut store, &mut tolerance)?
            }
        };
        let keys = MergedKeys::new(tolerance.keys(ipam, "ipam")?, flat.as_ref(), &mut tolerance)?;
        let offered = match &datastore {
            Datastore::Provider(provider) => provider.offer(keys, request),
            _ => offer::choose(keys, has_network_name, request),
        };
        // The allocator releases by the owner, with or without pools.
        let mut selection =
            tolerance.allow(offered.map(Some))?.unwrap_or_else(|| Selection::of([]));
        sections.retain(|_, members| members.as_object().is_some_and(|it| !it.is_empty()));
        selection.ipam = sections;
        match request.verb {
            Verb::Add => remarks::warn_of_keys(request, flat.as_ref()),
            Verb::Status => {
                selection.remarks.extend(remarks::of_keys(request, flat.as_ref(), &datastore));
                selection.remarks.extend(of_etcd);
            }
            _ => {}
        }
        Ok(selection)
    }
}

fn section(name: &str, members: Map<String, Value>) -> Map<String, Value> {
    Map::from_iter([(name.to_owned(), members.into())])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::Call;

    #[test]
    fn keys_in_other_letters_are_refused_at_any_depth() {
        for (keys, place) in [
            (json!({"Exclude": ["10.0.0.1"]}), "Exclude"),
            (json!({"Kubernetes": {"kubeconfig": "/other"}}), "Kubernetes"),
            (
                json!({"kubernetes": {"kubeconfig": "/k", "KubeConfig": ""}}),
                "kubernetes.KubeConfig",
            ),
            (
                json!({"ipRanges": [{"range": "10.1.0.0/24"}, {"Exclude": ["10.2.0.1"]}]}),
                "ipRanges[1].Exclude",
            ),
            (
                json!({"ipRanges": [{"range": "10.1.0.0/24", "Range_End": ""}]}),
                "ipRanges[0].Range_End",
            ),
            (json!({"routes": [{"dst": "::/0", "GW": "fd00::1"}]}), "routes[0].GW"),
            (
                json!({"addresses": [{"address": "10.1.0.7/24", "Gateway": ""}]}),
                "addresses[0].Gateway",
            ),
            (json!({"dns": {"Domain": "a"}}), "dns.Domain"),
            (json!({"dns": {"nameserver\u{17f}": []}}), "dns.nameserver\u{17f}"),
        ] {
            // As the preset sets it: misspelt keys of sections are ignored.
            let mut ipam = json!({"range": "10.0.0.0/24", "rangeRules": "host-local"});
            let flat = || Call::ipam(json!({"range": "10.0.0.0/24"})).flat(&keys);
            ipam.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            for verb in ["ADD", "STATUS"] {
                let unknown = format!("{place}: unknown key (did you mean ");
                let details =
                    Call::ipam(ipam.clone()).verb(verb).err(7, &format!("ipam.{unknown}"));
                assert_eq!(details, "keys are case-sensitive");
                flat().verb(verb).err(7, &format!("FLAT.{unknown}"));
            }
            Call::ipam(ipam).verb("DEL").ok();
            flat().verb("DEL").ok();
        }
    }

    #[test]
    fn a_release_with_a_login_needs_nothing_else() {
        let none = || json!({});
        let long = "a".repeat(201);
        for (ipam, flat) in [
            (json!({"range": 5}), none()),
            (json!({"range": "x"}), none()),
            (json!({"ipRanges": [{}]}), none()),
            (json!({"addresses": "x"}), none()),
            (json!({"network_name": "Blue"}), none()),
            (json!({"network_name": long}), none()),
            (json!({"network_name": 5}), none()),
            (json!({"enable_overlapping_ranges": "no"}), none()),
            (json!({"datastore": 5}), none()),
            (json!({"node_slice_size": "/26"}), none()),
            (json!({"node_slice_size": 26}), none()),
            (json!({"configuration_path": 5}), none()),
            (json!({"configuration_path": "whereabouts.conf"}), none()),
            (none(), json!("{")),
            (none(), json!({"range": 5})),
            (none(), json!({"network_name": 5})),
            (none(), json!({"network_name": "Blue"})),
            (none(), json!({"kubernetes": "/k"})),
            (none(), json!({"node_slice_size": "/26"})),
        ] {
            let shown = format!("{ipam} {flat}");
            let call = || {
                let flat = flat.as_str().map_or_else(|| flat.to_string(), str::to_owned);
                let mut whole = json!({"ipRanges": [{"range": "10.0.0.0/24"}]});
                whole.as_object_mut().unwrap().extend(ipam.as_object().unwrap().clone());
                Call::bare(whole).flat(flat)
            };
            for section in ["kubernetes", "kube"] {
                for verb in ["DEL", "GC"] {
                    let login = json!({"kubeconfig": "/k"});
                    let answer = call().ipam_key(section, login).verb(verb).ok();
                    let patched = &answer["ipam"]["kube"]["kubeconfig"];
                    assert_eq!(patched.is_string(), section == "kubernetes", "{verb} {shown}");
                    assert_eq!(answer["ipam"]["kube"]["networkName"], Value::Null, "{shown}");
                    assert!(answer["pools"].is_array(), "{shown}");
                }
                call().ipam_key(section, json!({"kubeconfig": "/k"})).err(7, "");
            }
        }
    }

    #[test]
    fn a_release_without_a_login_fails_by_the_error_that_hides_it() {
        let empty = || json!({"kubernetes": {"kubeconfig": ""}, "kube": {"kubeconfig": ""}});
        for (ipam, flat, message) in [
            (empty(), "{", "ipam.configuration_path: FLAT is not one JSON object"),
            (empty(), r#"{"kubernetes": "/k"}"#, "FLAT.kubernetes: expected an object"),
            (json!({"kubernetes": "/k"}), "{}", "ipam.kubernetes: expected an object"),
            (empty(), "{}", "ipam.kubernetes.kubeconfig: missing"),
        ] {
            for verb in ["DEL", "GC"] {
                let mut call = Call::bare(json!({})).flat(flat).verb(verb);
                for (key, value) in ipam.as_object().unwrap() {
                    call = call.ipam_key(key, value.clone());
                }
                call.err(7, message);
            }
        }
    }

    #[test]
    fn another_flat_file_is_named_by_an_absolute_path() {
        let named =
            |path: &str| Call::ipam(json!({"range": "10.0.0.0/24", "configuration_path": path}));
        named("etc/whereabouts.conf").err(
            7,
            "ipam.configuration_path: expected an absolute path, found \"etc/whereabouts.conf\"",
        );
        let remarks = named("/nowhere/whereabouts.conf").verb("STATUS").ok()["remarks"].clone();
        let missing = "ipam.configuration_path: /nowhere/whereabouts.conf is missing";
        assert_eq!(remarks, json!([missing]));
    }
}
