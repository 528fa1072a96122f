//! The sources of a device's connections.

use std::fs::{self, File, Permissions};
use std::io::{self, Error, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::SystemTime;

use fullsend_device::LogLimit;
use rustix::event::epoll;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The limit of the log lines about connections that cannot be accepted.
static LOG: LogLimit = LogLimit::new();

/// Time between attempts to connect.
const RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Most monitors that wait to be accepted.
const BACKLOG: i32 = 128;

/// The source of connections, each of which starts after the previous one has ended.
pub(crate) enum Source {
    /// A socket to which monitors connect.
    Listener {
        listener: UnixListener,
        /// The timer after a failed `accept`; the connection may still wait in the backlog.
        timer: OwnedFd,
        /// The socket's file; `None` if the caller has bound the socket.
        _file: Option<SocketFile>,
    },
    /// A socket on which a monitor listens.
    Peer { path: PathBuf, timer: OwnedFd },
    /// One connection, after which there is no other.
    Connected {
        socket: Option<UnixStream>,
        /// Whether the end of the connection is not an error of the device.
        is_outlived: bool,
    },
}

impl Source {
    /// Listens at `path`, to which only the process's user can connect. Replaces the socket of a process
    /// that has ended, but no other file.
    pub(crate) fn listen(path: &Path, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        remove_stale(path)?;
        let listener = listen_privately(path).map_err(|error| {
            let text = format!("cannot listen at {}: {error}", path.display());
            Error::new(error.kind(), text)
        })?;
        let file = SocketFile::of(path)?;
        Self::accept_from(listener, Some(file), epoll, token)
    }

    /// Accepts connections of a listening socket. `file` is its file if it must be removed.
    pub(crate) fn accept_from(
        listener: UnixListener,
        file: Option<SocketFile>,
        epoll: &Arc<OwnedFd>,
        token: u64,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        // The events are edge-triggered, as connections may wait in the backlog until the current one
        // ends.
        register(epoll, &listener, token)?;
        Ok(Self::Listener {
            listener,
            timer: new_timer(epoll, token)?,
            _file: file,
        })
    }

    /// Connects to `path` when the monitor listens, and again after the end of each connection.
    pub(crate) fn connect(path: &Path, epoll: &Arc<OwnedFd>, token: u64) -> io::Result<Self> {
        let timer = new_timer(epoll, token)?;
        // Verifies that the path fits in an address.
        SocketAddrUnix::new(path)?;
        Ok(Self::Peer {
            path: path.to_owned(),
            timer,
        })
    }

    /// Returns the next connection, or `None` if there is none now. Then the device becomes readable when
    /// there may be one.
    ///
    /// # Errors
    /// An error if there will never be one.
    pub(crate) fn next(&mut self) -> io::Result<Option<UnixStream>> {
        match self {
            Self::Listener { listener, .. } => match listener.accept() {
                Ok((socket, _)) => Ok(Some(socket)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => {
                    LOG.warn(error.kind(), || {
                        format!("cannot accept a vhost-user connection: {error}")
                    });
                    self.retry_later()?;
                    Ok(None)
                }
            },
            Self::Peer { path, .. } => {
                if let Ok(socket) = connect_without_waiting(path) {
                    return Ok(Some(socket));
                }
                self.retry_later()?;
                Ok(None)
            }
            Self::Connected {
                socket,
                is_outlived,
            } => {
                let next = socket.take();
                if next.is_none() && !*is_outlived {
                    return Err(Error::new(
                        ErrorKind::UnexpectedEof,
                        "the monitor has closed the only connection",
                    ));
                }
                Ok(next)
            }
        }
    }

    /// Returns whether this side connects to a listening monitor.
    pub(crate) fn connects(&self) -> bool {
        matches!(self, Self::Peer { .. })
    }

    /// Makes the device readable after [`RETRY`], for another attempt. Returns `false` if no further
    /// connection can come.
    pub(crate) fn retry_later(&mut self) -> io::Result<bool> {
        let (Self::Listener { timer, .. } | Self::Peer { timer, .. }) = self else {
            return Ok(false);
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: RETRY,
        };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(true)
    }
}

/// Returns a timer that makes the device readable.
pub(crate) fn new_timer(epoll: &Arc<OwnedFd>, token: u64) -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    register(epoll, &timer, token)?;
    Ok(timer)
}

fn register(epoll: &Arc<OwnedFd>, file: impl AsFd, token: u64) -> io::Result<()> {
    let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
    Ok(epoll::add(
        epoll,
        file,
        epoll::EventData::new_u64(token),
        events,
    )?)
}

/// Returns a listening socket whose file only the process's user can open, whatever the umask.
fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let kind = SocketType::STREAM;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    // The file gets the socket's mode without the umask's bits, and never has another mode.
    let socket = File::from(socket);
    socket.set_permissions(Permissions::from_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

/// Connects to a Unix socket. A full backlog is an error.
fn connect_without_waiting(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Removes a socket on which no process listens.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match connect_without_waiting(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// The file of a listening socket, removed on drop unless another file has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The device, the inode, and the creation time of the file: some file systems reuse the inode of a
    /// removed file for the next one.
    id: (u64, u64, Option<SystemTime>),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: absolute(path)?,
            id: Self::id(path)?,
        })
    }

    fn id(path: &Path) -> io::Result<(u64, u64, Option<SystemTime>)> {
        let meta = fs::symlink_metadata(path)?;
        Ok((meta.dev(), meta.ino(), meta.created().ok()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
