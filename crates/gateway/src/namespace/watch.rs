//! Notification of the end of a namespace or of a caller.
//!
//! The file of a TAP keeps its network namespace alive, so that the kernel does not report its end.
//! Instead, this module waits for the end of its process, or of the name at which it is mounted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::{Mode, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use super::sys::register;

/// Interval of the checks of a file below /proc, which inotify does not watch.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A future end of a namespace.
pub struct NamespaceEnd(Source);

enum Source {
    /// A process, by its pidfd.
    Process(OwnedFd),
    /// A watched directory, and the namespace's name in it.
    Name(Inotify, OsString),
    /// An open directory, whose path a sandbox hides, and the name in it that is checked repeatedly.
    Polled(OwnedFd, OsString),
    /// No end, for a caller that does not want to wait.
    Never,
}

impl NamespaceEnd {
    /// Returns the end of a process.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let no_process = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let file = pidfd_open(pid.ok_or_else(no_process)?, PidfdFlags::NONBLOCK)?;
        Ok(Self(Source::Process(file)))
    }

    /// Returns the end of a path: the namespace's name in /run/netns is removed, or the process of a
    /// /proc/PID/ns/net has ended. A path below /proc/self never ends.
    ///
    /// # Errors
    /// `NotFound` if the path does not exist; the error of opening its directory otherwise.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            path.symlink_metadata()?;
            return Ok(Self::never());
        };
        let source = match path.strip_prefix("/proc") {
            Ok(rest) => below_proc(rest, folder, name)?,
            // Another mount of /proc, e.g. that of a container's host.
            Err(_) if is_proc(folder) => poll_name(folder, name)?,
            Err(_) => watch(folder, name).or_else(|_| poll_name(folder, name))?,
        };
        // A name that was removed before the watch began causes no event.
        path.symlink_metadata()?;
        Ok(Self(source))
    }

    /// Returns an end that never comes.
    pub fn never() -> Self {
        Self(Source::Never)
    }

    /// Waits for the end. Must be called within a tokio runtime whose I/O and time drivers are
    /// enabled.
    ///
    /// # Errors
    /// The error of the runtime if the file cannot be polled.
    pub async fn wait(self) -> io::Result<()> {
        match self.0 {
            Source::Process(file) => {
                let process = register(file, Interest::READABLE)?;
                process.readable().await?.retain_ready();
                Ok(())
            }
            Source::Name(inotify, name) => wait_for_removal(inotify, &name).await,
            Source::Polled(folder, name) => {
                while fstatat(&folder, &*name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(())
            }
            Source::Never => std::future::pending().await,
        }
    }
}

/// Returns the end of a path below /proc, where inotify reports nothing.
fn below_proc(rest: &Path, folder: &Path, name: &OsStr) -> io::Result<Source> {
    let first = rest.iter().next().and_then(OsStr::to_str).unwrap_or("");
    if matches!(first, "self" | "thread-self") {
        return Ok(Source::Never);
    }
    let process = first.parse().map(NamespaceEnd::of_process);
    match process {
        Ok(Ok(end)) => Ok(end.0),
        // The ID may be that of a thread, for which there is no pidfd.
        _ => poll_name(folder, name),
    }
}

fn watch(folder: &Path, name: &OsStr) -> io::Result<Source> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    let events = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
    let events = events | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_UNMOUNT;
    inotify.add_watch(folder, events)?;
    Ok(Source::Name(inotify, name.to_owned()))
}

fn is_proc(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|stat| stat.filesystem_type() == PROC_SUPER_MAGIC)
}

fn poll_name(folder: &Path, name: &OsStr) -> io::Result<Source> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let folder = open(folder, flags, Mode::empty())?;
    Ok(Source::Polled(folder, name.to_owned()))
}

async fn wait_for_removal(inotify: Inotify, name: &OsString) -> io::Result<()> {
    let polled = register(inotify.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
    loop {
        let mut ready = polled.readable().await?;
        ready.clear_ready();
        let folder_events = AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_UNMOUNT
            | AddWatchFlags::IN_IGNORED
            | AddWatchFlags::IN_Q_OVERFLOW;
        let events = match inotify.read_events() {
            Ok(events) => events,
            Err(Errno::EAGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let ended = events
            .iter()
            .any(|e| e.mask.intersects(folder_events) || e.name.as_ref() == Some(name));
        if ended {
            return Ok(());
        }
    }
}

/// Waits until the other end of a file has hung up, and ignores data that it sends.
///
/// Must be called within a tokio runtime whose I/O driver is enabled. Never returns for a file that
/// cannot hang up.
///
/// # Errors
/// The error of reading the file.
pub async fn hung_up(file: OwnedFd) -> io::Result<()> {
    let interest = Interest::READABLE | Interest::ERROR;
    let Ok(file) = register(file, interest) else {
        // The descriptor is a regular file, which the runtime cannot poll.
        return std::future::pending().await;
    };
    loop {
        let mut ready = file.ready(interest).await?;
        let mut polled = [PollFd::new(file.get_ref().as_fd(), PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::ZERO)?;
        let events = polled[0].revents().unwrap_or(PollFlags::POLLNVAL);
        if events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL) {
            return Ok(());
        }
        // The file may be in blocking mode, as its status belongs to the caller, too.
        if !events.contains(PollFlags::POLLIN) {
            ready.clear_ready();
            continue;
        }
        match nix::unistd::read(file.get_ref(), &mut [0; 512]) {
            // The end of a stream is a hang-up as well.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}
