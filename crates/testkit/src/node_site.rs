//! A node object, and a machine with a login that may read it and nothing else: where selectors
//! that ask for their own node are called.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::kube::{Grant, Kube, Kubeconfig, Login, Node, Request};
use crate::world::{Outcome, World, start, wait};

/// Every test has a name of its own for its node.
pub struct NodeSite {
    pub kube: &'static Kube,
    pub world: World,
    pub login: Login,
    pub node: String,
    _grant: Grant<'static>,
}

impl NodeSite {
    #[track_caller]
    pub fn of(kube: &'static Kube, node: &Node) -> Self {
        kube.create_node(node);
        Self::without_object(kube, node.name())
    }

    /// A machine whose node object is not there.
    #[track_caller]
    pub fn without_object(kube: &'static Kube, node: &str) -> Self {
        let (world, login) = (World::new(), kube.user());
        let grant = kube.allow_reading_nodes(&login, &[node]);
        let this = Self { kube, world, login, node: node.to_owned(), _grant: grant };
        this.calls_home();
        this
    }

    pub fn kubeconfig_path(&self) -> PathBuf {
        self.world.path("kubeconfig")
    }

    /// The kubeconfig of this machine, to be changed and written.
    pub fn kubeconfig(&self) -> Kubeconfig {
        Kubeconfig::of(self.kube, &self.login)
    }

    /// Has the machine call this URL as its API server.
    pub fn calls(&self, url: &str) {
        self.kubeconfig().server(url).write(&self.kubeconfig_path());
    }

    /// Has the machine call nobody.
    pub fn calls_nobody(&self) {
        self.calls("https://127.0.0.1:1");
    }

    /// Has the machine call the real server again.
    pub fn calls_home(&self) {
        self.kubeconfig().write(&self.kubeconfig_path());
    }

    /// Runs a call, which shows no secret.
    #[track_caller]
    pub fn run(&self, command: Command, network: &Value) -> Outcome {
        let outcome = wait(start(command, network));
        self.tells_no_secret(&outcome.stdout);
        self.tells_no_secret(&outcome.stderr);
        outcome
    }

    #[track_caller]
    pub fn tells_no_secret(&self, text: &str) {
        assert!(!text.contains(self.login.token().unwrap()), "{text}");
    }

    /// What the server was asked by this machine's login, as `VERB PATH CODE`.
    #[track_caller]
    pub fn requests(&self) -> Vec<String> {
        self.kube.requests_of(&self.login.user).iter().map(Request::line).collect()
    }

    /// How many requests come while something is done.
    #[track_caller]
    pub fn requests_during<T>(&self, done: impl FnOnce() -> T) -> (usize, T) {
        let before = self.requests().len();
        let result = done();
        (self.requests().len() - before, result)
    }

    /// What the selector remembers of a network.
    pub fn memory(&self, network: &str) -> PathBuf {
        self.world.path("state/kubernetes/networks").join(network)
    }

    /// The same: the last whole line of its file.
    #[track_caller]
    pub fn remembered(&self, network: &str) -> Value {
        let text = fs::read_to_string(self.memory(network)).unwrap();
        text.lines().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap()
    }

    /// Makes it so much older.
    #[track_caller]
    pub fn age(&self, network: &str, by: Duration) {
        self.shift(network, |time| time - u64::try_from(by.as_millis()).unwrap());
    }

    /// Makes it older than `cacheTtl`, and older than the rest that is given to a server which is away.
    #[track_caller]
    pub fn age_out(&self, network: &str) {
        self.age(network, Duration::from_secs(3600));
    }

    /// Makes it of the future, as after a clock was set back.
    #[track_caller]
    pub fn postdate(&self, network: &str) {
        self.shift(network, |time| time + 3_600_000);
    }

    #[track_caller]
    fn shift(&self, network: &str, shift: impl Fn(u64) -> u64) {
        let mut noted = self.remembered(network);
        for key in ["read", "failed"] {
            if let Some(time) = noted[key].as_u64() {
                noted[key] = shift(time).into();
            }
        }
        fs::write(self.memory(network), format!("{noted}\n")).unwrap();
    }
}

/// The subnets of the pools that a selector answers.
#[track_caller]
pub fn subnets(result: &Value) -> Vec<String> {
    let pools = result["pools"].as_array().unwrap_or_else(|| panic!("no pools: {result}"));
    let subnet = |pool: &Value| pool["ranges"][0]["subnet"].as_str().unwrap().to_owned();
    pools.iter().map(subnet).collect()
}

/// A call that another program makes, which gets it as its last arguments.
pub fn by(mut program: Command, call: &Command) -> Command {
    program.arg(call.get_program()).args(call.get_args()).env_clear();
    program.envs(call.get_envs().filter_map(|(name, value)| Some((name, value?))));
    program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}

/// A command that runs as root without the right to pass over permissions; the call follows.
pub fn without_override() -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv.arg("--bounding-set=-dac_override,-dac_read_search");
    setpriv
}
