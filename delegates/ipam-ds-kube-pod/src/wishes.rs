//! The wishes of a pod: its annotations, of which only the form is checked.

use std::net::IpAddr;

use ipam_kit::cni::address::parse_address_or_cidr;
use ipam_kit::{Error, Result};
use log::warn;

use crate::networks::{ElementArgs, NETWORKS, Sought};
use crate::pod::{Annotations, PodFacts, PodId};
use crate::rules::{PodRules, StickyRule};

/// The wishes of a pod.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PodWishes {
    /// The name that its addresses stay with.
    pub(crate) sticky: Option<String>,
    /// The pools, by their names.
    pub(crate) pools: Vec<Wish<String>>,
    /// The addresses.
    pub(crate) addresses: Vec<Wish<IpAddr>>,
}

/// A value, and the annotation that has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wish<T> {
    pub(crate) value: T,
    pub(crate) place: String,
}

/// The longest sticky name: that of an object of Kubernetes.
const LONGEST: usize = 253;

/// The most values of an annotation: more pools than any network has.
const MOST: usize = 64;

/// The annotations of ours begin so.
const PREFIX: &str = "ipam-delegated/";

impl PodWishes {
    /// Reads the annotations that the network allows, for one attachment.
    ///
    /// # Errors
    /// A value is malformed, or two annotations contradict each other.
    pub(crate) fn read(
        rules: &PodRules,
        id: &PodId,
        facts: &PodFacts,
        sought: Sought<'_>,
    ) -> Result<Self> {
        let whose = format!("pod {id}");
        let list = facts.annotations.get(NETWORKS).filter(|_| rules.read_annotations());
        let element = list.map(|list| ElementArgs::find(list, sought, rules.read_names()));
        let element = element.transpose().map_err(|error| error.within(&whose))?;
        let source = Source { annotations: &facts.annotations, element, whose: &whose };
        warn_of_unknown(rules, source.annotations, &whose);
        let sticky = match rules.sticky {
            StickyRule::Off => None,
            StickyRule::InCluster => source.sticky(&rules.names.sticky)?,
            StickyRule::InNamespace => {
                let name = source.sticky(&rules.names.sticky)?;
                name.map(|name| format!("{}/{name}", id.namespace))
            }
            StickyRule::StatefulSet => facts.is_of_stateful_set.then(|| id.to_string()),
        };
        let mut wishes = Self { sticky, ..Self::default() };
        if rules.pod_may_choose_pool()
            && let Some(wish) = source.get(&rules.names.pool)?
        {
            wishes.pools = parts(&wish)?;
        }
        if rules.addresses
            && let Some(wish) = source.get(&rules.names.address)?
        {
            wishes.addresses = addresses(&wish)?;
        }
        Ok(wishes)
    }
}

/// The pools that the annotation of a namespace names.
pub(crate) fn of_namespace(
    rules: &PodRules,
    id: &PodId,
    annotations: &Annotations,
) -> Result<Vec<Wish<String>>> {
    let whose = format!("namespace {}", id.namespace);
    let source = Source { annotations, element: None, whose: &whose };
    source.get(&rules.names.pool)?.map_or(Ok(Vec::new()), |wish| parts(&wish))
}

/// The annotations of an object, under those of the element of its list of networks.
struct Source<'a> {
    annotations: &'a Annotations,
    element: Option<ElementArgs>,
    /// The object, for errors.
    whose: &'a str,
}

