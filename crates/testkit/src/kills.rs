//! Kills before system calls, by strace, and what must follow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::world::World;

/// The system calls that change files, as strace selects them.
pub const CALLS: &str = "?open,openat,write,pwrite64,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,\
                         mkdirat,rmdir,ftruncate,fsync,fchmod,utimensat,flock";

/// strace, which must be there.
pub fn strace() -> PathBuf {
    let path = PathBuf::from("/usr/bin/strace");
    assert!(path.exists(), "strace is missing: apt-get install strace");
    path
}

/// The calls of a log that change something: each name with the numbers strace counts them by.
pub fn changing_calls(log: &str) -> BTreeSet<(String, usize)> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in log.lines() {
        let (pid, line) = match line.split_once(' ') {
            Some((pid, rest)) if pid.parse::<u32>().is_ok() => (pid, rest.trim_start()),
            _ => ("", line),
        };
        let Some((call, arguments)) = line.split_once('(') else { continue };
        if !CALLS.split(',').any(|known| known.trim_start_matches('?') == call) {
            continue;
        }
        // Each thread is counted for itself.
        let count = counts.entry((pid.to_owned(), call.to_owned())).or_default();
        *count += 1;
        let writes = ["O_CREAT", "O_TRUNC", "O_WRONLY", "O_RDWR", "O_TMPFILE"];
        let only_reads = call.starts_with("open") && !writes.iter().any(|f| arguments.contains(f));
        if !only_reads {
            found.insert((call.to_owned(), *count));
        }
    }
    found
}

/// A DEL of an attachment by its record alone: the configuration has neither delegates nor settings
/// of theirs.
///
/// # Errors
/// It fails though the record names a delegate that may hold something.
pub fn del_by_the_record(world: &World, container: &str, network: &Value) -> Result<(), String> {
    let kept = ["type", "stateDir"];
    let mut bare = network.clone();
    bare["ipam"].as_object_mut().unwrap().retain(|key, _| kept.contains(&key.as_str()));
    let is_owed = names_a_debt(world, container);
    let outcome = world.call("DEL", container, &bare);
    let may_fail = !is_owed && outcome.stdout.contains("ipam.delegates: missing");
    if may_fail || outcome.exit == Some(0) {
        return Ok(());
    }
    Err(format!("DEL by the record: {outcome:?}"))
}

/// Whether the record names a delegate whose claim was not undone. Its last line may be torn.
fn names_a_debt(world: &World, container: &str) -> bool {
    let record = fs::read_to_string(world.record(container)).unwrap_or_default();
    let (whole, _) = record.rsplit_once('\n').unwrap_or_default();
    let last = whole.lines().last().map(serde_json::from_str::<Value>);
    let last = last.transpose().unwrap().unwrap_or_default();
    let is_undone = last["event"] == "failed" && last["unsure"] != true;
    whole.contains("\"event\":\"running\"") && !is_undone
}
