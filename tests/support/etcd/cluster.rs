//! Several servers as one cluster, whose network can be cut.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use super::server::{Builder, Etcd, Place};
use super::servers::network::{Cut, Network};
use super::servers::process;

/// A running cluster; this process is on its clients' network. Nothing of it is left when this is
/// dropped.
pub struct Cluster {
    // The members go before their network.
    members: Vec<Etcd>,
    network: Network,
}

impl Cluster {
    /// Starts so many members with default settings and waits until all answer.
    #[track_caller]
    pub fn start(members: u8) -> Self {
        Self::start_with(members, |_| Builder::default())
    }

    /// Starts so many members with settings that may depend on their addresses.
    #[track_caller]
    pub fn start_with(members: u8, settings: impl FnOnce(&[Ipv4Addr]) -> Builder) -> Self {
        let network = Network::new(members);
        let members = 0..usize::from(members);
        let addresses: Vec<_> = members.clone().map(|i| network.client_address(i)).collect();
        let options = settings(&addresses);
        let token = process::unique();
        let peer = |member| SocketAddrV4::new(Network::peer_address(member), 2380);
        let names: Vec<String> = members.clone().map(|i| format!("{token}-{i}")).collect();
        let urls = names.iter().zip(members.clone());
        let urls: Vec<_> = urls.map(|(name, i)| format!("{name}=http://{}", peer(i))).collect();
        let place = |(member, name)| Place {
            name,
            namespace: Some(network.namespace(member)),
            client: SocketAddrV4::new(addresses[member], 2379),
            peer: peer(member),
            metrics: SocketAddrV4::new(addresses[member], 2381),
            cluster: Some((urls.join(","), token.clone())),
        };
        let places = members.zip(names).map(place);
        let members: Vec<Etcd> = places.map(|place| Etcd::launch(options.clone(), place)).collect();
        let this = Self { members, network };
        this.members.iter().for_each(Etcd::until_ready);
        if let Some(first) = this.members.first() {
            first.apply_account();
            let authenticated = first.state().authenticated;
            this.members.iter().for_each(|member| member.state().authenticated = authenticated);
        }
        this
    }

    /// `ADDRESS:PORT` of every member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Etcd::endpoint).collect()
    }

    pub fn member(&self, number: usize) -> &Etcd {
        &self.members[number]
    }

    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The number of the leader, as soon as there is one that most members follow and this process
    /// can reach.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            // One that was cut off takes itself for the leader for a while, but cannot read.
            let is_leader = |member: &Etcd| {
                member.pid().is_some() && leads(member) && member.answers().is_ok() && leads(member)
            };
            if let Some(leader) = self.members.iter().position(is_leader) {
                return leader;
            }
            assert!(Instant::now() < give_up, "no leader was found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Cuts a member off. What is sent to it is lost without a word.
    #[track_caller]
    pub fn partition(&self, member: usize, cut: Cut) {
        self.network.cut(member, cut);
    }

    /// Connects a member again. It needs a while to find the others.
    #[track_caller]
    pub fn heal(&self, member: usize) {
        self.network.join(member);
    }

    /// An endpoint on the members' network that answers nothing, not even a refusal.
    pub fn blackhole(&self) -> String {
        SocketAddrV4::new(self.network.silent_address(), 2379).to_string()
    }
}

fn leads(member: &Etcd) -> bool {
    let metrics = member.metrics().unwrap_or_default();
    metrics.lines().any(|line| line == "etcd_server_is_leader 1")
}
