use super::super::Headroom;
use super::*;
use crate::cni::Environment;
use crate::delegate::answer;
use serde_json::json;
use std::cell::RefCell;

thread_local! {
    static STORE: RefCell<Vec<(Owner, Lease)>> = const { RefCell::new(Vec::new()) };
}

/// A server that counts up in 10.0.0.0/24.
struct Counter;

impl Allocator for Counter {
    type Config = serde::de::IgnoredAny;

    fn open(_: Self::Config, _: &Request) -> Result<Self> {
        Ok(Self)
    }

    fn allocate(&mut self, owner: &Owner, want: &[Pool]) -> Result<Vec<Lease>> {
        STORE.with_borrow_mut(|store| {
            let lease = |pool: &Pool| {
                let number = store.len() + 2;
                let lease = Lease {
                    pool: pool.name().map(str::to_owned),
                    address: format!("10.0.0.{number}/24").parse().unwrap(),
                    gateway: Some("10.0.0.1".parse().unwrap()),
                    revision: number.into(),
                    kept: false,
                    unsure: false,
                    taken: None,
                };
                store.push((owner.clone(), lease.clone()));
                lease
            };
            Ok(want.iter().map(lease).collect())
        })
    }

    fn release(&mut self, owner: &Owner, _: &[Lease]) -> Result<Vec<Lease>> {
        let held = self.held(owner, &[])?;
        STORE.with_borrow_mut(|store| store.retain(|(other, _)| other != owner));
        Ok(held)
    }

    fn release_part(&mut self, owner: &Owner, part: &Part) -> Result<Vec<Lease>> {
        STORE.with_borrow_mut(|store| {
            store.retain(|(other, lease)| other != owner || !part.covers(lease));
        });
        Ok(part.leases.clone())
    }

    fn held(&mut self, owner: &Owner, _: &[Lease]) -> Result<Vec<Lease>> {
        STORE.with_borrow(|store| {
            Ok(store.iter().filter(|(o, _)| o == owner).map(|(_, l)| l.clone()).collect())
        })
    }

    fn retain(&mut self, scope: &Scope, keep: &Keep) -> Result<Vec<Lease>> {
        STORE.with_borrow_mut(|store| {
            let stale = |o: &Owner| {
                o.scope == *scope && !keep.contains(o.container.as_str(), o.ifname.as_str())
            };
            Ok(store.extract_if(.., |(owner, _)| stale(owner)).map(|(_, lease)| lease).collect())
        })
    }

    fn ready(&mut self, _: &[Pool]) -> Result<Headroom> {
        Ok(Headroom { free: Some(0) })
    }
}

fn call(verb: &str, container: &str, prev_result: Value, more: Value) -> (u8, Value) {
    let environment = Environment::new([
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", container),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/run/netns/x"),
    ]);
    let mut config = json!({"cniVersion": "1.1.0", "name": "n", "ipam": {"node": "node-1"}, "prevResult": prev_result});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let reply = answer(
        &Allocate::<Counter>::default(),
        environment,
        config.to_string().as_bytes(),
        Settings::default(),
    );
    (reply.exit, serde_json::from_str(&reply.stdout).unwrap_or(Value::Null))
}

fn held() -> Vec<String> {
    STORE.with_borrow(|store| store.iter().map(|(owner, _)| owner.container.to_string()).collect())
}

#[test]
fn an_address_per_pool_is_appended_and_found_again() {
    let before =
        json!({"ips": [{"address": "172.16.0.9/24"}], "pools": [{"name": "a"}, {"name": "b"}]});
    let (exit, result) = call("ADD", "c1", before, json!({}));
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["ips"].as_array().unwrap().len(), 3);
    assert_eq!(result["pools"], json!([]));
    assert_eq!(
        result["leases"][1],
        json!({"pool": "b", "address": "10.0.0.3/24", "gateway": "10.0.0.1", "revision": 3})
    );
    assert_eq!(call("CHECK", "c1", result.clone(), json!({})).0, 0);
    let mut lost = result.clone();
    lost["ips"] = json!([]);
    assert_eq!(call("CHECK", "c1", lost, json!({})).1["code"], 104);
    assert_eq!(call("DEL", "c1", result.clone(), json!({})), (0, Value::Null));
    assert!(held().is_empty());
    assert_eq!(call("DEL", "c1", json!({}), json!({})).0, 0);
    assert_eq!(call("CHECK", "c1", result, json!({})).1["code"], 104);
}

#[test]
fn an_undo_releases_what_its_add_took() {
    let (_, first) = call("ADD", "c1", json!({"pools": [{"name": "a"}]}), json!({}));
    let (_, second) = call("ADD", "c1", json!({"pools": [{"name": "b"}]}), json!({}));
    let undo = |leases: &Value| {
        let prev_result = json!({"leases": leases, "undo": true});
        assert_eq!(call("DEL", "c1", prev_result, json!({})), (0, Value::Null));
        held().len()
    };
    let mut kept = first["leases"].clone();
    kept[0]["kept"] = true.into();
    assert_eq!(undo(&kept), 2);
    assert_eq!(undo(&json!([])), 2);
    assert_eq!(undo(&second["leases"]), 1);
    assert_eq!(call("DEL", "c1", json!({"leases": second["leases"]}), json!({})).0, 0);
    assert!(held().is_empty());
}

