//! Notification of the end of a namespace, and of a caller.
//!
//! The file of a TAP keeps its network namespace alive, so that the kernel does not report its end.
//! What ends is its process, or the name at which it is mounted.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;

use super::sys::register;

/// Interval of the checks of a file below /proc, which inotify does not watch.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The end of a namespace, to wait for.
pub struct NamespaceEnd(Source);

enum Source {
    /// The process.
    Process(OwnedFd),
    /// The directory that has the namespace's name.
    Name(Inotify, OsString),
    /// A path that is checked repeatedly.
    Path(PathBuf),
    /// The caller does not want to wait.
    Never,
}

impl NamespaceEnd {
    /// Waits for the end of a process.
    ///
    /// # Errors
    /// `NotFound` if there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let no_process = || io::Error::from_raw_os_error(libc::ESRCH);
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let file = pidfd_open(pid.ok_or_else(no_process)?, PidfdFlags::NONBLOCK)?;
        Ok(Self(Source::Process(file)))
    }

    /// Waits until a path no longer exists: the namespace's name in /run/netns is removed, or the
    /// process of a /proc/PID/ns/net has ended.
    ///
    /// # Errors
    /// `NotFound` if the path does not exist; the error of inotify otherwise.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        path.symlink_metadata()?;
        if let Some(pid) = process_of(path) {
            return match Self::of_process(pid) {
                Ok(end) => Ok(end),
                Err(_) => Ok(Self(Source::Path(path.to_owned()))),
            };
        }
        let path = std::path::absolute(path)?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(Self(Source::Path(path)));
        };
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let events = AddWatchFlags::IN_DELETE | AddWatchFlags::IN_MOVED_FROM;
        let events = events | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_UNMOUNT;
        match inotify.add_watch(folder, events) {
            Ok(_) => Ok(Self(Source::Name(inotify, name.to_owned()))),
            Err(_) => Ok(Self(Source::Path(path))),
        }
    }

    /// Never ends.
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
            Source::Path(path) => {
                while path.symlink_metadata().is_ok() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                Ok(())
            }
            Source::Never => std::future::pending().await,
        }
    }
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

/// Waits until the other end of a file has hung up. Data that it sends is ignored.
///
/// Must be called within a tokio runtime whose I/O driver is enabled. Never returns for a file that
/// cannot hang up.
///
/// # Errors
/// The error of reading the file.
pub async fn hung_up(file: OwnedFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&file, true)?;
    let interest = Interest::READABLE | Interest::ERROR;
    let Ok(file) = register(file, interest) else {
        // A regular file.
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
        match nix::unistd::read(file.get_ref(), &mut [0; 512]) {
            // The end of a stream is a hang-up as well.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the process of a path below /proc/PID.
fn process_of(path: &Path) -> Option<u32> {
    let mut parts = path.strip_prefix("/proc").ok()?.iter();
    parts.next()?.to_str()?.parse().ok()
}
