//! Linux's error numbers, and their values for the host's errors.

use core::fmt;

use fullsend_stack::StackError;
use fullsend_tcp::TcpError;

/// The error of a call: a Linux errno (numbers of x86 and arm).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// The result of a call.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// Returns the symbolic name, or `None` for a number that no call here returns.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            const fn message(self) -> &'static str {
                match self.0 {
                    $($number => $text,)*
                    _ => "unknown error",
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted";
    ENOENT = 2, "No such file or directory";
    EBADF = 9, "Bad file descriptor";
    EAGAIN = 11, "Resource temporarily unavailable";
    ENOMEM = 12, "Cannot allocate memory";
    EACCES = 13, "Permission denied";
    EFAULT = 14, "Bad address";
    EEXIST = 17, "File exists";
    ENODEV = 19, "No such device";
    EINVAL = 22, "Invalid argument";
    EMFILE = 24, "Too many open files";
    ENOTTY = 25, "Inappropriate ioctl for device";
    ESPIPE = 29, "Illegal seek";
    EPIPE = 32, "Broken pipe";
    EDOM = 33, "Numerical argument out of domain";
    ERANGE = 34, "Numerical result out of range";
    ELOOP = 40, "Too many levels of symbolic links";
    ENOTSOCK = 88, "Socket operation on non-socket";
    EDESTADDRREQ = 89, "Destination address required";
    EMSGSIZE = 90, "Message too long";
    EPROTOTYPE = 91, "Protocol wrong type for socket";
    ENOPROTOOPT = 92, "Protocol not available";
    EPROTONOSUPPORT = 93, "Protocol not supported";
    ESOCKTNOSUPPORT = 94, "Socket type not supported";
    EOPNOTSUPP = 95, "Operation not supported";
    EAFNOSUPPORT = 97, "Address family not supported by protocol";
    EADDRINUSE = 98, "Address already in use";
    EADDRNOTAVAIL = 99, "Cannot assign requested address";
    ENETUNREACH = 101, "Network is unreachable";
    ECONNABORTED = 103, "Software caused connection abort";
    ECONNRESET = 104, "Connection reset by peer";
    ENOBUFS = 105, "No buffer space available";
    EISCONN = 106, "Transport endpoint is already connected";
    ENOTCONN = 107, "Transport endpoint is not connected";
    ETIMEDOUT = 110, "Connection timed out";
    ECONNREFUSED = 111, "Connection refused";
    EHOSTUNREACH = 113, "No route to host";
    EALREADY = 114, "Operation already in progress";
    EINPROGRESS = 115, "Operation now in progress";
}

impl From<TcpError> for Errno {
    fn from(error: TcpError) -> Self {
        match error {
            TcpError::WouldBlock => Self::EAGAIN,
            TcpError::ConnectionRefused => Self::ECONNREFUSED,
            TcpError::ConnectionReset => Self::ECONNRESET,
            TcpError::ConnectionAborted => Self::ECONNABORTED,
            TcpError::TimedOut => Self::ETIMEDOUT,
            TcpError::BrokenPipe => Self::EPIPE,
            TcpError::NotConnected => Self::ENOTCONN,
            TcpError::HostUnreachable => Self::EHOSTUNREACH,
            TcpError::NetworkUnreachable => Self::ENETUNREACH,
            TcpError::OutOfMemory => Self::ENOBUFS,
            TcpError::MessageTooLong => Self::EMSGSIZE,
            // `InvalidValue`, and errors of later versions.
            _ => Self::EINVAL,
        }
    }
}

impl From<StackError> for Errno {
    fn from(error: StackError) -> Self {
        match error {
            StackError::Tcp(error) => error.into(),
            StackError::NoSuchSocket => Self::EBADF,
            StackError::AddressInUse(_) => Self::EADDRINUSE,
            StackError::AddressNotAvailable(_)
            | StackError::TentativeAddress(_)
            | StackError::DuplicateAddress(_)
            | StackError::NoPorts
            | StackError::OtherShard(_) => Self::EADDRNOTAVAIL,
            StackError::NoRoute(_) => Self::ENETUNREACH,
            StackError::TooManyGroups { .. } | StackError::TooManySockets { .. } => Self::ENOBUFS,
            StackError::BroadcastDisabled(_) => Self::EACCES,
            StackError::MessageTooLong { .. } => Self::EMSGSIZE,
            _ => Self::EINVAL,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl core::error::Error for Errno {}
