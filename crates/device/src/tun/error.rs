//! The error of opening a device, with the remedy.

use std::{fmt, io};

/// The reason why a TUN or TAP device could not be opened; the text says what to do.
///
/// `Debug` prints the same text, because a `main` that returns `io::Result` prints it.
#[non_exhaustive]
pub enum OpenError {
    /// `/dev/net/tun` does not exist.
    NoDriver,
    /// The user may not open `/dev/net/tun`.
    NoDriverPermission,
    /// The user may not create or attach to the interface.
    NoPermission {
        /// The interface's name.
        name: String,
    },
    /// The name is not a valid interface name.
    BadName {
        /// The interface's name.
        name: String,
    },
    /// Another process has the interface open.
    Busy {
        /// The interface's name.
        name: String,
    },
    /// The interface exists but is of another kind: TAP instead of TUN or the reverse, multi-queue or
    /// not, or neither TUN nor TAP.
    WrongKind {
        /// The interface's name.
        name: String,
    },
    /// The interface is open, but a setting was refused.
    Setting {
        /// The interface's name.
        name: String,
        /// The setting with its value.
        what: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Any other error.
    Io(io::Error),
}

impl OpenError {
    /// Maps an error of opening `/dev/net/tun`.
    pub(super) fn from_driver(error: io::Error, name: &str) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Self::NoDriver,
            Some(libc::EPERM | libc::EACCES) => Self::NoDriverPermission,
            _ => Self::from_attach(error, name),
        }
    }

    /// Maps an error of `TUNSETIFF`.
    pub(super) fn from_attach(error: io::Error, name: &str) -> Self {
        let name = name.to_owned();
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { name },
            Some(libc::EBUSY | libc::E2BIG) => Self::Busy { name },
            Some(libc::EINVAL | libc::EEXIST) => Self::WrongKind { name },
            _ => Self::Io(error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str(
                "/dev/net/tun does not exist; load the driver (modprobe tun), or pass the device \
                 to the container (--device /dev/net/tun)",
            ),
            Self::NoDriverPermission => f.write_str(
                "no permission to open /dev/net/tun; run as root, or let root give all users \
                 access, as most distributions do (chmod 0666 /dev/net/tun)",
            ),
            Self::NoPermission { name } => write!(
                f,
                "no permission to open interface \"{name}\"; run with CAP_NET_ADMIN, or let root \
                 create it for your user once (ip tuntap add dev {name} mode tun user $USER)"
            ),
            Self::BadName { name } => write!(
                f,
                "\"{name}\" is not an interface name; use 1 to 15 bytes without spaces, / and :"
            ),
            Self::Busy { name } => write!(
                f,
                "interface \"{name}\" is open in another process; end that process, or choose \
                 another name"
            ),
            Self::WrongKind { name } => write!(
                f,
                "interface \"{name}\" exists and is of another kind (TUN, TAP, multi-queue, or \
                 neither TUN nor TAP); remove it (ip link del {name}), or choose another name"
            ),
            Self::Setting { name, what, source } => {
                write!(f, "interface \"{name}\": cannot set {what}: {source}")
            }
            Self::Io(error) => write!(f, "cannot open a device through /dev/net/tun: {error}"),
        }
    }
}

impl fmt::Debug for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Setting { source, .. } | Self::Io(source) => Some(source),
            _ => None,
        }
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::NoDriver => io::ErrorKind::NotFound,
            OpenError::NoDriverPermission | OpenError::NoPermission { .. } => {
                io::ErrorKind::PermissionDenied
            }
            OpenError::BadName { .. } | OpenError::WrongKind { .. } => io::ErrorKind::InvalidInput,
            OpenError::Busy { .. } => io::ErrorKind::ResourceBusy,
            OpenError::Setting { source, .. } | OpenError::Io(source) => source.kind(),
        };
        Self::new(kind, error)
    }
}
