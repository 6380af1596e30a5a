//! What others change between the requests of a call.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ipam_testkit::node::{addresses, given};
use ipam_testkit::whereabouts::RESERVATIONS;
use ipam_testkit::world::{start, wait};
use serde_json::json;

use crate::common::end_turns;
use crate::common::relay::Fate;
use crate::common::sticky::{StickySandbox, sticky_desk};

/// Repeats an ADD, while a DEL of the same container comes before its request of this number.
/// Returns whether the ADD has had the request.
fn repeat_amid_del(number: usize, keep: &str, has_record: bool) -> bool {
    let told = format!("request {number}, keep {keep}, a record: {has_record}");
    let desk = sticky_desk();
    let [node, other] = ["node-1", "node-2"].map(|name| desk.sticky_node(name, "web", keep));
    end_turns(&node.world.path("state"));
    let [uid, other_uid] = ["a", "b"].map(|name| desk.create_pod(name, ""));
    let pod = StickySandbox::of_pod(&desk, &node, "c1", "a", &uid);
    let next = StickySandbox::of_pod(&desk, &other, "c2", "b", &other_uid);
    let known = given(&pod.add());
    let relay = desk.relayed();
    let mut network = node.network();
    if has_record {
        network["prevResult"]["leases"] = known["leases"].clone();
        network["prevResult"]["ips"] = known["ips"].clone();
    }
    let del = Mutex::new(Some((pod.command("DEL"), network)));
    let (count, came) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let its = came.clone();
    relay.decide(move |_| {
        let is_now = count.fetch_add(1, Ordering::SeqCst) == number;
        let del = del.lock().unwrap().take_if(|_| is_now);
        if let Some((command, network)) = del {
            wait(start(command, &network)).ended_well();
            its.store(true, Ordering::SeqCst);
        }
        Fate::Pass
    });
    let given = addresses(&pod.add());
    relay.pass();
    // The ADD has ended last.
    let holder = desk.sticky("web").unwrap()["spec"]["holder"].clone();
    assert_eq!(holder["container"], "c1", "{told}");
    assert_eq!(desk.objects().held().len(), 1, "{told}");
    assert_eq!(desk.objects().held()[0].address.to_string(), given[0], "{told}");
    desk.objects().assert_consistent();
    assert!(next.refused(11).contains("is held by"), "{told}");
    pod.del();
    assert_eq!(next.address(), given[0], "{told}");
    came.load(Ordering::SeqCst)
}

#[test]
fn a_repeated_add_beside_a_del_of_its_container_holds_the_name() {
    for (keep, has_record) in [("0s", false), ("0s", true), ("1h", false), ("1h", true)] {
        let requests = (0..).take_while(|number| repeat_amid_del(*number, keep, has_record));
        assert!(requests.count() >= 3, "{keep} {has_record}");
    }
}

#[test]
fn a_del_releases_a_name_whose_reservation_others_edit_meanwhile() {
    for knows_leases in [false, true] {
        let desk = sticky_desk();
        let node = desk.sticky_node("node-1", "web", "0s");
        let uid = desk.create_pod("web-0", "");
        let pod = StickySandbox::of_pod(&desk, &node, "c1", "web-0", &uid);
        let added = pod.add();
        let relay = desk.relayed();
        let client = desk.client.clone();
        let edits = Arc::new(Mutex::new(0));
        let its = edits.clone();
        relay.decide(move |ask| {
            let mut edits = its.lock().unwrap();
            let is_deletion = ask.method == "DELETE" && ask.target.contains(RESERVATIONS);
            if is_deletion && *edits < 2 {
                *edits += 1;
                let edit = json!({"metadata": {"annotations": {"by": edits.to_string()}}});
                client.patch(ask.target.split('?').next().unwrap(), &edit);
            }
            Fate::Pass
        });
        match knows_leases {
            true => pod.del_known(&added),
            false => pod.del(),
        }
        assert_eq!(*edits.lock().unwrap(), 2);
        assert_eq!(desk.sticky("web"), None);
        assert!(desk.held().is_empty() && desk.objects().reservations().is_empty());
    }
}
