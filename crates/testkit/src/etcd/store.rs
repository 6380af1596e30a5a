//! What happens to stores: they run full, and come back from a snapshot.

use std::path::PathBuf;

use tempfile::TempDir;

use super::client::succeeded;
use super::programs;
use super::server::Etcd;
use crate::servers::process;

/// What [`Etcd::fill`] writes.
const FILLING: &str = "filling/";

/// A store as it was at one time.
pub struct Snapshot {
    folder: TempDir,
}

/// Whether a restored store is of the same cluster. A client may be told by the id that it talks to
/// another store; a restore with the old token tells it nothing but a lower revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterId {
    Kept,
    Other,
}

impl Snapshot {
    fn file(&self) -> PathBuf {
        self.folder.path().join("snapshot")
    }
}

impl Etcd {
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = Snapshot { folder: process::folder() };
        self.etcdctl(&["snapshot", "save", snapshot.file().to_str().unwrap()]);
        snapshot
    }

    /// Kills it and starts it again on the same ports with the store of a snapshot. A server alone
    /// only: of a cluster, every member would have to be restored.
    #[track_caller]
    pub fn restore(&self, snapshot: &Snapshot, id: ClusterId) {
        assert!(self.ports.cluster.is_none(), "{} is a member of a cluster", self.name());
        self.kill();
        let data = process::unique();
        {
            let mut state = self.state();
            if id == ClusterId::Other {
                // The id is made of the token and the peers' addresses.
                state.token = process::unique();
            }
            let mut command = process::plain(programs::restorer());
            command.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(snapshot.file());
            command.arg("--data-dir").arg(self.path(&data)).args(["--name", self.name()]);
            command.args(["--initial-cluster", &self.members()]);
            command.args(["--initial-cluster-token", &state.token]);
            let peer = format!("http://{}", self.ports.peer);
            command.args(["--initial-advertise-peer-urls", &peer]);
            succeeded(&["snapshot", "restore"], command.output().unwrap());
            std::fs::remove_dir_all(self.path(&state.data)).unwrap();
            state.data = data;
        }
        self.restart();
    }

    /// Writes until the quota is exceeded and the alarm NOSPACE is raised: then it refuses every
    /// write. Needs [`super::Builder::quota`].
    #[track_caller]
    pub fn fill(&self) {
        let piece = "x".repeat(512 << 10);
        for number in 0..1000 {
            let output = self.try_put(&format!("{FILLING}{number}"), &piece);
            if !output.status.success() {
                assert!(self.alarms().contains("NOSPACE"), "{output:?}");
                return;
            }
        }
        panic!("it took 500 MiB: no quota is set");
    }

    /// Makes room in a store that [`Etcd::fill`] has filled, and ends the alarm.
    #[track_caller]
    pub fn make_room(&self) {
        self.etcdctl(&["del", "--prefix", FILLING]);
        self.etcdctl(&["compact", &self.revision().to_string()]);
        self.etcdctl(&["defrag"]);
        self.etcdctl(&["alarm", "disarm"]);
    }

    /// The alarms that are raised, as etcdctl lists them.
    #[track_caller]
    pub fn alarms(&self) -> String {
        self.etcdctl(&["alarm", "list"])
    }
}
