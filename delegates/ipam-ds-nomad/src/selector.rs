//! Chooses the pool that the job of an allocation names.

use std::time::{Duration, Instant};

use ipam_kit::cni::Verb;
use ipam_kit::keys::Key;
use ipam_kit::{Error, ErrorCode, Request, Result, Selection, Selector};
use ipam_servers::{Client, HttpAnswer, HttpRequest, Method};
use log::{debug, warn};

use crate::allocation::Allocation;
use crate::config::{KEYS, NomadConfig, NomadStore};
use crate::query::{AllocationQuery, with_query};

/// The selector. It keeps no state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nomad;

/// The largest allocation that is read, with its whole job, in bytes.
const LARGEST: u64 = 8 * 1024 * 1024;

/// How long STATUS waits for the end of an election, and how often it looks.
const ELECTION: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);

impl Selector for Nomad {
    type Config = NomadConfig;

    const KEYS: Option<&'static [Key]> = Some(KEYS);

    fn select(&self, config: NomadConfig, request: &Request) -> Result<Selection> {
        let store = config.store(request)?;
        match request.verb {
            // GC is about no allocation, and selectors release nothing.
            Verb::Gc => Ok(Selection::of([])),
            Verb::Status => {
                let mut client = Client::new(store.access, request.deadline)?;
                check_leader(&mut client, &store.region)
                    .map_err(|error| error.with_code(ErrorCode::UNAVAILABLE))?;
                Ok(Selection::of([]))
            }
            _ => choose(store, request),
        }
    }
}

fn choose(store: NomadStore, request: &Request) -> Result<Selection> {
    let query = AllocationQuery::of(request, store.namespace, store.region)?;
    let mut client = Client::new(store.access, request.deadline)?;
    let id = &query.id;
    let answer = get(&mut client, &query.path())
        .map_err(|error| error.within(format_args!("allocation {id}")))?;
    let requested = Allocation::parse(&answer.body, id)?.requested_pool()?;
    let network = request.network.name().as_str();
    if requested.network != network {
        warn!(
            "the group of allocation {id} names the network {:?}, not {network:?}",
            requested.network
        );
    }
    debug!("allocation {id} requests {}", requested.pool.to_json());
    Ok(Selection::of([requested.pool]))
}

/// Fails if the servers have no leader: without one they answer nothing about allocations.
fn check_leader(client: &mut Client, region: &Option<String>) -> Result<()> {
    let path = with_query("v1/status/leader".to_owned(), [("region", region)]);
    let began = Instant::now();
    while leader(&get(client, &path)?)?.is_empty() {
        if began.elapsed() >= ELECTION || client.left() <= PAUSE {
            return Err(Error::new(ErrorCode::UNAVAILABLE, "the Nomad servers have no leader")
                .advise("check them: nomad server members"));
        }
        client.pause(PAUSE);
    }
    Ok(())
}

/// The leader's address; empty without a leader.
fn leader(answer: &HttpAnswer) -> Result<String> {
    serde_json::from_slice(&answer.body).map_err(|error| {
        Error::new(
            ErrorCode::BACKEND,
            "cannot parse the answer about the leader: the server is not Nomad",
        )
        .caused_by(error)
        .advise("check ipam.nomad_servers")
    })
}

fn get(client: &mut Client, path: &str) -> Result<HttpAnswer> {
    client.read(&HttpRequest { limit: LARGEST, ..HttpRequest::new(Method::Get, path) })
}
