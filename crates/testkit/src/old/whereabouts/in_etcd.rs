//! whereabouts with the datastore `etcd`: `pkg/storage/etcd.go` of v0.5.4, which the fork has, too.
//!
//! The session is not kept alive, and a wait for the mutex asks again where the program watches. A
//! request that fails ends a call as a kill does: the mutex is released by the end of its session.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::ranges::Range;
use crate::etcd::{Etcd, Requests};
use crate::old::{Call, Done, Ended, Played, Steps};
use crate::whereabouts::Release;

/// Between two looks at those before it in the mutex.
const PAUSE: Duration = Duration::from_millis(10);

/// Seconds that the session lives.
const SESSION: u32 = 60;

/// The program with the configuration of a network.
#[derive(Clone, Debug)]
pub struct InEtcd {
    requests: Requests,
    range: Range,
    delay: Duration,
    takes_mutex: bool,
}

impl InEtcd {
    /// `range`, `range_start`, `range_end` and `exclude` of a section `ipam`.
    #[track_caller]
    pub fn new(etcd: &Etcd, range: &Value) -> Self {
        Self {
            requests: etcd.requests(),
            range: Range::parse(range),
            delay: Duration::ZERO,
            takes_mutex: true,
        }
    }

    /// How long it takes before each of its requests.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// With a planted bug: it changes pools without the mutex.
    pub fn without_mutex(mut self) -> Self {
        self.takes_mutex = false;
        self
    }

    /// The key of the pool.
    pub fn key(&self) -> String {
        format!("/whereabouts/{}", self.range.net)
    }

    /// An ADD, which has not begun yet.
    pub fn add(&self, container: &str) -> Call {
        self.call(container, Program::add)
    }

    /// A DEL, which has not begun yet. It prints neither address nor error.
    pub fn del(&self, container: &str) -> Call {
        self.call(container, Program::del)
    }

    fn call(
        &self,
        container: &str,
        verb: impl FnOnce(&Program, &str) -> Played<Printed> + Send + 'static,
    ) -> Call {
        let (old, container) = (self.clone(), container.to_owned());
        Call::new(self.requests, self.delay, move |steps| {
            let program = Program { key: old.key(), range: old.range, steps };
            let printed = match old.takes_mutex {
                true => program.in_turn(|program| verb(program, &container)),
                false => verb(&program, &container),
            };
            printed?.map_err(Ended::Failed)
        })
    }
}

struct Program {
    steps: Steps,
    range: Range,
    key: String,
}

/// `types.IPReservation`: an address, none where `net.ParseIP` reads none, and an id.
type Reservation = (Option<IpAddr>, String);

/// What a call prints in the end: addresses, or an error of its own.
type Printed = Result<Vec<IpAddr>, String>;

impl Program {
    /// `NewETCDIPAM`, `Status`, something, and `Close`, which also ends a call that fails.
    fn in_turn(&self, act: impl FnOnce(&Self) -> Played<Printed>) -> Played<Printed> {
        let session = self.steps.grant(SESSION)?;
        let mutex = format!("{}/", self.key);
        let place = format!("{mutex}{session:x}");
        let enqueue = |requests: &Requests| {
            let (own, oldest) = requests.enqueue(&mutex, &place, session)?;
            Ok((own, oldest.created == own))
        };
        let (own, mut first) = self.steps.step(enqueue, |(_, first)| match first {
            true => Done::Created(place.clone()),
            false => Done::Queued(place.clone()),
        })?;
        while !first {
            let look = |requests: &Requests| requests.youngest_before(&mutex, own);
            let before = self.steps.step(look, |before| match before {
                Some(_) => Done::Waited(mutex.clone()),
                None => Done::Passed(mutex.clone()),
            })?;
            first = before.is_none();
            thread::sleep(if first { Duration::ZERO } else { PAUSE });
        }
        self.steps.get("anykey")?;
        let printed = act(self)?;
        self.steps.delete(&place)?;
        self.steps.step(|requests| requests.revoke(session), |()| Done::Revoked)?;
        Ok(printed)
    }

    fn add(&self, id: &str) -> Played<Printed> {
        let mut reserved = self.pool()?;
        let taken: BTreeSet<IpAddr> = reserved.iter().filter_map(|(address, _)| *address).collect();
        let chosen = match self.range.choose(Release::V054, &taken) {
            Ok(chosen) => chosen,
            Err(error) => return Ok(Err(error)),
        };
        reserved.push((Some(chosen.address), id.to_owned()));
        self.update(&reserved)?;
        Ok(Ok(vec![chosen.address]))
    }

    /// Releases the first entry of the container.
    fn del(&self, id: &str) -> Played<Printed> {
        let mut reserved = self.pool()?;
        if let Some(first) = reserved.iter().position(|(_, its)| its == id) {
            reserved.swap_remove(first);
            self.update(&reserved)?;
        }
        Ok(Ok(Vec::new()))
    }

    /// `getRange`: one line without a space, and there is nothing.
    fn pool(&self) -> Played<Vec<Reservation>> {
        let Some(value) = self.steps.get(&self.key)? else { return Ok(Vec::new()) };
        let lines = value.split('\n').map(|line| {
            let (address, id) = line.split_once(' ')?;
            Some((address.parse().ok(), id.to_owned()))
        });
        Ok(lines.collect::<Option<_>>().unwrap_or_default())
    }

    fn update(&self, reserved: &[Reservation]) -> Played<()> {
        let line = |(address, id): &Reservation| {
            let address = address.map_or("<nil>".to_owned(), |address| address.to_string());
            format!("{address} {id}")
        };
        let lines: Vec<String> = reserved.iter().map(line).collect();
        self.steps.put(&self.key, &lines.join("\n"))
    }
}
