//! The processes of a command: its parent in an outer level of namespaces, which makes mounts, and the
//! command in an inner level, which cannot change these mounts.

use std::ffi::OsString;
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use caps::{CapSet, Capability};
use landlock::{RulesetAttr, RulesetCreatedAttr, Scope};
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getegid, geteuid, getpid, gettid};

use super::child::{Message, receive, send_result};
use super::command_parent::CommandParent;
use super::guarded_file::Guard;
use super::mounts::{mount_none, mount_proc, replace_resolv_conf};
use super::spawn::{FirstProcess, NewNamespaces};
use super::sys::{close_copy, exit_now, fork_into};
use super::tap::open_here;
use super::{failed, namespace_limits};

/// The maps of a process's user namespace.
const ID_MAPS: [&str; 2] = ["uid_map", "gid_map"];

/// Namespaces in two levels, and the processes in them.
pub(super) struct Nested<'a> {
    new: &'a NewNamespaces,
    /// The user and group of a caller that needs a user namespace for the outer level.
    outer_user: Option<(u32, u32)>,
    /// Whether the thread that starts the command lives as long as its process.
    is_main_thread: bool,
}

impl<'a> Nested<'a> {
    /// Returns the levels of a command. Must be called in the process that starts it.
    pub(super) fn new(new: &'a NewNamespaces, outer_user: Option<(u32, u32)>) -> Self {
        Self {
            new,
            outer_user,
            is_main_thread: getpid() == gettid(),
        }
    }

    /// Runs the command's parent, which has just begun in the outer level, and starts the command in the
    /// inner one. `channel` carries the results, and `gateway` the gateway's messages to the parent.
    /// `copies` are other descriptors of the gateway, to be closed.
    pub(super) fn run(&self, channel: OwnedFd, gateway: OwnedFd, copies: &[RawFd]) -> ! {
        for copy in copies {
            close_copy(*copy);
        }
        let forked = self.enter_outer(&channel).and_then(|()| {
            let is_init = self.new.first == FirstProcess::Reaper;
            let parent = CommandParent::new(gateway, is_init)?;
            let mapped = io::pipe()?;
            let maps = if self.new.user {
                self.maps()
            } else {
                Maps::None
            };
            let inner = self.inner();
            let forked = fork_into(inner);
            let forked = forked.map_err(|error| namespace_limits::explain(inner, &error))?;
            Ok((parent, forked, mapped, maps))
        });
        match forked {
            Ok((parent, None, (reader, writer), maps)) => {
                drop(writer);
                self.run_command(&channel, parent, &maps, reader)
            }
            Ok((parent, Some(command), (reader, writer), maps)) => {
                drop((channel, reader));
                // If it fails, the command's process ends.
                let _ = maps.write(command, writer);
                exit_now(parent.wait(command))
            }
            Err(error) => {
                let _ = send_result(&channel, Err(error));
                exit_now(1)
            }
        }
    }

    /// Prepares the mounts of the outer level, and reports on `channel` the reason if the command can
    /// write its guarded file.
    fn enter_outer(&self, channel: &OwnedFd) -> io::Result<()> {
        if let Some(ids) = self.outer_user {
            map_ids((0, 0), ids).map_err(|e| failed("map the user to root", e))?;
        }
        if self.is_main_thread && self.new.first == FirstProcess::Reaper {
            // The parent may be stopped when the gateway ends. As the first process it ends all others
            // with it; a command that is the first process must be killed by its parent instead.
            set_pdeathsig(Signal::SIGKILL)?;
        }
        // A later mount of the host could lead to the guarded file, too.
        let propagation = if self.new.read_only.is_some() {
            MsFlags::MS_PRIVATE
        } else {
            MsFlags::MS_SLAVE
        };
        mount_none("/", MsFlags::MS_REC | propagation)
            .map_err(|e| failed("separate the mounts", e))?;
        if let Some(text) = &self.new.resolv_conf {
            replace_resolv_conf(text).map_err(|e| failed("replace /etc/resolv.conf", e))?;
        }
        let guarded = self.new.read_only.as_ref().map(Guard::protect);
        if self.new.first == FirstProcess::Reaper {
            // A container may forbid it; the command then sees the host's /proc.
            let _ = mount_proc();
        }
        let unguarded = guarded.and_then(Result::err);
        let message = Message {
            bytes: unguarded
                .map(|e| e.to_string())
                .unwrap_or_default()
                .into_bytes(),
            ..Message::default()
        };
        send_result(channel, Ok(message))
    }

    fn inner(&self) -> CloneFlags {
        let mut inner = CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS;
        inner.set(CloneFlags::CLONE_NEWUSER, self.new.user);
        let is_first = self.new.first == FirstProcess::Command;
        inner.set(CloneFlags::CLONE_NEWPID, is_first);
        inner
    }

