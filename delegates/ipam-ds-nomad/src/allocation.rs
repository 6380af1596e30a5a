//! An allocation as Nomad answers it, and the pool that its group names.

use std::collections::BTreeMap;

use ipam_kit::cni::address::parse_address;
use ipam_kit::pool::Pool;
use ipam_kit::{Error, ErrorCode, Result};
use serde::Deserialize;
use serde_json::Value;

/// The members of an allocation that this delegate reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Allocation {
    #[serde(rename = "ID", default)]
    id: Option<String>,
    task_group: String,
    /// The job in the allocation's version.
    job: Job,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Job {
    #[serde(rename = "ID", default)]
    id: String,
    task_groups: Option<Vec<Group>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Group {
    name: String,
    meta: Option<BTreeMap<String, Value>>,
    networks: Option<Vec<GroupNetwork>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GroupNetwork {
    #[serde(default)]
    mode: String,
}

/// The keys of a group's `meta`.
const POOL: &str = "network-pool";
const ADDRESS: &str = "network-ip";

/// The pool and address that the group of an allocation requests.
#[derive(Debug)]
pub(crate) struct RequestedPool {
    /// The network that its group names, without `cni/`.
    pub network: String,
    pub pool: Pool,
}

impl Allocation {
    /// Parses Nomad's answer about the allocation with this id.
    ///
    /// # Errors
    /// The answer is malformed, or about another allocation: code 103.
    pub(crate) fn parse(body: &[u8], id: &str) -> Result<Self> {
        let json = &mut serde_json::Deserializer::from_slice(body);
        let allocation: Self = serde_path_to_error::deserialize(json).map_err(|error| {
            let path = match error.path().to_string().as_str() {
                "." => String::new(),
                path => format!(" at {path}"),
            };
            backend(id, format_args!("cannot parse Nomad's answer{path}: {}", error.inner()))
                .advise("check that the URLs of ipam.nomad_servers are Nomad's API")
        })?;
        match &allocation.id {
            Some(other) if !other.eq_ignore_ascii_case(id) => {
                Err(backend(id, format_args!("Nomad answered with allocation {other}")))
            }
            _ => Ok(allocation),
        }
    }

    /// The pool that the allocation's group names, and the address in it.
    ///
    /// # Errors
    /// The job has no such group (code 103); the group's first network is not a CNI network, or its
    /// `meta` names no pool or an invalid address (code 7).
    pub(crate) fn requested_pool(&self) -> Result<RequestedPool> {
        let group = self.group()?;
        let mode = match group.networks.as_deref().and_then(<[_]>::first) {
            Some(network) => &network.mode,
            None => {
                return Err(self
                    .error_at("network", "the group has no network block")
                    .advise(r#"expected for example network { mode = "cni/NAME" }"#));
            }
        };
        let Some(network) = mode.strip_prefix("cni/") else {
            return Err(self
                .error_at("network.mode", format_args!("expected cni/NAME, found {mode:?}"))
                .advise("the first network block of the group counts"));
        };
        let name = self.meta(group, POOL)?.unwrap_or_default().to_owned();
        let mut pool = Pool::new(Some(name), vec![]).ok_or_else(|| {
            self.error_at(&format!("meta.{POOL}"), "missing: the group names no pool").advise(
                format!(r#"expected for example meta {{ {POOL} = "NAME" }}, in the group itself"#),
            )
        })?;
        if let Some(address) = self.meta(group, ADDRESS)? {
            let address = parse_address(address).map_err(|error| {
                self.error_at(&format!("meta.{ADDRESS}"), error)
                    .advise("expected an address such as 10.0.21.100")
            })?;
            pool.requested_ip = Some(address);
        }
        Ok(RequestedPool { network: network.to_owned(), pool })
    }

    /// A string in the `meta` of a group.
    fn meta<'g>(&self, group: &'g Group, key: &str) -> Result<Option<&'g str>> {
        match group.meta.as_ref().and_then(|meta| meta.get(key)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(value)) => Ok(Some(value)),
            Some(_) => Err(self.error_at(&format!("meta.{key}"), "expected a string")),
        }
    }

    /// An error at a path in the group's job.
    fn error_at(&self, path: &str, message: impl std::fmt::Display) -> Error {
        Error::config(
            format_args!("job {:?}, group {:?}: {path}", self.job.id, self.task_group),
            message,
        )
    }

    fn group(&self) -> Result<&Group> {
        let groups = self.job.task_groups.as_deref().unwrap_or_default();
        groups.iter().find(|group| group.name == self.task_group).ok_or_else(|| {
            let id = self.id.as_deref().unwrap_or("of this container");
            backend(
                id,
                format_args!("its job {:?} has no group {:?}", self.job.id, self.task_group),
            )
        })
    }
}

fn backend(id: &str, message: std::fmt::Arguments<'_>) -> Error {
    Error::new(ErrorCode::BACKEND, format!("allocation {id}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "5456bd7a-9fc0-c0dd-6131-cbee77f57577";

    fn allocation(group: Value) -> Value {
        json!({"ID": ID, "TaskGroup": "web", "Job": {"ID": "shop", "TaskGroups": [
            {"Name": "other", "Meta": null, "Networks": null}, group,
        ]}})
    }

    fn requested_pool(allocation: &Value) -> Result<RequestedPool> {
        Allocation::parse(allocation.to_string().as_bytes(), ID)?.requested_pool()
    }

    fn group(meta: Value, networks: Value) -> Value {
        allocation(json!({"Name": "web", "Meta": meta, "Networks": networks}))
    }

    #[test]
    fn the_allocations_own_group_names_pool_and_address() {
        let cni = json!([{"Mode": "cni/example", "CIDR": ""}, {"Mode": "bridge"}]);
        for (meta, pool) in [
            (json!({"network-pool": "p", "other": "x"}), json!({"name": "p"})),
            (json!({"network-pool": "p", "network-ip": null}), json!({"name": "p"})),
            (
                json!({"network-pool": "p", "network-ip": "10.0.21.100"}),
                json!({"name": "p", "requested-ip": "10.0.21.100", "requested_ip": "10.0.21.100"}),
            ),
            (
                json!({"network-pool": "p", "network-ip": "FD00:0::1"}),
                json!({"name": "p", "requested-ip": "fd00::1", "requested_ip": "fd00::1"}),
            ),
        ] {
            let requested = requested_pool(&group(meta, cni.clone())).unwrap();
            assert_eq!((requested.network.as_str(), requested.pool.to_json()), ("example", pool));
        }
    }

    #[test]
    fn a_job_that_is_not_for_this_delegate_is_refused_by_its_path() {
        let (cni, meta) = (json!([{"Mode": "cni/example"}]), json!({"network-pool": "p"}));
        let web = r#"job "shop", group "web": "#;
        for (allocation, message) in [
            (group(meta.clone(), Value::Null), "network: the group has no network block"),
            (group(meta.clone(), json!([])), "network: the group has no network block"),
            (
                group(meta.clone(), json!([{"Mode": "bridge"}, {"Mode": "cni/a"}])),
                "network.mode: expected cni/NAME, found \"bridge\"",
            ),
            (group(meta, json!([{}])), "network.mode: expected cni/NAME, found \"\""),
            (group(Value::Null, cni.clone()), "meta.network-pool: missing"),
            (group(json!({"network-ip": "10.0.0.1"}), cni.clone()), "meta.network-pool: missing"),
            (group(json!({"network-pool": ""}), cni.clone()), "meta.network-pool: missing"),
            (
                group(json!({"network-pool": 7}), cni.clone()),
                "meta.network-pool: expected a string",
            ),
            (
                group(json!({"network-pool": "p", "network-ip": "nope"}), cni.clone()),
                "meta.network-ip: \"nope\"",
            ),
            (
                group(json!({"network-pool": "p", "network-ip": ""}), cni.clone()),
                "meta.network-ip: \"\"",
            ),
            (
                group(json!({"network-pool": "p", "network-ip": ["10.0.0.1"]}), cni),
                "meta.network-ip: expected a string",
            ),
        ] {
            let error = requested_pool(&allocation).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{web}{message}")), "{error}");
            assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
        }
    }

    #[test]
    fn an_answer_that_is_not_of_this_allocation_is_refused() {
        let start = format!("allocation {ID}: ");
        let another = "00000000-0000-0000-0000-000000000000";
        let mut of_another = group(json!({}), json!([]));
        of_another["ID"] = json!(another);
        for (answer, message) in [
            ("<html>".to_owned(), "cannot parse Nomad's answer: expected value"),
            (
                json!({"TaskGroup": "web"}).to_string(),
                "cannot parse Nomad's answer: missing field `Job`",
            ),
            (
                allocation(json!({"Name": 7})).to_string(),
                "cannot parse Nomad's answer at Job.TaskGroups[1].Name: invalid type: integer `7`",
            ),
            (
                allocation(json!({"Name": "db"})).to_string(),
                "its job \"shop\" has no group \"web\"",
            ),
            (
                json!({"ID": ID, "TaskGroup": "web", "Job": {"TaskGroups": null}}).to_string(),
                "its job \"\" has",
            ),
            (of_another.to_string(), "Nomad answered with allocation 00000000-"),
        ] {
            let parsed = Allocation::parse(answer.as_bytes(), ID);
            let error = parsed.and_then(|allocation| allocation.requested_pool()).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{start}{message}")), "{error}");
            assert_eq!(error.code(), ErrorCode::BACKEND);
        }
    }
}
