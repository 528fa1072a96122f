//! Errors of calls on the host.

use alloc::string::String;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use fullsend_tcp::TcpError;

/// The reason why a call on the host failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StackError {
    /// The connection's own error.
    Tcp(TcpError),
    /// No socket has that handle.
    NoSuchSocket,
    /// The address is in use (EADDRINUSE).
    AddressInUse(SocketAddr),
    /// The address is not one of the host's (EADDRNOTAVAIL).
    AddressNotAvailable(SocketAddr),
    /// Duplicate address detection has not ended for the address (EADDRNOTAVAIL).
    TentativeAddress(SocketAddr),
    /// Another host on the link has the address (EADDRNOTAVAIL).
    DuplicateAddress(SocketAddr),
    /// No route to the destination (ENETUNREACH).
    NoRoute(IpAddr),
    /// All ephemeral ports towards that destination are in use (EADDRNOTAVAIL).
    NoPorts,
    /// The 4-tuple that this local address makes belongs to another shard of the stack
    /// (EADDRNOTAVAIL).
    OtherShard(SocketAddr),
    /// The socket may not send datagrams to a broadcast address (EACCES).
    BroadcastDisabled(IpAddr),
    /// The socket or the host has joined too many multicast groups (ENOBUFS).
    TooManyGroups {
        /// Maximum number of groups.
        max: usize,
    },
    /// The host has as many connections as it may have (ENOBUFS).
    TooManySockets {
        /// Maximum number of connections (`tcp_max_sockets`).
        max: u32,
    },
    /// The datagram is longer than can be sent (EMSGSIZE).
    MessageTooLong {
        /// Length that was requested, bytes.
        len: usize,
        /// Maximum length, bytes.
        max: usize,
    },
    /// The value of a setting is invalid; the message names the setting and how to fix it.
    Config(String),
}

impl From<TcpError> for StackError {
    #[inline]
    fn from(error: TcpError) -> Self {
        Self::Tcp(error)
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(error) => error.fmt(f),
            Self::NoSuchSocket => f.write_str("the socket is closed; open a new one"),
            Self::AddressInUse(addr) => write!(
                f,
                "address {addr} is in use; choose another one, or close the socket that uses it"
            ),
            Self::AddressNotAvailable(addr) => {
                write!(
                    f,
                    "{addr} is not an address of this host; add it to an interface first"
                )
            }
            Self::TentativeAddress(addr) => write!(
                f,
                "{addr} cannot be used before duplicate address detection ends, about a second \
                 after the address was added; try again then"
            ),
            Self::DuplicateAddress(addr) => write!(
                f,
                "{addr} cannot be used: another host on the link has the address; choose another \
                 one"
            ),
            Self::NoRoute(ip) => write!(f, "no route to {ip}; add a route to its network"),
            Self::NoPorts => f.write_str(
                "every ephemeral port towards that destination is in use; widen \
                 ip_local_port_range or close connections",
            ),
            Self::OtherShard(addr) => write!(
                f,
                "connections from {addr} to that destination belong to another shard; connect from \
                 port 0, or through the whole stack"
            ),
            Self::BroadcastDisabled(ip) => write!(
                f,
                "{ip} is a broadcast address; enable broadcasts on the socket to send there"
            ),
            Self::TooManyGroups { max } => write!(
                f,
                "{max} multicast groups are joined already; leave one, or join with another socket"
            ),
            Self::TooManySockets { max } => write!(
                f,
                "the stack has {max} TCP connections, the most that tcp_max_sockets allows; close \
                 some, or raise tcp_max_sockets or the stack's memory"
            ),
            Self::MessageTooLong { len, max } => {
                write!(
                    f,
                    "a datagram of {len} bytes is too long; send at most {max} bytes"
                )
            }
            Self::Config(text) => f.write_str(text),
        }
    }
}

impl core::error::Error for StackError {}
