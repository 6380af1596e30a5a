//! Calls of a subject, and what is expected of their answers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::ask::Ask;
use super::subject::{Form, Subject};
use super::{Finding, Verdict, plain};
use ipam_kit::cni::address::{parse_address, parse_cidr};
use ipam_kit::cni::{Environment, Verb};

/// A subject, on a network that no other check uses.
#[derive(Clone)]
pub(super) struct Bench {
    pub subject: Arc<dyn Subject>,
    pub network: String,
    pub node: &'static str,
}

/// What an ADD gave.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// The whole answer.
    pub result: Value,
    pub addresses: Vec<IpAddr>,
    pub networks: Vec<IpNet>,
}

/// An error object.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub code: u64,
    pub message: String,
}

static NETWORKS: AtomicU64 = AtomicU64::new(0);

impl Bench {
    pub(crate) fn new(subject: &Arc<dyn Subject>) -> Self {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = format!("conformance-{}-{number}", process::id());
        Self { subject: subject.clone(), network, node: "node-1" }
    }

    /// The same subject on another network.
    pub(crate) fn elsewhere(&self) -> Self {
        Self::new(&self.subject)
    }

    /// The same network on another node.
    pub(crate) fn on_node(&self, node: &'static str) -> Self {
        Self { node, ..self.clone() }
    }

    pub(crate) fn is_delegate(&self) -> bool {
        self.subject.form() == Form::Delegate
    }

    /// Only delegates are told this.
    pub(crate) fn delegates_only(&self) -> Verdict {
        if self.is_delegate() {
            return Ok(());
        }
        Err(Finding::NotApplicable(
            "this check is for a delegate of a chain: in Rust `Form::Delegate`, else --delegate",
        ))
    }

    /// ADD by `container/interface`.
    pub(crate) fn try_add(
        &self,
        who: &str,
        pools: &[Ask],
    ) -> Result<Result<Added, Refusal>, Finding> {
        let (environment, config) = self.call(Verb::Add, who, pools, None);
        self.added(environment, config)
    }

    /// An ADD that has to succeed.
    pub(crate) fn add(&self, who: &str, pools: &[Ask]) -> Result<Added, Finding> {
        self.try_add(who, pools)?.map_err(|refusal| {
            Finding::Broken(format!("ADD of {who} fails: {} {}", refusal.code, refusal.message))
        })
    }

    /// An ADD that has to fail, with this code where the subject is a delegate.
    pub(crate) fn refuse_add(&self, who: &str, pools: &[Ask], code: u64) -> Verdict {
        match self.try_add(who, pools)? {
            Ok(added) => {
                Err(format!("ADD of {who} gives {}", plain::list(&added.addresses)).into())
            }
            Err(refusal) => expect(!self.is_delegate() || refusal.code == code, || {
                format!("the error is {}, not {code}: {}", refusal.code, refusal.message)
            }),
        }
    }

    /// DEL by `container/interface`, with what the ADD answered, or without.
    pub(crate) fn del(&self, who: &str, pools: &[Ask], known: Option<&Added>) -> Verdict {
        let (environment, config) = self.call(Verb::Del, who, pools, known);
        self.nothing("DEL", who, environment, config)
    }

