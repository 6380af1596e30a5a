//! The element of a pod's list of networks that this attachment is for, as Multus reads the list.

use ipam_kit::cni::{kind, parse_value};
use ipam_kit::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The annotation with the list of networks.
pub(crate) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// The attachment whose element is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought<'a> {
    /// The interface.
    pub(crate) ifname: &'a str,
    /// The name of the network configuration.
    pub(crate) network: &'a str,
    /// The namespace of the pod, in which networks without a namespace are.
    pub(crate) namespace: &'a str,
}

/// The arguments for plugins in the element of an attachment.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ElementArgs {
    /// Its `cni-args`.
    args: Map<String, Value>,
    /// Its network, for errors.
    network: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Element {
    name: String,
    namespace: Option<String>,
    interface: Option<String>,
    #[serde(rename = "cni-args")]
    cni_args: Option<Map<String, Value>>,
}

impl ElementArgs {
    /// Finds the element of an attachment in the list: by its interface, else by its place (`net1`
    /// is the first), else by the network's name in the namespace of the pod. The text form of a list
    /// has no arguments, and a list without any of `names` among its arguments needs no search.
    ///
    /// # Errors
    /// The list cannot be read; two elements fit; the only one that fits by name is of another
    /// namespace, and has one of `names`.
    pub(crate) fn find<'a>(
        list: &str,
        sought: Sought<'_>,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Self> {
        // As Multus tells the two forms apart.
        if !list.contains(['[', '{', '"']) {
            return Ok(Self::default());
        }
        let value: Value = serde_json::from_str(list).map_err(|error| {
            Error::config(NETWORKS, "neither names separated by commas nor a JSON array")
                .caused_by(error)
                .advise("correct the annotation of the pod")
        })?;
        let elements: Vec<Element> = parse_value(&value, NETWORKS)?;
        let names: Vec<&str> = names.collect();
        let asks = |element: &Element| {
            let args = element.cni_args.as_ref();
            args.is_some_and(|args| names.iter().any(|name| args.contains_key(*name)))
        };
        if !elements.iter().any(asks) {
            return Ok(Self::default());
        }
        let found = position(&elements, sought, asks)?;
        let found = found.and_then(|index| elements.into_iter().nth(index));
        Ok(found.map(Self::of).unwrap_or_default())
    }

    /// An argument: the text of an annotation for this attachment alone.
    ///
    /// # Errors
    /// It is not a text.
    pub(crate) fn get(&self, name: &str) -> Result<Option<&str>> {
        match self.args.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => {
                let message = format!("expected a string, found {}", kind(other));
                Err(Error::config(self.place(name), message).advise("write it in quotes"))
            }
        }
    }

    /// The place of an argument, for errors.
    pub(crate) fn place(&self, name: &str) -> String {
        format!("cni-args {name} of the network {:?} in {NETWORKS}", self.network)
    }

    fn of(element: Element) -> Self {
        Self { args: element.cni_args.unwrap_or_default(), network: element.name }
    }
}

impl Element {
    /// The interface that the element asks for.
    fn interface(&self) -> Option<&str> {
        self.interface.as_deref().filter(|name| !name.is_empty())
    }

    /// The namespace of the network; the pod's by default.
    fn namespace<'a>(&'a self, of_pod: &'a str) -> &'a str {
        self.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(of_pod)
    }

    /// The network, with its namespace.
    fn full_name(&self, of_pod: &str) -> String {
        format!("{}/{}", self.namespace(of_pod), self.name)
    }
}

/// The place of the element of an attachment; `None` if none fits, as for the cluster's network.
fn position(
    elements: &[Element],
    sought: Sought<'_>,
    asks: impl Fn(&Element) -> bool,
) -> Result<Option<usize>> {
    let by = |fits: &dyn Fn(&Element) -> bool| -> Vec<usize> {
        elements.iter().enumerate().filter(|(_, it)| fits(it)).map(|(index, _)| index).collect()
    };
    let by_interface = by(&|element| element.interface() == Some(sought.ifname));
    if let Some(found) = only(elements, &by_interface, sought, "the interface")? {
        return Ok(Some(found));
    }
    let number = sought.ifname.strip_prefix("net");
    let number = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    if let Some(number) = number.and_then(|text| text.parse::<usize>().ok()) {
        let index = number.checked_sub(1).filter(|index| *index < elements.len());
        return Ok(index.filter(|index| elements[*index].interface().is_none()));
    }
    let by_name = by(&|element| element.interface().is_none() && element.name == sought.network);
    let Some(found) = only(elements, &by_name, sought, "the network")? else { return Ok(None) };
    let element = &elements[found];
    if element.namespace(sought.namespace) == sought.namespace {
        return Ok(Some(found));
    }
    // No meta plugin passes the namespace of a network: this may be another one of its name.
    if !asks(element) {
        return Ok(None);
    }
    let message = format!(
        "ambiguous: element {found}, {}, is of another namespace than the pod, and only its name \
         fits the network {:?}",
        element.full_name(sought.namespace),
        sought.network
    );
    Err(Error::config(NETWORKS, message).advise("give the element an interface"))
}

