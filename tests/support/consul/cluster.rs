//! Several servers as one cluster, whose network can be cut.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use super::server::{Builder, Consul, Place};
use super::servers::network::{Cut, Network};
use super::servers::process;

/// A running cluster; this process is on its clients' network. Nothing of it is left when this is
/// dropped.
pub struct Cluster {
    // The members go before their network.
    members: Vec<Consul>,
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
        let place = |member| Place {
            name: process::unique(),
            namespace: Some(network.namespace(member)),
            client: SocketAddrV4::new(addresses[member], 8500),
            peer: Network::peer_address(member),
            serf: 8301,
            rpc: RPC,
            cluster: members.clone().map(Network::peer_address).collect(),
        };
        let places: Vec<Place> = members.clone().map(place).collect();
        let launch = |place| Consul::launch(options.clone(), place);
        let members: Vec<Consul> = places.into_iter().map(launch).collect();
        let this = Self { members, network };
        let mut members = this.members.iter();
        if let Some(first) = members.next() {
            first.until_ready();
            for member in members {
                member.adopt(first.has_acl().then(|| first.management()));
                member.until_ready();
            }
        }
        this
    }

    /// `ADDRESS:PORT` of every member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Consul::endpoint).collect()
    }

    pub fn member(&self, number: usize) -> &Consul {
        &self.members[number]
    }

    pub fn members(&self) -> &[Consul] {
        &self.members
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The number of the leader, as soon as there is one that most members follow.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(leader) = self.members.iter().position(leads) {
                return leader;
            }
            assert!(Instant::now() < give_up, "no leader was found");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The number of a member that does not lead.
    #[track_caller]
    pub fn follower(&self) -> usize {
        usize::from(self.leader() == 0)
    }

    /// Cuts a member off. What is sent to it is lost without a word.
    #[track_caller]
    pub fn partition(&self, member: usize, cut: Cut) {
        self.network.cut(member, cut);
    }

    /// Connects a member again, and has it look for the others at once.
    #[track_caller]
    pub fn heal(&self, member: usize) {
        self.network.join(member);
        for other in (0..self.members.len()).filter(|other| *other != member) {
            let target = format!("agent/join/{}", Network::peer_address(other));
            // By itself it would look for them every half minute.
            let _ = self.members[member].try_ask("PUT", &target, b"");
        }
    }

    /// An endpoint on the members' network that answers nothing, not even a refusal.
    pub fn blackhole(&self) -> String {
        SocketAddrV4::new(self.network.silent_address(), 8500).to_string()
    }
}

const RPC: u16 = 8300;

/// Whether a member leads, and others follow it: one that was cut off takes itself for the leader
/// for a while.
fn leads(member: &Consul) -> bool {
    if member.pid().is_none() {
        return false;
    }
    let client = member.patient_for(Duration::from_secs(1));
    let itself = format!("\"{}:{RPC}\"", member.place.peer);
    let named = |answer: super::Answer| answer.status == 200 && answer.text().trim() == itself;
    let reads = |answer: super::Answer| [200, 404].contains(&answer.status);
    client.try_ask("GET", "status/leader", b"").is_ok_and(named)
        && client.try_ask("GET", "kv/no-such-key?consistent", b"").is_ok_and(reads)
}
