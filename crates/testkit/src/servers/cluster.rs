//! Several servers as one cluster, whose network can be cut.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use super::daemon::{Daemon, Server};
use super::network::{Cut, Network};

/// A server that may be a member of a cluster.
pub trait Member: Server {
    /// Settings before it starts.
    type Options: Clone + Default;

    /// The port that clients use.
    const PORT: u16;

    /// Starts a member on each of these addresses, and waits for none.
    fn launch_all(
        options: &Self::Options,
        network: &Network,
        addresses: &[Ipv4Addr],
    ) -> Vec<Daemon<Self>>;

    /// Waits until all answer, and lets them share what is set up once.
    fn settle(members: &[Daemon<Self>]);

    /// Whether it leads, and most members follow.
    fn leads(member: &Daemon<Self>) -> bool;

    /// Has one that was cut off look for the others at once, where it can be told to.
    fn look_for(_member: &Daemon<Self>, _others: &[Ipv4Addr]) {}
}

/// A running cluster; this process is on its clients' network. Nothing of it is left when this is
/// dropped.
pub struct Cluster<M> {
    // The members go before their network.
    members: Vec<Daemon<M>>,
    network: Network,
}

impl<M: Member> Cluster<M> {
    /// Starts so many members with default settings and waits until all answer.
    #[track_caller]
    pub fn start(members: u8) -> Self {
        Self::start_with(members, |_| M::Options::default())
    }

    /// Starts so many members with settings that may depend on their addresses.
    #[track_caller]
    pub fn start_with(members: u8, settings: impl FnOnce(&[Ipv4Addr]) -> M::Options) -> Self {
        let network = Network::new(members);
        let addresses = (0..usize::from(members)).map(|member| network.client_address(member));
        let addresses: Vec<_> = addresses.collect();
        let members = M::launch_all(&settings(&addresses), &network, &addresses);
        let this = Self { members, network };
        M::settle(&this.members);
        this
    }

    /// `ADDRESS:PORT` of every member.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(Daemon::endpoint).collect()
    }

    pub fn member(&self, number: usize) -> &Daemon<M> {
        &self.members[number]
    }

    pub fn members(&self) -> &[Daemon<M>] {
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
            let leads = |member: &Daemon<M>| member.pid().is_some() && M::leads(member);
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

    /// Connects a member again. It may need a while to find the others.
    #[track_caller]
    pub fn heal(&self, member: usize) {
        self.network.join(member);
        let others = (0..self.members.len()).filter(|other| *other != member);
        let others: Vec<_> = others.map(Network::peer_address).collect();
        M::look_for(&self.members[member], &others);
    }

    /// An endpoint on the members' network that answers nothing, not even a refusal.
    pub fn blackhole(&self) -> String {
        SocketAddrV4::new(self.network.silent_address(), M::PORT).to_string()
    }
}
