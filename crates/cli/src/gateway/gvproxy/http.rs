//! The HTTP servers of the API, on sockets of the host and on the stack behind the guest's device.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fullsend::TcpListener;
use fullsend_device::{Framing, LogLimit};
use fullsend_gateway::PortId;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, copy_bidirectional};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::api::{Answer, Api, tunnel_destination};
use super::exposures::Client;
use super::links::GuestLinks;
use super::listen::ApiListener;

/// Most bytes of a request's body.
const BODY_MAX: usize = 64 << 10;
/// Most bytes in the head of a request that is not answered over HTTP.
const HEAD_MAX: usize = 8 << 10;
/// Bytes at the beginning of a request in which its path is searched.
const LINE_MAX: usize = 256;
/// Clients of a listener that are served concurrently; further ones wait.
const CLIENTS_MAX: usize = 256;
/// Most connections of one guest; further ones are reset.
const CLIENTS_OF_GUEST: usize = 32;
/// Time within which a request must arrive.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the beginning of a request is inspected again.
const STEP: Duration = Duration::from_millis(10);
/// The limit of the log lines about failed requests.
static FAILED: LogLimit = LogLimit::new();

/// A connection to a socket of the host.
trait HostStream: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    /// Copies received bytes without removing them from the socket.
    async fn peek(&self, buf: &mut [u8]) -> io::Result<usize>;
    fn into_fd(self) -> io::Result<OwnedFd>;
}

macro_rules! host_stream {
    ($stream:ty) => {
        impl HostStream for $stream {
            async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
                loop {
                    self.readable().await?;
                    let peeked = self.try_io(Interest::READABLE, || {
                        let (_, len) = rustix::net::recv(self, &mut *buf, RecvFlags::PEEK)?;
                        Ok(len)
                    });
                    match peeked {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        other => return other,
                    }
                }
            }

            fn into_fd(self) -> io::Result<OwnedFd> {
                Ok(self.into_std()?.into())
            }
        }
    };
}

host_stream!(UnixStream);
host_stream!(TcpStream);

/// Serves a socket of the host. With `guests`, virtual machines may connect with `/connect`.
pub(super) async fn serve(api: Api, listener: ApiListener, guests: Option<GuestLinks>) {
    let permits = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let (api, guests) = (api.clone(), guests.clone());
        let accepted = match &listener {
            ApiListener::Unix { listener, .. } => {
                let accepted = listener.accept().await;
                accepted.map(|(stream, _)| {
                    tokio::spawn(async move {
                        serve_host(api, stream, guests).await;
                        drop(permit);
                    })
                })
            }
            ApiListener::Tcp(listener) => {
                let accepted = listener.accept().await;
                accepted.map(|(stream, _)| {
                    tokio::spawn(async move {
                        serve_host(api, stream, guests).await;
                        drop(permit);
                    })
                })
            }
        };
        if accepted.is_err() {
            // Descriptors or memory are missing and may be free later.
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Serves the guests at the gateway's address.
pub(super) async fn serve_guest(api: Api, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CLIENTS_MAX));
    // The permits of each guest that has connections.
    let mut guests = BTreeMap::<Option<PortId>, Arc<Semaphore>>::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        // Fails only if the stack has stopped.
        let Ok((stream, from)) = listener.accept().await else {
            return;
        };
        let (api, client) = (api.clone(), api.guest_at(from.ip()));
        guests.retain(|_, own| own.available_permits() < CLIENTS_OF_GUEST);
        let own = guests.entry(client.port());
        let own = own.or_insert_with(|| Arc::new(Semaphore::new(CLIENTS_OF_GUEST)));
        let Ok(own_permit) = own.clone().try_acquire_owned() else {
            continue;
        };
        tokio::spawn(async move {
            serve_http(api, client, stream).await;
            drop((permit, own_permit));
        });
    }
}

