//! Ways to a server on which the answers to changes are lost, and changes come late.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use ipam_testkit::consul::{Consul, Fate, Relay, Request};
use ipam_testkit::world::until;

/// Spoils the answers to the next so many changes, on either of two ways to a server.
pub struct Spoiler {
    relays: [Relay; 2],
    spoils: Arc<AtomicUsize>,
    spoilt: Arc<AtomicUsize>,
}

impl Spoiler {
    pub fn of(consul: &Consul, fate: &Fate) -> Self {
        let [spoils, spoilt] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let relay = |()| {
            let (fate, spoils, spoilt) = (fate.clone(), spoils.clone(), spoilt.clone());
            Relay::deciding(&consul.endpoint(), move |request| {
                let take = |count: usize| count.checked_sub(1);
                if !is_change(request)
                    || spoils.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err()
                {
                    return Fate::Pass;
                }
                spoilt.fetch_add(1, Ordering::SeqCst);
                fate.clone()
            })
        };
        Self { relays: [(); 2].map(relay), spoils, spoilt }
    }

    pub fn spoil(&self, spoils: usize) {
        self.spoils.store(spoils, Ordering::SeqCst);
        self.spoilt.store(0, Ordering::SeqCst);
    }

    pub fn urls(&self) -> [String; 2] {
        self.relays.each_ref().map(|relay| url(&relay.endpoint()))
    }

    pub fn spoilt(&self) -> usize {
        self.spoilt.load(Ordering::SeqCst)
    }
}

/// Holds back the first change that comes until it is told to let it through.
#[derive(Default)]
pub struct Gate {
    pub came: AtomicBool,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A way to a server through it.
    pub fn before(consul: &Consul) -> (Arc<Self>, Relay) {
        let gate = Arc::new(Self::default());
        let own = gate.clone();
        let relay = Relay::deciding(&consul.endpoint(), move |request| {
            if is_change(request) && !own.came.swap(true, Ordering::SeqCst) {
                let mut open = own.open.lock().unwrap();
                while !*open {
                    open = own.opened.wait(open).unwrap();
                }
            }
            Fate::Pass
        });
        (gate, relay)
    }

    /// The change goes on; waits until the server is done with it.
    pub fn open(&self, consul: &Consul) {
        // What is refused has an entry in the servers' log, too.
        let applied = || {
            let told = consul.ask("GET", "agent/self", b"").success().json();
            told["Stats"]["raft"]["applied_index"].as_str().unwrap().parse::<u64>().unwrap()
        };
        let before = applied();
        assert!(self.came.load(Ordering::SeqCst), "nothing was held back");
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
        until("the change is judged", || applied() > before);
    }
}

fn is_change(request: &Request) -> bool {
    ["\"cas\"", "\"set\"", "\"delete-cas\""].iter().any(|verb| request.body.contains(verb))
}

pub fn url(endpoint: &str) -> String {
    format!("http://{endpoint}")
}