/// The only one of these elements.
fn only(
    elements: &[Element],
    found: &[usize],
    sought: Sought<'_>,
    by: &str,
) -> Result<Option<usize>> {
    let [first, _, ..] = found else { return Ok(found.first().copied()) };
    let what = if by == "the interface" { sought.ifname } else { sought.network };
    let names = found.iter().map(|index| elements[*index].full_name(sought.namespace));
    let names = Error::listed(names, ", ");
    let message =
        format!("ambiguous: elements {first} and later, {names}, are all for {by} {what:?}");
    Err(Error::config(NETWORKS, message).advise("give each element an interface of its own"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sought(ifname: &str) -> Sought<'_> {
        Sought { ifname, network: "blue", namespace: "shop" }
    }

    fn find(list: &Value, ifname: &str) -> Result<Option<String>> {
        let args = ElementArgs::find(&list.to_string(), sought(ifname), ["k"].into_iter())?;
        args.get("k").map(|text| text.map(str::to_owned))
    }

    #[test]
    fn an_element_is_found_by_interface_then_by_place_then_by_name() {
        let list = json!([
            {"name": "blue", "interface": "ext0", "cni-args": {"k": "by interface"}},
            {"name": "red", "namespace": "other", "cni-args": {"k": "by place"}},
            {"name": "green"},
            {"name": "blue", "interface": "", "cni-args": {"k": "fourth"}},
        ]);
        for (ifname, expected) in [
            ("ext0", Some("by interface")),
            ("net1", None),
            ("net2", Some("by place")),
            ("net3", None),
            ("net4", Some("fourth")),
            ("net5", None),
            ("net0", None),
            ("net", Some("fourth")),
            ("net+1", Some("fourth")),
            ("eth0", Some("fourth")),
        ] {
            assert_eq!(find(&list, ifname).unwrap().as_deref(), expected, "{ifname}");
        }
    }

    #[test]
    fn an_element_that_asks_for_the_interface_net1_is_first() {
        let list = json!([
            {"name": "blue", "cni-args": {"k": "first"}},
            {"name": "blue", "interface": "net1", "cni-args": {"k": "second"}},
        ]);
        assert_eq!(find(&list, "net1").unwrap().as_deref(), Some("second"));
    }

    #[test]
    fn two_elements_that_fit_are_an_error() {
        let list = json!([
            {"name": "blue", "cni-args": {"k": "a"}},
            {"name": "blue", "namespace": "other"},
            {"name": "red", "interface": "ext0"},
            {"name": "red", "interface": "ext0"},
        ]);
        let error = find(&list, "eth0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "k8s.v1.cni.cncf.io/networks: ambiguous: elements 0 and later, shop/blue, other/blue, \
             are all for the network \"blue\""
        );
        let error = find(&list, "ext0").unwrap_err().to_string();
        assert!(error.contains("all for the interface \"ext0\""), "{error}");
        assert_eq!(find(&list, "net1").unwrap().as_deref(), Some("a"));
        // Without an argument of ours, nothing needs to be found.
        let silent = json!([{"name": "blue", "cni-args": {"mtu": 5}}, {"name": "blue"}]);
        assert_eq!(find(&silent, "eth0").unwrap(), None);
    }

    #[test]
    fn a_name_alone_does_not_tell_a_network_of_another_namespace() {
        let element = |namespace: &str| json!({"name": "blue", "namespace": namespace, "cni-args": {"k": "v"}});
        for own in ["", "shop"] {
            assert_eq!(find(&json!([element(own)]), "eth0").unwrap().as_deref(), Some("v"));
        }
        let list = json!([element("other")]);
        let error = find(&list, "eth0").unwrap_err();
        assert_eq!(error.code().number(), 7);
        assert_eq!(
            error.to_string(),
            "k8s.v1.cni.cncf.io/networks: ambiguous: element 0, other/blue, is of another namespace \
             than the pod, and only its name fits the network \"blue\""
        );
        // Its place tells it, and one that asks for another interface is another one.
        assert_eq!(find(&list, "net1").unwrap().as_deref(), Some("v"));
        let mut named = list;
        named[0]["interface"] = "ext0".into();
        assert_eq!(find(&named, "ext0").unwrap().as_deref(), Some("v"));
        assert_eq!(find(&named, "eth0").unwrap(), None);
        // Without an argument of ours, it changes nothing.
        let silent = json!([{"name": "blue", "namespace": "other"}, {"name": "red", "cni-args": {"k": "v"}}]);
        assert_eq!(find(&silent, "eth0").unwrap(), None);
    }

    #[test]
    fn a_list_is_text_or_json() {
        let of = |list: &str| ElementArgs::find(list, sought("net1"), ["k"].into_iter());
        for list in ["", "blue", "shop/blue@net1, red"] {
            assert_eq!(of(list).unwrap(), ElementArgs::default(), "{list}");
        }
        for (list, message) in [
            ("[{", ": neither names separated by commas nor a JSON array"),
            (r#""blue""#, ": expected an array, found a string"),
            ("[5]", "[0]: expected an object, found a number"),
            (r#"[{"name": 5}]"#, "[0].name: expected a string, found a number"),
            (r#"[{"name": "a", "cni-args": []}]"#, "[0].cni-args: expected an object, found an"),
        ] {
            let error = of(list).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{NETWORKS}{message}")), "{list}: {error}");
        }
        let list = r#"[{"name": "blue", "cni-args": {"k": 5}}]"#;
        assert_eq!(
            of(list).unwrap().get("k").unwrap_err().to_string(),
            "cni-args k of the network \"blue\" in k8s.v1.cni.cncf.io/networks: expected a string, \
             found a number"
        );
    }
}
