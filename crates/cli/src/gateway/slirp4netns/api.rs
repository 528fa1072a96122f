//! The JSON API of slirp4netns: port forwards are added, listed and removed.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fullsend_gateway::{Forward, ForwardId, Handle, Protocol, Side};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Bytes of a request from which it is too large.
const REQUEST_MAX: usize = 4096;
/// Bytes behind a request that are read and ignored.
const DRAINED_MAX: u64 = 1 << 20;
/// A client that sends no request is disconnected after this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Values of arguments that a request may omit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    pub(super) guest: Ipv4Addr,
}

/// What the API changes.
pub(super) trait Forwards {
    fn add(&self, forward: Forward) -> io::Result<u64>;
    fn list(&self) -> Vec<(u64, Forward)>;
    fn remove(&self, id: u64) -> io::Result<()>;
}

impl Forwards for Handle {
    fn add(&self, forward: Forward) -> io::Result<u64> {
        self.add_forward(forward).map(|id| id.0)
    }

    fn list(&self) -> Vec<(u64, Forward)> {
        let all = self.list_forwards().into_iter();
        all.map(|(id, forward)| (id.0, forward)).collect()
    }

    fn remove(&self, id: u64) -> io::Result<()> {
        self.remove_forward(ForwardId(id))
    }
}

/// Binds the socket. A socket of an earlier run, on which no process listens, is replaced.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).with_context(|| {
        format!(
            "cannot create the API socket {}; its path may have at most 107 bytes, and must not \
             exist",
            path.display()
        )
    })
}

/// Returns a task that serves the socket.
pub(super) fn serve(
    listener: UnixListener,
    handle: Handle,
    defaults: Defaults,
) -> io::Result<impl Future<Output = ()> + Send> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    Ok(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(tokio::time::timeout(
                        REQUEST_TIMEOUT,
                        answer_client(stream, handle.clone(), defaults),
                    ));
                }
                // No descriptors or no memory: later there may be.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// Answers one request. The client closes its sending side behind it.
async fn answer_client(mut stream: UnixStream, handle: Handle, defaults: Defaults) {
    let mut request = Vec::new();
    let mut limited = (&mut stream).take(REQUEST_MAX as u64);
    if limited.read_to_end(&mut request).await.is_err() {
        return;
    }
    let answer = answer(&request, &handle, defaults).to_string();
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
    // Closing with data unread would reset the connection before the client has the answer.
    let mut rest = stream.take(DRAINED_MAX);
    let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
}

/// Returns the answer to a request.
pub(super) fn answer(request: &[u8], forwards: &impl Forwards, defaults: Defaults) -> Value {
    match execute(request, forwards, defaults) {
        Ok(answer) => answer,
        Err(text) => json!({"error": {"desc": text}}),
    }
}

fn execute(request: &[u8], forwards: &impl Forwards, defaults: Defaults) -> Result<Value, String> {
    if request.len() >= REQUEST_MAX {
        return Err("bad request: too large message".into());
    }
    let Ok(Value::Object(request)) = serde_json::from_slice(request) else {
        return Err("bad request: cannot parse JSON".into());
    };
    let Some(command) = request.get("execute").and_then(Value::as_str) else {
        return Err("bad request: no execute found".into());
    };
    let empty = Map::new();
    let arguments = request.get("arguments").and_then(Value::as_object);
    let arguments = Arguments {
        command,
        values: arguments.unwrap_or(&empty),
    };
    match command {
        "add_hostfwd" => {
            let id = forwards.add(arguments.forward(defaults)?);
            let id = id.map_err(|error| format!("bad request: add_hostfwd: {error}"))?;
            Ok(json!({"return": {"id": id}}))
        }
        "list_hostfwd" => {
            let entries: Vec<_> = forwards.list().iter().map(entry).collect();
            Ok(json!({"return": {"entries": entries}, "entries": entries}))
        }
        "remove_hostfwd" => {
            let id = arguments.values.get("id").and_then(Value::as_u64);
            let id = id.ok_or_else(|| arguments.bad("id"))?;
            forwards.remove(id).map_err(|_| arguments.bad("id"))?;
            Ok(json!({"return": {}}))
        }
        _ => Err("bad request: unknown execute".into()),
    }
}

fn entry((id, forward): &(u64, Forward)) -> Value {
    let protocol = match forward.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    json!({
        "id": id,
        "proto": protocol,
        "host_addr": forward.host.ip().to_string(),
        "host_port": forward.host.port(),
        "guest_addr": forward.guest.ip().to_string(),
        "guest_port": forward.guest.port(),
    })
}

/// The arguments of a request.
struct Arguments<'a> {
    command: &'a str,
    values: &'a Map<String, Value>,
}

impl Arguments<'_> {
    fn bad(&self, name: &str) -> String {
        format!("bad request: {}: bad arguments.{name}", self.command)
    }

    fn forward(&self, defaults: Defaults) -> Result<Forward, String> {
        let protocol = match self.values.get("proto").and_then(Value::as_str) {
            Some("tcp") => Protocol::Tcp,
            Some("udp") => Protocol::Udp,
            _ => return Err(self.bad("proto")),
        };
        let host = self.address("host_addr", Ipv4Addr::UNSPECIFIED)?;
        let host = SocketAddr::new(host, self.port("host_port")?);
        let guest = self.address("guest_addr", defaults.guest)?;
        let guest = SocketAddr::new(guest, self.port("guest_port")?);
        Ok(Forward {
            from: Side::Host,
            protocol,
            host,
            guest,
            interface: None,
        })
    }

    fn address(&self, name: &str, default: Ipv4Addr) -> Result<IpAddr, String> {
        match self.values.get(name) {
            None | Some(Value::Null) => Ok(default.into()),
            // Podman sends an empty text for an address that it leaves open.
            Some(Value::String(text)) if text.is_empty() => Ok(default.into()),
            Some(value) => {
                let address = value.as_str().and_then(|text| text.parse().ok());
                address.ok_or_else(|| self.bad(name))
            }
        }
    }

    fn port(&self, name: &str) -> Result<u16, String> {
        let port = self.values.get(name).and_then(Value::as_u64);
        let port = port.and_then(|port| u16::try_from(port).ok());
        port.filter(|port| *port != 0).ok_or_else(|| self.bad(name))
    }
}
