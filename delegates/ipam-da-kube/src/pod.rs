//! The pod of a call.

use ipam_kit::Request;

/// The pod of an attachment, as the runtime names it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    /// Its namespace and name, with a slash; empty without a pod, which the cleaners of whereabouts
    /// ignore.
    pub(crate) podref: String,
    pub(crate) uid: String,
}

impl Pod {
    pub(crate) fn of(request: &Request) -> Self {
        let text = |key: &str| request.args.get(key).filter(|text| !text.is_empty());
        let podref = match (text("K8S_POD_NAMESPACE"), text("K8S_POD_NAME")) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            _ => String::new(),
        };
        Self { podref, uid: text("K8S_POD_UID").unwrap_or_default().to_owned() }
    }
}
