//! The table of forwards and their listening sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use crate::forward::{Forward, ForwardId, Protocol, Side};
use crate::gateway::Shared;
use crate::reactor::register;
use crate::tcp::{accept_forwarded, accept_in_guest};
use crate::udp::{receive_forwarded, report_errors, report_local_address};
use crate::validate::check_forward;

/// Most clients that wait to be accepted.
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
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// The gateway does not run yet.
    #[default]
    Waiting,
    Started,
    Stopped,
}

struct Entry {
    forward: Forward,
    clients: Clients,
}

/// The acceptor of a forward's clients.
enum Clients {
    /// The clients wait in the queue of this socket.
    Waiting(AsyncFd<Socket>),
    /// A task accepts the clients.
    Served {
        task: AbortHandle,
        /// The listening socket of a TCP forward.
        listener: Option<Arc<AsyncFd<Socket>>>,
    },
}

impl Forwards {
    /// Implements [`Handle::add_forward`](crate::Handle::add_forward).
    pub(crate) fn add(&self, shared: &Arc<Shared>, mut forward: Forward) -> io::Result<ForwardId> {
        let mut table = self.table.lock();
        let max = shared.limits.forwards;
        if table.entries.len() >= max {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "there are {max} forwards already; remove some, or raise the limits of forwards and \
                     of descriptors"
                ),
            ));
        }
        if table.state == State::Stopped {
            return Err(stopped());
        }
        check_forward(&forward)?;
        let socket = match forward.from {
            Side::Host => {
                // Reports a guest address whose family has no gateway address.
                shared.forward_source(forward.host, forward.guest)?;
                bind(&forward)
            }
            Side::Guest => bind_in_guest(shared, &forward),
        };
        let socket = socket.map_err(|error| describe(&forward, &error))?;
        let bound = socket.local_addr()?.as_socket();
        forward.set_listen(bound.ok_or(io::ErrorKind::InvalidData)?);
        let socket = register(socket)?;
        let id = ForwardId(table.last_id + 1);
        let clients = match table.state {
            State::Waiting => Some(Clients::Waiting(socket)),
            State::Started => serve(shared, id, &forward, socket),
            State::Stopped => None,
        };
        let clients = clients.ok_or_else(stopped)?;
        table.last_id = id.0;
        let added = Entry {
            forward: forward.clone(),
            clients,
        };
        table.entries.insert(id, added);
        drop(table);
        // Flows that are opened from now on find the forward.
        shared.end_flows_of_other_guests(&forward);
        Ok(id)
    }

    /// Starts to accept the clients of all forwards.
    pub(crate) fn start(&self, shared: &Arc<Shared>) {
        let mut table = self.table.lock();
        table.state = State::Started;
        for (id, entry) in std::mem::take(&mut table.entries) {
            let Entry { forward, clients } = entry;
            let clients = match clients {
                Clients::Waiting(socket) => serve(shared, id, &forward, socket),
                served @ Clients::Served { .. } => Some(served),
            };
            if let Some(clients) = clients {
                table.entries.insert(id, Entry { forward, clients });
            }
        }
    }

    /// Closes the sockets of all forwards, and refuses further ones.
    pub(crate) fn close(&self) {
        let mut table = self.table.lock();
        table.state = State::Stopped;
        table.entries.clear();
    }

    /// Implements [`Handle::remove_forward`](crate::Handle::remove_forward).
    pub(crate) fn remove(&self, shared: &Shared, id: ForwardId) -> io::Result<()> {
        let entry = self.table.lock().entries.remove(&id);
        let entry = entry.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("there is no forward with the number {}", id.0),
            )
        })?;
        if let Clients::Served { task, listener } = entry.clients {
            task.abort();
            if let Some(listener) = listener {
                // The kernel refuses clients from now on; the task closes the socket when the runtime
                // polls it.
                let _ = listener.get_ref().shutdown(Shutdown::Both);
            }
        }
        shared.udp.end_forward(id, entry.forward.guest);
        Ok(())
    }

    /// Returns the first forwards with a number greater than `id`, at most `max`.
    pub(crate) fn after(&self, id: u64, max: usize) -> Vec<(ForwardId, Forward)> {
        let table = self.table.lock();
        let rest = table
            .entries
            .range((Bound::Excluded(ForwardId(id)), Bound::Unbounded));
        let forwards = rest.map(|(id, entry)| (*id, entry.forward.clone()));
        forwards.take(max).collect()
    }

    /// Returns the first forward for which `is_wanted` is true.
    pub(crate) fn find(&self, is_wanted: impl Fn(&Forward) -> bool) -> Option<Forward> {
        let table = self.table.lock();
        let mut all = table.entries.values().map(|entry| &entry.forward);
        all.find(|forward| is_wanted(forward)).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().entries.len()
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

/// Starts the task that accepts the clients of a forward. Returns `None` if the gateway has stopped.
fn serve(
    shared: &Arc<Shared>,
    id: ForwardId,
    forward: &Forward,
    socket: AsyncFd<Socket>,
) -> Option<Clients> {
    let (by_task, guest) = (shared.clone(), forward.guest);
    let (task, listener) = match (forward.protocol, forward.from) {
        (Protocol::Tcp, Side::Host) => {
            let listener = Arc::new(socket);
            let task = accept_forwarded(by_task, listener.clone(), guest);
            (shared.spawn(task)?, Some(listener))
        }
        (Protocol::Tcp, Side::Guest) => {
            let listener = Arc::new(socket);
            let task = accept_in_guest(by_task, listener.clone(), (guest, forward.host));
            (shared.spawn(task)?, Some(listener))
        }
        (Protocol::Udp, _) => {
            let served = shared.udp.start_forward(id, forward, socket);
            (shared.spawn(receive_forwarded(by_task, served))?, None)
        }
    };
    Some(Clients::Served { task, listener })
}

/// Opens the socket of a forward for clients in the guest.
fn bind_in_guest(shared: &Shared, forward: &Forward) -> io::Result<Socket> {
    let unsupported = |text| io::Error::new(io::ErrorKind::Unsupported, text);
    if forward.interface.is_some() {
        return Err(unsupported(
            "an interface restricts clients in the host only; remove the interface",
        ));
    }
    let sockets = shared.guest_sockets.as_ref().ok_or_else(|| {
        unsupported("the gateway has no sockets in the guest; pass them with .guest_sockets(..)")
    })?;
    sockets.bound(forward.protocol, forward.guest)
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
        // Connections of an earlier gateway in TIME-WAIT must not block the port.
        socket.set_reuse_address(true)?;
    } else {
        // Answers come from the address that the client has sent to.
        report_local_address(&socket, host.is_ipv6())?;
        report_errors(&socket, host.is_ipv6())?;
    }
    socket.bind(&host.into())?;
    if forward.protocol == Protocol::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the gateway has stopped")
}

/// Adds the address to an error.
fn describe(forward: &Forward, error: &io::Error) -> io::Error {
    let protocol = match forward.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    io::Error::new(
        error.kind(),
        match forward.from {
            Side::Host => format!("cannot bind {protocol} {}: {error}", forward.host),
            Side::Guest => format!(
                "cannot bind {protocol} {} in the guest: {error}",
                forward.guest
            ),
        },
    )
}
