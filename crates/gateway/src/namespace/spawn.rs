//! A command in new namespaces, with a TAP to the gateway.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
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
use super::id_maps::Maps;
use super::interface::InterfaceSetup;
use super::nested::Nested;
use super::sys::{fork_into, is_signal_ignored, register, set_signal_handler};
use super::tap::{Tap, decode};
use super::{Identity, Namespaces, namespace_limits};

/// Time to wait for the end of the command's parent after it was requested to kill the command.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A command, and the namespaces that are made for it: network, mount, PID, IPC and UTS namespaces.
#[derive(Clone, Debug)]
pub struct NewNamespaces {
    /// Whether the command gets its own user namespace, in which it is root. A caller with the privileges
    /// of [`can_make_namespaces`] keeps its users and groups there; another caller's user and group
    /// become root's, and there are no others.
    pub user: bool,
    /// The user of the command outside of its user namespace, and the only one in it; `None` for the
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
    /// A file that the command must not be able to write, regardless of permissions.
    pub read_only: Option<Guard>,
    /// Further files that the command cannot write. It may be able to put others in the place of a folder above.
    pub protected: Vec<PathBuf>,
    /// Sockets that the command cannot connect to by their paths.
    pub hidden: Vec<PathBuf>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// The first process of a PID namespace. When it ends, the kernel ends all other processes of the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstProcess {
    /// A process of this program, which reaps orphans and ends with the command.
    Reaper,
    /// The command, which the kernel protects from signals that it does not handle.
    Command,
}

/// A command whose namespaces exist, and which has not started yet.
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
    /// The only user as which the command can own files; `None` if it may be any user.
    pub(super) user: Option<u32>,
    /// The reason why [`NewNamespaces::read_only`] is not read-only for the command.
    pub(super) unguarded: Option<String>,
}

impl NewNamespaces {
    /// Makes the namespaces and the TAP. The command waits for [`Spawned::start`], and is killed when the
    /// returned value is dropped or this process ends. If this process ignores SIGCHLD, its default
    /// disposition is restored.
    ///
    /// # Errors
    /// The error of the step that failed, with its name.
    pub fn make(&self) -> io::Result<Spawned> {
        // While the signal is ignored, which is inherited, the kernel does not report the end of a child.
        if is_signal_ignored(libc::SIGCHLD) {
            set_signal_handler(nix::sys::signal::Signal::SIGCHLD, SigHandler::SigDfl);
        }
        let (channel, theirs) = channel()?;
        let (control, gateway) = self::channel()?;
        // The command is one level below, and cannot change mounts of this level.
        let mut outer = CloneFlags::CLONE_NEWNS;
        let maps = self.outer_maps();
        let is_one_user = matches!(maps, Maps::Own(..)) || self.has_other_user();
        outer.set(CloneFlags::CLONE_NEWUSER, !matches!(maps, Maps::None));
        outer.set(CloneFlags::CLONE_NEWPID, self.first == FirstProcess::Reaper);
        let nested = Nested::new(self, maps);
        let copies = [channel.as_raw_fd(), control.as_raw_fd()];
        // The intermediate process is forked with the C library's function, which leaves the allocator
        // usable if this process has threads. It ends when its child, with `CLONE_PARENT`, is this
        // process's child.
        let started = in_child(|| {
            if let Some(user) = self.run_as {
                user.assume()?;
                // After the change of the user, /proc/self with the maps of users belongs to root.
                set_dumpable(true)?;
            }
            let (reader, mapped) = io::pipe()?;
            let parent = fork_into(outer | CloneFlags::CLONE_PARENT);
            let parent = parent.map_err(|error| namespace_limits::explain(outer, &error))?;
            let Some(pid) = parent else {
                drop(mapped);
                nested.run((theirs, gateway), reader, &copies)
            };
            nested.map_outer(pid, mapped)?;
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
                user: is_one_user.then(|| self.ids().0),
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

    /// Returns the users and groups of the outer level. It has a user namespace wherever the kernel permits one, so
    /// that its limits and mounts are not the host's.
    fn outer_maps(&self) -> Maps {
        if !self.user {
            return Maps::None;
        }
        if self.has_other_user() || !can_make_namespaces() {
            let (user, group) = self.ids();
            return Maps::Own(user, group);
        }
        Maps::all_of_caller().unwrap_or(Maps::None)
    }

    /// Returns the user and group of the command outside of its user namespace.
    fn ids(&self) -> (u32, u32) {
        let own = || (geteuid().as_raw(), getegid().as_raw());
        self.run_as.map_or_else(own, Identity::ids)
    }

    /// Returns whether the command runs as a user other than root, who may not change to another user.
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
            // The channel closes when the command's program replaces the child.
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

    /// Returns the detector of the origin of SIGHUPs that this process receives.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn hangup_origin(&self) -> io::Result<HangupOrigin> {
        Ok(HangupOrigin(self.control.try_clone()?))
    }

    /// Waits for the end of the command and returns its exit status, or 128 plus the number of the signal
    /// that ended it.
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

    /// Ends the command with SIGTERM, or with SIGKILL if it still runs after `grace`, and waits for its
    /// end. The other processes of its PID namespace end with it.
    ///
    /// # Errors
    /// The error of the request if the command has already ended; the error of the runtime if the process
    /// cannot be polled.
    pub async fn terminate(&self, grace: Duration) -> io::Result<()> {
        send(&self.control, TERMINATE, &[])?;
        if let Ok(ended) = timeout(grace, self.wait()).await {
            return ended.map(drop);
        }
        // Fails if the command has just ended.
        let _ = send(&self.control, KILL, &[]);
        // A stopped parent does not receive the request, and ends with this process.
        match timeout(KILL_TIMEOUT, self.wait()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => Ok(()),
        }
    }
}

/// A detector of the origin of SIGHUPs. The command's processes can signal their process group, to which
/// this process belongs as well.
#[derive(Debug)]
pub struct HangupOrigin(OwnedFd);

impl HangupOrigin {
    /// Returns whether a SIGHUP since the last call came from the command, or from the kernel because of
    /// processes of the group. Then the command's parent, which no other process can address, has
    /// received it, too.
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

/// Returns the exit status with which a shell reports the end of a process.
pub(super) fn exit_status(status: WaitStatus) -> i32 {
    match status {
        WaitStatus::Exited(_, code) => code,
        WaitStatus::Signaled(_, signal, _) => 128 + signal as i32,
        _ => 1,
    }
}
