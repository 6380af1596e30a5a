//! Calls of a subject, and what is expected of their answers.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::pool_spec::PoolSpec;
use super::subject::{Form, Subject};
use super::{CheckResult, Finding, plain};
use ipam_kit::cni::address::parse_address;
use ipam_kit::cni::{Environment, IpConfig, IpamResult, Verb, Version};
use ipam_kit::contract::{DelegateAnswer, DelegateInput};

/// A subject, on a network that no other check uses.
#[derive(Clone)]
pub(super) struct Bench {
    pub subject: Arc<dyn Subject>,
    pub network: String,
    pub node: &'static str,
    /// `ipam.cooldown` of every call.
    cooldown: Option<&'static str>,
}

/// The answer of an ADD.
#[derive(Clone, Debug)]
pub(super) struct Added {
    /// The CNI result.
    pub result: IpamResult,
    /// The members of a delegate's answer beside it.
    pub answer: DelegateAnswer,
    pub addresses: Vec<IpAddr>,
    pub networks: Vec<IpNet>,
}

/// An error object.
#[derive(Clone, Debug)]
pub(super) struct CniError {
    pub code: u64,
    pub message: String,
}

static NETWORKS: AtomicU64 = AtomicU64::new(0);

impl Bench {
    pub(crate) fn new(subject: &Arc<dyn Subject>) -> Self {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let network = format!("conformance-{}-{number}", process::id());
        Self { subject: subject.clone(), network, node: "node-1", cooldown: None }
    }

    /// The same subject on another network.
    pub(crate) fn elsewhere(&self) -> Self {
        Self::new(&self.subject)
    }

    /// The same network on another node.
    pub(crate) fn on_node(&self, node: &'static str) -> Self {
        Self { node, ..self.clone() }
    }

    /// The same network with a time for which freed addresses rest.
    pub(crate) fn with_cooldown(&self, cooldown: &'static str) -> Self {
        Self { cooldown: Some(cooldown), ..self.clone() }
    }

    pub(crate) fn is_delegate(&self) -> bool {
        self.subject.form() == Form::Delegate
    }

    /// Only delegates get this.
    pub(crate) fn delegates_only(&self) -> CheckResult {
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
        pools: &[PoolSpec],
    ) -> Result<Result<Added, CniError>, Finding> {
        let (environment, config) = self.call(Verb::Add, who, pools, None)?;
        self.added(environment, config)
    }

    /// An ADD that has to succeed.
    pub(crate) fn add(&self, who: &str, pools: &[PoolSpec]) -> Result<Added, Finding> {
        self.try_add(who, pools)?.map_err(|refusal| {
            Finding::Broken(format!("ADD of {who} fails: {} {}", refusal.code, refusal.message))
        })
    }

