use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, TcpConnector, Transport,
    TransportAdapter, time,
};
use ureq::{Agent, Error};

use crate::words;

/// The time to connect, with the handshake of TLS.
const CONNECT: Duration = Duration::from_secs(1);

/// Bytes of a connection's buffer in each direction: more than most requests and answers have. Both
/// are filled with zeros before they are used.
const BUFFER: usize = 16 * 1024;

/// Whether a request may have reached a server.
///
/// A server acts only on a whole request: one whose first part the system did not take is not sent.
#[derive(Clone, Debug, Default)]
pub(super) struct WireState(Arc<WireFlags>);

#[derive(Debug, Default)]
struct WireFlags {
    sent: AtomicBool,
    /// The first byte of a connection whose server does not begin as one of HTTP/1 does; 0 of others.
    foreign_byte: AtomicU8,
}

impl WireState {
    pub(super) fn set_sent(&self, sent: bool) {
        self.0.sent.store(sent, Ordering::Relaxed);
        if !sent {
            self.0.foreign_byte.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn is_sent(&self) -> bool {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// Advice about a server whose first bytes were not HTTP/1: it has read no request.
    pub(super) fn protocol_advice(&self) -> Option<&'static str> {
        match self.0.foreign_byte.load(Ordering::Relaxed) {
            0 => None,
            // An alert, or a handshake.
            0x15 | 0x16 => Some(words::WITH_TLS),
            _ => Some("the answer is not HTTP/1: check the host and the port"),
        }
    }

    fn see_first_bytes(&self, first: &[u8]) {
        const BEGIN: &[u8] = b"HTTP/";
        let length = first.len().min(BEGIN.len());
        if first[..length] != BEGIN[..length] {
            self.0.foreign_byte.store(first[0].max(1), Ordering::Relaxed);
        }
    }
}

/// Sends requests, and keeps one connection for the next. It sets `wire` to sent with the first bytes of a request.
pub(super) fn agent(tls: Option<Arc<ClientConfig>>, wire: WireState) -> Agent {
    let config = Config::builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("ipam-delegated/", env!("CARGO_PKG_VERSION")))
        .input_buffer_size(BUFFER)
        .output_buffer_size(BUFFER)
        .max_idle_connections(1)
        .max_idle_connections_per_host(1)
        .timeout_connect(Some(CONNECT))
        .build();
    let connector = ().chain(TcpConnector::default()).chain(TlsConnector { tls, wire });
    Agent::with_parts(config, connector, HostResolver::default())
}

/// Resolves host names. The default resolver starts a thread, which an address does not need.
#[derive(Debug, Default)]
struct HostResolver(DefaultResolver);

impl Resolver for HostResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let Ok(address) = bare_host(uri).parse::<IpAddr>() else {
            return self.0.resolve(uri, config, timeout);
        };
        let of_scheme = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let mut found = self.empty();
        found.push(SocketAddr::new(address, uri.port_u16().unwrap_or(of_scheme)));
        Ok(found)
    }
}

/// The host, without the brackets of an IPv6 address.
fn bare_host(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Adds TLS to a connection if the scheme asks for it.
struct TlsConnector {
    tls: Option<Arc<ClientConfig>>,
    wire: WireState,
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = TrackedConnection;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<TrackedConnection>, Error> {
        let Some(tcp) = chained else { return Ok(None) };
        let inner: Box<dyn Transport> = match &self.tls {
            Some(config) if details.needs_tls() => {
                Box::new(TlsConnection::open(config, details, tcp)?)
            }
            _ => Box::new(tcp),
        };
        Ok(Some(TrackedConnection {
            inner,
            pending: Vec::new(),
            heard: false,
            wire: self.wire.clone(),
        }))
    }
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

/// A connection that records when something was sent. It sends the head of a request together with its
/// body, once an answer is awaited: two parts would wake the server twice.
#[derive(Debug)]
struct TrackedConnection {
    inner: Box<dyn Transport>,
    pending: Vec<u8>,
    /// Something has come.
    heard: bool,
    wire: WireState,
}

impl TrackedConnection {
    fn flush(&mut self, timeout: NextTimeout) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let length = self.pending.len();
        self.inner.buffers().output()[..length].copy_from_slice(&self.pending);
        self.pending.clear();
        self.inner.transmit_output(length, timeout)?;
        self.wire.set_sent(true);
        Ok(())
    }
}

impl Transport for TrackedConnection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let part = self.inner.buffers().output()[..amount].to_vec();
        if self.pending.len() + amount > BUFFER {
            self.flush(timeout)?;
        }
        self.pending.extend(part);
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.flush(timeout)?;
        let came = self.inner.await_input(timeout)?;
        let first = self.inner.buffers().input();
        if !self.heard && !first.is_empty() {
            self.heard = true;
            self.wire.see_first_bytes(first);
        }
        Ok(came)
    }

    fn is_open(&mut self) -> bool {
        self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

/// A connection over TLS.
///
/// ureq's own panics on a key that does not fit the certificate, and parses the files again for each
/// connection.
struct TlsConnection {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl TlsConnection {
    fn open(
        config: &Arc<ClientConfig>,
        details: &ConnectionDetails<'_>,
        tcp: impl Transport,
    ) -> Result<Self, Error> {
        let host = bare_host(details.uri).to_owned();
        let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::clone(config), name)
            .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
        let mut line = TransportAdapter::new(Box::new(tcp) as _, Arc::clone(&details.current_time));
        line.set_timeout(left(details));
        tls.complete_io(&mut line)?;
        let (input, output) =
            (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Self { buffers: LazyBuffers::new(input, output), stream: StreamOwned::new(tls, line) })
    }
}

/// The time left to connect.
fn left(details: &ConnectionDetails<'_>) -> NextTimeout {
    let mut timeout = details.timeout;
    if let (time::Instant::Exact(from), time::Instant::Exact(now), time::Duration::Exact(whole)) =
        (details.now, (details.current_time)(), timeout.after)
    {
        timeout.after = time::Duration::Exact(whole.saturating_sub(now.duration_since(from)));
    }
    timeout
}

impl Transport for TlsConnection {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.get_mut().set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        std::io::Write::write_all(&mut self.stream, output)?;
        Ok(())
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.get_mut().set_timeout(timeout);
        let input = self.buffers.input_append_buf();
        let amount = std::io::Read::read(&mut self.stream, input)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.get_mut().get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnection")
    }
}
