use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, KvClient, LeaseClient, Txn, TxnResponse};
use http::HeaderValue;
use ipam_kit::{Error, ErrorCode};
use ipam_servers::{RequestError, words};
use tonic::transport::{ClientTlsConfig, Endpoint as Dial};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use crate::credentials::EtcdCredentials;
use crate::endpoint::Endpoint;
use crate::first_frame::{self, FirstFrame};
use crate::grpc_failure::{GrpcFailure, connection_failure};

/// How long a server may take to be connected to, or to show that it lives.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);

/// The bytes that a server may send before it has to wait for us.
const WINDOW: u32 = 1024 * 1024;

/// The largest answer that is read, in bytes: many times that of a page.
const LARGEST: usize = 64 * 1024 * 1024;

/// Makes a transaction, once for each try to send it.
pub(crate) type TxnMaker<'a> = &'a dyn Fn() -> Txn;

/// A connection to one server.
pub(crate) struct Connection {
    channel: tonic::transport::Channel,
    kv: KvClient,
    /// For etcd's own leases.
    pub(crate) leases: LeaseClient,
}

impl Connection {
    /// Connects to a server, with a token where the caller has one.
    ///
    /// Where `pulse` is set, a request fails when the server does not answer a ping that often: one
    /// that accepts connections and is silent otherwise costs no more than one that does not.
    pub(crate) async fn open(
        endpoint: &Endpoint,
        tls: Option<&ClientTlsConfig>,
        pulse: Option<Duration>,
        credentials: Option<&mut EtcdCredentials>,
    ) -> Result<Self, RequestError> {
        let (channel, first_frame) = tokio::time::timeout(CONNECT, dial(endpoint, tls, pulse))
            .await
            .map_err(|_| RequestError::not_done(words::NOT_CONNECTED))??;
        // Over TLS the server has shown by its certificate that it is the one that is meant.
        if !endpoint.is_secured() {
            first_frame.wait().await?;
        }
        let mut token = None;
        if let Some(credentials) = credentials {
            token = match credentials.cached_token() {
                Some(token) => Some(token),
                None => authenticate(&channel, credentials).await?,
            };
        }
        let (kv, leases) = clients(&channel, token.as_deref()).await?;
        Ok(Self { channel, kv, leases })
    }

    /// Sends a transaction; after a token that is not known any more, once more with a new one.
    pub(crate) async fn send(
        &mut self,
        make: TxnMaker<'_>,
        credentials: Option<&mut EtcdCredentials>,
    ) -> Result<TxnResponse, GrpcFailure> {
        let error = match self.kv.txn(make()).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        match (GrpcFailure::of_request(&error, credentials.as_deref()), credentials) {
            (GrpcFailure::StaleToken, Some(credentials)) => {
                let token = authenticate(&self.channel, credentials).await?;
                (self.kv, self.leases) = clients(&self.channel, token.as_deref()).await?;
                let answer = self.kv.txn(make()).await;
                answer.map_err(|error| GrpcFailure::of_request(&error, Some(credentials)))
            }
            (failure, _) => Err(failure),
        }
    }
}

async fn dial(
    endpoint: &Endpoint,
    tls: Option<&ClientTlsConfig>,
    pulse: Option<Duration>,
) -> Result<(tonic::transport::Channel, FirstFrame), RequestError> {
    let secured = endpoint.is_secured();
    let mut dial = Dial::from_shared(endpoint.to_string())
        .map_err(|error| connection_failure(&error, secured))?;
    // A page of a listing comes in one go.
    dial = dial.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
    if let Some(tls) = tls.filter(|_| secured) {
        dial = dial.tls_config(tls.clone()).map_err(|error| {
            RequestError::refused(
                Error::new(ErrorCode::INVALID_CONFIG, "the certificate files cannot be used")
                    .caused_by(error)
                    .advise("check certFile, keyFile and trustedCaFile: PEM files, and the key belongs to the certificate"),
            )
        })?;
    }
    if let Some(pulse) = pulse {
        dial = dial.http2_keep_alive_interval(pulse).keep_alive_timeout(CONNECT - CONNECT * 2 / 5);
    }
    first_frame::connect(&dial).await.map_err(|error| connection_failure(&error, secured))
}

/// Clients over a connection, which show a token with each request.
async fn clients(
    channel: &tonic::transport::Channel,
    token: Option<&str>,
) -> Result<(KvClient, LeaseClient), RequestError> {
    let options = ConnectOptions::new().with_require_leader(true);
    let channel = channel.clone();
    let channel = match token {
        None => Channel::Tonic(channel),
        Some(token) => {
            let token = HeaderValue::from_str(token)
                .map_err(|_| RequestError::rejected("it gave an invalid login token"))?;
            let shows = channel.map_err(tower::BoxError::from).map_request(
                move |mut request: http::Request<tonic::body::Body>| {
                    request.headers_mut().insert("token", token.clone());
                    request
                },
            );
            Channel::Custom(BoxCloneSyncService::new(shows))
        }
    };
    let client = Client::from_channel(channel, Some(options)).await;
    let client = client.map_err(|error| GrpcFailure::of_request(&error, None))?;
    let kv = client.kv_client().max_decoding_message_size(LARGEST);
    Ok((kv, client.lease_client()))
}

/// Returns a new token, kept for later processes; none where the servers ask for none.
async fn authenticate(
    channel: &tonic::transport::Channel,
    credentials: &mut EtcdCredentials,
) -> Result<Option<String>, RequestError> {
    let password = credentials.read_password().map_err(RequestError::refused)?;
    let client = Client::from_channel(Channel::Tonic(channel.clone()), None).await;
    let client = client.map_err(|error| authentication_failure(&error, credentials))?;
    match client.auth_client().authenticate(credentials.user.clone(), password).await {
        Ok(answer) => {
            credentials.keep_token(answer.token());
            Ok(Some(answer.token().to_owned()))
        }
        Err(etcd_client::Error::GRpcStatus(status))
            if status.message().contains("authentication is not enabled") =>
        {
            Ok(None)
        }
        Err(error) => Err(authentication_failure(&error, credentials)),
    }
}

/// Why the servers gave no token. To ask for one changes nothing.
fn authentication_failure(
    error: &etcd_client::Error,
    credentials: &EtcdCredentials,
) -> RequestError {
    RequestError::from(GrpcFailure::of_request(error, Some(credentials))).before_the_request()
}
