//! Kills before system calls, by strace.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

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
