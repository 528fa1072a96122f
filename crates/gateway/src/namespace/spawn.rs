//! A command in new namespaces, with a TAP to the gateway.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigHandler;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getegid, geteuid};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::time::timeout;

use super::child::{Message, channel, open_result, receive, send, send_result};
use super::command_parent::CommandParent;
use super::failed;
use super::interface::InterfaceSetup;
use super::sys::{exit_now, fork, is_signal_ignored, register, set_signal_handler};
use super::tap::{Tap, decode, open_here};

/// A command, and the namespaces that are made for it.
#[derive(Clone, Debug)]
pub struct NewNamespaces {
    /// Whether a user namespace is made, in which the caller is root. One that
    /// [`can_make_namespaces`](super::can_make_namespaces) does not need it.
    pub user: bool,
    /// Whether PID, IPC and UTS namespaces are made, too. The command then has a /proc of its own,
    /// and its descendants end with it.
    pub isolate: bool,
    /// The name of the TAP.
    pub tap: String,
    /// The settings of the TAP.
    pub setup: InterfaceSetup,
    /// The contents of the command's /etc/resolv.conf; `None` leaves the host's.
    pub resolv_conf: Option<String>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
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
    /// The parent kills the command when it receives a message, or when this end is closed.
    end: OwnedFd,
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
        let (ours, theirs) = channel()?;
        let (end, gateway) = channel()?;
        let Some(pid) = fork()? else {
            drop((ours, end));
            let prepared = self.prepare();
            let failed = prepared.is_err();
            if send_result(&theirs, prepared).is_err() || failed {
                exit_now(1);
            }
            self.finish(theirs, gateway);
        };
        drop((theirs, gateway));
        let gone = || io::Error::other("the child process ended without a result");
        let message = receive(&ours).and_then(|m| open_result(m.ok_or_else(gone)?));
        let message = message.inspect_err(|_| {
            let _ = waitpid(pid, None);
        })?;
        let raw = rustix::process::Pid::from_raw(pid.as_raw()).ok_or_else(gone)?;
        Ok(Spawned {
            tap: decode(message)?,
            pid,
            process: pidfd_open(raw, PidfdFlags::NONBLOCK)?,
            channel: ours,
            end,
        })
    }

    /// Makes the namespaces for this process, and opens the TAP.
    fn prepare(&self) -> io::Result<Message> {
        if self.user {
            let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
            unshare(CloneFlags::CLONE_NEWUSER).map_err(|e| {
                failed(
                    "make a user namespace (user.max_user_namespaces may be 0)",
                    e,
                )
            })?;
            map_ids((0, 0), (uid, gid)).map_err(|e| failed("map the user to root", e))?;
        }
        let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS;
        if self.isolate {
            flags |= CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
        }
        unshare(flags).map_err(|e| failed("make a network and a mount namespace", e))?;
        mount_none("/", MsFlags::MS_REC | MsFlags::MS_SLAVE)
            .map_err(|e| failed("separate the mounts", e))?;
        if let Some(text) = &self.resolv_conf {
            replace_resolv_conf(text).map_err(|e| failed("replace /etc/resolv.conf", e))?;
        }
        // Ping sockets for the command's groups, and low ports for all of its users.
        let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 0");
        let _ = fs::write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0");
        open_here(&self.tap, Some(&self.setup))
    }

    /// Waits for the permission to begin, and becomes the parent of the command.
    fn finish(&self, channel: OwnedFd, gateway: OwnedFd) -> ! {
        match receive(&channel) {
            Ok(Some(_)) => {}
            // The gateway has failed.
            _ => exit_now(1),
        }
        let forked = CommandParent::new(gateway, self.isolate)
            // A PID namespace begins with the next child.
            .and_then(|parent| Ok((parent, fork()?)));
        match forked {
            Ok((parent, None)) => {
                let Ok(_until_exec) = parent.enter_command() else {
                    exit_now(1);
                };
                if self.isolate {
                    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
                    // A container may forbid it; the command then sees the host's /proc.
                    let _ = mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>);
                }
                self.exec(&channel)
            }
            Ok((parent, Some(pid))) => {
                drop(channel);
                exit_now(parent.wait(pid))
            }
            Err(error) => {
                let _ = send_result(&channel, Err(error));
                exit_now(1)
            }
        }
    }

    /// Executes the command; on failure passes the error on and ends.
    fn exec(&self, channel: &OwnedFd) -> ! {
        let mut words = self.command.iter();
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

    /// Returns the process ID of the command's parent, which is in the command's network namespace.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw() as u32
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
    /// end. The processes of its PID namespace end with it, if it has one.
    ///
    /// # Errors
    /// The error of the signal if the command has ended before; the error of the runtime if the
    /// process cannot be polled.
    pub async fn terminate(&self, grace: Duration) -> io::Result<()> {
        pidfd_send_signal(&self.process, Signal::TERM)?;
        if let Ok(ended) = timeout(grace, self.wait()).await {
            return ended.map(drop);
        }
        // Fails if the command has just ended.
        let _ = send(&self.end, b"kill", &[]);
        // A parent that was stopped does not receive it.
        let _ = pidfd_send_signal(&self.process, Signal::CONT);
        self.wait().await.map(drop)
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

/// Maps one user and one group of the calling process's new user namespace: `inside` is `outside`.
pub(super) fn map_ids(inside: (u32, u32), outside: (u32, u32)) -> io::Result<()> {
    // Without it a group could be dropped that denies an access.
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

/// Changes an existing mount.
pub(super) fn mount_none(target: impl AsRef<Path>, flags: MsFlags) -> io::Result<()> {
    mount(
        None::<&str>,
        target.as_ref(),
        None::<&str>,
        flags,
        None::<&str>,
    )?;
    Ok(())
}

/// Mounts a file with `text` over /etc/resolv.conf, or over the file that it is a link to.
fn replace_resolv_conf(text: &str) -> io::Result<()> {
    let target = match fs::canonicalize("/etc/resolv.conf") {
        Ok(target) => target,
        // The link's destination or the file does not exist: there is nothing to mount over.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // The file needs a file system. It stays after the detached directory is gone.
    let folder = Path::new("/tmp");
    mount(
        Some("tmpfs"),
        folder,
        Some("tmpfs"),
        MsFlags::empty(),
        Some("size=64k"),
    )?;
    let path = folder.join("resolv.conf");
    let mut file = File::create(&path)?;
    file.write_all(text.as_bytes())?;
    if target.starts_with(folder) {
        return Err(io::Error::other("it is below /tmp"));
    }
    let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    mount(
        Some(&from),
        &target,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )?;
    umount2(folder, MntFlags::MNT_DETACH)?;
    Ok(())
}
