use super::super::list::set_aside_of;
use super::super::{AttemptHeader, Failed, LastRun, Run, State};
use super::*;
use tempfile::TempDir;

fn path(temp: &TempDir) -> PathBuf {
    temp.path().join("net/container/eth0")
}

fn attempt() -> Event {
    Event::Attempt(AttemptHeader::default())
}

fn existing(temp: &TempDir) -> Result<Presence<Opened>> {
    RecordFile::open_existing(&path(temp), Duration::ZERO)
}

#[test]
fn what_is_appended_is_read_back() {
    let temp = TempDir::new().unwrap();
    let mut opened = RecordFile::open(&path(&temp)).unwrap();
    let run = Run { delegate: "d".to_owned(), ..Run::default() };
    opened.file.append(&attempt()).unwrap();
    opened.file.append(&Event::Running(run.clone())).unwrap();
    drop(opened);
    let opened = RecordFile::open(&path(&temp)).unwrap();
    assert_eq!(opened.record.runs(), [&run]);
    assert_eq!(fs::metadata(path(&temp)).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(temp.path().join("net")).unwrap().mode() & 0o777, 0o700);
    opened.file.remove().unwrap();
    assert!(!temp.path().join("net/container").exists());
    assert!(matches!(existing(&temp).unwrap(), Presence::Absent));
}

#[test]
fn a_line_cut_short_at_any_byte_is_passed_over() {
    let line = write(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
    for cut in 0..line.len() {
        let temp = TempDir::new().unwrap();
        let mut opened = RecordFile::open(&path(&temp)).unwrap();
        opened.file.append(&attempt()).unwrap();
        opened.file.file.write_all(&line.as_bytes()[..cut]).unwrap();
        drop(opened);
        let mut opened = RecordFile::open(&path(&temp)).unwrap();
        assert_eq!(opened.record.state(), State::Unfinished);
        opened.file.append(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
        drop(opened);
        let opened = RecordFile::open(&path(&temp)).unwrap();
        assert_eq!(set_aside_of(&path(&temp)).unwrap(), [] as [PathBuf; 0], "cut at {cut}");
        assert_eq!(opened.record.state(), State::Failed);
    }
}

#[test]
fn a_record_that_cannot_be_read_is_set_aside() {
    let temp = TempDir::new().unwrap();
    fs::create_dir_all(temp.path().join("net/container")).unwrap();
    for bytes in [&b"not json\n"[..], b"\xff\xfe\n", b"{\"event\":\"held\"}\n", b"{}\n\n"] {
        fs::write(path(&temp), bytes).unwrap();
        assert!(matches!(existing(&temp).unwrap(), Presence::Unreadable(_)));
        assert_eq!(fs::read(path(&temp)).unwrap(), bytes, "it stays as it is");
        let opened = RecordFile::open(&path(&temp)).unwrap();
        assert_eq!(opened.record, Record::default());
        let aside = set_aside_of(&path(&temp)).unwrap();
        assert_eq!(fs::read(aside.last().unwrap()).unwrap(), bytes);
    }
}

#[test]
fn a_locked_record_is_not_waited_for_by_gc() {
    let temp = TempDir::new().unwrap();
    let held = RecordFile::open(&path(&temp)).unwrap();
    assert_eq!(existing(&temp).unwrap_err().code(), ErrorCode::TRY_AGAIN);
    drop(held);
    assert!(matches!(existing(&temp).unwrap(), Presence::Held(_)));
}

#[test]
fn removal_does_not_split_the_lock() {
    let temp = TempDir::new().unwrap();
    let inside = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let opened = RecordFile::open(&path(&temp)).unwrap();
                    let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(others, 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    opened.file.remove().unwrap();
                }
            });
        }
    });
}

#[test]
fn a_long_record_is_compacted_under_its_lock() {
    let temp = TempDir::new().unwrap();
    let mut opened = RecordFile::open(&path(&temp)).unwrap();
    let ipam = serde_json::Map::from_iter([("x".to_owned(), "y".repeat(1000).into())]);
    let run = Run { delegate: "d".to_owned(), ipam, ..Run::default() };
    for _ in 0..100 {
        opened.file.append(&attempt()).unwrap();
        opened.file.append(&Event::Running(run.clone())).unwrap();
        opened.file.append(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
    }
    drop(opened);
    let opened = RecordFile::open(&path(&temp)).unwrap();
    assert!(existing(&temp).is_err());
    assert!(fs::metadata(path(&temp)).unwrap().len() < 4096);
    drop(opened);
    let opened = RecordFile::open(&path(&temp)).unwrap();
    assert_eq!(opened.record.runs(), [&run]);
    assert_eq!(opened.record.state(), State::Failed);
}
