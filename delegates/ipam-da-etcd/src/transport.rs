//! gRPC as a transport: one request, sent to one server of a store.

use std::future::Future;
use std::time::Duration;

use etcd_client::{LeaseClient, TxnResponse};
use ipam_kit::{Error, ErrorCode, Result};
use ipam_servers::{RequestError, Transport, words};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::ClientTlsConfig;

use crate::config::EtcdStore;
use crate::connection::{Connection, TxnMaker};
use crate::credentials::EtcdCredentials;
use crate::endpoint::Endpoint;
use crate::grpc_failure::{GrpcFailure, with_advice_about_a_cut};
use crate::tls;

/// The answer of the store.
#[derive(Debug)]
pub(crate) struct EtcdAnswer {
    pub(crate) response: TxnResponse,
    /// The cluster's id.
    pub(crate) cluster: u64,
    /// The store's revision.
    pub(crate) revision: i64,
}

/// The event loop, and the connection of the server that answered last.
pub(crate) struct Grpc {
    endpoints: Vec<Endpoint>,
    /// The beginning of every key, without a slash at its end.
    prefix: String,
    tls: Option<ClientTlsConfig>,
    credentials: Option<EtcdCredentials>,
    events: Events,
    /// The index of a server, and the connection to it.
    open: Option<(usize, Connection)>,
    /// Whether the latest request was refused to this caller.
    denied: bool,
}

impl Grpc {
    /// # Errors
    /// A certificate file cannot be read.
    pub(crate) fn new(store: &EtcdStore, credentials: Option<EtcdCredentials>) -> Result<Self> {
        Ok(Self {
            endpoints: store.endpoints.clone(),
            prefix: store.prefix.clone(),
            tls: tls::settings(store)?,
            credentials,
            events: Events::new()?,
            open: None,
            denied: false,
        })
    }

    pub(crate) fn endpoint(&self, index: usize) -> &Endpoint {
        &self.endpoints[index]
    }

    pub(crate) fn was_denied(&self) -> bool {
        self.denied
    }

    /// Asks something about etcd leases over the connection that is open.
    ///
    /// # Errors
    /// No connection is open, or the server refuses: code 11.
    pub(crate) fn about_leases<T>(
        &mut self,
        patience: Duration,
        ask: impl AsyncFnOnce(&mut LeaseClient) -> Result<T, etcd_client::Error>,
    ) -> Result<T> {
        let Some((_, connection)) = &mut self.open else {
            return Err(Error::new(ErrorCode::TRY_AGAIN, "the connection to etcd has ended"));
        };
        let reason = match self.events.within(patience, ask(&mut connection.leases)) {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) => match &self.credentials {
                Some(credentials) => credentials.redacted(error.to_string()),
                None => error.to_string(),
            },
            None => "no answer in time".to_owned(),
        };
        let message = format!("cannot get, renew or end an etcd lease: {reason}");
        Err(Error::new(ErrorCode::TRY_AGAIN, message))
    }
}

impl Transport<TxnMaker<'_>> for Grpc {
    type Answer = EtcdAnswer;

    fn ask(
        &mut self,
        index: usize,
        make: &mut TxnMaker<'_>,
        patience: Duration,
    ) -> Result<EtcdAnswer, RequestError> {
        self.denied = false;
        let Self { endpoints, tls, credentials, events, .. } = self;
        // A server bears a ping more often than every five seconds only three times.
        let pulse = (endpoints.len() > 1).then_some(patience * 4 / 15);
        let kept = self.open.take().filter(|(of, _)| *of == index);
        let is_first_over_tls = kept.is_none() && endpoints[index].is_secured();
        let mut sent = false;
        let answered = events.within(patience, async {
            let mut connection = match kept {
                Some((_, connection)) => connection,
                None => {
                    Connection::open(&endpoints[index], tls.as_ref(), pulse, credentials.as_mut())
                        .await?
                }
            };
            sent = true;
            let response = connection.send(*make, credentials.as_mut()).await?;
            Ok::<_, GrpcFailure>((connection, response))
        });
        let failure = match answered {
            Some(Ok((connection, response))) => {
                self.open = Some((index, connection));
                return answer(response);
            }
            Some(Err(failure)) => failure,
            None if sent => {
                if let Some(credentials) = &self.credentials {
                    credentials.forget_token();
                }
                return Err(RequestError::unknown(words::no_answer_within(patience)));
            }
            None => return Err(RequestError::not_done(words::no_answer_within(patience))),
        };
        self.denied = matches!(failure, GrpcFailure::Denied(_));
        let error = RequestError::from(match failure {
            GrpcFailure::Denied(error) => GrpcFailure::Denied(error.advise(format!(
                "grant the user's role readwrite on the prefix: \
                 etcdctl role grant-permission ROLE --prefix=true readwrite {}/",
                self.prefix
            ))),
            failure => failure,
        });
        Err(if is_first_over_tls { error.map_reason(with_advice_about_a_cut) } else { error })
    }

    /// Waits in the event loop, so that an open connection lives on.
    fn pause(&mut self, time: Duration) {
        // A timer is made where the event loop runs.
        self.events.run(async { tokio::time::sleep(time).await });
    }
}

fn answer(response: TxnResponse) -> Result<EtcdAnswer, RequestError> {
    let header = response.header().map(|header| (header.cluster_id(), header.revision()));
    let (cluster, revision) = header.ok_or_else(|| {
        RequestError::not_understood(Error::new(
            ErrorCode::BACKEND,
            "the store answered without a header",
        ))
    })?;
    Ok(EtcdAnswer { response, cluster, revision })
}

/// An event loop, in this thread.
struct Events(Option<Runtime>);

impl Events {
    fn new() -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
            Error::io("cannot start an event loop", error).advise("raise the limit of open files")
        })?;
        Ok(Self(Some(runtime)))
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        match &self.0 {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("the event loop lives as long as the client"),
        }
    }

    /// Runs a future for `patience` at most.
    fn within<T>(&self, patience: Duration, future: impl Future<Output = T>) -> Option<T> {
        // A timer is made where the event loop runs.
        self.run(async { tokio::time::timeout(patience, future).await.ok() })
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // A look-up of a name that hangs must not hold up the end of the process.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
