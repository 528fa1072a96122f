//! Unix sockets that answer requests in JSON: one request for each connection, ended by the client
//! closing its sending side.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, connect, listen, socket,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::private_file::bind_socket;

/// Most clients that wait to be accepted.
const BACKLOG: Backlog = Backlog::MAXCONN;
/// Most bytes after a request that are read and ignored.
const DRAINED_MAX: u64 = 1 << 20;
/// Clients that are served concurrently; further ones wait.
const CLIENTS_MAX: usize = 8;
/// Time after which a client that sends no request, or does not read its answer, is disconnected.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// A program's answers to the requests to its socket.
pub(super) trait Service: Clone + Send + Sync + 'static {
    /// Most bytes that are read of a request.
    const REQUEST_MAX: usize;

    /// Returns the answer to a request, which may be truncated to [`Self::REQUEST_MAX`] bytes.
    fn answer(&self, request: &[u8]) -> impl Future<Output = Value> + Send;
}

/// Binds the socket, to which only the process's user can connect. Replaces the socket of an earlier run
/// on which no process listens. `name` is the socket's name in errors.
pub(super) fn bind(path: &Path, name: &str) -> Result<UnixListener> {
    let is_socket = path
        .symlink_metadata()
        .is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && is_refused(path) {
        let _ = std::fs::remove_file(path);
    }
    let listener = bind_socket(path, SockType::Stream).and_then(|socket| {
        listen(&socket, BACKLOG)
            .map(|()| socket)
            .map_err(Into::into)
    });
    listener.map(UnixListener::from).with_context(|| {
        format!(
            "cannot create the {name} socket {}; its path may have at most 107 bytes, and must not \
             exist",
            path.display()
        )
    })
}

/// Returns whether no process listens on a socket. Does not wait if its queue is full.
fn is_refused(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connected = UnixAddr::new(path).and_then(|address| {
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &address)
    });
    connected == Err(Errno::ECONNREFUSED)
}

/// Returns the future that serves the socket.
pub(super) fn serve<S: Service>(
    listener: UnixListener,
    service: S,
) -> io::Result<impl Future<Output = ()> + Send> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    Ok(async move {
        let permits = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let Ok(permit) = permits.clone().acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let client = answer_client(stream, service.clone());
                    tokio::spawn(async move {
                        client.await;
                        drop(permit);
                    });
                }
                // Descriptors or memory are missing and may be free later.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

async fn answer_client<S: Service>(mut stream: UnixStream, service: S) {
    let mut request = Vec::new();
    let mut limited = (&mut stream).take(S::REQUEST_MAX as u64);
    let read = timeout(CLIENT_TIMEOUT, limited.read_to_end(&mut request)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    // The answer has no timeout, so that a change that has begun completes.
    let answer = service.answer(&request).await.to_string();
    let _ = timeout(CLIENT_TIMEOUT, async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing the socket with unread data could reset the connection before the client has the
        // answer.
        let mut rest = stream.take(DRAINED_MAX);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{Backlog, listen};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_replaced_only_if_no_process_listens() {
        let path = std::env::temp_dir().join(format!("json-socket-{}", std::process::id()));
        let listener = bind(&path, "API").unwrap();
        // One client fills this queue.
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        let error = bind(&path, "API").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot create the API socket"),
            "{error}"
        );
        drop(listener);
        drop(bind(&path, "API").unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}
