//! Many processes at once, host-local's among them: every address has one holder.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::sync::Mutex;
use std::time::Duration;

use ipam_testkit::world::{start, wait};

use common::{LONG, Place, Program, owned_by, plain, set_age, until_open};

/// Runs a function in so many threads, each with its number.
fn at_once(threads: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..threads {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}

#[test]
fn two_hundred_processes_at_once_get_two_hundred_addresses() {
    for program in [Program::Allocator, Program::Chain] {
        let place = Place::new(&["10.5.0.0/24"]);
        let network = place.network(program);
        let calls: Vec<_> = (0..200)
            .map(|n| start(place.command(program, "ADD", &format!("c{n}")), &network))
            .collect();
        let given: Vec<String> =
            calls.into_iter().flat_map(|call| plain(wait(call).ips())).collect();
        let distinct: BTreeSet<_> = given.iter().collect();
        assert_eq!((given.len(), distinct.len()), (200, 200), "{program:?}");
        for (n, address) in given.iter().enumerate() {
            assert_eq!(place.leases()[address], owned_by(&format!("c{n}")), "{program:?}");
        }
        let calls: Vec<_> = (0..200)
            .map(|n| start(place.command(program, "DEL", &format!("c{n}")), &network))
            .collect();
        calls.into_iter().for_each(|call| assert!(wait(call).success().is_null()));
        assert!(place.leases().is_empty(), "{program:?}: {:?}", place.leases());
    }
}

#[test]
fn the_last_address_goes_to_one_of_many() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/30"]);
        let network = place.network(program);
        let calls: Vec<_> = (0..16)
            .map(|n| start(place.command(program, "ADD", &format!("c{n}")), &network))
            .collect();
        let outcomes: Vec<_> = calls.into_iter().map(wait).collect();
        let won = outcomes.iter().filter(|outcome| outcome.exit == Some(0)).count();
        assert_eq!(won, 1, "{program:?}: {outcomes:?}");
        for outcome in outcomes.into_iter().filter(|outcome| outcome.exit != Some(0)) {
            assert_eq!(outcome.failure().0, 100);
        }
        assert_eq!(place.leases().len(), 1, "{program:?}");
    }
}

#[test]
fn calls_of_one_owner_at_once_agree_on_its_address() {
    for program in Program::OURS {
        let place = Place::new(&["10.5.0.0/24", "fd05::/64"]);
        let network = place.network(program);
        let calls: Vec<_> =
            (0..10).map(|_| start(place.command(program, "ADD", "c1"), &network)).collect();
        let given: BTreeSet<_> = calls.into_iter().map(|call| wait(call).ips()).collect();
        assert_eq!(given.len(), 1, "{program:?}: {given:?}");
        assert_eq!(place.leases().len(), 2, "{program:?}");
    }
}

#[test]
fn twenty_workers_of_every_program_never_share_an_address() {
    const WORKERS: usize = 20;
    const ROUNDS: usize = 12;
    let place = Place::new(&["10.5.0.0/23"]);
    let all = Mutex::new(Vec::new());
    at_once(WORKERS, |worker| {
        let program = Program::ALL[worker % Program::ALL.len()];
        for round in 0..ROUNDS {
            let address = place.add(program, &format!("w{worker}-{round}")).remove(0);
            all.lock().unwrap().push(address);
        }
    });
    let all = all.into_inner().unwrap();
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), distinct.len()), (WORKERS * ROUNDS, WORKERS * ROUNDS));
    assert_eq!(place.leases().len(), WORKERS * ROUNDS);
    // Each releases what another program gave. Ours read the folder anew after each of theirs.
    at_once(WORKERS, |worker| {
        let program = Program::ALL[(worker + 1) % Program::ALL.len()];
        for round in 0..ROUNDS {
            place.call(program, "DEL", &format!("w{worker}-{round}")).success();
        }
    });
    assert!(place.leases().is_empty(), "{:?}", place.leases());
}

#[test]
fn gc_leaves_a_lease_that_was_confirmed_or_given_anew_while_it_waited() {
    let place = Place::new(&["10.5.0.0/24"]);
    place.add(Program::Allocator, "young");
    let stale = ["10.5.0.10", "10.5.0.11", "10.5.0.12"];
    let paths = stale.map(|name| place.put(name, owned_by("stale")));
    paths.iter().for_each(|path| set_age(path, LONG));
    let lock = place.folder().join("lock");
    let held = File::open(&lock).unwrap();
    held.lock().unwrap();
    let mut network = place.network(Program::Allocator);
    network["cniVersion"] = "1.1.0".into();
    network["cni.dev/valid-attachments"] = serde_json::json!([]);
    let gc = start(place.command(Program::Allocator, "GC", ""), &network);
    // What it has found stale it waits for the lock to remove.
    until_open(&place.world, &lock, 1);
    set_age(&paths[0], Duration::ZERO);
    fs::write(place.folder().join("new"), owned_by("other")).unwrap();
    set_age(&place.folder().join("new"), LONG * 2);
    fs::rename(place.folder().join("new"), &paths[1]).unwrap();
    drop(held);
    wait(gc).success();
    let left: Vec<_> = place.leases().into_keys().collect();
    assert_eq!(left, ["10.5.0.10", "10.5.0.11", "10.5.0.2"]);
}
