//! The index in the state folder: whatever becomes of it, the lease files are the truth. And with
//! it the cost of a call does not grow with the number of leases.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use ipam_testkit::inodes::made_by_call;
use ipam_testkit::kills::strace;
use ipam_testkit::world::{Outcome, start, wait};
use serde_json::Value;

use common::{C1, Place, Program, owned_by};

const SUBNET: &str = "10.5.0.0/24";

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// The owner gets its address, no other owner gets it, and it can be released.
#[track_caller]
fn all_is_well(place: &Place, program: Program, owner: &str, address: &str) {
    assert_eq!(place.add(program, owner), [address]);
    let other = place.add(program, "newcomer");
    assert_ne!(other, [address]);
    place.del(program, "newcomer");
    place.del(program, owner);
    assert!(!place.leases().contains_key(address));
}

#[test]
fn a_lost_index_is_made_again() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        for container in ["a", C1] {
            place.add(program, container);
        }
        fs::remove_dir_all(place.world.path("state/local")).unwrap();
        all_is_well(&place, program, C1, "10.5.0.3");
        place.del(program, "a");
        assert!(place.leases().is_empty(), "{program:?}");
    }
}

#[test]
fn a_lost_state_folder_loses_no_lease() {
    for program in Program::OURS {
        let place = Place::new(&[SUBNET]);
        for container in ["a", C1] {
            place.add(program, container);
        }
        fs::remove_dir_all(place.world.path("state")).unwrap();
        // Without a record the configuration says where the lease is.
        place.del(program, "a");
        all_is_well(&place, program, C1, "10.5.0.3");
        assert!(place.leases().is_empty(), "{program:?}");
    }
}

#[test]
fn a_damaged_index_is_made_again() {
    let damages: [fn(&mut Vec<u8>); 6] = [
        |index| index.clear(),
        |index| index.truncate(5000),
        |index| index[0] = b'x',
        |index| index[0] = b'\n',
        |index| index.extend([0; 1024 * SLOT]),
        |index| set_word(index, 2, &i64::MIN.to_string()),
    ];
    for damage in damages {
        let place = Place::new(&[SUBNET]);
        place.add(Program::Allocator, C1);
        change_index(&place, damage);
        all_is_well(&place, Program::Allocator, C1, "10.5.0.2");
    }
}

#[test]
fn an_index_of_an_earlier_boot_is_made_again() {
    let place = Place::new(&[SUBNET]);
    place.add(Program::Allocator, C1);
    // A loss of power kept the stamp and lost the slot; the clock is as it was.
    change_index(&place, |index| {
        set_word(index, 3, "another-boot");
        index[HEADER..].fill(0);
    });
    all_is_well(&place, Program::Allocator, C1, "10.5.0.2");
}

#[test]
fn a_del_releases_a_recorded_lease_that_the_index_lacks() {
    let place = Place::new(&[SUBNET]);
    let result = place.call(Program::Allocator, "ADD", C1).success();
    place.add(Program::Allocator, "a");
    change_index(&place, |index| index[HEADER..].fill(0));
    let mut network = place.network(Program::Allocator);
    network["prevResult"]["leases"] = result["leases"].clone();
    let outcome = place.call_with(Program::Allocator, "DEL", C1, &network);
    assert!(outcome.stderr.contains("the index lacks"), "{outcome:?}");
    outcome.success();
    assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.5.0.3"]);
    // The index of the others is made again.
    all_is_well(&place, Program::Allocator, "a", "10.5.0.3");
}

#[test]
fn an_owner_of_very_many_leases_costs_the_others_nothing() {
    let place = Place::new(&["10.5.0.0/16"]);
    place.add(Program::Allocator, C1);
    let (before, _) = cost(&place, "ADD", C1);
    for number in 0..100 {
        place.put(&Ipv4Addr::new(10, 5, 1, number).to_string(), "reserved");
    }
    assert_eq!(place.add(Program::Allocator, C1), ["10.5.0.2"]);
    let (after, _) = cost(&place, "ADD", C1);
    assert!(after <= before + 8, "{before} system calls before, {after} after");
    let (code, text) = place.call(Program::Allocator, "ADD", "reserved").failure();
    assert!(code == 102 && text.contains("names no interface"), "{text}");
    place.del(Program::Allocator, "reserved");
    assert_eq!(place.leases().into_keys().collect::<Vec<_>>(), ["10.5.0.2"]);
}

