//! The users and groups of user namespaces.

use std::ffi::OsString;
use std::fs;
use std::io::{self, PipeReader, Read};

use caps::{CapSet, Capability};
use nix::unistd::{Pid, getegid, geteuid, getpid};

use super::failed;

/// The maps of a process's user namespace.
const ID_MAPS: [&str; 2] = ["uid_map", "gid_map"];

/// The users and groups of a level of namespaces.
pub(super) enum Maps {
    /// There is no user namespace.
    None,
    /// One user and group, which become root.
    Own(u32, u32),
    /// All users and groups of the level around it, by the contents of both maps. Only a process of that level may
    /// write them.
    All([String; 2]),
}

impl Maps {
    /// Returns the maps with all users and groups of this process, where its privileges suffice.
    pub(super) fn all_of_caller() -> Option<Self> {
        // The mounted /proc may belong to another PID namespace, where a child has another number.
        let is_proc_own = fs::read_link("/proc/self")
            .is_ok_and(|pid| pid.as_os_str() == &*OsString::from(getpid().to_string()));
        if !is_proc_own || !can_map_others() {
            return None;
        }
        let identity = |name| {
            let text = fs::read_to_string(format!("/proc/self/{name}")).ok()?;
            identity_map(&text)
        };
        match ID_MAPS.map(identity) {
            [Some(users), Some(groups)] => Some(Self::All([users, groups])),
            _ => None,
        }
    }

    /// Returns the maps of the level inside of this one, in which this process is: all its users and groups, or its
    /// own as root.
    pub(super) fn of_inner_level(&self) -> Self {
        let all = match self {
            Self::Own(..) => None,
            Self::None | Self::All(_) => Self::all_of_caller(),
        };
        all.unwrap_or_else(|| Self::Own(geteuid().as_raw(), getegid().as_raw()))
    }

    /// Writes the maps of a process in a new user namespace, from the one around it.
    pub(super) fn write(&self, command: Pid) -> io::Result<()> {
        let Self::All(texts) = self else {
            return Ok(());
        };
        for (name, text) in ID_MAPS.iter().zip(texts) {
            fs::write(format!("/proc/{command}/{name}"), text)?;
        }
        Ok(())
    }

    /// Waits in the new user namespace until its maps are written, or writes those of one user.
    pub(super) fn await_and_enter(&self, mut mapped: PipeReader) -> io::Result<()> {
        let refused = |_| io::Error::other("the kernel has refused the maps");
        let entered = mapped.read_exact(&mut [0]).map_err(refused);
        let entered = entered.and_then(|()| match self {
            Self::None | Self::All(_) => Ok(()),
            Self::Own(user, group) => map_ids((0, 0), (*user, *group)),
        });
        entered.map_err(|error| self.explain(error))
    }

    /// Returns an error with its reason.
    pub(super) fn explain(&self, error: io::Error) -> io::Error {
        let what = match (self, error.kind()) {
            (Self::Own(0, _), io::ErrorKind::PermissionDenied) => {
                "map root in the command; give it CAP_SETFCAP, or start as another user"
            }
            _ => "map the users of the command",
        };
        failed(what, error)
    }
}

/// Returns whether this process may map users other than its own. For root the kernel also requires
/// CAP_SETFCAP.
fn can_map_others() -> bool {
    let needed = [
        Capability::CAP_SETUID,
        Capability::CAP_SETGID,
        Capability::CAP_SETFCAP,
    ];
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    needed.into_iter().all(has)
}

/// Returns a map in which each ID of `map`, the contents of a uid_map, is itself.
fn identity_map(map: &str) -> Option<String> {
    let lines = map.lines().map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (inside, _, count) = (words.next()?, words.next()?, words.next()?);
        Some(format!("{inside} {inside} {count}\n"))
    });
    let text = lines.collect::<Option<String>>()?;
    (!text.is_empty()).then_some(text)
}

/// Maps the user and group `inside` the calling process's new user namespace to `outside`.
pub(super) fn map_ids(inside: (u32, u32), outside: (u32, u32)) -> io::Result<()> {
    // Otherwise a process could drop a group whose permissions deny an access.
    match fs::write("/proc/self/setgroups", "deny") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(
        "/proc/self/uid_map",
        format!("{} {} 1", inside.0, outside.0),
    )?;
    fs::write(
        "/proc/self/gid_map",
        format!("{} {} 1", inside.1, outside.1),
    )
}

#[cfg(test)]
mod tests {
    use super::identity_map;

    #[test]
    fn each_id_of_a_map_is_mapped_to_itself() {
        let all = "         0          0 4294967295\n";
        assert_eq!(identity_map(all).unwrap(), "0 0 4294967295\n");
        let container = "0 1000 1\n1 100000 65536\n";
        assert_eq!(identity_map(container).unwrap(), "0 0 1\n1 1 65536\n");
        assert_eq!(identity_map(""), None);
        assert_eq!(identity_map("0 0"), None);
    }
}
