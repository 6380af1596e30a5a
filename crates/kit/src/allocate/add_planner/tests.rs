use serde_json::json;

use super::*;
use crate::allocate::Scope;
use crate::allocate::ledger::{Holder, PoolView, Scan, Used};
use crate::cni::{ContainerId, IfName, NetworkName};
use crate::pool::{Pool, RangeRules};

const IN_ORDER: AddRules =
    AddRules { releases_rest: true, limits: ClaimLimits::IN_ORDER, cursor_order_only: false };

fn owner() -> Owner {
    let scope = Scope { node: "n".into(), network: NetworkName::parse("n").unwrap() };
    let container = ContainerId::parse("c").unwrap();
    Owner { scope, container, ifname: IfName::parse("eth0").unwrap() }
}

/// What an ADD asks of two pools.
fn requests(strategy: Strategy) -> Vec<PoolRequest> {
    let pools = json!([
        {"ranges": [{"subnet": "10.0.0.0/24"}]},
        {"ranges": [{"subnet": "10.0.1.0/24"}]},
    ]);
    let pools = pools.as_array().unwrap().iter().map(|pool| Pool::parse(pool, "p").unwrap());
    PoolRequest::read(&pools.collect::<Vec<_>>(), strategy).unwrap()
}

#[test]
fn a_lost_commit_without_a_reason_spreads() {
    let (owner, requests) = (owner(), requests(Strategy::Lowest));
    let requests = &requests[..1];
    let mut planner = AddPlanner::new(&owner, requests, IN_ORDER);
    let pool = PoolView { used: Used::All(BTreeSet::new()), ..PoolView::default() };
    let view = View { held: vec![], sure: true, pools: vec![pool], token: () };
    let mut firsts = BTreeSet::new();
    for _ in 0..6 {
        let NextStep::Commit(change, origins) = planner.next_step(&view).unwrap() else { panic!() };
        firsts.insert(change.claim[0].candidates[0]);
        planner.record_conflict(&change, &origins, vec![]).unwrap();
    }
    assert!(firsts.len() > 1, "{firsts:?}");
}

