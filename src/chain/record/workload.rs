use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use ipam_kit::cni::Args;

/// The pod or the Nomad allocation of an attachment: the pairs of `CNI_ARGS` that identify it.
///
/// No other pair of `CNI_ARGS` is kept, since a runtime may send anything there. A DEL gets the
/// runtime's own `CNI_ARGS`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Workload(Map<String, Value>);

impl Workload {
    const NAMESPACE: &'static str = "K8S_POD_NAMESPACE";
    const POD: &'static str = "K8S_POD_NAME";
    const UID: &'static str = "K8S_POD_UID";

    /// The most bytes of a value. Names and ids in Kubernetes and Nomad are shorter.
    const LONGEST: usize = 255;

    /// The identifying pairs of a call. Empty and overlong values are left out.
    pub(crate) fn of(args: &Args) -> Self {
        let identifies = |key: &str| {
            [Self::NAMESPACE, Self::POD, Self::UID].contains(&key)
                || (key.starts_with("NOMAD_") && key.ends_with("_ID"))
        };
        let pairs = args.iter().filter(|(key, value)| {
            identifies(key) && !value.is_empty() && value.len().max(key.len()) <= Self::LONGEST
        });
        Self(pairs.map(|(key, value)| (key.to_owned(), value.into())).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The pairs as `CNI_ARGS`; empty without any.
    pub(crate) fn to_cni_args(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let pairs = self.0.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
        let pairs = pairs.map(|(key, value)| format!(";{key}={value}"));
        format!("IgnoreUnknown=1{}", pairs.collect::<String>())
    }

    /// The namespace and the name of the pod.
    pub(crate) fn pod(&self) -> Option<(&str, &str)> {
        Some((self.0.get(Self::NAMESPACE)?.as_str()?, self.0.get(Self::POD)?.as_str()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pairs_that_identify_a_workload_are_kept() {
        let long = format!("NOMAD_LONG_ID={}", "x".repeat(256));
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_NAME=web-0;\
             K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=c1;IP=10.0.0.9;PASSWORD=s;NOMAD_ALLOC_ID=a1;\
             NOMAD_JOB_ID=;NOMAD_TOKEN=s;{long}"
        );
        let workload = Workload::of(&Args::parse(&args));
        assert_eq!(
            serde_json::to_string(&workload).unwrap(),
            r#"{"K8S_POD_NAME":"web-0","K8S_POD_NAMESPACE":"shop","K8S_POD_UID":"u1","NOMAD_ALLOC_ID":"a1"}"#
        );
        assert_eq!(workload.pod(), Some(("shop", "web-0")));
        let args = Args::parse(&workload.to_cni_args());
        assert_eq!(Workload::of(&args), workload);
        assert_eq!(Workload::of(&Args::parse("K8S_POD_NAME=web")).pod(), None);
    }
}
