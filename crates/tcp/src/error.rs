//! Errors of calls and connections, as sockets report them.

use core::fmt;

/// An error of a TCP socket, one variant for each errno of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpError {
    /// There is nothing to read, or no room to write, at the moment (EAGAIN).
    WouldBlock,
    /// The peer refused the connection (ECONNREFUSED).
    ConnectionRefused,
    /// The peer reset the connection (ECONNRESET).
    ConnectionReset,
    /// This host aborted the connection (ECONNABORTED).
    ConnectionAborted,
    /// The peer stopped answering, or the path failed (ETIMEDOUT).
    TimedOut,
    /// A write after `shutdown(WR)`, or on a closed connection (EPIPE).
    BrokenPipe,
    /// The socket is not connected (ENOTCONN).
    NotConnected,
    /// There is no route to the host (EHOSTUNREACH).
    HostUnreachable,
    /// There is no route to the network (ENETUNREACH).
    NetworkUnreachable,
    /// The allocator refused memory for the data, and nothing in flight will free any (ENOBUFS).
    OutOfMemory,
    /// A datagram is larger than the path MTU (EMSGSIZE).
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
