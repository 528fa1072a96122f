//! The task that accepts clients of the control socket.

use std::io;
use std::sync::{Arc, Weak};

use fullsend_control::{BoundSocket, MAX_CLIENTS, SocketFile};
use fullsend_device::LogLimit;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use super::{Reply, client};
use crate::engine::Group;
use crate::runtime::with_io;

/// The limit of the log lines about clients that are not accepted.
static NOT_ACCEPTED: LogLimit = LogLimit::new();

/// An open control socket. Dropping it closes the socket and removes its file.
pub(crate) struct ControlSocket {
    task: JoinHandle<()>,
    _socket_file: SocketFile,
}

impl ControlSocket {
    /// Serves the clients of a stack's control socket. Must be called within a tokio runtime.
    pub(crate) fn serve(group: &Arc<Group>, socket: BoundSocket) -> io::Result<Self> {
        let (listener, socket_file) = socket.into_parts();
        listener.set_nonblocking(true)?;
        let listener = with_io(|| UnixListener::from_std(listener))?;
        let task = tokio::spawn(accept(listener, Arc::downgrade(group)));
        Ok(Self {
            task,
            _socket_file: socket_file,
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Aborting it also aborts the tasks of its clients.
        self.task.abort();
    }
}

async fn accept(listener: UnixListener, group: Weak<Group>) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if clients.len() < MAX_CLIENTS => {
                    clients.spawn(client::serve(stream, group.clone()));
                }
                Ok((stream, _)) => refuse(&stream),
                // No descriptor is free until a client disconnects.
                Err(error) => {
                    NOT_ACCEPTED.warn(error.kind(), || {
                        format!("a client of the control socket was not accepted: {error}")
                    });
                    if clients.join_next().await.is_none() {
                        tokio::task::yield_now().await;
                    }
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

fn refuse(stream: &UnixStream) {
    // The buffer of a new socket has room for a line.
    let _ = stream.try_write(Reply::too_many_clients().to_line().as_bytes());
}
