//! An etcd as a member of a cluster.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use super::server::{Builder, Etcd, Place};
use crate::servers::cluster::Member;
use crate::servers::network::Network;
use crate::servers::process;

impl Member for Etcd {
    type Options = Builder;

    const PORT: u16 = 2379;

    fn launch_all(options: &Builder, network: &Network, addresses: &[Ipv4Addr]) -> Vec<Self> {
        let token = process::unique();
        let peer = |member| SocketAddrV4::new(Network::peer_address(member), 2380);
        let names = (0..addresses.len()).map(|member| format!("{token}-{member}"));
        let names: Vec<String> = names.collect();
        let urls = names.iter().enumerate();
        let urls: Vec<_> = urls.map(|(i, name)| format!("{name}=http://{}", peer(i))).collect();
        let place = |(member, name): (usize, &String)| Place {
            name: name.clone(),
            namespace: Some(network.namespace(member)),
            client: SocketAddrV4::new(addresses[member], Self::PORT),
            peer: peer(member),
            metrics: SocketAddrV4::new(addresses[member], 2381),
            cluster: Some((urls.join(","), token.clone())),
        };
        let places = names.iter().enumerate().map(place);
        places.map(|place| Self::launch(options.clone(), place)).collect()
    }

    fn settle(members: &[Self]) {
        members.iter().for_each(Self::until_ready);
        if let Some(first) = members.first() {
            first.apply_account();
            let authenticated = first.state().authenticated;
            members.iter().for_each(|member| member.state().authenticated = authenticated);
        }
    }

    fn leads(&self) -> bool {
        // One that was cut off takes itself for the leader for a while, but cannot read.
        says_that_it_leads(self) && self.answers().is_ok() && says_that_it_leads(self)
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

fn says_that_it_leads(member: &Etcd) -> bool {
    let metrics = member.metrics().unwrap_or_default();
    metrics.lines().any(|line| line == "etcd_server_is_leader 1")
}
