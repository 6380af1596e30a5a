//! A Consul as a member of a cluster.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use super::Answer;
use super::server::{Builder, Consul, Place};
use crate::servers::cluster::Member;
use crate::servers::network::Network;
use crate::servers::process;

const RPC: u16 = 8300;

impl Member for Consul {
    type Options = Builder;

    const PORT: u16 = 8500;

    fn launch_all(options: &Builder, network: &Network, addresses: &[Ipv4Addr]) -> Vec<Self> {
        let cluster = (0..addresses.len()).map(Network::peer_address);
        let cluster: Vec<_> = cluster.collect();
        let place = |(member, address): (usize, &Ipv4Addr)| Place {
            name: process::unique(),
            namespace: Some(network.namespace(member)),
            client: SocketAddrV4::new(*address, Self::PORT),
            peer: Network::peer_address(member),
            serf: 8301,
            rpc: RPC,
            cluster: cluster.clone(),
        };
        let places = addresses.iter().enumerate().map(place);
        places.map(|place| Self::launch(options.clone(), place)).collect()
    }

    fn settle(members: &[Self]) {
        let [first, others @ ..] = members else { return };
        first.until_ready();
        for member in others {
            member.adopt(first.has_acl().then(|| first.management()));
            member.until_ready();
        }
    }

    /// Whether it leads, and others follow it: one that was cut off takes itself for the leader for
    /// a while.
    fn leads(&self) -> bool {
        let client = self.patient_for(Duration::from_secs(1));
        let itself = format!("\"{}:{RPC}\"", self.place.peer);
        let named = |answer: Answer| answer.status == 200 && answer.text().trim() == itself;
        let reads = |answer: Answer| [200, 404].contains(&answer.status);
        client.try_ask("GET", "status/leader", b"").is_ok_and(named)
            && client.try_ask("GET", "kv/no-such-key?consistent", b"").is_ok_and(reads)
    }

    /// By itself it would look for them every half minute.
    fn look_for(&self, others: &[Ipv4Addr]) {
        for other in others {
            let _ = self.try_ask("PUT", &format!("agent/join/{other}"), b"");
        }
    }

    fn endpoint(&self) -> String {
        self.endpoint()
    }

    fn folder(&self) -> PathBuf {
        self.folder()
    }

    fn pid(&self) -> Option<u32> {
        self.pid()
    }

    fn stop(&self) {
        self.stop();
    }

    fn cont(&self) {
        self.cont();
    }

    fn kill(&self) {
        self.kill();
    }

    fn restart(&self) {
        self.restart();
    }

    fn launch_again(&self) {
        self.launch_again();
    }

    fn until_ready(&self) {
        self.until_ready();
    }
}
