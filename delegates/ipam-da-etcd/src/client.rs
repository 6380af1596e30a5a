use std::cell::{Cell, RefCell};
use std::future::Future;
use std::time::{Duration, Instant};

use etcd_client::{Txn, TxnResponse};
use ipam_kit::delegate::Deadline;
use ipam_kit::{Error, ErrorCode, Result};
use log::{debug, warn};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::ClientTlsConfig;

use crate::config::Store;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::refusal::Trouble;
use crate::tls;
use crate::token::Caller;

/// The servers of a store, of which one that answers is as good as another.
///
/// A client library's own list of endpoints balances between them and fails with the one it happens
/// to have chosen; here each request goes to one server, and on to the next when that one fails.
pub(crate) struct Client {
    endpoints: Vec<Endpoint>,
    tls: Option<ClientTlsConfig>,
    caller: Option<Caller>,
    timeout: Duration,
    deadline: Deadline,
    runtime: Option<Runtime>,
    /// The endpoint to begin with.
    first: Cell<usize>,
    open: RefCell<Option<(usize, Connection)>>,
    /// The code of an error when no server could be asked for anything.
    unreached: ErrorCode,
    /// Whether one may have been asked for something.
    asked: Cell<bool>,
    /// Whether the latest request was refused to this caller.
    denied: Cell<bool>,
    /// When the store first did not answer, since it last did.
    trouble: Cell<Option<Instant>>,
    /// What is known of each endpoint since then.
    findings: RefCell<Vec<Finding>>,
}

/// What the store answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: TxnResponse,
    /// The cluster's id.
    pub(crate) cluster: u64,
    /// The store's revision.
    pub(crate) revision: i64,
}

/// How long one of several servers may take for a request before the next one is asked; twice as
/// long in each further round.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The wait between two rounds.
const PAUSE: Duration = Duration::from_millis(100);

/// Why an endpoint did not answer, if it did not.
#[derive(Clone, Default)]
struct Finding {
    reason: String,
    unfit: bool,
}

