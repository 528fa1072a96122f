//! Network namespaces: entering those of a container, opening a TAP there, and making new ones.
//!
//! The gateway itself stays in the host's namespaces. A child process enters those of the guest,
//! opens and configures the TAP there, and passes its descriptor back:
//!
//! ```no_run
//! use fullsend_device::Tun;
//! use fullsend_gateway::namespace::{InterfaceSetup, Namespaces, open_tap};
//!
//! let namespaces = Namespaces::of_process(4711)?;
//! let setup = InterfaceSetup {
//!     mtu: Some(65_520),
//!     addresses: vec![("10.0.2.100".parse().unwrap(), 24)],
//!     gateways: vec!["10.0.2.2".parse().unwrap()],
//!     loopback: true,
//!     ..InterfaceSetup::default()
//! };
//! let tap = open_tap(&namespaces, "tap0", Some(&setup))?;
//! let device = Tun::tap(&tap.name).mtu(tap.mtu).adopt(tap.file)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod background;
mod child;
mod command_parent;
mod enter;
mod file_opener;
mod guarded_file;
mod guest_sockets;
mod host_network;
mod host_sockets;
mod id_maps;
mod identity;
mod interface;
mod mountinfo;
mod mounts;
mod namespace_limits;
mod nested;
mod netlink;
mod own_addresses;
mod sandbox;
mod seccomp;
mod socket_remover;
mod socket_tables;
mod spawn;
#[allow(
    unsafe_code,
    reason = "processes, exit without destructors, inherited descriptors, and an ioctl on a namespace"
)]
mod sys;
mod tap;
#[cfg(test)]
mod tests;
mod watch;

pub use background::{Background, open_null};
pub use enter::{Namespaces, can_make_namespaces};
pub use file_opener::{FileOpener, StartedOpener};
pub use guarded_file::{FileBeside, Guard, GuardedFile};
pub use guest_sockets::GuestSockets;
pub use host_network::{HostNetwork, HostRoute};
pub use host_sockets::{HostSocket, HostSocketFile, HostSockets, StartedSockets};
pub use identity::Identity;
pub use interface::InterfaceSetup;
pub(crate) use own_addresses::OwnAddresses;
pub use sandbox::Sandbox;
pub use socket_remover::SocketRemover;
pub use socket_tables::SocketTables;
pub use spawn::{FirstProcess, HangupOrigin, NewNamespaces, Spawned};
pub use sys::{close_inherited, inherited_fd, is_signal_ignored};
pub use tap::{Tap, open_tap};
pub use watch::{NamespaceEnd, hung_up};

use std::fmt::Display;
use std::io;

use nix::sys::resource::{Resource, getrlimit};

/// Returns an error of the kind of `error` with the text "cannot `what`: `error`".
fn failed(what: impl Display, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    let hint = descriptor_hint(&error).unwrap_or_default();
    io::Error::new(error.kind(), format!("cannot {what}: {error}{hint}"))
}

/// Returns what to change after an error that has to do with neither the file nor the namespace that it names.
fn descriptor_hint(error: &io::Error) -> Option<String> {
    let (limit, _) = match error.raw_os_error()? {
        libc::EMFILE => getrlimit(Resource::RLIMIT_NOFILE).ok()?,
        _ => return None,
    };
    Some(format!(
        "; the limit of open files is {limit}; raise it with `ulimit -n`"
    ))
}
