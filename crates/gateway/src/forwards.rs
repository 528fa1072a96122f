//! The table of forwards and their listening sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use crate::forward::{Forward, ForwardId, Protocol};
use crate::gateway::Shared;
use crate::reactor::register;
use crate::tcp::accept_forwarded;

/// Clients that wait to be accepted.
const BACKLOG: i32 = 4096;

/// The forwards of a gateway.
#[derive(Default)]
pub(crate) struct Forwards {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<ForwardId, Entry>,
    last_id: u64,
}

struct Entry {
    forward: Forward,
    /// The task that accepts clients.
    task: AbortHandle,
    /// The listening socket of a TCP forward.
    listener: Option<Arc<AsyncFd<Socket>>>,
}

impl Forwards {
    /// Implements [`Handle::add_forward`](crate::Handle::add_forward).
    pub(crate) fn add(&self, shared: &Arc<Shared>, mut forward: Forward) -> io::Result<ForwardId> {
        let mut table = self.table.lock();
        let max = shared.config.limits.forwards;
        if table.entries.len() >= max {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!("there are {max} forwards already; remove some, or raise the limit"),
            ));
        }
        // Reports a guest address without a gateway address of its family.
        shared.forward_source(forward.host, forward.guest)?;
        let socket = bind(&forward).map_err(|error| describe(&forward, &error))?;
        forward.host = socket
            .local_addr()?
            .as_socket()
            .ok_or(io::ErrorKind::InvalidData)?;
        let socket = register(socket)?;
        let (guest, shared_by_task) = (forward.guest, shared.clone());
        let (task, listener) = match forward.protocol {
            Protocol::Tcp => {
                let listener = Arc::new(socket);
                let task = accept_forwarded(shared_by_task, listener.clone(), guest);
                (shared.spawn(task), Some(listener))
            }
            Protocol::Udp => {
                let task = crate::udp::receive_forwarded(shared_by_task, socket, guest);
                (shared.spawn(task), None)
            }
        };
        table.last_id += 1;
        let id = ForwardId(table.last_id);
        let entry = Entry {
            forward,
            task,
            listener,
        };
        table.entries.insert(id, entry);
        Ok(id)
    }

    /// Implements [`Handle::remove_forward`](crate::Handle::remove_forward).
    pub(crate) fn remove(&self, id: ForwardId) -> io::Result<()> {
        let entry = self.table.lock().entries.remove(&id);
        let entry = entry.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no forward with the number {}", id.0),
            )
        })?;
        if let Some(listener) = entry.listener {
            // The kernel refuses clients from now on; the task ends when the runtime polls it.
            listener.get_ref().shutdown(Shutdown::Both)?;
        }
        entry.task.abort();
        Ok(())
    }

    /// Returns all forwards in the order of their numbers.
    pub(crate) fn list(&self) -> Vec<(ForwardId, Forward)> {
        let table = self.table.lock();
        let entries = table.entries.iter();
        entries
            .map(|(id, entry)| (*id, entry.forward.clone()))
            .collect()
    }
}

/// Opens the host's socket of a forward.
fn bind(forward: &Forward) -> io::Result<Socket> {
    let host: SocketAddr = forward.host;
    let kind = match forward.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(
        Domain::for_address(host),
        kind.nonblocking().cloexec(),
        None,
    )?;
    if host.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if let Some(interface) = &forward.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if forward.protocol == Protocol::Tcp {
        // Connections of an earlier gateway in TIME-WAIT do not keep the port.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&host.into())?;
    if forward.protocol == Protocol::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

/// Adds the address to an error.
fn describe(forward: &Forward, error: &io::Error) -> io::Error {
    let protocol = match forward.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    io::Error::new(
        error.kind(),
        format!("cannot bind {protocol} {}: {error}", forward.host),
    )
}
