use super::super::list::{attachments, set_aside_of};
use super::super::tests::attachment;
use super::super::{AttemptHeader, Failed, LastRun, Run, State};
use super::*;
use tempfile::TempDir;

fn place(temp: &TempDir) -> RecordPlace {
    RecordPlace::below(&temp.path().join("net"), &attachment("container", "eth0"))
}

fn path(temp: &TempDir) -> PathBuf {
    place(temp).path().to_owned()
}

fn attempt() -> Event {
    Event::Attempt(AttemptHeader::default())
}

fn existing(temp: &TempDir) -> Result<Presence<Opened>> {
    RecordFile::open_existing(&place(temp), Duration::ZERO)
}

#[test]
fn what_is_appended_is_read_back() {
    let temp = TempDir::new().unwrap();
    let mut opened = RecordFile::open(&place(&temp)).unwrap();
    let run = Run { delegate: "d".to_owned(), ..Run::default() };
    opened.file.append(&attempt()).unwrap();
    opened.file.append(&Event::Running(run.clone())).unwrap();
    drop(opened);
    let opened = RecordFile::open(&place(&temp)).unwrap();
    assert_eq!(opened.record.runs(), [&run]);
    assert_eq!(fs::metadata(path(&temp)).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(temp.path().join("net")).unwrap().mode() & 0o777, 0o700);
    opened.file.remove().unwrap();
    assert_eq!(fs::read_dir(temp.path().join("net")).unwrap().count(), 0);
    assert!(matches!(existing(&temp).unwrap(), Presence::Absent));
}

#[test]
fn a_line_cut_short_at_any_byte_is_passed_over() {
    let line = write(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
    for cut in 0..line.len() {
        let temp = TempDir::new().unwrap();
        let mut opened = RecordFile::open(&place(&temp)).unwrap();
        opened.file.append(&attempt()).unwrap();
        opened.file.file.write_all(&line.as_bytes()[..cut]).unwrap();
        drop(opened);
        let mut opened = RecordFile::open(&place(&temp)).unwrap();
        assert_eq!(opened.record.state(), State::Unfinished);
        opened.file.append(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
        drop(opened);
        let opened = RecordFile::open(&place(&temp)).unwrap();
        assert_eq!(set_aside_of(&place(&temp)).unwrap(), [] as [PathBuf; 0], "cut at {cut}");
        assert_eq!(opened.record.state(), State::Failed);
    }
}

#[test]
fn a_record_that_cannot_be_read_is_set_aside() {
    let temp = TempDir::new().unwrap();
    fs::create_dir(temp.path().join("net")).unwrap();
    for bytes in [&b"not json\n"[..], b"\xff\xfe\n", b"{\"event\":\"held\"}\n", b"{}\n\n"] {
        fs::write(path(&temp), bytes).unwrap();
        assert!(matches!(existing(&temp).unwrap(), Presence::Unreadable(_)));
        assert_eq!(fs::read(path(&temp)).unwrap(), bytes, "it stays as it is");
        let opened = RecordFile::open(&place(&temp)).unwrap();
        assert_eq!(opened.record, Record::default());
        let aside = set_aside_of(&place(&temp)).unwrap();
        assert_eq!(fs::read(aside.last().unwrap()).unwrap(), bytes);
    }
}

#[test]
fn a_locked_record_is_not_waited_for_by_gc() {
    let temp = TempDir::new().unwrap();
    let held = RecordFile::open(&place(&temp)).unwrap();
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
                for round in 0..100 {
                    let opened = RecordFile::open(&place(&temp)).unwrap();
                    let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert_eq!(others, 0);
                    std::thread::sleep(Duration::from_micros(100));
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    if round % 2 == 0 {
                        make_as_earlier_programs(&temp);
                    }
                    opened.file.remove().unwrap();
                }
            });
        }
    });
}

/// Makes the record in the container's folder, unless another thread removes the folder.
fn make_as_earlier_programs(temp: &TempDir) {
    let folder = temp.path().join("net/container");
    let _ = fs::create_dir_all(&folder);
    let _ = fs::write(folder.join("eth0"), "");
}

#[test]
fn a_long_record_is_compacted_under_its_lock() {
    let temp = TempDir::new().unwrap();
    let mut opened = RecordFile::open(&place(&temp)).unwrap();
    let ipam = serde_json::Map::from_iter([("x".to_owned(), "y".repeat(1000).into())]);
    let run = Run { delegate: "d".to_owned(), ipam, ..Run::default() };
    for _ in 0..100 {
        opened.file.append(&attempt()).unwrap();
        opened.file.append(&Event::Running(run.clone())).unwrap();
        opened.file.append(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
    }
    drop(opened);
    let opened = RecordFile::open(&place(&temp)).unwrap();
    assert!(existing(&temp).is_err());
    assert!(fs::metadata(path(&temp)).unwrap().len() < 4096);
    drop(opened);
    let opened = RecordFile::open(&place(&temp)).unwrap();
    assert_eq!(opened.record.runs(), [&run]);
    assert_eq!(opened.record.state(), State::Failed);
}

#[test]
fn the_record_of_an_earlier_program_is_used_in_its_folder_until_it_is_removed() {
    let temp = TempDir::new().unwrap();
    let folder = temp.path().join("net/container");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("eth0"), write(&attempt()).unwrap()).unwrap();
    let mut opened = RecordFile::open(&place(&temp)).unwrap();
    assert_eq!(opened.record.state(), State::Unfinished);
    opened.file.append(&Event::Failed(Failed::default(), LastRun::MayHold)).unwrap();
    assert_eq!(path(&temp), folder.join("eth0"));
    // Another interface keeps the folder.
    fs::write(folder.join("net1"), "").unwrap();
    opened.file.remove().unwrap();
    assert!(folder.exists());
    RecordFile::open(&place(&temp)).unwrap().file.append(&attempt()).unwrap();
    assert_eq!(path(&temp), temp.path().join("net/container:eth0"));
}

#[test]
fn a_record_whose_name_is_too_long_for_a_file_is_in_a_folder() {
    let temp = TempDir::new().unwrap();
    for (length, in_folder) in [(246, false), (247, true), (255, true)] {
        let attachment = attachment(&"c".repeat(length), "eth0");
        let place = RecordPlace::below(temp.path(), &attachment);
        let mut opened = RecordFile::open(&place).unwrap();
        opened.file.append(&attempt()).unwrap();
        assert_eq!(place.folder().exists(), in_folder, "{length}");
        assert_eq!(attachments(temp.path()).unwrap().len(), 1);
        opened.file.remove().unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
    }
}