#[test]
fn the_index_of_an_earlier_release_is_replaced_and_after_a_downgrade_again() {
    let place = Place::new(&[SUBNET]);
    place.add(Program::Allocator, C1);
    let [owners, stamp] = ["owners", "stamp"].map(|name| folder(&place).join(name));
    fs::create_dir(&owners).unwrap();
    std::os::unix::fs::symlink("10.5.0.9", owners.join("c1:eth0")).unwrap();
    fs::write(&stamp, "123456789 1 1 \n").unwrap();
    // An earlier release gives the folder the time of change of its own stamp.
    place.put("10.5.0.7", owned_by("a"));
    let leases = fs::File::open(place.world.path("data/net")).unwrap();
    leases.set_modified(UNIX_EPOCH + Duration::from_secs(123_456_789)).unwrap();
    assert_eq!(place.add(Program::Allocator, "a"), ["10.5.0.7"]);
    assert!(!owners.exists() && !stamp.exists());
    all_is_well(&place, Program::Allocator, C1, "10.5.0.2");
}

#[test]
fn an_index_grows_with_the_leases() {
    let place = Place::new(&["10.5.0.0/16"]);
    place.add(Program::Allocator, C1);
    let size = || fs::metadata(folder(&place).join("index")).unwrap().len();
    let before = size();
    for number in 0..2000 {
        let address = Ipv4Addr::new(10, 5, 1 + (number / 250) as u8, (number % 250) as u8);
        place.put(&address.to_string(), owned_by(&format!("other{number}")));
    }
    for _ in 0..2 {
        assert_eq!(place.add(Program::Allocator, "other3"), ["10.5.1.3"]);
        assert_eq!(place.add(Program::Allocator, C1), ["10.5.0.2"]);
    }
    assert!(size() > before);
}

/// The bytes before the slots of an index, and those of a slot.
const HEADER: usize = 4096;
const SLOT: usize = 128;

/// Changes the bytes of the index.
fn change_index(place: &Place, change: impl FnOnce(&mut Vec<u8>)) {
    let path = folder(place).join("index");
    let mut index = fs::read(&path).unwrap();
    change(&mut index);
    fs::write(&path, index).unwrap();
}

/// Changes a word of the stamp.
fn set_word(index: &mut [u8], number: usize, word: &str) {
    let header = String::from_utf8(index[..HEADER].to_vec()).unwrap();
    let (line, _) = header.split_once('\n').unwrap();
    let mut words: Vec<&str> = line.split(' ').collect();
    words[number] = word;
    let line = words.join(" ") + "\n";
    index[..line.len()].copy_from_slice(line.as_bytes());
}

/// The folder of the index.
fn folder(place: &Place) -> PathBuf {
    let index = place.world.path("state/local/net");
    index.join(&ipam_testkit::world::names(&index)[0])
}

#[test]
fn a_state_folder_from_an_old_copy_loses_no_lease() {
    let place = Place::new(&[SUBNET]);
    let program = Program::Allocator;
    place.add(program, "a");
    place.add(program, C1);
    copy(&place.world.path("state"), &place.world.path("copy"));
    // 10.5.0.2 goes from a to b, and a gets another one.
    place.del(program, "a");
    place.put("last_reserved_ip.0", "10.5.0.1");
    assert_eq!(place.add(program, "b"), ["10.5.0.2"]);
    assert_eq!(place.add(program, "a"), ["10.5.0.4"]);
    let before = place.leases();
    fs::remove_dir_all(place.world.path("state")).unwrap();
    copy(&place.world.path("copy"), &place.world.path("state"));
    assert_eq!(place.add(program, "b"), ["10.5.0.2"]);
    assert_eq!(place.add(program, "a"), ["10.5.0.4"]);
    assert_eq!(place.leases(), before);
    for container in ["a", "b", C1] {
        place.del(program, container);
    }
    assert!(place.leases().is_empty(), "{:?}", place.leases());
}

#[test]
fn two_state_folders_in_turn_work_on_the_same_leases() {
    let mut place = Place::new(&[SUBNET]);
    let program = Program::Allocator;
    let states = ["state", "state2"].map(|name| place.world.path(name));
    for round in 0..6 {
        for (number, state) in states.iter().enumerate() {
            place.ipam = serde_json::json!({"stateDir": state});
            let own = format!("own{number}");
            let mine = place.add(program, &own);
            // The one that the other folder's calls took.
            let other = format!("own{}", 1 - number);
            if round > 0 || number > 0 {
                let theirs = place.add(program, &other);
                assert_ne!(mine, theirs);
                place.del(program, &other);
            }
            assert_eq!(place.leases().len(), 1, "{:?}", place.leases());
        }
    }
}

