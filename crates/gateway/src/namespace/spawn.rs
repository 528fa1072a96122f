//! A command in new namespaces, with a TAP to the gateway.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sched::CloneFlags;
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::SigHandler;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid};
use rustix::process::{PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::time::timeout;

use super::can_make_namespaces;
use super::child::{Message, channel, in_child, open_result, receive, send};
use super::command_parent::{HANGUP, KILL, TERMINATE};
use super::guarded_file::Guard;
use super::interface::InterfaceSetup;
use super::nested::Nested;
use super::sys::{fork_into, is_signal_ignored, register, set_signal_handler};
use super::tap::{Tap, decode};
use super::{Identity, Namespaces, namespace_limits};

/// How long the end of the command's parent is awaited that has been requested to kill the command.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A command, and the namespaces that are made for it: network, mount, PID, IPC and UTS namespaces.
#[derive(Clone, Debug)]
pub struct NewNamespaces {
    /// Whether the command has a user namespace of its own, in which it is root. A caller with the
    /// privileges of [`can_make_namespaces`] keeps its users and groups in it; the user and group of
    /// another caller become root's, and it has no others.
    pub user: bool,
    /// The user of the command outside of its user namespace, in which it is then the only one; `None`: the
    /// caller.
    pub run_as: Option<Identity>,
    /// The first process of the command's PID namespace.
    pub first: FirstProcess,
    /// The name of the TAP.
    pub tap: String,
    /// The settings of the TAP.
    pub setup: InterfaceSetup,
    /// The contents of the command's /etc/resolv.conf; `None` leaves the host's.
    pub resolv_conf: Option<String>,
    /// A file that the command cannot write, whatever its permissions are.
    pub read_only: Option<Guard>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// The first process of a PID namespace. When it ends, the kernel ends all other processes of the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstProcess {
    /// A process of this program, which waits for orphans, and ends with the command.
    Reaper,
    /// The command, which the kernel protects from signals that it does not handle.
    Command,
}

/// A command whose namespaces exist, and which has not begun yet.
#[derive(Debug)]
pub struct Spawned {
    /// The TAP in the command's network namespace.
    pub tap: Tap,
    /// The command's parent.
    pid: Pid,
    process: OwnedFd,
    channel: OwnedFd,
    /// The channel to the command's parent, which kills the command when this end is closed.
    control: OwnedFd,
    namespaces: Namespaces,
    files: CommandFiles,
}

/// The access of a command to files of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CommandFiles {
    /// The only user whose files the command owns. `None`: it may be any user.
    pub(super) user: Option<u32>,
    /// Why [`NewNamespaces::read_only`] is not read-only for it.
    pub(super) unguarded: Option<String>,
}

impl NewNamespaces {
    /// Makes the namespaces and the TAP. The command waits for [`Spawned::start`]. It is killed when
    /// the returned value is dropped, or this process ends. If this process ignores SIGCHLD, it no longer
    /// does.
    ///
    /// # Errors
    /// The error of the step that failed, with its name.
    pub fn make(&self) -> io::Result<Spawned> {
        // The kernel does not report the end of a child while the signal is ignored, which a process
        // inherits.
        if is_signal_ignored(libc::SIGCHLD) {
            set_signal_handler(nix::sys::signal::Signal::SIGCHLD, SigHandler::SigDfl);
        }
        let (channel, theirs) = channel()?;
        let (control, gateway) = self::channel()?;
        // Mounts of this level are fixed for the command, which is one level below.
        let has_outer_user = self.user && !can_make_namespaces();
        let mut outer = CloneFlags::CLONE_NEWNS;
        outer.set(CloneFlags::CLONE_NEWUSER, has_outer_user);
        outer.set(CloneFlags::CLONE_NEWPID, self.first == FirstProcess::Reaper);
        let outer_user = has_outer_user.then(|| self.ids());
        let nested = Nested::new(self, outer_user);
        let copies = [channel.as_raw_fd(), control.as_raw_fd()];
        // A process between forks with the C library's own function, which leaves the allocator usable
        // if this process has threads, and is gone when its child is that of this process.
        let started = in_child(|| {
            if let Some(user) = self.run_as {
                user.assume()?;
                // The change of the user has made /proc/self, with the maps of users, that of root.
                set_dumpable(true)?;
            }
            let parent = fork_into(outer | CloneFlags::CLONE_PARENT);
            let parent = parent.map_err(|error| namespace_limits::explain(outer, &error))?;
            let Some(pid) = parent else {
                nested.run(theirs, gateway, &copies)
            };
            Ok(Message {
                bytes: pid.as_raw().to_ne_bytes().to_vec(),
                ..Message::default()
            })
        })?;
        let pid = <[u8; 4]>::try_from(&started.bytes[..]).map_err(|_| gone())?;
        let pid = Pid::from_raw(i32::from_ne_bytes(pid));
        let prepared = || {
            let unguarded = receive_result(&channel)?.bytes;
            Ok((unguarded, receive_result(&channel)?))
        };
        let (unguarded, mut message) = prepared().inspect_err(|_: &io::Error| {
            let _ = waitpid(pid, None);
        })?;
        let raw = rustix::process::Pid::from_raw(pid.as_raw()).ok_or_else(gone)?;
        let tap = decode(&mut message)?;
        let mut files = message.fds.into_iter();
        let net = files.next().ok_or_else(gone)?;
        Ok(Spawned {
            tap,
            pid,
            process: pidfd_open(raw, PidfdFlags::NONBLOCK)?,
            channel,
            control,
            namespaces: Namespaces::from_files(net, files.next())?,
            files: CommandFiles {
                user: (has_outer_user || self.has_other_user()).then(|| self.ids().0),
                unguarded: if self.user {
                    let reason = String::from_utf8_lossy(&unguarded).into_owned();
                    Some(reason).filter(|reason| !reason.is_empty())
                } else {
                    Some(
                        "it has no user namespace, and can unmount what protects the file"
                            .to_owned(),
                    )
                },
            },
        })
    }

