//! Why a call or a connection failed, as sockets report it.

use core::fmt;

/// An error of a TCP socket, one per errno a Linux user would see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpError {
    /// Nothing to read, or no room to write, at the moment (EAGAIN).
    WouldBlock,
    /// The peer refused (ECONNREFUSED).
    ConnectionRefused,
    /// The peer reset the connection (ECONNRESET).
    ConnectionReset,
    /// We aborted it (ECONNABORTED).
    ConnectionAborted,
    /// The peer or the path went silent (ETIMEDOUT).
    TimedOut,
    /// Writing after `shutdown(WR)`, or to a dead connection (EPIPE).
    BrokenPipe,
    /// Not connected (ENOTCONN).
    NotConnected,
    /// No route to the host (EHOSTUNREACH).
    HostUnreachable,
    /// No route to the network (ENETUNREACH).
    NetworkUnreachable,
    /// The allocator refused memory for the data, and nothing in flight will free some (ENOBUFS).
    OutOfMemory,
    /// A datagram is longer than the MTU of its path (EMSGSIZE).
    MessageTooLong,
    /// The value is out of range for the option (EINVAL).
    InvalidValue,
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WouldBlock => "operation would block",
            Self::ConnectionRefused => "connection refused by the peer",
            Self::ConnectionReset => "connection reset by the peer",
            Self::ConnectionAborted => "connection aborted",
            Self::TimedOut => "connection timed out: the peer stopped answering",
            Self::BrokenPipe => "broken pipe: the sending side is closed",
            Self::NotConnected => "not connected",
            Self::HostUnreachable => "no route to host",
            Self::NetworkUnreachable => "network is unreachable",
            Self::OutOfMemory => "out of memory for the data: close connections or raise the limit",
            Self::MessageTooLong => "datagram longer than the path MTU",
            Self::InvalidValue => "value out of range for this option",
        })
    }
}

impl core::error::Error for TcpError {}
