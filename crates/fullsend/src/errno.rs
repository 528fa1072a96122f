//! The operating system's numbers of the errors that a socket returns, for `raw_os_error()`.

use std::io;

pub(crate) use self::system::*;

/// Returns the error with this number, which allocates nothing.
pub(crate) fn os_error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

/// The number of an error on this operating system.
#[derive(Clone, Copy)]
pub(crate) struct Errno(i32);

#[cfg(unix)]
mod system {
    use rustix::io::Errno as System;

    use super::Errno;

    macro_rules! errnos {
        ($($name:ident = $number:ident;)*) => {
            $(pub(crate) const $name: Errno = Errno(System::$number.raw_os_error());)*
        };
    }

    errnos! {
        EACCES = ACCESS;
        EADDRINUSE = ADDRINUSE;
        EADDRNOTAVAIL = ADDRNOTAVAIL;
        EAGAIN = AGAIN;
        ECONNABORTED = CONNABORTED;
        ECONNREFUSED = CONNREFUSED;
        ECONNRESET = CONNRESET;
        EDESTADDRREQ = DESTADDRREQ;
        EHOSTUNREACH = HOSTUNREACH;
        EINVAL = INVAL;
        EMSGSIZE = MSGSIZE;
        ENETUNREACH = NETUNREACH;
        ENOBUFS = NOBUFS;
        ENOMEM = NOMEM;
        ENOTCONN = NOTCONN;
        EPIPE = PIPE;
        ETIMEDOUT = TIMEDOUT;
    }
}

#[cfg(not(unix))]
mod system {
    use super::Errno;

    macro_rules! errnos {
        ($($name:ident = $number:literal;)*) => {
            $(pub(crate) const $name: Errno = Errno($number);)*
        };
    }

    // The numbers of Winsock, or of Windows itself if Winsock has none.
    errnos! {
        EACCES = 10013;
        EADDRINUSE = 10048;
        EADDRNOTAVAIL = 10049;
        EAGAIN = 10035;
        ECONNABORTED = 10053;
        ECONNREFUSED = 10061;
        ECONNRESET = 10054;
        EDESTADDRREQ = 10039;
        EHOSTUNREACH = 10065;
        EINVAL = 10022;
        EMSGSIZE = 10040;
        ENETUNREACH = 10051;
        ENOBUFS = 10055;
        ENOMEM = 14;
        ENOTCONN = 10057;
        EPIPE = 109;
        ETIMEDOUT = 10060;
    }
}