impl Source<'_> {
    /// The text of an annotation; an empty one counts as absent.
    fn get(&self, name: &str) -> Result<Option<Wish<String>>> {
        let of_element = self.of_element(name)?;
        Ok(of_element.or_else(|| self.of_object(name)))
    }

    fn of_element(&self, name: &str) -> Result<Option<Wish<String>>> {
        let Some(element) = &self.element else { return Ok(None) };
        let text = element.get(name).map_err(|error| error.within(self.whose))?;
        Ok(text.and_then(|text| wish(text, format!("{}: {}", self.whose, element.place(name)))))
    }

    fn of_object(&self, name: &str) -> Option<Wish<String>> {
        let text = self.annotations.get(name)?;
        wish(text, format!("annotation {name} of {}", self.whose))
    }

    /// The sticky name, which one of these annotations has.
    fn sticky(&self, names: &[String]) -> Result<Option<String>> {
        let of_element = names.iter().map(|name| self.of_element(name));
        let mut found: Vec<_> =
            of_element.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        if found.is_empty() {
            found = names.iter().filter_map(|name| self.of_object(name)).collect();
        }
        let Some(first) = found.first() else { return Ok(None) };
        if let Some(other) = found.iter().find(|other| other.value != first.value) {
            let message =
                format!("{:?} contradicts {:?} of {}", first.value, other.value, other.place);
            return Err(Error::config(&first.place, message).advise("remove one of the two"));
        }
        let Wish { value, place } = first;
        let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        if value.len() > LONGEST || !is_plain {
            let message = format!("invalid name {value:?}");
            return Err(Error::config(place, message)
                .advise("expected 1 to 253 printable characters of ASCII, without spaces and /"));
        }
        Ok(Some(value.clone()))
    }
}

/// Texts are trimmed: people write them into YAML.
fn wish(text: &str, place: String) -> Option<Wish<String>> {
    let text = text.trim();
    (!text.is_empty()).then(|| Wish { value: text.to_owned(), place })
}

/// The values of a list with commas.
fn parts(wish: &Wish<String>) -> Result<Vec<Wish<String>>> {
    let Wish { value, place } = wish;
    if value.split(',').count() > MOST {
        return Err(Error::config(place, format_args!("more than {MOST} values"))
            .advise("name fewer, separated by commas"));
    }
    Ok(value.split(',').filter_map(|part| self::wish(part, place.clone())).collect())
}

fn addresses(wish: &Wish<String>) -> Result<Vec<Wish<IpAddr>>> {
    let parse = |Wish { value, place }: Wish<String>| {
        let (address, _) = parse_address_or_cidr(&value).map_err(|error| {
            Error::config(&place, format_args!("invalid address {value:?}"))
                .caused_by(error)
                .advise("expected an address such as 10.1.2.3, or one per family with a comma")
        })?;
        Ok(Wish { value: address, place })
    };
    parts(wish)?.into_iter().map(parse).collect()
}

/// Warns of annotations of ours that no network reads: they are misspelt.
fn warn_of_unknown(rules: &PodRules, annotations: &Annotations, whose: &str) {
    let known = ["sticky", "pool", "address"];
    for name in annotations.names().filter(|name| name.starts_with(PREFIX)) {
        let is_known = known.iter().any(|known| name[PREFIX.len()..] == **known);
        if !is_known && !rules.read_names().any(|read| read == name) {
            warn!("annotation {name:?} of {whose} is unknown, and has no effect");
        }
    }
}

#[cfg(test)]
mod tests {
    use ipam_kit::cni::Args;
    use serde_json::{Value, json};

    use super::*;
    use crate::rules::KubePodConfig;

    /// The wishes of the pod shop/web-0 with these annotations on its interface net1.
    fn read(pod: Value, annotations: Value) -> Result<PodWishes> {
        let config: KubePodConfig = serde_json::from_value(json!({ "pod": pod })).unwrap();
        let id = PodId::of(&Args::parse("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0")).unwrap();
        let annotations: Annotations = serde_json::from_value(annotations).unwrap();
        let facts = PodFacts { annotations, is_of_stateful_set: true };
        let sought = Sought { ifname: "net1", network: "blue", namespace: "shop" };
        PodWishes::read(&config.rules().unwrap().unwrap(), &id, &facts, sought)
    }

    fn sticky(pod: Value, annotations: Value) -> Option<String> {
        read(pod, annotations).unwrap().sticky
    }

