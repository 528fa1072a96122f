//! The network and user namespaces of a guest.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use caps::{CapSet, Capability};
use nix::sched::{CloneFlags, setns};

use super::{failed, sys};

/// A network namespace, and the user namespace whose privileges apply in it.
#[derive(Debug)]
pub struct Namespaces {
    net: OwnedFd,
    /// The user namespace; `None` for the caller's.
    user: Option<OwnedFd>,
}

impl Namespaces {
    /// Opens the namespaces of a process.
    ///
    /// # Errors
    /// `NotFound` if there is no such process; `PermissionDenied` if it belongs to another user.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let net = format!("/proc/{pid}/ns/net");
        let user = format!("/proc/{pid}/ns/user");
        Self::at_path(Path::new(&net), Some(Path::new(&user)))
    }

    /// Opens a network namespace at a path, e.g. /run/netns/NAME or /proc/PID/ns/net, and the user
    /// namespace at the path `user`.
    ///
    /// Without `user`, the user namespace is the one that owns the network namespace.
    ///
    /// # Errors
    /// `InvalidInput` if a file is not a namespace of its kind; otherwise the error of opening it.
    pub fn at_path(net: &Path, user: Option<&Path>) -> io::Result<Self> {
        let net = open(net)?;
        let user = match user {
            Some(path) => Some(open(path)?),
            None => None,
        };
        Self::from_files(net, user)
    }

    /// Uses open files of a network namespace and, optionally, a user namespace.
    ///
    /// # Errors
    /// `InvalidInput` if `net` is not a namespace.
    pub fn from_files(net: OwnedFd, user: Option<OwnedFd>) -> io::Result<Self> {
        let owner = sys::owning_user_namespace(net.as_fd());
        let owner = match owner {
            Ok(owner) => Some(owner),
            // The owner is outside of the caller's user namespace: only the caller's own privileges
            // apply.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the file is not a network namespace; use /run/netns/NAME or /proc/PID/ns/net",
                ));
            }
        };
        let user = match user.or(owner) {
            Some(user) if !is_own_user_namespace(&user)? => Some(user),
            _ => None,
        };
        Ok(Self { net, user })
    }

    /// Returns the namespaces with the caller's user namespace. The caller's privileges must extend to
    /// the network namespace.
    #[must_use]
    pub fn without_user(self) -> Self {
        Self { user: None, ..self }
    }

    /// Moves the calling thread into the namespaces.
    ///
    /// The kernel lets only a process with a single thread change its user namespace.
    ///
    /// # Errors
    /// `PermissionDenied` without the necessary privileges.
    pub(super) fn enter(&self) -> io::Result<()> {
        if let Some(user) = &self.user {
            setns(user, CloneFlags::CLONE_NEWUSER)
                .map_err(|e| failed("enter the user namespace", e))?;
        }
        setns(&self.net, CloneFlags::CLONE_NEWNET)
            .map_err(|e| failed("enter the network namespace", e))
    }
}

/// Returns whether the process has the capabilities to make and configure network namespaces. Otherwise
/// it needs its own user namespace. A container may take these capabilities from root.
pub fn can_make_namespaces() -> bool {
    [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_ADMIN]
        .into_iter()
        .all(|capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let file = File::open(path).map_err(|e| failed(format_args!("open {}", path.display()), e))?;
    Ok(file.into())
}

/// Returns whether a user namespace is this process's own, which it cannot enter again.
fn is_own_user_namespace(user: &OwnedFd) -> io::Result<bool> {
    let own = std::fs::metadata("/proc/self/ns/user")?;
    let other = File::from(user.try_clone()?).metadata()?;
    Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
}
