//! Queries on a connection that need only a shared reference to the host.

use core::net::SocketAddr;

use fullsend_tcp::State;

use crate::tcp::TcpId;
use crate::tcp::socket::{ConnectionOwner, SocketEntry};
use crate::{Host, StackError};

/// One TCP connection of a [`Host`], for queries where the host is borrowed immutably. See
/// [`TcpHandle`](crate::TcpHandle) for all other calls.
///
/// # Examples
/// ```
/// use fullsend_stack::{Host, TcpRef};
/// use fullsend_tcp::State;
///
/// fn is_established(connection: TcpRef<'_>) -> bool {
///     connection.state() == Ok(State::Established)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TcpRef<'a> {
    host: &'a Host,
    id: TcpId,
}

impl Host {
    /// Returns a handle for queries on connection `id`. It is looked up by each query.
    #[inline]
    pub const fn tcp_ref(&self, id: TcpId) -> TcpRef<'_> {
        TcpRef { host: self, id }
    }
}

impl TcpRef<'_> {
    /// Returns the state of the connection.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn state(self) -> Result<State, StackError> {
        self.entry().map(|entry| match entry {
            SocketEntry::Conn(socket) => socket.conn.state(),
            SocketEntry::DeferredSyn(_) | SocketEntry::HalfOpen(_) => State::SynReceived,
        })
    }

    /// Returns the local and the remote address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such connection.
    pub fn addrs(self) -> Result<(SocketAddr, SocketAddr), StackError> {
        let key = self.entry()?.key();
        Ok((key.local_addr(), key.remote_addr()))
    }

    fn entry(&self) -> Result<&SocketEntry, StackError> {
        match self.host.tcp.table.peek(self.id.0) {
            Some(SocketEntry::Conn(socket)) if socket.owner != ConnectionOwner::User => {
                Err(StackError::NoSuchSocket)
            }
            Some(SocketEntry::HalfOpen(_)) | None => Err(StackError::NoSuchSocket),
            Some(entry) => Ok(entry),
        }
    }
}
