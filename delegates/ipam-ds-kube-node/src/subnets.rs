//! The subnets that a node object names.

use std::net::IpAddr;

use ipam_kit::Result;
use ipam_kit::cni::address::parse_cidr;
use ipam_kube::own_node::{NodeObject, rejected};
use serde_json::Value;

/// Reads the subnets of a node from `spec.podCIDRs`, or from an annotation that lists them with
/// commas.
///
/// # Errors
/// No subnet, more than two, or two of one family; an invalid CIDR.
pub(crate) fn read(node: &NodeObject, annotation: Option<&str>) -> Result<Vec<String>> {
    let path = path(annotation);
    let subnets = match annotation {
        Some(name) => of_annotation(node, name).ok_or_else(|| {
            rejected(&node.name, &path, "missing").advise(format!(
                "kubectl annotate node {} {name}=172.20.2.0/24,fd00::2:0:0/96",
                node.name
            ))
        })?,
        None => of_pods(node),
    };
    if subnets.is_empty() {
        return Err(rejected(&node.name, &path, "no subnet").advise(match annotation {
            Some(_) => "expected one CIDR, or one per family separated by a comma",
            None => "run kube-controller-manager with --allocate-node-cidrs=true and --cluster-cidr, or set ipam.annotation",
        }));
    }
    match invalid(&subnets) {
        Some(message) => {
            Err(rejected(&node.name, &path, message)
                .advise("expected at most one subnet per family"))
        }
        None => Ok(subnets),
    }
}

/// Why these cannot be the subnets of a node.
pub(crate) fn invalid(subnets: &[String]) -> Option<String> {
    let mut families = Vec::new();
    for subnet in subnets {
        match parse_cidr(subnet) {
            Ok(cidr) => families.push(matches!(cidr.addr(), IpAddr::V4(_))),
            Err(_) => return Some(format!("invalid CIDR {subnet:?}")),
        }
    }
    match families[..] {
        [_] => None,
        [first, second] if first != second => None,
        [_, _] => Some(format!("{} have the same family", subnets.join(" and "))),
        _ => Some(format!("found {} subnets", subnets.len())),
    }
}

/// The path of the subnets in the node object, as errors name it.
pub(crate) fn path(annotation: Option<&str>) -> String {
    match annotation {
        Some(name) => format!("annotation {name}"),
        None => "spec.podCIDRs".to_owned(),
    }
}

fn of_annotation(node: &NodeObject, name: &str) -> Option<Vec<String>> {
    let text = node.annotation(name)?;
    if text.trim().is_empty() {
        return Some(Vec::new());
    }
    Some(text.split(',').map(|part| part.trim().to_owned()).collect())
}

/// `spec.podCIDRs`, or `spec.podCIDR` of an API server before 1.16.
fn of_pods(node: &NodeObject) -> Vec<String> {
    let all = node.object.pointer("/spec/podCIDRs").and_then(Value::as_array);
    let all: Vec<&str> = all.into_iter().flatten().filter_map(Value::as_str).collect();
    let subnets = if all.is_empty() { Vec::from_iter(node.string("/spec/podCIDR")) } else { all };
    subnets.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(object: Value, annotation: Option<&str>) -> Result<Vec<String>> {
        read(&NodeObject { name: "n".to_owned(), object }, annotation)
    }

    #[test]
    fn the_subnets_keep_their_order() {
        for (spec, expected) in [
            (
                json!({"podCIDRs": ["11.0.1.0/24", "1100:0:0:1::/64"], "podCIDR": "x"}),
                "11.0.1.0/24 1100:0:0:1::/64",
            ),
            (json!({"podCIDRs": ["fd00::/64", "10.0.0.0/24"]}), "fd00::/64 10.0.0.0/24"),
            (json!({"podCIDR": "10.0.0.0/24"}), "10.0.0.0/24"),
        ] {
            assert_eq!(of(json!({ "spec": spec }), None).unwrap().join(" "), expected);
        }
        for text in ["172.20.2.0/24,fd00::2:0:0/96", " 172.20.2.0/24 ,\tfd00::2:0:0/96 "] {
            let object = json!({"metadata": {"annotations": {"a/b": text}}});
            assert_eq!(of(object, Some("a/b")).unwrap(), ["172.20.2.0/24", "fd00::2:0:0/96"]);
        }
    }

    #[test]
    fn an_error_names_the_path_in_the_node_object() {
        for (text, message) in [
            ("", "no subnet"),
            ("  ", "no subnet"),
            ("blah", "invalid CIDR \"blah\""),
            ("10.0.0.0/24,", "invalid CIDR \"\""),
            ("10.0.0.0/24 fd00::/64", "invalid CIDR \"10.0.0.0/24 fd00::/64\""),
            ("10.0.0.0/24,10.1.0.0/24", "10.0.0.0/24 and 10.1.0.0/24 have the same family"),
            ("10.0.0.0/24,fd00::/96,10.1.0.0/24", "found 3 subnets"),
        ] {
            let object = json!({"metadata": {"annotations": {"a": text}}});
            let error = of(object, Some("a")).unwrap_err();
            assert_eq!(error.to_string(), format!("annotation a of node n: {message}"));
        }
        let error = of(json!({"metadata": {}}), Some("a/b")).unwrap_err();
        assert_eq!(error.to_string(), "annotation a/b of node n: missing");
        for spec in [json!({}), json!({"podCIDRs": []}), json!({"podCIDR": ""})] {
            let error = of(json!({ "spec": spec }), None).unwrap_err();
            assert_eq!(error.to_string(), "spec.podCIDRs of node n: no subnet");
        }
    }
}