impl Client {
    /// A client for the servers of a store; it connects when there is something to send. `unreached` is
    /// the code of the error when no server could be asked for anything.
    ///
    /// # Errors
    /// A certificate file cannot be read.
    pub(crate) fn new(
        store: &Store,
        caller: Option<Caller>,
        unreached: ErrorCode,
        deadline: Deadline,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::io("no event loop can be made", error).advise("raise the limit of open files")
        })?;
        Ok(Self {
            endpoints: store.endpoints.clone(),
            tls: tls::settings(store)?,
            caller,
            timeout: store.timeout,
            deadline: within(deadline),
            runtime: Some(runtime),
            first: Cell::new(0),
            open: RefCell::new(None),
            unreached,
            asked: Cell::new(false),
            denied: Cell::new(false),
            trouble: Cell::new(None),
            findings: RefCell::new(vec![Finding::default(); store.endpoints.len()]),
        })
    }

    /// Goes on until another deadline.
    pub(crate) fn go_on(&mut self, deadline: Deadline) {
        self.deadline = within(deadline);
    }

    /// The endpoint that answered last.
    pub(crate) fn answering(&self) -> &Endpoint {
        &self.endpoints[self.first.get()]
    }

    /// Begins with this endpoint, if it is one of the store's.
    pub(crate) fn prefer(&self, url: &str) {
        if let Some(place) = self.endpoints.iter().position(|other| other.to_string() == url) {
            self.first.set(place);
        }
    }

    /// The endpoint that answered last, where it is not the one that the configuration names first.
    pub(crate) fn preferred(&self) -> Option<String> {
        let place = self.first.get();
        (place > 0).then(|| self.endpoints[place].to_string())
    }

    /// Asks something that changes nothing, until a server answers.
    ///
    /// # Errors
    /// None answers in time, or the store refuses it.
    pub(crate) fn read(&self, txn: &Txn) -> Result<Answer> {
        loop {
            if let Some(answer) = self.send(txn, false)? {
                return Ok(answer);
            }
        }
    }

    /// Changes something; `None` when it may have been done, or may still be.
    ///
    /// # Errors
    /// It was not and will not be done.
    pub(crate) fn write(&self, txn: &Txn) -> Result<Option<Answer>> {
        self.send(txn, true)
    }

    /// Whether the latest request was refused because this caller has no right to some key in it.
    pub(crate) fn was_denied(&self) -> bool {
        self.denied.get()
    }

    /// An etcd lease of so many seconds, from the server that answered last.
    ///
    /// # Errors
    /// It does not give one: code 11.
    pub(crate) fn grant(&self, seconds: i64) -> Result<i64> {
        self.about_leases(async |connection| {
            connection.leases.grant(seconds, None).await.map(|lease| lease.id())
        })
    }

    /// Ends an etcd lease, and with it the keys that were written with it.
    ///
    /// # Errors
    /// The server does not do it: code 11.
    pub(crate) fn revoke(&self, lease: i64) -> Result<()> {
        self.about_leases(async |connection| connection.leases.revoke(lease).await.map(drop))
    }

    fn about_leases<T>(
        &self,
        ask: impl AsyncFnOnce(&mut Connection) -> Result<T, etcd_client::Error>,
    ) -> Result<T> {
        let mut open = self.open.borrow_mut();
        let asked = match &mut *open {
            Some((_, connection)) => {
                let patience = PATIENCE.min(self.left());
                self.wait(async { tokio::time::timeout(patience, ask(connection)).await })
            }
            None => return Err(Error::new(ErrorCode::TRY_AGAIN, "not connected any more")),
        };
        let reason = match asked {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match &self.caller {
                Some(caller) => caller.redacted(error.to_string()),
                None => error.to_string(),
            },
            Err(_) => "no answer in time".to_owned(),
        };
        Err(Error::new(ErrorCode::TRY_AGAIN, format!("etcd gives no lease: {reason}")))
    }

    /// Waits.
    pub(crate) fn pause(&self, time: Duration) {
        // A timer is made where the event loop runs.
        self.wait(async { tokio::time::sleep(time).await });
    }

    fn send(&self, txn: &Txn, changes: bool) -> Result<Option<Answer>> {
        self.denied.set(false);
        for round in 0_u32.. {
            let start = self.first.get();
            for place in (start..self.endpoints.len()).chain(0..start) {
                if self.findings.borrow()[place].unfit {
                    continue;
                }
                let started = Instant::now();
                let left = self.left();
                if left.is_zero() {
                    return Err(self.nobody_answered());
                }
                let trouble = match self.try_one(place, txn, self.patience(round).min(left)) {
                    Ok(response) => {
                        self.first.set(place);
                        self.trouble.set(None);
                        self.findings.borrow_mut().fill(Finding::default());
                        return answer(response).map(Some);
                    }
                    Err(trouble) => trouble,
                };
                self.open.replace(None);
                if self.trouble.get().is_none() {
                    self.trouble.set(Some(started));
                }
                let url = &self.endpoints[place];
                self.denied.set(matches!(trouble, Trouble::Denied(_)));
                let (reason, unfit) = match trouble {
                    Trouble::Refused(error) | Trouble::Denied(error) => {
                        return Err(error.within(format_args!("etcd at {url}")));
                    }
                    Trouble::StaleToken => {
                        let message = format!("etcd at {url} asks for a token");
                        return Err(Error::new(ErrorCode::BACKEND, message)
                            .advise("give username and passwordFile"));
                    }
                    Trouble::Unknown(reason) if changes => {
                        warn!("{url}: the outcome of a request is unknown: {reason}");
                        self.findings.borrow_mut()[place] = Finding { reason, unfit: false };
                        self.first.set((place + 1) % self.endpoints.len());
                        return Ok(None);
                    }
                    Trouble::Unknown(reason) | Trouble::NotSent(reason) => (reason, false),
                    Trouble::Unfit(reason) => (reason, true),
                };
                match self.endpoints.len() {
                    1 => debug!("{url}: {reason}"),
                    _ => warn!("{url} does not answer, going on with another endpoint: {reason}"),
                }
                self.findings.borrow_mut()[place] = Finding { reason, unfit };
            }
            if self.findings.borrow().iter().all(|finding| finding.unfit) {
                break;
            }
            let pause = (PAUSE * (round + 1).min(5)).min(self.left());
            self.pause(pause);
        }
        Err(self.nobody_answered())
    }

    fn try_one(&self, place: usize, txn: &Txn, patience: Duration) -> Result<TxnResponse, Trouble> {
        let caller = self.caller.as_ref();
        let several = self.endpoints.len() > 1;
        // A server bears a ping more often than every five seconds only three times.
        let pulse = several.then_some(patience * 4 / 15);
        let mut open = self.open.borrow_mut().take().filter(|(of, _)| *of == place);
        let sent = Cell::new(false);
        let answered = self.wait(async {
            let request = async {
                if open.is_none() {
                    let endpoint = &self.endpoints[place];
                    let made = Connection::open(endpoint, self.tls.as_ref(), pulse, caller).await?;
                    open = Some((place, made));
                }
                match &mut open {
                    Some((_, connection)) => {
                        sent.set(true);
                        connection.send(txn, caller).await
                    }
                    None => Err(Trouble::NotSent("not connected".to_owned())),
                }
            };
            tokio::time::timeout(patience, request).await
        });
        let response = answered.unwrap_or_else(|_| {
            if let Some(caller) = caller.filter(|_| sent.get()) {
                caller.forget();
            }
            let reason = format!("no answer within {} ms", patience.as_millis());
            Err(if sent.get() { Trouble::Unknown(reason) } else { Trouble::NotSent(reason) })
        });
        // A server that does nothing of the kind was asked for nothing.
        let unfit = matches!(response, Err(Trouble::Unfit(_)));
        self.asked.set(self.asked.get() || (sent.get() && !unfit));
        let response = response?;
        self.open.replace(open);
        Ok(response)
    }

    /// How long one server may take in this round.
    fn patience(&self, round: u32) -> Duration {
        if self.endpoints.len() == 1 { self.timeout } else { PATIENCE * (1 << round.min(4)) }
    }

    /// The time until the store is given up.
    pub(crate) fn left(&self) -> Duration {
        let since = self.trouble.get().map_or(Duration::ZERO, |first| first.elapsed());
        self.timeout.saturating_sub(since).min(self.deadline.left())
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("the event loop stands as long as the client"),
        }
    }

    fn nobody_answered(&self) -> Error {
        let findings = self.findings.borrow();
        if findings.iter().all(|finding| finding.reason.is_empty()) {
            return Error::new(ErrorCode::TIMED_OUT, "the time is over before the store was asked")
                .advise("raise `ipam.timeout`");
        }
        let mut text = String::from("no etcd endpoint answers");
        for (endpoint, finding) in self.endpoints.iter().zip(&*findings) {
            if !finding.reason.is_empty() {
                text.push_str(&format!("; {endpoint}: {}", finding.reason));
            }
        }
        let unfit = findings.iter().all(|finding| finding.unfit);
        let code = match (self.asked.get(), unfit) {
            (false, _) if self.unreached != ErrorCode::TRY_AGAIN => self.unreached,
            (_, true) => ErrorCode::BACKEND,
            (_, false) => ErrorCode::TRY_AGAIN,
        };
        Error::new(code, text).advise(if unfit {
            "look at the certificates and at the scheme of the endpoints"
        } else {
            "look at the servers and at the way to them; call again once they answer"
        })
    }
}

/// What is left after this is for saying what is wrong.
fn within(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.left() * 9 / 10)
}

impl Drop for Client {
    fn drop(&mut self) {
        // A look-up of a name that hangs must not hold up the end of the process.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

fn answer(response: TxnResponse) -> Result<Answer> {
    let (cluster, revision) = response
        .header()
        .map(|header| (header.cluster_id(), header.revision()))
        .ok_or_else(|| Error::new(ErrorCode::BACKEND, "the store answered without a header"))?;
    Ok(Answer { response, cluster, revision })
}

#[cfg(test)]
mod tests;
