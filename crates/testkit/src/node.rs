//! A node that calls a program of ours, as the chain and as a person.
//!
//! A [`Store`] says which program is called, how its section of `ipam` and its memory are named,
//! and how a node finds its servers.

use std::marker::PhantomData;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::consul::Consul;
use crate::etcd::Etcd;
use crate::openwisp::{OpenWisp, TOKEN};
use crate::phpipam::{APP, CODE, PhpIpam};
use crate::world::{Outcome, World, binary, start, wait};

/// The verbs that runtimes call, in the order of an attachment's life.
pub const VERBS: [&str; 4] = ["ADD", "CHECK", "DEL", "STATUS"];

/// A server that keeps the leases of a cluster.
pub trait Store {
    /// Its name: of the program `ipam-da-NAME`, and of the section of `ipam`.
    const NAME: &'static str;

    /// How a configuration names it.
    fn address(&self) -> String;

    /// The members of `ipam` that name servers.
    fn servers(addresses: &[String]) -> Value;

    /// The pools of a node where nothing else is said.
    fn pools() -> Value;
}

impl Store for Consul {
    const NAME: &'static str = "consul";

    fn address(&self) -> String {
        self.url()
    }

    fn servers(addresses: &[String]) -> Value {
        json!({"consul_servers": addresses, "consul": {}})
    }

    fn pools() -> Value {
        named(&["blue"])
    }
}

impl Store for Etcd {
    const NAME: &'static str = "etcd";

    fn address(&self) -> String {
        self.endpoint()
    }

    fn servers(addresses: &[String]) -> Value {
        json!({"etcd": {"endpoints": addresses}})
    }

    fn pools() -> Value {
        subnets(&["10.1.0.0/16"])
    }
}

impl Store for OpenWisp {
    const NAME: &'static str = "openwisp";

    fn address(&self) -> String {
        self.url()
    }

    fn servers(addresses: &[String]) -> Value {
        json!({"openwisp": {"urls": addresses, "token": TOKEN}})
    }

    fn pools() -> Value {
        named(&["blue"])
    }
}

impl Store for PhpIpam {
    const NAME: &'static str = "phpipam";

    fn address(&self) -> String {
        self.url()
    }

    fn servers(addresses: &[String]) -> Value {
        json!({"phpipam": {"urls": addresses, "appId": APP, "token": CODE}})
    }

    fn pools() -> Value {
        named(&["blue"])
    }
}

/// A node of a cluster: a state folder, and what the program is configured with.
pub struct Node<S> {
    pub world: World,
    pub name: String,
    /// The members of `ipam` that name the store.
    pub store: Value,
    /// `prevResult.pools`.
    pub pools: Value,
    /// More members of `ipam`.
    pub ipam: Value,
    /// Which kind of server it has.
    pub kind: PhantomData<fn() -> S>,
}

impl<S: Store> Node<S> {
    /// `node-1` with a server, and the pools of [`Store::pools`].
    pub fn of(server: &S) -> Self {
        Self::at(&[server.address()])
    }

    /// The same with these servers.
    pub fn at(addresses: &[String]) -> Self {
        Self::with_store(S::servers(addresses), S::pools())
    }

    /// With pools of these names.
    pub fn with_pools(mut self, names: &[&str]) -> Self {
        self.pools = named(names);
        self
    }

    /// With a pool of each of these subnets.
    pub fn with_subnets(mut self, list: &[&str]) -> Self {
        self.pools = subnets(list);
        self
    }

