//! The user as which a gateway runs after root has started it.

use std::io;
use std::str::FromStr;

use caps::{CapSet, Capability, errors::CapsError};
use nix::errno::Errno;
use nix::sys::prctl::set_keepcaps;
use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, setgroups, setresgid, setresuid};

use super::failed;

/// The user without rights, and the number that it has if the system has no entry for it.
const NOBODY: &str = "nobody";
const NOBODY_ID: u32 = 65_534;
/// The map of the initial user namespace: all users are themselves.
const INITIAL_MAP: [&str; 3] = ["0", "0", "4294967295"];

/// A user and a group, without further groups. Parsed from `USER` or `USER:GROUP`, each a name or a
/// number. Without a group, the user's group in the system's database applies, or for a number without an
/// entry the group of the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    uid: Uid,
    gid: Gid,
}

impl Identity {
    /// Returns the user `nobody` if this process is root of the whole system, and `None` otherwise: root
    /// of a user namespace is an ordinary user outside of it.
    ///
    /// # Errors
    /// `PermissionDenied` if root may not change its user, as in some containers; otherwise the error of
    /// reading the system's databases.
    pub fn instead_of_root() -> io::Result<Option<Self>> {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !geteuid().is_root() || !map.split_ascii_whitespace().eq(INITIAL_MAP) {
            return Ok(None);
        }
        let needed = [Capability::CAP_SETUID, Capability::CAP_SETGID];
        let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        if !needed.into_iter().all(has) {
            let text = "root cannot become nobody without CAP_SETUID and CAP_SETGID";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let user = User::from_name(NOBODY)?;
        let (uid, gid) = user.map_or_else(
            || (Uid::from_raw(NOBODY_ID), Gid::from_raw(NOBODY_ID)),
            |user| (user.uid, user.gid),
        );
        Ok(Some(Self { uid, gid }))
    }

    /// Returns whether the user is root.
    pub const fn is_root(self) -> bool {
        self.uid.is_root()
    }

    /// Returns the numbers of the user and the group.
    pub(super) const fn ids(self) -> (u32, u32) {
        (self.uid.as_raw(), self.gid.as_raw())
    }

    /// Changes this process to the user permanently, without the groups of the caller. The capabilities
    /// stay, for settings that need them:
    /// [`Sandbox::drop_capabilities`](super::Sandbox::drop_capabilities) gives them up.
    ///
    /// Must be called before the process has threads.
    ///
    /// # Errors
    /// `PermissionDenied` if the caller is neither root nor this user.
    pub fn assume(self) -> io::Result<()> {
        let cannot = |error: io::Error| {
            let advice = "start the program as root, or as this user";
            failed(
                format_args!("become the user {} ({advice})", self.uid),
                error,
            )
        };
        self.try_assume().map_err(cannot)
    }

    fn try_assume(self) -> io::Result<()> {
        match setgroups(&[]) {
            // An ordinary user keeps its groups.
            Err(Errno::EPERM) if geteuid() == self.uid && getegid() == self.gid => return Ok(()),
            dropped => dropped?,
        }
        setresgid(self.gid, self.gid, self.gid)?;
        set_keepcaps(true)?;
        setresuid(self.uid, self.uid, self.uid)?;
        set_keepcaps(false)?;
        let other = |error: CapsError| io::Error::other(error.to_string());
        let permitted = caps::read(None, CapSet::Permitted).map_err(other)?;
        caps::set(None, CapSet::Effective, &permitted).map_err(other)
    }
}

impl FromStr for Identity {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let invalid = |what: &str| {
            let text = format!(
                "`{text}` is not a user: {what}; write a name, a number, or USER:GROUP with these"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let (uid, found) = if let Some(uid) = number(user) {
            (Uid::from_raw(uid), User::from_uid(Uid::from_raw(uid))?)
        } else {
            let found = User::from_name(user)?;
            let found = found.ok_or_else(|| invalid("there is none of this name"))?;
            (found.uid, Some(found))
        };
        let gid = match group {
            None => found.map_or(Gid::from_raw(uid.as_raw()), |user| user.gid),
            Some(group) => {
                if let Some(gid) = number(group) {
                    Gid::from_raw(gid)
                } else {
                    let found = Group::from_name(group)?;
                    let found = found.ok_or_else(|| invalid("there is no group of this name"))?;
                    found.gid
                }
            }
        };
        Ok(Self { uid, gid })
    }
}

/// Parses the number of a user or group. The largest one is invalid: it means "no change".
fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|n| is_number && *n != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uid: u32, gid: u32) -> Identity {
        Identity {
            uid: Uid::from_raw(uid),
            gid: Gid::from_raw(gid),
        }
    }

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        for (text, expected) in [
            ("root", of(0, 0)),
            ("0", of(0, 0)),
            ("0:7", of(0, 7)),
            ("root:7", of(0, 7)),
            ("7:root", of(7, 0)),
            ("4000000000", of(4_000_000_000, 4_000_000_000)),
        ] {
            assert_eq!(text.parse::<Identity>().unwrap(), expected, "{text}");
        }
        for text in [
            "",
            ":",
            "no-such-user",
            "root:no-such-group",
            "0:",
            ":0",
            "-1",
            "4294967295",
        ] {
            let error = text.parse::<Identity>().unwrap_err().to_string();
            assert!(error.contains("is not a user"), "{text}: {error}");
        }
    }
}
