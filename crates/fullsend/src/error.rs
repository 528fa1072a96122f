//! Conversion of the stack's errors to `std::io::Error`.

use std::io::{self, Error, ErrorKind};

use fullsend_stack::StackError;
use fullsend_tcp::{SysctlError, TcpError};
use tokio::io::Interest;

/// Converts to the `io::Error` that a tokio user expects, with a message that names the remedy.
pub(crate) fn io_error(error: StackError) -> Error {
    match error {
        StackError::Tcp(error) => tcp_error(error),
        StackError::NoSuchSocket => Error::new(
            ErrorKind::NotConnected,
            "the socket is closed; connect or bind a new one",
        ),
        StackError::AddressInUse(addr) => Error::new(
            ErrorKind::AddrInUse,
            format!(
                "{addr} is in use; choose another port, or port 0, or close the socket that uses it"
            ),
        ),
        StackError::AddressNotAvailable(addr) => Error::new(
            ErrorKind::AddrNotAvailable,
            format!(
                "{addr} is not an address of this stack; add it with Stack::builder().address(..)"
            ),
        ),
        StackError::TentativeAddress(_)
        | StackError::DuplicateAddress(_)
        | StackError::OtherShard(_) => Error::new(ErrorKind::AddrNotAvailable, error.to_string()),
        StackError::NoRoute(addr) => Error::new(
            ErrorKind::NetworkUnreachable,
            format!("no route to {addr}; add one with Stack::builder().route(..) or .gateway(..)"),
        ),
        StackError::NoPorts => Error::new(
            ErrorKind::AddrNotAvailable,
            "every ephemeral port towards that destination is in use; close connections, or use \
             more local addresses",
        ),
        StackError::BroadcastDisabled(ip) => Error::new(
            ErrorKind::PermissionDenied,
            format!("{ip} is a broadcast address; call set_broadcast(true) to send there"),
        ),
        StackError::MessageTooLong { len, max } => Error::new(
            ErrorKind::InvalidInput,
            format!("a datagram of {len} bytes is too long; send at most {max} bytes"),
        ),
        StackError::TooManySockets { .. } => Error::new(ErrorKind::OutOfMemory, error.to_string()),
        StackError::TooManyGroups { .. } => Error::new(ErrorKind::QuotaExceeded, error.to_string()),
        StackError::Config(text) => Error::new(ErrorKind::InvalidInput, text),
        other => Error::other(format!("{other:?}")),
    }
}

/// Converts a connection's error to an `io::Error`.
pub(crate) fn tcp_error(error: TcpError) -> Error {
    let kind = match error {
        // Frequent, and this allocates nothing.
        TcpError::WouldBlock => return would_block(),
        TcpError::ConnectionRefused => ErrorKind::ConnectionRefused,
        TcpError::ConnectionReset => ErrorKind::ConnectionReset,
        TcpError::ConnectionAborted => ErrorKind::ConnectionAborted,
        TcpError::TimedOut => ErrorKind::TimedOut,
        TcpError::BrokenPipe => ErrorKind::BrokenPipe,
        TcpError::NotConnected => ErrorKind::NotConnected,
        TcpError::HostUnreachable => ErrorKind::HostUnreachable,
        TcpError::NetworkUnreachable => ErrorKind::NetworkUnreachable,
        TcpError::OutOfMemory => ErrorKind::OutOfMemory,
        TcpError::InvalidValue | TcpError::MessageTooLong => ErrorKind::InvalidInput,
        _ => ErrorKind::Other,
    };
    Error::new(kind, error)
}

/// Returns `WouldBlock`, which the async calls never return.
pub(crate) fn would_block() -> Error {
    ErrorKind::WouldBlock.into()
}

/// Returns a value of one octet, as tokio's methods take it, which is at least `least`.
pub(crate) fn octet(name: &str, value: u32, least: u8) -> Result<u8, Error> {
    let octet = u8::try_from(value).ok().filter(|value| *value >= least);
    octet.ok_or_else(|| {
        let text = format!("{name} {value} is out of range; choose {least} to 255");
        Error::new(ErrorKind::InvalidInput, text)
    })
}

/// Converts a tunable's error to an `io::Error`.
pub(crate) fn sysctl_error(error: &SysctlError) -> Error {
    Error::new(ErrorKind::InvalidInput, error.to_string())
}

/// Rejects an interest in errors alone: the host wakes waiters only for reading and writing.
pub(crate) fn check_interest(interest: Interest) -> io::Result<()> {
    if interest.is_readable() || interest.is_writable() {
        return Ok(());
    }
    let text = "waiting for errors alone is not supported; add Interest::READABLE";
    Err(Error::new(ErrorKind::InvalidInput, text))
}