async fn serve_host(api: Api, stream: impl HostStream, guests: Option<GuestLinks>) {
    let Ok(Ok(target)) = timeout(TIMEOUT, target_of(&stream)).await else {
        return;
    };
    let done = match (&*target.0, guests) {
        ("/connect", Some(guests)) => connect(stream, &guests).await,
        ("/tunnel", _) => tunnel(&api, stream, &target.1).await,
        _ => {
            serve_http(api, Client::Host, stream).await;
            Ok(())
        }
    };
    if let Err(error) = done {
        FAILED.warn(format!("{error:#}"), || {
            format!("{} failed: {error:#}", target.0)
        });
    }
}

/// Returns the path and the query of a connection's first request without reading it. Both are empty if
/// the method is not POST.
async fn target_of(stream: &impl HostStream) -> io::Result<(String, String)> {
    let mut line = [0; LINE_MAX];
    loop {
        let len = stream.peek(&mut line).await?;
        let is_whole = line[..len].contains(&b'\n') || len == LINE_MAX;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if is_whole {
            return Ok(parse_target(&line[..len]));
        }
        // The socket stays ready while the same bytes are unread.
        sleep(STEP).await;
    }
}

/// Returns the path and the query in a request's first line. Both are empty if the method is not POST.
fn parse_target(line: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let target = match words.next() {
        Some("POST") => words.next().unwrap_or_default(),
        _ => "",
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    (path.to_owned(), query.to_owned())
}

/// Parses bytes as the first line of a request, for the fuzz target.
pub(super) fn parse_any(bytes: &[u8]) {
    let (path, query) = parse_target(&bytes[..bytes.len().min(LINE_MAX)]);
    assert!(!path.contains('?') && !path.contains(' '));
    let _ = tunnel_destination(&query);
}

/// Reads the head of a request and no byte after it.
async fn skip_head(stream: &mut impl HostStream) -> Result<()> {
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= HEAD_MAX {
                bail!("the request has more than {HEAD_MAX} bytes");
            }
            head.push(stream.read_u8().await?);
        }
        Ok(())
    };
    timeout(TIMEOUT, read)
        .await
        .context("the request is not whole")?
}

/// Adds a guest whose frames follow the request on the connection. There is no answer.
async fn connect(mut stream: impl HostStream, guests: &GuestLinks) -> Result<()> {
    skip_head(&mut stream).await?;
    guests.add_frames(stream.into_fd()?, Framing::Plain)?;
    Ok(())
}

/// Connects the client to a port of the guest: `OK` and then the guest's data follow the request.
async fn tunnel(api: &Api, mut stream: impl HostStream, query: &str) -> Result<()> {
    skip_head(&mut stream).await?;
    let to = tunnel_destination(query)?;
    let mut guest = api.exposures().connect(to).await?;
    stream.write_all(b"OK").await?;
    // An error only means that one side has ended.
    let _ = copy_bidirectional(&mut stream, &mut guest).await;
    Ok(())
}

/// Answers the requests of a connection.
async fn serve_http(
    api: Api,
    client: Client,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) {
    let service = service_fn(|request| answer(&api, client, request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of the API failed");
    }
}

async fn answer(
    api: &Api,
    client: Client,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = timeout(TIMEOUT, Limited::new(body, BODY_MAX).collect()).await;
    let answer = match body {
        Ok(Ok(body)) => {
            let target = (&parts.method, parts.uri.path());
            api.answer(client, target, &body.to_bytes()).await
        }
        Ok(Err(error)) => Answer::Error(StatusCode::BAD_REQUEST, error.to_string()),
        Err(_) => Answer::Error(
            StatusCode::REQUEST_TIMEOUT,
            "the body is not whole".to_owned(),
        ),
    };
    Ok(response(answer))
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let (status, content_type, body) = match answer {
        Answer::Json(value) => (StatusCode::OK, "application/json", format!("{value}\n")),
        Answer::Done => (StatusCode::OK, "text/plain; charset=utf-8", String::new()),
        Answer::Error(status, text) => (status, "text/plain; charset=utf-8", format!("{text}\n")),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let value = hyper::header::HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, value);
    response
}
