//! The process that holds the lock of a record.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ipam_kit::host::read_regular;

/// Describes the process that works on a record, such as `process 4711 (ipam-delegated) works on
/// it`. The kernel names no process if the one that took the lock has ended.
pub(super) fn describe_holder(record: &Path) -> String {
    match find_holder(record) {
        None => "a call works on it".to_owned(),
        Some(process) => {
            let name = read(&format!("/proc/{process}/comm")).unwrap_or_default();
            format!("process {process} ({}) works on it", name.trim_end())
        }
    }
}

/// Finds a process that has locked a file by `flock`, and has the file open.
fn find_holder(file: &Path) -> Option<u32> {
    let wanted = fs::metadata(file).ok()?;
    let locks = read("/proc/locks")?;
    let holders = locks.lines().filter_map(|line| parse_lock(line, wanted.ino()));
    holders.into_iter().find(|process| {
        // The table names devices as the kernel does, which is not always the file's device.
        let files = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        files
            .filter_map(|open| fs::metadata(open.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()))
    })
}

fn read(file: &str) -> Option<String> {
    let bytes = read_regular(Path::new(file)).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads the process of a line such as `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`; `None`
/// for the lock of another file, or for a process that waits.
fn parse_lock(line: &str, inode: u64) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, _, process, file, ..] = fields[..] else { return None };
    let (_, locked) = file.rsplit_once(':')?;
    if locked.parse() != Ok(inode) {
        return None;
    }
    process.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_lock_is_found() {
        let temp = tempfile::TempDir::new().unwrap();
        let path = temp.path().join("record");
        let file = fs::File::create(&path).unwrap();
        assert_eq!(find_holder(&path), None);
        file.lock().unwrap();
        assert_eq!(find_holder(&path), Some(std::process::id()));
        assert!(describe_holder(&path).ends_with(") works on it"));
    }

    #[test]
    fn locks_of_other_files_and_waiting_processes_are_skipped() {
        let line = |text: &str| parse_lock(text, 77);
        assert_eq!(line("1: FLOCK  ADVISORY  WRITE 4711 fe:00:77 0 EOF"), Some(4711));
        assert_eq!(line("1: FLOCK  ADVISORY  WRITE 4711 fe:00:78 0 EOF"), None);
        assert_eq!(line("1: -> FLOCK  ADVISORY  WRITE 4712 fe:00:77 0 EOF"), None);
        assert_eq!(line("2: POSIX  ADVISORY  WRITE 4711 fe:00:77 0 EOF"), None);
        assert_eq!(line("1: FLOCK  ADVISORY  WRITE -1 fe:00:77 0 EOF"), None);
    }
}
