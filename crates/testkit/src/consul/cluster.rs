//! A Consul as a member of a cluster.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::Answer;
use super::server::{Builder, Consul, ConsulServer, Peers};
use crate::servers::cluster::Member;
use crate::servers::daemon::Place;
use crate::servers::network::Network;
use crate::servers::process;

const RPC: u16 = 8300;

impl Member for ConsulServer {
    type Options = Builder;

    const PORT: u16 = 8500;

    fn launch_all(options: &Builder, network: &Network, addresses: &[Ipv4Addr]) -> Vec<Consul> {
        let cluster = (0..addresses.len()).map(Network::peer_address);
        let cluster: Vec<_> = cluster.collect();
        let launch = |(member, address): (usize, &Ipv4Addr)| {
            let place = Place {
                name: process::unique(),
                namespace: Some(network.namespace(member)),
                client: SocketAddrV4::new(*address, Self::PORT).into(),
            };
            let address = Network::peer_address(member);
            let peers = Peers { address, serf: 8301, rpc: RPC, cluster: cluster.clone() };
            Consul::launch(options.clone(), place, peers)
        };
        addresses.iter().enumerate().map(launch).collect()
    }

    fn settle(members: &[Consul]) {
        let [first, others @ ..] = members else { return };
        first.until_ready();
        for member in others {
            member.adopt(first.has_acl().then(|| first.management()));
            member.until_ready();
        }
    }

    /// Whether it leads, and others follow it: one that was cut off takes itself for the leader for
    /// a while.
    fn leads(member: &Consul) -> bool {
        let client = member.patient_for(Duration::from_secs(1));
        let itself = format!("\"{}:{RPC}\"", member.peers.address);
        let named = |answer: Answer| answer.status == 200 && answer.text().trim() == itself;
        let reads = |answer: Answer| [200, 404].contains(&answer.status);
        client.try_ask("GET", "status/leader", b"").is_ok_and(named)
            && client.try_ask("GET", "kv/no-such-key?consistent", b"").is_ok_and(reads)
    }

    /// By itself it would look for them every half minute.
    fn look_for(member: &Consul, others: &[Ipv4Addr]) {
        for other in others {
            let _ = member.try_ask("PUT", &format!("agent/join/{other}"), b"");
        }
    }
}
