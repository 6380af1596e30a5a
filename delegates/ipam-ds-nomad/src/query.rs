//! The request for an allocation.

use ipam_kit::{Error, ErrorCode, Request, Result};
use ipam_servers::escape;

/// The allocation of a call, and where in Nomad it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AllocationQuery {
    pub id: String,
    namespace: Option<String>,
    region: Option<String>,
}

impl AllocationQuery {
    /// Reads it from a request: the container id is the allocation's. Namespace and region in
    /// Nomad's own `CNI_ARGS` replace those of the configuration.
    ///
    /// # Errors
    /// Neither the container id nor `NOMAD_ALLOC_ID` is the id of an allocation: code 4.
    pub(crate) fn of(
        request: &Request,
        namespace: Option<String>,
        region: Option<String>,
    ) -> Result<Self> {
        let container = request.attachment()?.container.as_str();
        let id = if is_uuid(container) {
            container.to_owned()
        } else {
            argument(request, "NOMAD_ALLOC_ID").filter(|id| is_uuid(id)).ok_or_else(|| {
                Error::new(
                    ErrorCode::INVALID_ENVIRONMENT,
                    format!(
                        "CNI_CONTAINERID: {container:?} is not the id of a Nomad allocation, \
                         and CNI_ARGS has no NOMAD_ALLOC_ID"
                    ),
                )
                .advise("expected a UUID of 36 characters: use this delegate only for networks of Nomad")
            })?
        };
        Ok(Self {
            id,
            namespace: argument(request, "NOMAD_NAMESPACE").or(namespace),
            region: argument(request, "NOMAD_REGION").or(region),
        })
    }

    /// The path of the request. The id is whole, because Nomad also answers to the first part of
    /// one.
    pub(crate) fn path(&self) -> String {
        with_query(
            format!("v1/allocation/{}", escape(&self.id)),
            [("namespace", &self.namespace), ("region", &self.region)],
        )
    }
}

/// An argument of `CNI_ARGS` that is not empty.
fn argument(request: &Request, key: &str) -> Option<String> {
    request.args.get(key).filter(|value| !value.is_empty()).map(str::to_owned)
}

/// A path with a query of the values that are given.
pub(crate) fn with_query<'a>(
    mut path: String,
    values: impl IntoIterator<Item = (&'a str, &'a Option<String>)>,
) -> String {
    let mut mark = '?';
    for (key, value) in values {
        if let Some(value) = value {
            path.push_str(&format!("{mark}{key}={}", escape(value)));
            mark = '&';
        }
    }
    path
}

fn is_uuid(id: &str) -> bool {
    id.len() == 36
        && id.bytes().enumerate().all(|(i, byte)| match i {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipam_kit::cni::{Environment, Verb};
    use ipam_kit::host::Settings;

    const ID: &str = "5456bd7a-9fc0-c0dd-6131-cbee77f57577";

    fn path_of(container: &str, args: &str, of_config: Option<&str>) -> Result<String> {
        let variables = [
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", "e"),
            ("CNI_NETNS", "/n"),
            ("CNI_ARGS", args),
        ];
        let network =
            br#"{"cniVersion": "1.0.0", "name": "n", "type": "t", "ipam": {"type": "t"}}"#;
        let request =
            Request::parse(Verb::Add, Environment::new(variables), network, Settings::default())
                .unwrap();
        let of_config = of_config.map(str::to_owned);
        AllocationQuery::of(&request, of_config.clone(), of_config).map(|question| question.path())
    }

    #[test]
    fn the_container_id_is_the_allocations() {
        let of_nomad = "IgnoreUnknown=true;NOMAD_REGION=eu/1;NOMAD_NAMESPACE=a b;NOMAD_JOB_ID=j;\
                        NOMAD_GROUP_NAME=g;NOMAD_ALLOC_ID=5456bd7a-9fc0-c0dd-6131-cbee77f57577";
        for (container, args, of_config, path) in [
            (ID, "", None, ""),
            (ID, "", Some("x"), "?namespace=x&region=x"),
            (ID, of_nomad, Some("x"), "?namespace=a%20b&region=eu%2F1"),
            (ID, "NOMAD_REGION=;NOMAD_NAMESPACE=", None, ""),
            ("pause-1", of_nomad, None, "?namespace=a%20b&region=eu%2F1"),
            (ID, "NOMAD_ALLOC_ID=00000000-0000-0000-0000-000000000000", None, ""),
        ] {
            let expected = format!("v1/allocation/{ID}{path}");
            assert_eq!(path_of(container, args, of_config).unwrap(), expected);
        }
    }

    #[test]
    fn a_part_of_an_id_is_not_asked_for() {
        for container in [
            "abc",
            "5456bd7a",
            &ID[..35],
            "5456bd7a-9fc0-c0dd-6131-cbee77f5757g",
            &ID.replace('-', "0"),
        ] {
            for args in ["", "NOMAD_ALLOC_ID=5456bd7a"] {
                let error = path_of(container, args, None).unwrap_err();
                assert_eq!(error.code(), ErrorCode::INVALID_ENVIRONMENT);
                assert!(error.to_string().contains(container), "{error}");
            }
        }
    }
}