    /// An ADD that has to fail, with this code where the subject is a delegate.
    pub(crate) fn refuse_add(&self, who: &str, pools: &[PoolSpec], code: u64) -> CheckResult {
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
    pub(crate) fn del(&self, who: &str, pools: &[PoolSpec], known: Option<&Added>) -> CheckResult {
        let (environment, config) = self.call(Verb::Del, who, pools, known)?;
        self.nothing("DEL", who, environment, config)
    }

    /// CHECK with what the ADD answered.
    pub(crate) fn try_check(
        &self,
        who: &str,
        pools: &[PoolSpec],
        known: &Added,
    ) -> Result<Result<(), CniError>, Finding> {
        let (environment, config) = self.call(Verb::Check, who, pools, Some(known))?;
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// A CHECK that has to succeed.
    pub(crate) fn check(&self, who: &str, pools: &[PoolSpec], known: &Added) -> CheckResult {
        let checked = self.try_check(who, pools, known)?;
        checked.map_err(|r| format!("CHECK of {who} fails: {} {}", r.code, r.message).into())
    }

    /// A CHECK that has to fail, with code 104 where the subject is a delegate.
    pub(crate) fn refuse_check(&self, who: &str, pools: &[PoolSpec], known: &Added) -> CheckResult {
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
        pools: &[PoolSpec],
        lists: Value,
    ) -> Result<Result<(), CniError>, Finding> {
        let (environment, mut config) = self.call(Verb::Gc, "", pools, None)?;
        config.extend(lists.as_object().cloned().unwrap_or_default());
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// A GC that has to succeed, and keeps these attachments.
    pub(crate) fn gc(&self, pools: &[PoolSpec], keep: &[&str]) -> CheckResult {
        let lists = json!({"cni.dev/valid-attachments": attachments(keep)});
        let collected = self.try_gc(pools, lists)?;
        collected.map_err(|r| format!("GC fails: {} {}", r.code, r.message).into())
    }

    /// STATUS with further keys of `ipam`.
    pub(crate) fn try_status(
        &self,
        pools: &[PoolSpec],
        keys: Value,
    ) -> Result<Result<(), CniError>, Finding> {
        let (environment, mut config) = self.call(Verb::Status, "", pools, None)?;
        if let Some(Value::Object(ipam)) = config.get_mut("ipam") {
            ipam.extend(keys.as_object().cloned().unwrap_or_default());
        }
        Ok(self.answer(environment, &config)?.map(drop))
    }

    /// Makes every lease look an hour older.
    pub(crate) fn age(&self) -> CheckResult {
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
    pub(crate) fn kill_add(&self, who: &str, pools: &[PoolSpec], after: Duration) -> CheckResult {
        let (environment, config) = self.call(Verb::Add, who, pools, None)?;
        let stdin = Value::Object(config).to_string();
        if self.subject.kill_during(environment, stdin.as_bytes(), after) {
            return Ok(());
        }
        Err(Finding::NotApplicable(
            "needs a process to kill: in Rust, the subject `Binary` makes this check run",
        ))
    }

    /// Takes all that is left in a pool, each address once.
    pub(crate) fn fill(&self, pool: &PoolSpec, most: usize) -> Result<BTreeSet<IpAddr>, Finding> {
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
        Err(format!("more than {most} addresses were given").into())
    }

    /// Takes all that is left in a pool of 13, and gives it back.
    pub(crate) fn fill_all(&self, pool: &PoolSpec) -> Result<BTreeSet<IpAddr>, Finding> {
        let given = self.fill(pool, 20)?;
        for number in 0..given.len() {
            self.del(&format!("fill{number}/eth0"), std::slice::from_ref(pool), None)?;
        }
        Ok(given)
    }

    /// The chain's input to a delegate: these pools, and the answer of an ADD.
    pub(crate) fn input(pools: &[PoolSpec], known: Option<&Added>) -> DelegateInput {
        let pools = pools.iter().enumerate().map(|(i, pool)| pool.to_json(i)).collect();
        let leases = known.and_then(|known| known.answer.leases.clone()).unwrap_or_default();
        DelegateInput { pools: Some(pools), leases, ..DelegateInput::default() }
    }

    /// The environment and the configuration of a call.
    pub(crate) fn call(
        &self,
        verb: Verb,
        who: &str,
        pools: &[PoolSpec],
        known: Option<&Added>,
    ) -> Result<(Environment, Map<String, Value>), Finding> {
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
        if let Some(cooldown) = self.cooldown {
            ipam["cooldown"] = json!(cooldown);
        }
        if self.is_delegate() {
            ipam["node"] = json!(self.node);
            let result = known.map(|known| known.result.clone()).unwrap_or_default();
            set_prev_result(&mut config, result, Self::input(pools, known))?;
        } else {
            ipam["ranges"] = pools.iter().map(|pool| pool.ranges.clone()).collect();
            let requested: Vec<_> = pools.iter().filter_map(|p| p.requested.as_ref()).collect();
            if !requested.is_empty() {
                config.insert("args".to_owned(), json!({"cni": {"ips": requested}}));
            }
            // Without a chain, a runtime hands on the result alone.
            if let Some(known) = known {
                let result = known.result.to_json(Version::V1_0_0)?;
                config.insert("prevResult".to_owned(), result);
            }
        }
        Ok((environment, config))
    }

    /// The answer of an ADD that was put together by hand.
    pub(crate) fn added(
        &self,
        environment: Environment,
        config: Map<String, Value>,
    ) -> Result<Result<Added, CniError>, Finding> {
        let stdout = match self.answer(environment, &config)? {
            Ok(stdout) => stdout,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let result: Value = serde_json::from_str(&stdout).map_err(|error| {
            format!("ADD answers {}: not JSON: {error}", plain::output(&stdout))
        })?;
        let mut result = IpamResult::parse(&result, "its answer")?;
        let answer = DelegateAnswer::take_from(&mut result)?;
        let networks: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        let addresses = networks.iter().map(IpNet::addr).collect();
        Ok(Ok(Added { result, answer, addresses, networks }))
    }

    /// A call that succeeds and answers nothing that matters.
    pub(crate) fn nothing(
        &self,
        verb: &str,
        who: &str,
        environment: Environment,
        config: Map<String, Value>,
    ) -> CheckResult {
        let answer = self.answer(environment, &config)?;
        answer
            .map(drop)
            .map_err(|r| format!("{verb} of {who} fails: {} {}", r.code, r.message).into())
    }

    fn answer(
        &self,
        environment: Environment,
        config: &Map<String, Value>,
    ) -> Result<Result<String, CniError>, Finding> {
        let stdin = json!(config).to_string();
        let answer = self.subject.answer(environment, stdin.as_bytes())?;
        if answer.success {
            return Ok(Ok(answer.stdout));
        }
        let error: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        let code = error["code"].as_u64();
        let code = code.ok_or_else(|| {
            let [stdout, stderr] = [&answer.stdout, &answer.stderr].map(|text| plain::output(text));
            format!("it fails without an error object: stdout: {stdout}; stderr: {stderr}")
        })?;
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        Ok(Err(CniError { code, message: format!("{} {}", text("msg"), text("details")) }))
    }
}

impl Added {
    /// The same answer without the leases, as of a record that is lost.
    pub(crate) fn without_leases(&self) -> Self {
        self.with_leases(None)
    }

    /// The same answer with other leases.
    pub(crate) fn with_leases(&self, leases: Option<Vec<Value>>) -> Self {
        let mut added = self.clone();
        added.answer.leases = leases;
        added
    }

    /// The same answer with another list of addresses.
    pub(crate) fn with_ips(&self, ips: &[IpConfig]) -> Self {
        let mut added = self.clone();
        added.result.ips = ips.to_vec();
        added
    }
}

/// Sets the `prevResult` of a delegate.
pub(super) fn set_prev_result(
    config: &mut Map<String, Value>,
    mut result: IpamResult,
    input: DelegateInput,
) -> CheckResult {
    input.write_to(&mut result);
    config.insert("prevResult".to_owned(), result.to_json(Version::V1_1_0)?);
    Ok(())
}

/// GC's list of attachments, from `container/interface`.
pub(super) fn attachments(keep: &[&str]) -> Value {
    let attachments = keep.iter().map(|who| who.split_once('/').unwrap_or((who, "")));
    attachments
        .map(|(container, ifname)| json!({"containerID": container, "ifname": ifname}))
        .collect()
}

pub(super) fn network(string: &str) -> Result<IpNet, Finding> {
    string.parse().map_err(|error| format!("{string}: {error}").into())
}

pub(super) fn expect(holds: bool, message: impl FnOnce() -> String) -> CheckResult {
    if holds { Ok(()) } else { Err(message().into()) }
}

/// The addresses are these.
pub(super) fn expect_given(added: &Added, expected: &[&str]) -> CheckResult {
    let parsed = expected.iter().map(|text| parse_address(text).ok());
    let given = &added.addresses;
    expect(given.iter().copied().map(Some).eq(parsed), || {
        format!("expected {}, but {} was given", plain::list(expected), plain::list(given))
    })
}