    /// Returns the maps of the inner user namespace: all users and groups of the caller if its privileges
    /// suffice, otherwise only its own, as root.
    fn maps(&self) -> Maps {
        let own = Maps::Own(geteuid().as_raw(), getegid().as_raw());
        // The mounted /proc may belong to another PID namespace, where the command has another number.
        let is_proc_own = fs::read_link("/proc/self")
            .is_ok_and(|pid| pid.as_os_str() == &*OsString::from(getpid().to_string()));
        let is_other = self.new.has_other_user();
        if self.outer_user.is_some() || is_other || !is_proc_own || !can_map_others() {
            return own;
        }
        let identity = |name| {
            let text = fs::read_to_string(format!("/proc/self/{name}")).ok()?;
            identity_map(&text)
        };
        match ID_MAPS.map(identity) {
            [Some(users), Some(groups)] => Maps::All([users, groups]),
            _ => own,
        }
    }

    /// Prepares the command's process in the inner level, and executes the command once the gateway
    /// permits it.
    fn run_command(
        &self,
        channel: &OwnedFd,
        parent: CommandParent,
        maps: &Maps,
        mapped: PipeReader,
    ) -> ! {
        let prepared = maps.enter(mapped).and_then(|()| self.prepare_command());
        let failed = prepared.is_err();
        if send_result(channel, prepared).is_err() || failed {
            exit_now(1);
        }
        // Without a message, the gateway has failed.
        let (Ok(Some(_)), Ok(_until_exec)) = (receive(channel), parent.enter_command()) else {
            exit_now(1);
        };
        confine_signals();
        self.exec(channel)
    }

    /// Opens the TAP, and the namespaces of this process. Returns them as a message.
    fn prepare_command(&self) -> io::Result<Message> {
        if self.new.first == FirstProcess::Command {
            // A container may forbid it; the command then sees the host's /proc.
            let _ = mount_proc();
        }
        // Allows ping sockets for the command's groups, and low ports for all of its users.
        let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
        let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        let mut message = open_here(&self.new.tap, Some(&self.new.setup))?;
        for name in ["net", "user"] {
            let file = fs::File::open(format!("/proc/thread-self/ns/{name}"));
            let file = file.map_err(|e| failed(format_args!("open a {name} namespace"), e))?;
            message.fds.push(file.into());
        }
        Ok(message)
    }

    /// Executes the command. On failure, reports the error and ends.
    fn exec(&self, channel: &OwnedFd) -> ! {
        let mut words = self.new.command.iter();
        let program = words.next().cloned().unwrap_or_default();
        let error = Command::new(&program).args(words).exec();
        let status = if error.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        };
        let error = failed(format_args!("run {}", program.display()), error);
        let _ = send_result(channel, Err(error));
        exit_now(status)
    }
}

/// The maps of users and groups of the inner level.
enum Maps {
    /// There is no user namespace.
    None,
    /// One user and group, which become root.
    Own(u32, u32),
    /// All users and groups of the outer level; the contents of both maps, which only a process of the
    /// outer level may write.
    All([String; 2]),
}

impl Maps {
    /// Writes the maps of the command's process, from its parent.
    fn write(&self, command: Pid, mut mapped: PipeWriter) -> io::Result<()> {
        let Self::All(texts) = self else {
            return Ok(());
        };
        for (name, text) in ID_MAPS.iter().zip(texts) {
            fs::write(format!("/proc/{command}/{name}"), text)?;
        }
        mapped.write_all(b"1")
    }

    /// Waits in the command's process until its maps are written, or writes them.
    fn enter(&self, mut mapped: PipeReader) -> io::Result<()> {
        let done = match self {
            Self::None => Ok(()),
            Self::Own(user, group) => map_ids((0, 0), (*user, *group)),
            Self::All(_) => {
                let refused = |_| io::Error::other("the kernel has refused the maps");
                mapped.read_exact(&mut [0]).map_err(refused)
            }
        };
        done.map_err(|error| {
            let what = match (self, error.kind()) {
                (Self::Own(0, _), io::ErrorKind::PermissionDenied) => {
                    "map root in the command; give it CAP_SETFCAP, or start as another user"
                }
                _ => "map the users of the command",
            };
            failed(what, error)
        })
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

/// Prevents this process and its descendants from signalling the gateway, which is in their process
/// group. Has no effect before Linux 6.12.
fn confine_signals() {
    let confine = || {
        let ruleset = landlock::Ruleset::default()
            .scope(Scope::Signal)?
            .create()?;
        // The privilege in the process's user namespace permits this without `no_new_privs`.
        ruleset.no_new_privs(false).restrict_self()
    };
    let _ = confine();
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
