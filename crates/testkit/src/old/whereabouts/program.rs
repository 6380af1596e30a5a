//! `IPManagement` and `IPManagementKubernetesUpdate`, line by line.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde_json::{Value, json};

use super::election::Election;
use super::entries::{self, Held};
use super::ranges::Range;
use super::requests::Api;
use super::{Played, Whereabouts, is_late};
use crate::whereabouts::{POOLS, RESERVATIONS, Release, pool_name, reservation_name};

/// `storage.RequestTimeout`: how long all requests of a call may take, once it leads.
const REQUESTS_LIMIT: Duration = Duration::from_secs(10);

/// `storage.DatastoreRetries`.
const ROUNDS: usize = 100;

/// A running call.
pub(super) struct Program {
    pub(super) old: Whereabouts,
    /// The container, its interface, its pod.
    pub(super) owner: [String; 3],
    pub(super) api: Api,
}

/// What a part of a call ends with: an error that the program handles.
pub(super) type Result<T> = std::result::Result<T, String>;

/// What a look at the pool found, or an error after which the program looks again.
enum Look<T> {
    Found(T),
    Again(String),
}

impl Program {
    /// `IPManagement`: holds the lease while it works.
    pub(super) fn lead<T>(
        &self,
        limit: Duration,
        work: impl FnOnce(&Self, Instant) -> Played<Result<T>>,
    ) -> Played<Result<T>> {
        let podref = &self.owner[2];
        if self.old.release == Release::Fork {
            return work(self, Instant::now() + REQUESTS_LIMIT);
        }
        if podref.is_empty() {
            return Ok(Err("IPAM client initialization error: no pod name".to_owned()));
        }
        let mut election = Election::new(&self.api, self.old.release, podref);
        if !election.win(self.old.pause, Instant::now() + limit)? {
            return Ok(Err("time limit exceeded while waiting to become leader".to_owned()));
        }
        let result = work(self, Instant::now() + REQUESTS_LIMIT)?;
        election.resign()?;
        Ok(result)
    }

    /// `IPManagementKubernetesUpdate` with `Allocate`.
    pub(super) fn add(&self, limit: Instant) -> Played<Result<Vec<IpAddr>>> {
        if let Err(error) = self.list(limit)? {
            return Ok(Err(error));
        }
        let mut given = Vec::new();
        // The reserved addresses. After one that is the pod's own, the program makes no other.
        let (mut foreign, mut has_own) = (Vec::new(), false);
        for range in &self.old.ranges {
            let (mut address, mut reserved, mut failure) = (None, None, None);
            for _ in 0..ROUNDS {
                if self.old.release == Release::Fork && Instant::now() >= limit {
                    return Ok(Ok(address.into_iter().collect()));
                }
                let pool = match self.pool(range, limit)? {
                    Ok(Look::Found(pool)) => pool,
                    Ok(Look::Again(error)) => {
                        failure = Some(error);
                        continue;
                    }
                    Err(error) => return Ok(Err(error)),
                };
                failure = None;
                let mut held = entries::read(&pool, base(&pool));
                let chosen = match self.choose(range, &mut held, &foreign) {
                    Ok(chosen) => chosen,
                    Err(error) => return Ok(Err(error)),
                };
                address = Some(chosen);
                if self.checks_overlap() {
                    match self.reserved_for(chosen, limit)? {
                        Ok(None) => {}
                        Ok(Some(podref)) if self.owns(&podref) => has_own = true,
                        Ok(Some(_)) => {
                            foreign.push(chosen);
                            continue;
                        }
                        Err(error) => return Ok(Err(error)),
                    }
                    reserved = Some(chosen);
                }
                match self.update(&pool, &held, limit)? {
                    Ok(Look::Found(())) => {}
                    Ok(Look::Again(error)) => {
                        failure = Some(error);
                        continue;
                    }
                    Err(error) => failure = Some(error),
                }
                break;
            }
            // The program then ignores an earlier failure of the pool.
            if self.checks_overlap() && !has_own {
                if let Err(error) = self.reserve(reserved, limit)? {
                    return Ok(Err(error));
                }
                failure = None;
            }
            if let Some(error) = failure {
                return Ok(Err(error));
            }
            given.extend(address);
        }
        Ok(Ok(given))
    }

