//! An etcd as a member of a cluster.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::server::{Builder, Etcd, EtcdServer, Ports};
use crate::servers::cluster::Member;
use crate::servers::daemon::Place;
use crate::servers::network::Network;
use crate::servers::process;

impl Member for EtcdServer {
    type Options = Builder;

    const PORT: u16 = 2379;

    fn launch_all(options: &Builder, network: &Network, addresses: &[Ipv4Addr]) -> Vec<Etcd> {
        let token = process::unique();
        let peer = |member| SocketAddrV4::new(Network::peer_address(member), 2380);
        let names = (0..addresses.len()).map(|member| format!("{token}-{member}"));
        let names: Vec<String> = names.collect();
        let urls = names.iter().enumerate();
        let urls: Vec<_> = urls.map(|(i, name)| format!("{name}=http://{}", peer(i))).collect();
        let launch = |(member, name): (usize, &String)| {
            let place = Place {
                name: name.clone(),
                namespace: Some(network.namespace(member)),
                client: SocketAddrV4::new(addresses[member], Self::PORT).into(),
            };
            let ports = Ports {
                peer: peer(member),
                metrics: SocketAddrV4::new(addresses[member], 2381),
                cluster: Some((urls.join(","), token.clone())),
            };
            Etcd::launch(options.clone(), place, ports)
        };
        names.iter().enumerate().map(launch).collect()
    }

    fn settle(members: &[Etcd]) {
        members.iter().for_each(Etcd::until_ready);
        if let Some(first) = members.first() {
            first.apply_account();
            let authenticated = first.state().authenticated;
            members.iter().for_each(|member| member.state().authenticated = authenticated);
        }
    }

    fn leads(member: &Etcd) -> bool {
        // One that was cut off takes itself for the leader for a while, but cannot read.
        says_that_it_leads(member) && member.answers().is_ok() && says_that_it_leads(member)
    }
}

fn says_that_it_leads(member: &Etcd) -> bool {
    let metrics = member.metrics().unwrap_or_default();
    metrics.lines().any(|line| line == "etcd_server_is_leader 1")
}
