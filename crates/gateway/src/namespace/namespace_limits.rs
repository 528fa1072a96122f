//! The reasons why the kernel refuses to make namespaces, and the changes that help.

use std::fs;
use std::io;
use std::sync::OnceLock;

use nix::sched::CloneFlags;

/// The kinds of namespaces, and the sysctls that limit their number for each user.
const LIMITS: [(CloneFlags, &str); 6] = [
    (CloneFlags::CLONE_NEWUSER, "max_user_namespaces"),
    (CloneFlags::CLONE_NEWNET, "max_net_namespaces"),
    (CloneFlags::CLONE_NEWNS, "max_mnt_namespaces"),
    (CloneFlags::CLONE_NEWPID, "max_pid_namespaces"),
    (CloneFlags::CLONE_NEWIPC, "max_ipc_namespaces"),
    (CloneFlags::CLONE_NEWUTS, "max_uts_namespaces"),
];
/// Sysctls of distributions that forbid user namespaces, and the value that allows them.
const SWITCHES: [(&str, &str); 2] = [
    ("kernel.unprivileged_userns_clone", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "0"),
];

/// The limits of the caller's user namespace, in the order of [`LIMITS`]. In a new user namespace the files show
/// other values, and the limits around it still apply.
static OF_CALLER: OnceLock<[Option<String>; LIMITS.len()]> = OnceLock::new();

/// Remembers the limits of the user namespace of this process, for [`explain`] in its children.
pub(super) fn remember() {
    OF_CALLER.get_or_init(|| LIMITS.map(|(_, name)| read(&format!("user/{name}"))));
}

/// Returns a limit of the caller, or of this process if none was remembered.
fn limit(name: &str) -> Option<String> {
    let index = LIMITS.iter().position(|(_, other)| *other == name)?;
    match OF_CALLER.get() {
        Some(limits) => limits[index].clone(),
        None => read(&format!("user/{name}")),
    }
}

/// Returns the error of making namespaces, extended by the reason that sysctls show.
pub(super) fn explain(flags: CloneFlags, error: &io::Error) -> io::Error {
    let hint = match error.raw_os_error() {
        Some(libc::ENOSPC) => limit_hint(flags, limit),
        Some(libc::EPERM) => switch_hint(|name| read(&name.replace('.', "/"))),
        _ => None,
    };
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    let text = format!("cannot make namespaces for the command: {error}{hint}");
    io::Error::new(error.kind(), text)
}

fn read(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.trim().to_owned())
}

/// Returns a text that names the limit that is 0, or else all limits that may be used up.
fn limit_hint(flags: CloneFlags, read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let limits = LIMITS.iter().filter(|(flag, _)| flags.contains(*flag));
    let values: Vec<_> = limits
        .filter_map(|(_, name)| Some((*name, read(name)?)))
        .collect();
    let is_zero = |(_, value): &&(&str, String)| value == "0";
    let zeros: Vec<_> = values.iter().filter(is_zero).collect();
    let shown = if zeros.is_empty() {
        values.iter().collect()
    } else {
        zeros
    };
    if shown.is_empty() {
        return None;
    }
    let list: Vec<_> = shown
        .iter()
        .map(|(name, value)| format!("user.{name} = {value}"))
        .collect();
    let what = if list.len() == 1 {
        "this limit"
    } else {
        "one of these limits"
    };
    Some(format!(
        "{what} of the user or of a user namespace around it is reached: {}; raise it with `sysctl -w`",
        list.join(", ")
    ))
}

/// Returns a text that names the sysctl that forbids user namespaces.
fn switch_hint(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let forbids =
        |(name, allowing): &&(&str, &str)| read(name).is_some_and(|value| value != *allowing);
    let (name, allowing) = SWITCHES.iter().find(forbids)?;
    Some(format!(
        "user namespaces are restricted: allow them with `sysctl -w {name}={allowing}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_is_zero_is_named() {
        let flags = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET;
        let values = |net: &'static str| {
            move |name: &str| {
                let value = if name == "max_net_namespaces" {
                    net
                } else {
                    "7"
                };
                Some(value.to_owned())
            }
        };
        let hint = limit_hint(flags, values("0")).unwrap();
        assert!(hint.contains("this limit"), "{hint}");
        assert!(hint.contains("user.max_net_namespaces = 0"), "{hint}");
        assert!(!hint.contains("max_user_namespaces"), "{hint}");
        let hint = limit_hint(flags, values("5")).unwrap();
        let both = "user.max_user_namespaces = 7, user.max_net_namespaces = 5";
        assert!(hint.contains(both), "{hint}");
        assert_eq!(limit_hint(flags, |_| None), None);
    }

    #[test]
    fn the_switch_that_forbids_user_namespaces_is_named() {
        let value = |name: &str| {
            let is_restricted = name == "kernel.apparmor_restrict_unprivileged_userns";
            is_restricted.then(|| "1".to_owned())
        };
        let hint = switch_hint(value).unwrap();
        assert!(
            hint.contains("apparmor_restrict_unprivileged_userns=0"),
            "{hint}"
        );
        assert_eq!(switch_hint(|_| None), None);
    }
}