    /// CHECK with what the ADD answered.
    pub(crate) fn try_check(
        &self,
        who: &str,
        pools: &[Ask],
        known: &Added,
    ) -> Result<Result<(), Refusal>, Finding> {
        let (environment, config) = self.call(Verb::Check, who, pools, Some(known));
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// A CHECK that has to succeed.
    pub(crate) fn check(&self, who: &str, pools: &[Ask], known: &Added) -> Verdict {
        let checked = self.try_check(who, pools, known)?;
        checked.map_err(|r| format!("CHECK of {who} fails: {} {}", r.code, r.message).into())
    }

    /// A CHECK that has to fail, with code 104 where the subject is a delegate.
    pub(crate) fn refuse_check(&self, who: &str, pools: &[Ask], known: &Added) -> Verdict {
        match self.try_check(who, pools, known)? {
            Ok(()) => Err(format!("CHECK of {who} succeeds").into()),
            Err(refusal) => expect(!self.is_delegate() || refusal.code == 104, || {
                format!("the error is {}, not 104: {}", refusal.code, refusal.message)
            }),
        }
    }

    /// GC with further keys of the configuration.
    pub(crate) fn try_gc(
        &self,
        pools: &[Ask],
        lists: Value,
    ) -> Result<Result<(), Refusal>, Finding> {
        let (environment, mut config) = self.call(Verb::Gc, "", pools, None);
        config.extend(lists.as_object().cloned().unwrap_or_default());
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// A GC that has to succeed, and keeps these attachments.
    pub(crate) fn gc(&self, pools: &[Ask], keep: &[&str]) -> Verdict {
        let lists = json!({"cni.dev/valid-attachments": attachments(keep)});
        let collected = self.try_gc(pools, lists)?;
        collected.map_err(|r| format!("GC fails: {} {}", r.code, r.message).into())
    }

    /// STATUS with further keys of `ipam`.
    pub(crate) fn try_status(
        &self,
        pools: &[Ask],
        keys: Value,
    ) -> Result<Result<(), Refusal>, Finding> {
        let (environment, mut config) = self.call(Verb::Status, "", pools, None);
        if let Some(Value::Object(ipam)) = config.get_mut("ipam") {
            ipam.extend(keys.as_object().cloned().unwrap_or_default());
        }
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// Makes every lease look an hour older.
    pub(crate) fn age(&self) -> Verdict {
        if self.subject.age(Duration::from_secs(3600)) {
            return Ok(());
        }
        Err(Finding::NotApplicable(
            "\
            its leases cannot be made to look old; leases that are files in ipam.dataDir, or in \
            Rust `aging` of the subject, make this check run",
        ))
    }

    /// Starts an ADD and kills it.
    pub(crate) fn kill_add(&self, who: &str, pools: &[Ask], after: Duration) -> Verdict {
        let (environment, config) = self.call(Verb::Add, who, pools, None);
        let stdin = Value::Object(config).to_string();
        if self.subject.kill_during(environment, stdin.as_bytes(), after) {
            return Ok(());
        }
        Err(Finding::NotApplicable(
            "there is no process to kill; in Rust, the subject `Binary` makes this check run",
        ))
    }

    /// Takes all that is left in a pool, each address once.
    pub(crate) fn fill(&self, pool: &Ask, most: usize) -> Result<BTreeSet<IpAddr>, Finding> {
        let mut given = BTreeSet::new();
        for number in 0..=most {
            match self.try_add(&format!("fill{number}/eth0"), std::slice::from_ref(pool))? {
                Ok(added) => {
                    let fresh = added.addresses.iter().all(|address| given.insert(*address));
                    expect(fresh, || format!("{} is given twice", plain::list(&added.addresses)))?;
                }
                Err(refusal) => {
                    expect(!self.is_delegate() || refusal.code == 100, || {
                        format!("full is error {}: {}", refusal.code, refusal.message)
                    })?;
                    return Ok(given);
                }
            }
        }
        Err(format!("more than {most} addresses are given").into())
    }

    /// Takes all that is left in a pool of 13, and gives it back.
    pub(crate) fn fill_all(&self, pool: &Ask) -> Result<BTreeSet<IpAddr>, Finding> {
        let given = self.fill(pool, 20)?;
        for number in 0..given.len() {
            self.del(&format!("fill{number}/eth0"), std::slice::from_ref(pool), None)?;
        }
        Ok(given)
    }

    /// The environment and the configuration of a call.
    pub(crate) fn call(
        &self,
        verb: Verb,
        who: &str,
        pools: &[Ask],
        known: Option<&Added>,
    ) -> (Environment, Map<String, Value>) {
        let (container, ifname) = who.split_once('/').unwrap_or((who, ""));
        let mut environment = Environment::new([
            ("CNI_COMMAND", verb.as_str()),
            ("CNI_CONTAINERID", container),
            ("CNI_IFNAME", ifname),
            ("CNI_PATH", "/opt/cni/bin"),
        ]);
        if verb.has_attachment() {
            environment.set("CNI_NETNS", "/run/netns/none");
            environment.set("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=p");
        }
        let mut config = self.subject.config();
        // Standard plugins know no newer version than they need.
        let newest = self.is_delegate() || matches!(verb, Verb::Gc | Verb::Status);
        config.insert("cniVersion".to_owned(), json!(if newest { "1.1.0" } else { "1.0.0" }));
        config.insert("name".to_owned(), json!(self.network));
        let ipam = config.entry("ipam").or_insert_with(|| json!({}));
        let result = known.map(|known| known.result.clone());
        if self.is_delegate() {
            ipam["node"] = json!(self.node);
            let mut before = result.unwrap_or_else(|| json!({"ips": []}));
            before["pools"] = pools.iter().enumerate().map(|(i, pool)| pool.pool(i)).collect();
            config.insert("prevResult".to_owned(), before);
        } else {
            ipam["ranges"] = pools.iter().map(|pool| pool.ranges.clone()).collect();
            let requested: Vec<_> = pools.iter().filter_map(|p| p.requested.as_ref()).collect();
            if !requested.is_empty() {
                config.insert("args".to_owned(), json!({"cni": {"ips": requested}}));
            }
            config.extend(result.map(|result| ("prevResult".to_owned(), handed_on(result))));
        }
        (environment, config)
    }

    /// The answer of an ADD that was put together by hand.
    pub(crate) fn added(
        &self,
        environment: Environment,
        config: Map<String, Value>,
    ) -> Result<Result<Added, Refusal>, Finding> {
        let stdout = match self.answer(environment, &config)? {
            Ok(stdout) => stdout,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let result: Value = serde_json::from_str(&stdout).map_err(|error| {
            format!("ADD answers {}: not JSON: {error}", plain::output(&stdout))
        })?;
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        let network = |ip: &Value| parse_cidr(ip["address"].as_str()?).ok();
        let networks = ips.iter().map(network).collect::<Option<Vec<IpNet>>>();
        let networks = networks.ok_or_else(|| format!("an address cannot be read: {stdout}"))?;
        let addresses = networks.iter().map(IpNet::addr).collect();
        Ok(Ok(Added { result, addresses, networks }))
    }

    /// A call that succeeds and answers nothing that matters.
    pub(crate) fn nothing(
        &self,
        verb: &str,
        who: &str,
        environment: Environment,
        config: Map<String, Value>,
    ) -> Verdict {
        let answer = self.answer(environment, &config)?;
        answer
            .map(drop)
            .map_err(|r| format!("{verb} of {who} fails: {} {}", r.code, r.message).into())
    }

    fn answer(
        &self,
        environment: Environment,
        config: &Map<String, Value>,
    ) -> Result<Result<String, Refusal>, Finding> {
        let stdin = json!(config).to_string();
        let answer = self.subject.answer(environment, stdin.as_bytes())?;
        if answer.success {
            return Ok(Ok(answer.stdout));
        }
        let error: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        let code = error["code"].as_u64();
        let code = code.ok_or_else(|| {
            let stdout = plain::output(&answer.stdout);
            format!("it fails without an error object; on stdout is {stdout}")
        })?;
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        Ok(Err(Refusal { code, message: format!("{} {}", text("msg"), text("details")) }))
    }
}

impl Added {
    /// The same answer without the leases, as of a record that is lost.
    pub(crate) fn without_leases(&self) -> Self {
        let mut added = self.clone();
        if let Some(members) = added.result.as_object_mut() {
            members.remove("leases");
        }
        added
    }

    /// The same answer with another list of addresses.
    pub(crate) fn with_ips(&self, ips: Value) -> Self {
        let mut added = self.clone();
        added.result["ips"] = ips;
        added
    }
}

/// A result as a runtime hands it on without a chain: what delegates say to each other is left out.
fn handed_on(mut result: Value) -> Value {
    if let Some(members) = result.as_object_mut() {
        members.retain(|name, _| !["pools", "leases"].contains(&name.as_str()));
    }
    result
}

/// GC's list of attachments, from `container/interface`.
pub(super) fn attachments(keep: &[&str]) -> Value {
    let split = |who: &&str| {
        let (container, ifname) = who.split_once('/').unwrap_or((who, ""));
        json!({"containerID": container, "ifname": ifname})
    };
    keep.iter().map(split).collect()
}

pub(super) fn expect(holds: bool, message: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(message().into()) }
}

/// The addresses are these.
pub(super) fn expect_given(added: &Added, expected: &[&str]) -> Verdict {
    let parsed = expected.iter().map(|text| parse_address(text).ok());
    let given = &added.addresses;
    expect(given.iter().copied().map(Some).eq(parsed), || {
        format!("expected are {}, given are {}", plain::list(expected), plain::list(given))
    })
}
