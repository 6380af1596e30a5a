//! The first frame of a server. A server of HTTP/2 sends its settings before it reads any request. So
//! a request that waits for them was not carried out if they never came.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use ipam_servers::{RequestError, words};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot::{self, Receiver, Sender};
use tonic::transport::{Channel, Endpoint as Dial, Error};
use tower::{BoxError, ServiceExt};

/// Bytes of a frame's head.
const HEAD: usize = 9;

/// Connects. The first frame is not waited for here.
pub(crate) async fn connect(dial: &Dial) -> Result<(Channel, FirstFrame), Error> {
    let (sender, greeting) = oneshot::channel();
    let mut sender = Some(sender);
    let connector = tower::service_fn(move |server: Uri| {
        let sender = sender.take();
        async move {
            let mut http = HttpConnector::new();
            http.enforce_http(false);
            http.set_nodelay(true);
            let stream = http.oneshot(server).await?.into_inner();
            Ok::<_, BoxError>(TokioIo::new(WatchedStream { stream, first: Vec::new(), sender }))
        }
    });
    Ok((dial.connect_with_connector(connector).await?, FirstFrame(greeting)))
}

/// The first bytes of a server: a frame's head, or fewer if no more came.
pub(crate) struct FirstFrame(Receiver<Vec<u8>>);

impl FirstFrame {
    /// Waits until it is one of HTTP/2.
    pub(crate) async fn wait(self) -> Result<(), RequestError> {
        let first = self.0.await.unwrap_or_default();
        match &first[..] {
            [] => Err(RequestError::not_done(
                "it closed the connection before it sent anything (if the server speaks TLS, write https:// before it, else check the port)",
            )),
            // Settings, of the connection itself.
            [_, _, _, 4, _, 0, 0, 0, 0] => Ok(()),
            [b'H', b'T', b'T', b'P', b'/', ..] => Err(RequestError::rejected(
                "it answers in HTTP/1, so it is not etcd (check the host and the port)",
            )),
            // An alert, or a handshake.
            [0x15 | 0x16, 3, ..] => Err(RequestError::rejected(words::WITH_TLS)),
            _ => Err(RequestError::rejected(
                "it does not answer in HTTP/2, so it is not etcd (check the host and the port)",
            )),
        }
    }
}

/// A connection that sends on its first bytes to a [`FirstFrame`].
struct WatchedStream {
    stream: TcpStream,
    first: Vec<u8>,
    sender: Option<Sender<Vec<u8>>>,
}

impl WatchedStream {
    /// Keeps the first bytes that were read; none if the connection has ended.
    fn keep_first(&mut self, read: &[u8]) {
        if self.sender.is_none() {
            return;
        }
        let missing = HEAD - self.first.len();
        self.first.extend(&read[..read.len().min(missing)]);
        if (read.is_empty() || self.first.len() == HEAD)
            && let Some(sender) = self.sender.take()
        {
            // No request waits where the connection was given up.
            let _ = sender.send(std::mem::take(&mut self.first));
        }
    }
}

impl Drop for WatchedStream {
    /// Sends on the first bytes: the client gives up a connection by them, and they may be fewer
    /// than a frame's head.
    fn drop(&mut self) {
        self.keep_first(&[]);
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let line = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut line.stream).poll_read(context, buffer);
        match &polled {
            Poll::Ready(Ok(())) => line.keep_first(&buffer.filled()[before..]),
            Poll::Ready(Err(_)) => line.keep_first(&[]),
            Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
