//! What happens to a cluster while it is worked with.

use std::thread::sleep;
use std::time::Duration;

use crate::history::workload::{Progress, Random, now};
use crate::servers::cluster::{Cluster, Member};
use crate::servers::network::Cut;

/// Something that goes wrong for a few seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A member is killed, and started again.
    Killed,
    /// The leader is.
    LeaderKilled,
    /// A member cannot reach the others, though clients can reach it.
    WithoutPeers,
    /// The leader cannot.
    LeaderWithoutPeers,
    /// Nobody can reach a member.
    CutOff,
    /// Nobody can reach the leader.
    LeaderCutOff,
    /// The leader's process is stopped, and goes on as if nothing had been.
    LeaderStopped,
    /// Two members are stopped, so that none can answer.
    MostStopped,
}

/// A time with a fault, until the cluster was whole again.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub fault: Fault,
    pub from: u64,
    pub until: u64,
}

impl Window {
    /// Whether it has a moment in common with this time.
    pub fn meets(&self, from: u64, until: u64) -> bool {
        from < self.until && self.from < until
    }
}

/// Faults that come one after the other, as the work goes on.
pub(super) struct Faults<'a, M> {
    cluster: &'a Cluster<M>,
    seed: u64,
    /// Each comes at least once.
    kinds: &'static [Fault],
    /// One fault to so many operations.
    every: usize,
    /// A fault lasts at least a second, and a random part of this time.
    time: Duration,
}

impl Fault {
    /// One of each kind.
    pub const FEW: &'static [Self] = &[
        Self::Killed,
        Self::LeaderWithoutPeers,
        Self::LeaderCutOff,
        Self::LeaderStopped,
        Self::MostStopped,
    ];

    pub const ALL: &'static [Self] = &[
        Self::Killed,
        Self::LeaderKilled,
        Self::WithoutPeers,
        Self::LeaderWithoutPeers,
        Self::CutOff,
        Self::LeaderCutOff,
        Self::LeaderStopped,
        Self::MostStopped,
    ];

    fn is_of_leader(self) -> bool {
        use Fault::{LeaderCutOff, LeaderKilled, LeaderStopped, LeaderWithoutPeers, MostStopped};
        let of_leader =
            [LeaderKilled, LeaderWithoutPeers, LeaderCutOff, LeaderStopped, MostStopped];
        of_leader.contains(&self)
    }
}

impl<'a, M: Member> Faults<'a, M> {
    pub(super) fn new(
        cluster: &'a Cluster<M>,
        seed: u64,
        kinds: &'static [Fault],
        every: usize,
        time: Duration,
    ) -> Self {
        Self { cluster, seed, kinds, every, time }
    }

    /// Lets faults come until the work is done and each has come.
    pub(super) fn run(&self, progress: &Progress) -> Vec<Window> {
        let mut random = Random(self.seed ^ 0x5bf0_3635);
        let (mut windows, mut next) = (Vec::new(), self.every / 2);
        let mut turns: Vec<Fault> = Vec::new();
        let goes_on = |windows: &[Window]| {
            let enough = progress.begun() >= progress.operations();
            !progress.is_over() && (!enough || windows.len() < self.kinds.len())
        };
        while goes_on(&windows) {
            if progress.begun() < next {
                sleep(Duration::from_millis(10));
                continue;
            }
            if turns.is_empty() {
                turns = self.kinds.to_vec();
            }
            let fault = turns.swap_remove(random.below(turns.len() as u64) as usize);
            windows.push(self.cause(fault, &mut random));
            next = (next + self.every).max(progress.begun());
        }
        windows
    }

    fn cause(&self, fault: Fault, random: &mut Random) -> Window {
        let cluster = self.cluster;
        let count = cluster.members().len();
        let chosen = random.below(count as u64) as usize;
        let number = if fault.is_of_leader() { cluster.leader() } else { chosen };
        let (member, other) = (cluster.member(number), cluster.member((number + 1) % count));
        let more = Duration::from_millis(random.below(self.time.as_millis() as u64));
        let time = Duration::from_secs(1) + more;
        let from = now();
        match fault {
            Fault::Killed | Fault::LeaderKilled => {
                member.kill();
                sleep(time);
                member.restart();
            }
            Fault::WithoutPeers | Fault::LeaderWithoutPeers => self.cut(number, Cut::Peers, time),
            Fault::CutOff | Fault::LeaderCutOff => self.cut(number, Cut::All, time),
            Fault::LeaderStopped => {
                member.stop();
                sleep(time);
                member.cont();
            }
            Fault::MostStopped => {
                member.stop();
                other.stop();
                sleep(time * 2);
                other.cont();
                member.cont();
            }
        }
        cluster.members().iter().for_each(|member| member.until_ready());
        Window { fault, from, until: now() }
    }

    fn cut(&self, member: usize, cut: Cut, time: Duration) {
        self.cluster.partition(member, cut);
        sleep(time);
        self.cluster.heal(member);
    }
}
