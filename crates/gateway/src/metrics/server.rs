//! The server of the metrics.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::sync::Arc;
use std::time::Duration;

use fullsend::control::{BoundSocket, SocketFile};
use fullsend_device::LogLimit;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::address::MetricsAddress;
use super::request::{MAX_REQUEST, Parsed, parse};
use crate::Handle;

/// Maximum number of connections; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// Longest time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed `accept`, e.g. for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// The limit of the log lines about failed calls of `accept`.
static NOT_ACCEPTED: LogLimit = LogLimit::new();
/// Maximum number of bytes that are read and ignored after an answer.
const MAX_IGNORED: u64 = 1 << 20;

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A bound socket for metrics, whose clients wait until it is served.
#[derive(Debug)]
pub struct MetricsSocket(Bound);

enum Bound {
    Tcp(StdTcpListener),
    Unix(BoundSocket),
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => listener.fmt(f),
            Self::Unix(socket) => socket.fmt(f),
        }
    }
}

/// A listener of either kind. Its clients' addresses are not used.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl MetricsSocket {
    /// Listens at an address.
    ///
    /// # Errors
    /// The error of the operating system, with a message that names the address and the remedy.
    pub fn bind(address: &MetricsAddress) -> io::Result<Self> {
        match address {
            MetricsAddress::Tcp(to) => {
                let listener = StdTcpListener::bind(to).map_err(|error| {
                    let text = format!(
                        "cannot serve metrics at {to}: {error}; choose a free port of an address \
                         of this host"
                    );
                    io::Error::new(error.kind(), text)
                })?;
                Ok(Self(Bound::Tcp(listener)))
            }
            MetricsAddress::Unix(path) => Ok(Self(Bound::Unix(BoundSocket::bind(path)?))),
        }
    }

    /// Returns the file of a Unix socket.
    pub fn file(&self) -> Option<&SocketFile> {
        match &self.0 {
            Bound::Tcp(_) => None,
            Bound::Unix(socket) => Some(socket.file()),
        }
    }

    /// Returns the future that serves the metrics of a gateway until it is dropped. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn serve(self, gateway: Handle) -> io::Result<impl Future<Output = ()> + Send + use<>> {
        let (listener, file) = match self.0 {
            Bound::Tcp(listener) => {
                // The metrics have the addresses of all guests.
                gateway.hide_from_guests(listener.local_addr()?);
                listener.set_nonblocking(true)?;
                (Listener::Tcp(TcpListener::from_std(listener)?), None)
            }
            Bound::Unix(socket) => {
                let (listener, file) = socket.into_parts();
                listener.set_nonblocking(true)?;
                let listener = UnixListener::from_std(listener)?;
                (Listener::Unix(listener), Some(file))
            }
        };
        Ok(async move {
            let _file = file;
            accept(listener, gateway).await;
        })
    }
}

async fn accept(listener: Listener, gateway: Handle) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Dropping the set ends the connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        while connections.try_join_next().is_some() {}
        let accepted: io::Result<Box<dyn Stream>> = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(s, _)| Box::new(s) as _),
            Listener::Unix(listener) => listener.accept().await.map(|(s, _)| Box::new(s) as _),
        };
        match accepted {
            Ok(stream) => {
                let gateway = gateway.clone();
                connections.spawn(async move {
                    // An error means that the client has disconnected or is too slow.
                    let _ = timeout(TIMEOUT, answer(stream, || gateway.metrics())).await;
                    drop(permit);
                });
            }
            Err(error) => {
                NOT_ACCEPTED.warn(error.kind(), || {
                    format!("a client of the metrics was not accepted: {error}")
                });
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Answers the request of a connection.
async fn answer(mut stream: impl Stream, metrics: impl FnOnce() -> String) -> io::Result<()> {
    let mut request = Vec::new();
    let parsed = loop {
        match parse(&request) {
            Parsed::Incomplete => {}
            parsed => break parsed,
        }
        // A request ends with a line, so it is parsed again only when a line is complete.
        let before = request.len();
        while request.len() < MAX_REQUEST && !request[before..].contains(&b'\n') {
            let left = MAX_REQUEST - request.len();
            let mut part = (&mut stream).take(left as u64);
            if part.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
    };
    let response = match parsed {
        Parsed::Metrics { head } => {
            let body = metrics();
            let mut text = response(200, "OK", CONTENT_TYPE, body.len());
            if !head {
                text.push_str(&body);
            }
            text
        }
        Parsed::Refused(status, reason) => {
            let body = format!("{reason}; GET /metrics has the metrics\n");
            response(status, reason, "text/plain", body.len()) + &body
        }
        Parsed::Incomplete => return Ok(()),
    };
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await?;
    // Closing a socket with unread data sends a RST, which may make the client drop the answer.
    let mut rest = stream.take(MAX_IGNORED);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

fn response(status: u16, reason: &str, content_type: &str, len: usize) -> String {
    let allow = if status == 405 {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\n\
         {allow}Connection: close\r\n\r\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn exchange(request: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        client.write_all(request).await.unwrap();
        client.shutdown().await.unwrap();
        answer(server, || "a 1\n".to_owned()).await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn answers_have_their_length_and_close_the_connection() {
        let text = exchange(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("Content-Length: 4\r\nConnection: close"));
        assert_eq!(body, "a 1\n");
        let text = exchange(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\n"));
    }

    #[tokio::test]
    async fn long_and_wrong_requests_are_refused() {
        let text = exchange(b"PUT /metrics HTTP/1.1\r\n\r\nbody").await;
        assert!(text.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"));
        assert!(text.contains("Allow: GET, HEAD\r\n"));
        let long = vec![b'a'; 2 * MAX_REQUEST];
        let text = exchange(&long).await;
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
        assert_eq!(exchange(b"").await, "");
        assert_eq!(exchange(b"GET /met").await, "");
    }
}