    /// `node-1` with this store and these pools.
    pub fn with_store(store: Value, pools: Value) -> Self {
        let (world, name) = (World::new(), "node-1".to_owned());
        Self { world, name, store, pools, ipam: json!({}), kind: PhantomData }
    }

    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets a member of the store's own section of `ipam`.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.store[S::NAME][key] = value.into();
        self
    }

    /// Waits longer for its servers: a test of many processes at once does not judge their time.
    pub fn patient(self) -> Self {
        self.with("timeout", "50s")
    }

    /// Sets a member of every pool.
    pub fn with_in_pools(mut self, key: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        for pool in self.pools.as_array_mut().unwrap() {
            pool[key] = value.clone();
        }
        self
    }

    /// Sets whether an address that is asked for is taken from another.
    pub fn taking_over(mut self, takeover: bool) -> Self {
        self.ipam["takeover"] = takeover.into();
        self
    }

    /// What an ADD gets.
    pub fn network(&self) -> Value {
        let mut ipam = json!({
            "type": program::<S>(),
            "node": self.name,
            "stateDir": self.world.path("state"),
        });
        for members in [&self.store, &self.ipam] {
            for (key, value) in members.as_object().unwrap() {
                ipam[key] = value.clone();
            }
        }
        json!({
            "cniVersion": "1.1.0",
            "name": "net",
            "type": "bridge",
            "ipam": ipam,
            "prevResult": {"cniVersion": "1.1.0", "ips": [], "pools": self.pools},
        })
    }

    /// A call, ready to be changed and started.
    pub fn command(&self, verb: &str, container: &str) -> Command {
        let mut command = self.world.command_of(&binary(&program::<S>()), verb, container);
        if matches!(verb, "GC" | "STATUS") {
            command.env("CNI_CONTAINERID", "").env("CNI_IFNAME", "").env("CNI_NETNS", "");
        }
        command
    }

    pub fn call(&self, verb: &str, container: &str) -> Outcome {
        wait(start(self.command(verb, container), &self.network()))
    }

    /// A call with these members in `prevResult`, as the chain gives them.
    pub fn call_with(&self, verb: &str, container: &str, prev_result: &Value) -> Outcome {
        let mut network = self.network();
        for (key, value) in prev_result.as_object().unwrap() {
            network["prevResult"][key] = value.clone();
        }
        wait(start(self.command(verb, container), &network))
    }

    /// An ADD that succeeds: its result.
    #[track_caller]
    pub fn add(&self, container: &str) -> Value {
        self.call("ADD", container).success()
    }

    /// An ADD that succeeds: the address of the first pool.
    #[track_caller]
    pub fn address(&self, container: &str) -> String {
        addresses(&self.add(container)).swap_remove(0)
    }

    /// CHECK of what an ADD answered, with the leases.
    pub fn check(&self, container: &str, result: &Value) -> Outcome {
        self.call_with("CHECK", container, &given(result))
    }

    /// DEL with the leases of an ADD.
    pub fn del_known(&self, container: &str, result: &Value) -> Outcome {
        self.call_with("DEL", container, &given(result))
    }

    /// DEL with nothing but the configuration.
    #[track_caller]
    pub fn del(&self, container: &str) {
        assert_eq!(self.call("DEL", container).success(), Value::Null);
    }

    /// GC that keeps these attachments' first interfaces.
    pub fn gc(&self, keep: &[&str]) -> Outcome {
        let mut network = self.network();
        network["cni.dev/valid-attachments"] =
            keep.iter().map(|c| json!({"containerID": c, "ifname": "eth0"})).collect();
        wait(start(self.command("GC", ""), &network))
    }

    /// A person's call, with this node's configuration in a file.
    pub fn typed(&self, words: &[&str]) -> Outcome {
        let file = self.world.path("typed.json");
        std::fs::write(&file, self.network().to_string()).unwrap();
        let mut command = Command::new(binary(&program::<S>()));
        command.env_clear().args(words).arg("--config").arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        wait(command.spawn().unwrap())
    }

    /// What a person is told by a call that succeeds.
    #[track_caller]
    pub fn told(&self, words: &[&str]) -> String {
        let outcome = self.typed(words);
        assert_eq!(outcome.exit, Some(0), "{outcome:?}");
        outcome.stdout
    }

    /// The rows of `list --json`: each address with its container, or its state where it has none.
    #[track_caller]
    pub fn listed(&self) -> Vec<(String, String)> {
        let rows = self.typed(&["list", "--json"]).success();
        let text = |row: &Value, key: &str| row[key].as_str().map(str::to_owned);
        let of = |row: &Value| {
            let holder = text(row, "containerID").or_else(|| text(row, "state"));
            (text(row, "address").unwrap(), holder.unwrap())
        };
        rows.as_array().unwrap().iter().map(of).collect()
    }

    /// The file in which the program remembers the store of `net`.
    pub fn memory(&self) -> PathBuf {
        self.world.path(&format!("state/{}/net.json", S::NAME))
    }
}

pub(crate) fn program<S: Store>() -> String {
    format!("ipam-da-{}", S::NAME)
}

/// Pools that are known by their names.
pub fn named(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// Pools of one subnet each, without names.
pub fn subnets(list: &[&str]) -> Value {
    list.iter().map(|subnet| json!({"ranges": [{"subnet": subnet}]})).collect()
}

/// The addresses of a result, without prefix length.
pub fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().unwrap().iter();
    let plain = |text: &str| text.split('/').next().unwrap().to_owned();
    ips.map(|ip| plain(ip["address"].as_str().unwrap())).collect()
}

/// Some members of the rows of a verb with `--json`; a member that is not text is shown as JSON.
pub fn members(rows: &Value, keys: &[&str]) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let row = |row: &Value| keys.iter().map(|key| text(&row[*key])).collect();
    rows.as_array().unwrap().iter().map(row).collect()
}

/// What the chain remembers of a result.
pub fn given(result: &Value) -> Value {
    json!({"ips": result["ips"], "leases": result["leases"]})
}

/// Runs something, which may take so long and no longer.
#[track_caller]
pub fn within<T>(bound: Duration, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    let took = start.elapsed();
    assert!(took <= bound, "it took {took:?}, more than {bound:?}");
    result
}

/// Runs a function in so many threads, each with its number.
pub fn at_once(threads: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..threads {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}
