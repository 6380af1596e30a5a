//! What is left of a cluster once its test has ended: of any kind.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::servers::cluster::{Cluster, Member};
use crate::world::until;

/// All that a cluster is on this machine: its processes and folders, namespaces and links.
pub fn traces(cluster: &Cluster<impl Member>) -> Vec<PathBuf> {
    let members = cluster.members().iter();
    let mut traces: Vec<PathBuf> = members
        .flat_map(|member| [format!("/proc/{}", member.pid().unwrap()).into(), member.folder()])
        .collect();
    let network = cluster.network();
    traces.extend(network.namespaces().iter().map(|name| Path::new("/run/netns").join(name)));
    traces.push(Path::new("/sys/class/net").join(network.link()));
    assert!(traces.iter().all(|trace| trace.exists()), "{traces:?}");
    traces
}

/// A test of this name is its own child: the child starts a cluster of three and is killed.
#[track_caller]
pub fn assert_nothing_is_left_of_a_killed_test<M: Member>(
    name: &str,
    start: impl FnOnce(u8) -> Cluster<M>,
) {
    const CHILD: &str = "IPAM_DELEGATED_TEST_IS_CHILD";
    let child = |role: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name]).env(CHILD, role);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    if let Some(role) = std::env::var_os(CHILD) {
        let cluster = start(3);
        let mut stdout = std::io::stdout();
        for trace in traces(&cluster) {
            writeln!(stdout, "trace {}", trace.display()).unwrap();
        }
        writeln!(stdout, "that is all").unwrap();
        if role == "killed" {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        return;
    }
    let mut killed = child("killed");
    let lines = BufReader::new(killed.stdout.take().unwrap()).lines().map(Result::unwrap);
    let lines = lines.take_while(|line| line != "that is all");
    let traces: Vec<PathBuf> =
        lines.filter_map(|line| Some(line.strip_prefix("trace ")?.into())).collect();
    assert!(traces.iter().filter(|trace| trace.starts_with("/proc")).count() == 3, "{traces:?}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    until("its servers have ended", || {
        !traces.iter().any(|trace| trace.starts_with("/proc") && trace.exists())
    });
    assert!(child("next").wait_with_output().unwrap().status.success());
    let left: Vec<_> = traces.iter().filter(|trace| trace.exists()).collect();
    assert!(left.is_empty(), "{left:?}");
}