    /// `IPManagementKubernetesUpdate` with `Deallocate`. The first range without an entry ends it.
    pub(super) fn del(&self, limit: Instant) -> Played<Result<()>> {
        if let Err(error) = self.list(limit)? {
            return Ok(Err(error));
        }
        let [id, ifname, _] = &self.owner;
        let late = self.old.release == Release::V094;
        for range in &self.old.ranges {
            let (mut freed, mut failure) = (None, None);
            for _ in 0..ROUNDS {
                let pool = match self.pool(range, limit)? {
                    Ok(Look::Found(pool)) => pool,
                    Ok(Look::Again(error)) => {
                        failure = Some(error);
                        continue;
                    }
                    Err(error) => return Ok(Err(error)),
                };
                failure = None;
                let mut held = entries::read(&pool, base(&pool));
                let own = |held: &Held| held.id == *id && (!late || held.ifname == *ifname);
                let Some(place) = held.iter().position(own) else {
                    return Ok(Ok(()));
                };
                freed = held.swap_remove(place).address;
                match self.update(&pool, &held, limit)? {
                    Ok(Look::Found(())) => {}
                    Ok(Look::Again(error)) => {
                        failure = Some(error);
                        continue;
                    }
                    Err(error) => failure = Some(error),
                }
                break;
            }
            if self.checks_overlap() {
                let name = self.reservation_name(freed);
                let reply =
                    self.api.ask("DELETE", RESERVATIONS, &name, &Value::Null, Some(limit))?;
                if !reply.is_success() {
                    return Ok(Err(reply.text));
                }
                failure = None;
            }
            if let Some(error) = failure {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    /// `Status`: whether the server answers.
    fn list(&self, limit: Instant) -> Played<Result<()>> {
        let reply = self.api.ask("GET", POOLS, "", &Value::Null, Some(limit))?;
        Ok(if reply.is_success() { Ok(()) } else { Err(reply.text) })
    }

    /// `getPool`: makes it where it is missing, and then looks again.
    fn pool(&self, range: &Range, limit: Instant) -> Played<Result<Look<Value>>> {
        let name = pool_name(self.network(), range.net);
        let reply = self.api.ask("GET", POOLS, &name, &Value::Null, Some(limit))?;
        if reply.is_success() {
            return Ok(Ok(Look::Found(reply.body)));
        }
        if reply.status != 404 {
            return Ok(Err(format!("k8s get error: {}", reply.text)));
        }
        let spec = json!({"range": range.net, "allocations": {}});
        let pool = self.api.object("IPPool", &name, &spec);
        let reply = self.api.ask("POST", POOLS, "", &pool, Some(limit))?;
        Ok(match reply.status {
            409 => Ok(Look::Again(reply.text)),
            200..300 => Ok(Look::Again("k8s pool initialized".to_owned())),
            _ => Err(format!("k8s create error: {}", reply.text)),
        })
    }

    /// `AssignIP`: adds the address to the entries, and returns it.
    fn choose(&self, range: &Range, held: &mut Vec<Held>, foreign: &[IpAddr]) -> Result<IpAddr> {
        let [id, ifname, podref] = self.owner.clone();
        if self.old.release == Release::V094 {
            let own = |held: &&mut Held| held.podref == podref && held.ifname == ifname;
            if let Some((own, address)) =
                held.iter_mut().find(own).and_then(|own| own.address.map(|address| (own, address)))
            {
                own.id = id;
                return Ok(address);
            }
        }
        let reserved = held.iter().filter_map(|held| held.address).chain(foreign.iter().copied());
        let chosen = range.choose(self.old.release, &reserved.collect())?;
        let (address, is_short) = (Some(chosen.address), chosen.is_short);
        held.push(Held { address, is_short, id, podref, ifname });
        Ok(chosen.address)
    }

    /// The pod that a reservation of the address names.
    fn reserved_for(&self, address: IpAddr, limit: Instant) -> Played<Result<Option<String>>> {
        let name = self.reservation_name(Some(address));
        let reply = self.api.ask("GET", RESERVATIONS, &name, &Value::Null, Some(limit))?;
        let podref = reply.body["spec"]["podref"].as_str().unwrap_or_default().to_owned();
        Ok(match reply.status {
            404 => Ok(None),
            200..300 => Ok(Some(podref)),
            _ => Err(format!("k8s get OverlappingRangeIPReservation error: {}", reply.text)),
        })
    }

    /// Whether a reservation is the pod's own: to v0.9.4 alone.
    fn owns(&self, podref: &str) -> bool {
        self.old.release == Release::V094 && podref == self.owner[2]
    }

    /// `Update`.
    fn update(&self, pool: &Value, held: &[Held], limit: Instant) -> Played<Result<Look<()>>> {
        let patch = match entries::patch(self.old.release, pool, base(pool), held) {
            Ok(patch) => patch,
            Err(error) => return Ok(Err(error)),
        };
        let name = pool["metadata"]["name"].as_str().unwrap();
        let reply = self.api.ask("PATCH", POOLS, name, &patch, Some(limit))?;
        Ok(match reply.status {
            200..300 => Ok(Look::Found(())),
            422 => Ok(Look::Again(reply.text)),
            _ => Err(reply.text),
        })
    }

    /// `UpdateOverlappingRangeAllocation` with `Allocate`.
    fn reserve(&self, address: Option<IpAddr>, limit: Instant) -> Played<Result<()>> {
        let [id, ifname, podref] = &self.owner;
        let mut spec = json!({"podref": podref});
        match self.old.release {
            Release::V094 if ifname.is_empty() => {}
            Release::V094 => spec["ifname"] = ifname.as_str().into(),
            _ => spec["containerid"] = id.as_str().into(),
        }
        let name = self.reservation_name(address);
        let object = self.api.object("OverlappingRangeIPReservation", &name, &spec);
        let reply = self.api.ask("POST", RESERVATIONS, "", &object, Some(limit))?;
        Ok(if reply.is_success() { Ok(()) } else { Err(reply.text) })
    }

    fn reservation_name(&self, address: Option<IpAddr>) -> String {
        match (address, self.old.release) {
            (None, _) => "<nil>".to_owned(),
            (Some(address), Release::V054) => address.to_string().replace(':', "-"),
            (Some(address), _) if self.old.reserves_by_address => reservation_name("", address),
            (Some(address), _) => reservation_name(self.network(), address),
        }
    }

    fn network(&self) -> &str {
        if is_late(self.old.release) { &self.old.network } else { "" }
    }

    fn checks_overlap(&self) -> bool {
        self.old.overlap && self.old.release != Release::Fork
    }
}

/// The address that offsets count from.
fn base(pool: &Value) -> IpAddr {
    pool["spec"]["range"].as_str().unwrap().parse::<IpNet>().unwrap().addr()
}
