//! Conversion of the stack's errors to `std::io::Error`.

use std::io::{self, Error, ErrorKind};

use fullsend_stack::StackError;
use fullsend_tcp::{SysctlError, TcpError};
use tokio::io::Interest;

use crate::errno::{
    EACCES, EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ECONNABORTED, ECONNREFUSED, ECONNRESET,
    EHOSTUNREACH, EINVAL, EMSGSIZE, ENETUNREACH, ENOBUFS, ENOMEM, ENOTCONN, EPIPE, ETIMEDOUT,
    os_error,
};

/// Converts to the `io::Error` that a tokio user expects: the operating system's own error with its
/// number if a kernel returns one. Such an error has no text of its own; the address and the remedy are
/// traced.
pub(crate) fn io_error(error: StackError) -> Error {
    let errno = match error {
        StackError::Tcp(error) => return tcp_error(error),
        StackError::NoSuchSocket => return os_error(ENOTCONN),
        // No error of a kernel has these meanings.
        StackError::TentativeAddress(_)
        | StackError::DuplicateAddress(_)
        | StackError::OtherShard(_) => {
            return Error::new(ErrorKind::AddrNotAvailable, error.to_string());
        }
        // The text names the limit.
        StackError::TooManySockets { .. } => {
            return Error::new(ErrorKind::OutOfMemory, error.to_string());
        }
        StackError::Config(text) => return Error::new(ErrorKind::InvalidInput, text),
        StackError::AddressInUse(_) => EADDRINUSE,
        StackError::AddressNotAvailable(_) | StackError::NoPorts => EADDRNOTAVAIL,
        StackError::NoRoute(_) => ENETUNREACH,
        StackError::BroadcastDisabled(_) => EACCES,
        StackError::MessageTooLong { .. } => EMSGSIZE,
        StackError::TooManyGroups { .. } => ENOBUFS,
        _ => return Error::other(error),
    };
    tracing::debug!("{error}");
    os_error(errno)
}

/// Converts a connection's error to the operating system's error of the same meaning.
pub(crate) fn tcp_error(error: TcpError) -> Error {
    os_error(match error {
        TcpError::WouldBlock => EAGAIN,
        TcpError::ConnectionRefused => ECONNREFUSED,
        TcpError::ConnectionReset => ECONNRESET,
        TcpError::ConnectionAborted => ECONNABORTED,
        TcpError::TimedOut => ETIMEDOUT,
        TcpError::BrokenPipe => EPIPE,
        TcpError::NotConnected => ENOTCONN,
        TcpError::HostUnreachable => EHOSTUNREACH,
        TcpError::NetworkUnreachable => ENETUNREACH,
        TcpError::OutOfMemory => ENOMEM,
        TcpError::MessageTooLong => EMSGSIZE,
        TcpError::InvalidValue => EINVAL,
        _ => return Error::other(error),
    })
}

/// Returns `WouldBlock`, which the async calls never return.
pub(crate) fn would_block() -> Error {
    os_error(EAGAIN)
}

/// Returns `value`, which tokio's methods pass as `u32`, as one octet if it is at least `least`.
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