#[test]
fn pools_whose_ranges_the_store_knows_do_not_overlap() {
    let named = ["blue", "red"].map(|name| Pool::parse(&json!({"name": name}), "p").unwrap());
    let (owner, requests) = (owner(), PoolRequest::read(&named, Strategy::Lowest).unwrap());
    let plan = |subnets: [&str; 2]| {
        let pool = |subnet: &str| {
            let range = serde_json::from_value(json!({"subnet": subnet})).unwrap();
            let set = RangeSet::parse(&[range], RangeRules::OURS, "p").unwrap();
            let used = Used::All(BTreeSet::new());
            PoolView { set: Some(set), used, ..PoolView::default() }
        };
        let pools = subnets.map(pool).into();
        let view = View { held: vec![], sure: true, pools, token: () };
        AddPlanner::new(&owner, &requests, IN_ORDER).next_step(&view).map(drop)
    };
    plan(["10.0.0.0/25", "10.0.0.128/25"]).unwrap();
    let error = plan(["10.0.0.0/24", "10.0.0.128/25"]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
    assert!(error.to_string().starts_with("prevResult.pools[1]: "), "{error}");
}

#[test]
fn an_address_that_is_held_on_another_node_is_not_the_owners() {
    let asking = json!({"ranges": [{"subnet": "10.0.0.0/24"}], "requested-ip": "10.0.0.9"});
    let requests = [Pool::parse(&asking, "p").unwrap()];
    let (owner, requests) = (owner(), PoolRequest::read(&requests, Strategy::Lowest).unwrap());
    for (node, container, ifname, is_own) in [
        (Some("n"), "c", Some("eth0"), true),
        (None, "c", Some("eth0"), true),
        (Some("another"), "c", Some("eth0"), false),
        (Some("n"), "another", Some("eth0"), false),
        (Some("n"), "c", Some("eth1"), false),
        (Some("n"), "c", None, false),
    ] {
        let mut planner = AddPlanner::new(&owner, &requests, IN_ORDER);
        let pools = vec![PoolView::default()];
        let view = View { held: vec![], sure: true, pools, token: () };
        let NextStep::Commit(change, origins) = planner.next_step(&view).unwrap() else { panic!() };
        let address = change.claim[0].candidates[0];
        let holder = Holder {
            node: node.map(str::to_owned),
            container: container.to_owned(),
            ifname: ifname.map(str::to_owned),
            ..Holder::default()
        };
        let lease = change.claim[0].lease(address, json!(1));
        let entry = Entry { lease, holder: Some(holder), since: None, fault: None };
        let taken = vec![Taken { claim: 0, address, holder: Some(entry) }];
        let refused =
            planner.record_conflict(&change, &origins, taken).err().map(|error| error.code());
        let expected = (!is_own).then_some(ErrorCode::TAKEN);
        assert_eq!(refused, expected, "{node:?} {container} {ifname:?}");
    }
}

#[test]
fn many_pools_are_looked_at_before_anything_is_tried() {
    let (owner, requests) = (owner(), requests(Strategy::RoundRobin));
    let limits = ClaimLimits { each: 1, random_candidates: 0, look_first: true };
    let mut planner = AddPlanner::new(&owner, &requests, AddRules { limits, ..IN_ORDER });
    let pool = |used| PoolView { used, ..PoolView::default() };
    let view = |used: [Used; 2]| View {
        held: vec![],
        sure: true,
        pools: used.map(pool).into(),
        token: (),
    };
    let blind = planner.next_step(&view([Used::Unknown, Used::Unknown])).unwrap();
    assert!(matches!(blind, NextStep::ScanFurther));
    let scans = planner.next_query().scans.to_vec();
    let windows = scans.iter().map(|look| match look {
        Scan::Range(from, to) => Used::Windows(vec![(*from, *to)], BTreeSet::from([*from])),
        other => panic!("{other:?}"),
    });
    let windows: Vec<Used> = windows.collect();
    let NextStep::Commit(change, _) =
        planner.next_step(&view(windows.try_into().unwrap())).unwrap()
    else {
        panic!()
    };
    let tried: Vec<_> = change.claim.iter().map(|claim| claim.candidates.clone()).collect();
    assert_eq!(
        tried,
        [["10.0.0.2".parse().unwrap()], ["10.0.1.2".parse().unwrap()]] as [[IpAddr; 1]; 2]
    );
}

/// The candidates of one ADD to 10.0.0.1 to 10.0.0.6 for a view; `None` where it scans further.
fn candidates(strategy: Strategy, view: PoolView) -> Option<Vec<String>> {
    let pool = json!({"ranges": [{"subnet": "10.0.0.0/29", "gateway": "10.0.0.1"}]});
    let pools = [Pool::parse(&pool, "p").unwrap()];
    let (owner, requests) = (owner(), PoolRequest::read(&pools, strategy).unwrap());
    let mut planner = AddPlanner::new(&owner, &requests, IN_ORDER);
    let view = View { held: vec![], sure: true, pools: vec![view], token: () };
    match planner.next_step(&view).unwrap() {
        NextStep::ScanFurther => None,
        NextStep::Commit(change, _) => {
            Some(change.claim[0].candidates.iter().map(ToString::to_string).collect())
        }
    }
}

#[test]
fn a_resting_address_is_given_only_where_the_whole_pool_is_known_and_has_no_other() {
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    let resting = |rests: &[u8]| {
        let freed = rests.iter().zip(0..).map(|(last, seconds)| {
            (address(*last), std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds))
        });
        freed.collect::<std::collections::BTreeMap<_, _>>()
    };
    let all = |taken: &[u8]| Used::All(taken.iter().copied().map(address).collect());
    let window = || Used::Windows(vec![(address(2), address(3))], BTreeSet::new());
    for strategy in [Strategy::Lowest, Strategy::RoundRobin, Strategy::Random] {
        for (used, rests, expected) in [
            (all(&[2, 3]), &[6, 4][..], Some(&["10.0.0.5"][..])),
            (all(&[2, 3]), &[6, 4, 5], Some(&["10.0.0.6", "10.0.0.4", "10.0.0.5"])),
            (all(&[2, 4]), &[6, 4, 5, 3, 1], Some(&["10.0.0.6", "10.0.0.5", "10.0.0.3"])),
            (Used::Unknown, &[6, 2, 3, 5], Some(&["10.0.0.4"])),
            (Used::Unknown, &[6, 2, 3, 5, 4], None),
            (window(), &[3], Some(&["10.0.0.2"])),
            (window(), &[3, 2], None),
        ] {
            let view = PoolView { used, resting: resting(rests), ..PoolView::default() };
            let given = candidates(strategy, view.clone());
            let expected = expected.map(|list| list.iter().map(ToString::to_string).collect());
            assert_eq!(given, expected, "{strategy:?} {view:?}");
        }
    }
}