#[test]
fn a_fence_covers_what_was_taken_between_its_ends() {
    const HOUR: u64 = 3_600_000;
    let part = |fence: Value| {
        let config = json!({
            "cniVersion": "1.1.0", "name": "n", "ipam": {}, "prevResult": {"fence": fence},
        });
        let variables = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
        let (environment, stdin) = (Environment::new(variables), config.to_string());
        let settings = Settings::default();
        let request = Request::parse(Verb::Del, environment, stdin.as_bytes(), settings);
        super::part(&request.unwrap())
    };
    let covers = |fence: Value| {
        let part = part(fence).unwrap().unwrap();
        let taken = |hour: u64| Lease {
            taken: UNIX_EPOCH.checked_add(Duration::from_millis(hour * HOUR)),
            ..hint("10.0.0.2".parse().unwrap())
        };
        // Without a time nothing says that it is younger.
        let unknown = Lease { taken: None, ..taken(0) };
        assert!(!part.covers(&unknown));
        [1, 2, 3, 4, 5].map(|hour| part.covers(&taken(hour)))
    };
    let closed = json!({"after": 2 * HOUR, "before": 4 * HOUR});
    assert_eq!(covers(closed), [false, true, true, true, false]);
    // An open one ends by now.
    assert_eq!(covers(json!({"after": 4 * HOUR})), [false, false, false, true, true]);
    let now = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let open = part(json!({"after": 0})).unwrap().unwrap();
    let later = UNIX_EPOCH.checked_add(Duration::from_millis(now + HOUR));
    assert!(!open.covers(&Lease { taken: later, ..hint("10.0.0.2".parse().unwrap()) }));
}

#[test]
fn without_a_record_the_pools_tell_which_addresses_are_ours() {
    let ranges = json!([{"ranges": [{"subnet": "10.0.0.0/24"}]}]);
    let (_, result) = call("ADD", "c1", json!({"pools": ranges}), json!({}));
    let mut foreign = json!({"ips": result["ips"], "pools": ranges});
    foreign["ips"].as_array_mut().unwrap().push(json!({"address": "192.168.0.1/24"}));
    assert_eq!(call("CHECK", "c1", foreign, json!({})).0, 0);
    assert_eq!(
        call("CHECK", "c2", json!({"ips": result["ips"], "pools": ranges}), json!({})).1["code"],
        104
    );
}

#[test]
fn gc_stays_in_its_scope() {
    for container in ["c1", "c2"] {
        call("ADD", container, json!({"pools": [{"name": "a"}]}), json!({}));
    }
    call("ADD", "c3", json!({"pools": [{"name": "a"}]}), json!({"ipam": {"node": "node-2"}}));
    let keep = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
    assert_eq!(call("GC", "", json!({}), keep).0, 0);
    assert_eq!(held(), ["c1", "c3"]);
}

#[test]
fn a_full_pool_fails_status_only_when_asked_to() {
    assert_eq!(call("STATUS", "", json!({}), json!({})).0, 0);
    let asked = json!({"ipam": {"node": "x", "statusExhaustion": true}});
    assert_eq!(call("STATUS", "", json!({}), asked).1["code"], 50);
}

#[test]
fn without_pools_it_serves_what_ipam_offers() {
    let offer = |ranges: Value| json!({"ipam": {"node": "node-1", "ranges": ranges, "routes": [{"dst": "::/0"}]}});
    let ranges = offer(json!([[{"subnet": "10.0.0.0/24"}]]));
    let (exit, result) = call("ADD", "c1", json!(null), ranges.clone());
    assert_eq!(exit, 0, "{result}");
    assert_eq!(result["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!((&result["pools"], &result["routes"]), (&json!([]), &json!([{"dst": "::/0"}])));
    let ips = json!({"ips": result["ips"]});
    assert_eq!(call("CHECK", "c1", ips.clone(), ranges.clone()).0, 0);
    assert_eq!(call("CHECK", "c2", ips, ranges).1["code"], 104);
    let broken = offer(json!([[{"subnet": "10.0.0.1/24"}]]));
    for verb in ["ADD", "STATUS"] {
        let (_, error) = call(verb, "c1", json!(null), broken.clone());
        assert!(error["msg"].as_str().unwrap().starts_with("ipam.ranges[0][0].subnet: "));
        assert_eq!(call(verb, "c1", json!({"pools": [{"name": "a"}]}), broken.clone()).0, 0);
    }
    assert_eq!(call("DEL", "c1", json!(null), broken), (0, Value::Null));
    assert!(held().is_empty());
}

#[test]
fn an_allocator_needs_pools() {
    let (exit, error) = call("ADD", "c1", json!({}), json!({}));
    assert_eq!((exit, error["code"].clone()), (1, json!(7)));
    assert!(error["msg"].as_str().unwrap().starts_with("prevResult.pools"));
}
