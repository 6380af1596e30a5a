//! A network of a test's own: each member in a network namespace, with one link to the other members
//! and one to clients; the switch of both lies in a namespace too, where no firewall of this machine
//! looks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use super::process;

/// Where `ip` keeps the names of namespaces.
pub const NAMESPACES: &str = "/run/netns";

/// The last bytes of this machine's address, and of one that nobody has.
const HOST: u8 = 254;
const NOBODY: u8 = 250;

/// What a member loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The other members; clients still reach it.
    Peers,
    /// The other members and clients.
    All,
}

pub struct Network {
    /// This machine's end of the clients' network.
    link: String,
    /// The namespaces: the switch, then the members.
    namespaces: Vec<String>,
    /// The clients' network, a /24 that has no route but ours.
    prefix: [u8; 3],
}

impl Network {
    /// Makes a network with so many members. Needs root: a test that cannot run fails.
    #[track_caller]
    pub fn new(members: u8) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "a cluster needs network namespaces, and those need root: run tests/run.sh as root"
        );
        sweep();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // The name of a link has at most 15 bytes.
        let link = format!("ie{}-{count}", std::process::id());
        let mut this = Self { link, namespaces: Vec::new(), prefix: [0; 3] };
        for _ in 0..=members {
            let name = process::unique();
            ip(None, &format!("netns add {name}"));
            this.namespaces.push(name);
        }
        this.wire();
        this
    }

    /// The namespace of a member, counted from 0.
    pub fn namespace(&self, member: usize) -> PathBuf {
        Path::new(NAMESPACES).join(&self.namespaces[member + 1])
    }

    /// All namespaces by name.
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// The link by which this machine is on the clients' network.
    pub fn link(&self) -> &str {
        &self.link
    }

    /// Where clients find a member.
    pub fn client_address(&self, member: usize) -> Ipv4Addr {
        self.address(last_byte(member))
    }

    /// Where members find a member.
    pub fn peer_address(member: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 255, 0, last_byte(member))
    }

    /// An address to which packets go and from which none comes.
    pub fn silent_address(&self) -> Ipv4Addr {
        self.address(NOBODY)
    }

    /// Takes a member off. What is sent to it is lost without a word.
    pub fn cut(&self, member: usize, cut: Cut) {
        let mut lines = format!("link set peer{member} nomaster\n");
        if cut == Cut::All {
            writeln!(lines, "link set client{member} nomaster").unwrap();
        }
        ip(Some(&self.namespaces[0]), &lines);
    }

    /// Puts a member on both networks again.
    pub fn join(&self, member: usize) {
        let lines =
            format!("link set peer{member} master peers\nlink set client{member} master clients");
        ip(Some(&self.namespaces[0]), &lines);
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        let [a, b, c] = self.prefix;
        Ipv4Addr::new(a, b, c, last)
    }

    /// Makes the links, and claims a free network for the clients.
    fn wire(&mut self) {
        let switch = self.namespaces[0].clone();
        let members = 0..self.namespaces.len() - 1;
        let mut lines =
            "link add clients up type bridge\nlink add peers up type bridge\n".to_owned();
        for member in members.clone() {
            let namespace = &self.namespaces[member + 1];
            for kind in ["client", "peer"] {
                let port = format!("{kind}{member}");
                writeln!(lines, "link add {port} type veth peer name {kind} netns {namespace}")
                    .unwrap();
                writeln!(lines, "link set {port} master {kind}s up").unwrap();
            }
        }
        ip(Some(&switch), &lines);

        let link = &self.link;
        ip(None, &format!("link add {link} type veth peer name host netns {switch}"));
        ip(Some(&switch), "link set host master clients up");
        ip(None, &format!("link set {link} up"));
        self.prefix = claim(link);

        let mut lines = format!("addr add {}/24 dev {link} noprefixroute\n", self.address(HOST));
        // Fixed neighbours: a member that is cut off is silent at once, not unreachable later.
        for last in members.clone().map(last_byte).chain([NOBODY]) {
            let (address, mac) = (self.address(last), hardware_address(last));
            writeln!(lines, "neigh replace {address} lladdr {mac} dev {link} nud permanent")
                .unwrap();
        }
        ip(None, &lines);
        for member in members {
            let mac = hardware_address(last_byte(member));
            let (client, peer) = (self.client_address(member), Self::peer_address(member));
            let lines = format!(
                "link set lo up\nlink set client address {mac} up\nlink set peer up\n\
                 addr add {client}/24 dev client\naddr add {peer}/24 dev peer"
            );
            ip(Some(&self.namespaces[member + 1]), &lines);
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let mut lines = format!("link del {}\n", self.link);
        for name in &self.namespaces {
            writeln!(lines, "netns del {name}").unwrap();
        }
        // What was not yet made when a panic came cannot be removed.
        let _ = try_ip(None, &lines);
    }
}

fn last_byte(member: usize) -> u8 {
    u8::try_from(member).unwrap() + 1
}

fn hardware_address(last: u8) -> String {
    format!("02:00:00:00:00:{last:02x}")
}

/// Removes what test processes left that were killed: with a namespace go its links and their ends
/// elsewhere.
fn sweep() {
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| {
        for name in process::leftovers(Path::new(NAMESPACES)) {
            let _ = try_ip(None, &format!("netns del {name}"));
        }
    });
}

/// Routes a /24 out of 198.18.0.0/15, which is for tests of networks, to a link. No other route of
/// this machine overlaps it.
#[track_caller]
fn claim(link: &str) -> [u8; 3] {
    let first = process::random() % 512;
    for offset in 0..512 {
        let number = u32::try_from((first + offset) % 512).unwrap();
        let network = Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (number << 8));
        if routes().iter().any(|route| overlap(*route, (network, 24))) {
            continue;
        }
        // It fails where another test was quicker.
        if try_ip(None, &format!("route add {network}/24 dev {link}")).status.success() {
            let [a, b, c, _] = network.octets();
            return [a, b, c];
        }
    }
    panic!("every /24 of 198.18.0.0/15 has a route on this machine");
}

/// Where this machine has routes to, but for the default.
fn routes() -> Vec<(Ipv4Addr, u32)> {
    let mut command = process::plain(process::program("ip"));
    let output = command.args(["-4", "-json", "route", "show", "table", "all"]).output().unwrap();
    let routes: Value = serde_json::from_slice(&output.stdout).unwrap();
    let destination = |route: &Value| {
        let text = route["dst"].as_str()?;
        let (address, length) = text.split_once('/').unwrap_or((text, "32"));
        Some((address.parse().ok()?, length.parse().ok()?))
    };
    // Some programs write the default as two halves.
    let is_default = |length: u32| length < 2;
    let found = routes.as_array().unwrap().iter().filter_map(destination);
    found.filter(|(_, length)| !is_default(*length)).collect()
}

fn overlap(one: (Ipv4Addr, u32), other: (Ipv4Addr, u32)) -> bool {
    let differing = u32::from(one.0) ^ u32::from(other.0);
    differing.leading_zeros() >= one.1.min(other.1)
}

/// Runs commands of `ip`, one a line, in a namespace; all must succeed.
#[track_caller]
fn ip(namespace: Option<&str>, lines: &str) {
    let output = try_ip(namespace, lines);
    assert!(output.status.success(), "ip: {lines}\n{output:?}");
}

/// Runs commands of `ip` to the last, whatever fails.
fn try_ip(namespace: Option<&str>, lines: &str) -> Output {
    let mut command = process::plain(process::program("ip"));
    if let Some(name) = namespace {
        command.args(["-netns", name]);
    }
    command.args(["-force", "-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}