    #[test]
    fn the_section_decides_what_a_sticky_name_is() {
        let named = json!({"podname": "test234"});
        let name = |scope: &str| json!({"sticky": "name", "nameScope": scope});
        for (pod, annotations, expected) in [
            (json!({"sticky": "name"}), named.clone(), Some("shop/test234")),
            (name("namespace"), named.clone(), Some("shop/test234")),
            (name("cluster"), named.clone(), Some("test234")),
            (name("cluster"), json!({"ipam-delegated/sticky": " db "}), Some("db")),
            (name("cluster"), json!({"ipam-delegated/sticky": "db", "podname": "db"}), Some("db")),
            (name("cluster"), json!({"podname": ""}), None),
            (json!({"sticky": "off"}), named.clone(), None),
            (json!({"sticky": "statefulset"}), named.clone(), Some("shop/web-0")),
            (json!({"addresses": true}), named.clone(), None),
            (json!({"sticky": "name", "annotations": {"sticky": ["other"]}}), named, None),
        ] {
            assert_eq!(sticky(pod.clone(), annotations.clone()).as_deref(), expected, "{pod}");
        }
    }

    #[test]
    fn an_element_of_the_list_of_networks_replaces_the_annotation() {
        let pod = json!({"sticky": "name", "nameScope": "cluster", "pools": ["a", "b"], "addresses": true});
        let networks = json!([{"name": "blue", "cni-args": {
            "podname": "of-element", "ipam-delegated/pool": "b", "ipam-delegated/address": "10.0.0.9",
        }}]);
        let annotations = json!({
            NETWORKS: networks.to_string(), "ipam-delegated/sticky": "of-pod",
            "ipam-delegated/pool": "a", "ipam-delegated/address": "10.0.0.7,fd00::7/64",
        });
        let wishes = read(pod.clone(), annotations.clone()).unwrap();
        assert_eq!(wishes.sticky.as_deref(), Some("of-element"));
        assert_eq!(wishes.pools[0].value, "b");
        assert_eq!(wishes.addresses.len(), 1);
        let mut without = annotations;
        without.as_object_mut().unwrap().remove(NETWORKS);
        let wishes = read(pod, without).unwrap();
        assert_eq!(wishes.sticky.as_deref(), Some("of-pod"));
        let addresses: Vec<_> = wishes.addresses.iter().map(|it| it.value.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.7", "fd00::7"]);
        assert_eq!(
            wishes.addresses[0].place,
            "annotation ipam-delegated/address of pod shop/web-0"
        );
    }

    #[test]
    fn a_malformed_annotation_is_an_error_at_its_place() {
        let all = json!({"sticky": "name", "pools": ["a"], "addresses": true});
        let element = |args: Value| json!([{"name": "blue", "cni-args": args}]).to_string();
        for (annotations, message) in [
            (
                json!({"podname": "a b"}),
                "annotation podname of pod shop/web-0: invalid name \"a b\"",
            ),
            (json!({"podname": "x/y"}), "annotation podname of pod shop/web-0: invalid name"),
            (json!({"podname": "é"}), "annotation podname of pod shop/web-0: invalid name"),
            (
                json!({"podname": "x".repeat(254)}),
                "annotation podname of pod shop/web-0: invalid name",
            ),
            (
                json!({"podname": "a", "ipam-delegated/sticky": "b"}),
                "annotation ipam-delegated/sticky of pod shop/web-0: \"b\" contradicts \"a\" of \
                 annotation podname of pod shop/web-0",
            ),
            (
                json!({"ipam-delegated/address": "10.0.0.300"}),
                "annotation ipam-delegated/address of pod shop/web-0: invalid address \"10.0.0.300\"",
            ),
            (
                json!({"ipam-delegated/pool": "a,".repeat(64)}),
                "annotation ipam-delegated/pool of pod shop/web-0: more than 64 values",
            ),
            (json!({NETWORKS: "[{"}), "pod shop/web-0: k8s.v1.cni.cncf.io/networks: neither names"),
            (
                json!({NETWORKS: element(json!({"podname": 5}))}),
                "pod shop/web-0: cni-args podname of the network \"blue\" in \
                 k8s.v1.cni.cncf.io/networks: expected a string, found a number",
            ),
        ] {
            let error = read(all.clone(), annotations).unwrap_err();
            assert_eq!(error.code().number(), 7);
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }

    #[test]
    fn a_pod_chooses_no_pool_where_the_namespace_alone_does() {
        let pod = json!({"pools": ["a"], "poolFrom": ["namespace"], "addresses": true});
        let wishes = read(pod, json!({"ipam-delegated/pool": "a"})).unwrap();
        assert_eq!(wishes, PodWishes::default());
    }
}