#[test]
fn what_others_add_and_remove_is_seen_at_once() {
    let place = Place::new(&[SUBNET]);
    let program = Program::Allocator;
    assert_eq!(place.add(program, C1), ["10.5.0.2"]);
    place.call(Program::HostLocal, "ADD", "theirs").success();
    assert_eq!(place.add(program, "theirs"), ["10.5.0.3"]);
    place.del(Program::HostLocal, C1);
    assert_eq!(place.add(program, C1), ["10.5.0.4"]);
    // One that is named otherwise, beside the plain one.
    let place = Place::new(&["fd05::/64"]);
    place.put("FD05::9", owned_by("a"));
    assert_eq!(place.add(program, "a"), ["fd05::9"]);
    place.put("fd05::9", owned_by("b"));
    assert_eq!(place.add(program, "b"), ["fd05::9"]);
}

#[test]
fn an_owner_that_lost_its_address_by_takeover_is_not_indexed_any_more() {
    let place = Place::new(&[SUBNET]);
    let program = Program::Allocator;
    place.add(program, "a");
    let mut asking = place.network(program);
    asking["ipam"]["takeover"] = true.into();
    asking["prevResult"]["pools"][0]["requested-ip"] = "10.5.0.2".into();
    let taken = place.call_with(program, "ADD", "b", &asking).ips();
    assert_eq!(taken, ["10.5.0.2/24"]);
    let index = fs::read(folder(&place).join("index")).unwrap();
    let index = String::from_utf8(index).unwrap();
    assert!(index.contains("b:eth0 10.5.0.2") && !index.contains("a:eth0"));
    place.del(program, "a");
    all_is_well(&place, program, "b", "10.5.0.2");
}

#[test]
fn the_index_is_readable_by_root_alone() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new(&[SUBNET]);
    fs::remove_dir(place.world.path("state")).unwrap();
    place.add(Program::Allocator, C1);
    let mut folder = place.world.path("state/local/net");
    folder.push(&ipam_testkit::world::names(&folder)[0]);
    while folder.starts_with(place.world.path("state")) {
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", folder.display());
        folder.pop();
    }
}

#[test]
fn an_add_makes_one_inode_and_a_repeated_one_none() {
    let in_memory = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let mut place = Place::new(&[SUBNET]);
    // The leases and the index may be on different file systems.
    for state in [in_memory.path().to_owned(), place.world.path("state")] {
        place.ipam = serde_json::json!({"stateDir": state});
        place.add(Program::Allocator, "a");
        let made = || {
            let network = place.network(Program::Allocator);
            let program = place.file(Program::Allocator);
            made_by_call(&place.world, &[in_memory.path()], &program, "ADD", C1, &network)
        };
        // The lease, without a name at first.
        let lease = place.folder();
        assert_eq!(made(), [&*lease]);
        assert_eq!(made(), [] as [PathBuf; 0]);
        place.del(Program::Allocator, C1);
        assert_eq!(made(), [&*lease]);
        place.del(Program::Allocator, C1);
    }
}

/// How many system calls a call makes.
fn cost(place: &Place, verb: &str, container: &str) -> (usize, Outcome) {
    let log = place.world.path("log");
    let mut command = place.world.command_of(&strace(), verb, container);
    command.arg("-f").arg("-o").arg(&log).arg(place.file(Program::Allocator));
    let outcome = wait(start(command, &place.network(Program::Allocator)));
    let text = fs::read_to_string(log).unwrap();
    (text.lines().count(), outcome)
}

/// The costs of an ADD, a second ADD, CHECK and DEL where so many leases are held.
fn costs(leases: u32) -> [usize; 4] {
    let place = Place::new(&["10.5.0.0/16"]);
    let first = u32::from(Ipv4Addr::new(10, 5, 0, 2));
    for number in 0..leases {
        let address = Ipv4Addr::from(first + number);
        place.put(&address.to_string(), owned_by(&format!("other{number}")));
    }
    let last = Ipv4Addr::from(first + leases - 1);
    place.put("last_reserved_ip.0", last.to_string());
    // A first look reads all.
    let result = place.call(Program::Allocator, "ADD", "first").success();
    let step = |verb: &str, prev_result: &Value| {
        let (cost, outcome) = cost(&place, verb, C1);
        if verb == "ADD" {
            assert_eq!(outcome.ips().len(), 1, "{prev_result}");
        } else {
            outcome.success();
        }
        cost
    };
    let add = step("ADD", &result);
    let again = step("ADD", &result);
    let check = step("CHECK", &result);
    let del = step("DEL", &result);
    assert_eq!(place.leases().len(), leases as usize + 1);
    [add, again, check, del]
}

#[test]
fn the_cost_of_a_call_does_not_grow_with_the_number_of_leases() {
    let (few, many) = (costs(10), costs(5000));
    for (few, many) in few.into_iter().zip(many) {
        assert!(few > 20, "nothing was counted");
        // A time zone, a heap that grows: not one call for each lease.
        assert!(many <= few + 8, "{few} system calls with 10 leases, {many} with 5000");
    }
}