    /// Returns the user and group of the command outside of its user namespace.
    fn ids(&self) -> (u32, u32) {
        let own = || (geteuid().as_raw(), getegid().as_raw());
        self.run_as.map_or_else(own, Identity::ids)
    }

    /// Returns whether the command is another user than root, who has no right to be others.
    pub(super) fn has_other_user(&self) -> bool {
        self.run_as.is_some_and(|user| !user.is_root())
    }
}

fn receive_result(channel: &OwnedFd) -> io::Result<Message> {
    receive(channel).and_then(|message| open_result(message.ok_or_else(gone)?))
}

fn gone() -> io::Error {
    io::Error::other("the child process ended without a result")
}

impl Spawned {
    /// Starts the command.
    ///
    /// # Errors
    /// The error of executing it, e.g. `NotFound`.
    pub fn start(&self) -> io::Result<()> {
        send(&self.channel, b"start", &[])?;
        match receive(&self.channel)? {
            // The channel closes when the command replaces the child.
            None => Ok(()),
            Some(message) => open_result(message).map(drop),
        }
    }

    /// Returns the process ID of the command's parent.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
    }

    /// Returns the command's network namespace and user namespace.
    pub const fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Returns the access of the command to files of the host.
    pub(super) const fn files(&self) -> &CommandFiles {
        &self.files
    }

    /// Returns the origin of the SIGHUPs that this process receives.
    ///
    /// # Errors
    /// The operating system's.
    pub fn hangup_origin(&self) -> io::Result<HangupOrigin> {
        Ok(HangupOrigin(self.control.try_clone()?))
    }

    /// Waits for the end of the command, and returns its exit status: 128 plus the signal's number
    /// if a signal ended it.
    ///
    /// # Errors
    /// The error of the runtime if the process cannot be polled.
    pub async fn wait(&self) -> io::Result<i32> {
        let process = register(self.process.try_clone()?, Interest::READABLE)?;
        loop {
            let mut ready = process.readable().await?;
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => ready.clear_ready(),
                Ok(status) => return Ok(exit_status(status)),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the command by SIGTERM, or by SIGKILL if it still runs after `grace`, and waits for its
    /// end. The other processes of its PID namespace end with it.
    ///
    /// # Errors
    /// The error of the request if the command has ended before; the error of the runtime if the
    /// process cannot be polled.
    pub async fn terminate(&self, grace: Duration) -> io::Result<()> {
        send(&self.control, TERMINATE, &[])?;
        if let Ok(ended) = timeout(grace, self.wait()).await {
            return ended.map(drop);
        }
        // Fails if the command has just ended.
        let _ = send(&self.control, KILL, &[]);
        // A parent that was stopped does not receive it: it ends with this process.
        match timeout(KILL_TIMEOUT, self.wait()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => Ok(()),
        }
    }
}

/// The origin of SIGHUPs. The command's processes can send signals to their process group, which is that of
/// this process, too.
#[derive(Debug)]
pub struct HangupOrigin(OwnedFd);

impl HangupOrigin {
    /// Returns whether a SIGHUP since the last call came from the command, or from the kernel because
    /// of what processes of the group did. The command's parent, which no other process knows, has
    /// received it then, too.
    ///
    /// # Errors
    /// The error of the runtime if the channel cannot be polled, or of the channel.
    pub async fn is_command(&self) -> io::Result<bool> {
        send(&self.0, HANGUP, &[])?;
        let channel = register(self.0.try_clone()?, Interest::READABLE)?;
        let answer = channel.async_io(Interest::READABLE, receive).await?;
        Ok(answer.is_none_or(|answer| answer.bytes != [0]))
    }
}

/// Returns the exit status that a shell reports for a process that has ended.
pub(super) fn exit_status(status: WaitStatus) -> i32 {
    match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
        _ => 1,
    }
}
