//! Sockets in the guest's network namespace.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl::set_dumpable;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{PidfdFlags, pidfd_open};
use socket2::{Domain, Socket, Type};

use super::child::{MAX_FDS, Message, channel, detach, open_result, receive, send, send_result};
use super::sys::{exit_now, fork};
use super::{Identity, Namespaces, Sandbox};

/// Most clients that wait to be accepted.
const BACKLOG: i32 = 4096;
/// Longest wait for the child process, which answers within microseconds if it lives.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the end of the child process.
const END_TIMEOUT_MS: u16 = 1000;

/// A process that opens sockets in the network namespace of a guest. A socket stays in the namespace in
/// which it was opened, even if another process uses it.
///
/// The process is a child that has entered the namespace. It ends when this value is dropped, and at the
/// latest with its parent.
pub struct GuestSockets {
    opener: Mutex<Opener>,
    pid: Pid,
    process: OwnedFd,
    refused: Vec<String>,
}

impl Drop for GuestSockets {
    fn drop(&mut self) {
        // The process ends when its channel is closed. If it is stopped, it must not delay this process.
        self.opener.lock().channel = None;
        let mut polled = [PollFd::new(self.process.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut polled, END_TIMEOUT_MS);
        // Fails if the process that started it has ended before.
        let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
    }
}

struct Opener {
    /// The channel to the child process; `None` after it has not answered.
    channel: Option<OwnedFd>,
    /// Unbound sockets for later connections: IPv4 and IPv6.
    unused: [Vec<Socket>; 2],
}

impl GuestSockets {
    /// Starts the child process, a copy of this one with only the calling thread. Call it before this
    /// process has other threads, which may hold locks.
    ///
    /// # Errors
    /// The error of starting the process, or of entering the namespaces.
    pub fn of(namespaces: &Namespaces) -> io::Result<Self> {
        Self::with_user(namespaces, None)
    }

    /// Starts the child process as another user.
    ///
    /// # Errors
    /// The errors of [`of`](Self::of), and that of becoming the user.
    pub fn with_user(namespaces: &Namespaces, user: Option<Identity>) -> io::Result<Self> {
        let (channel, theirs) = channel()?;
        let Some(pid) = fork()? else {
            let _ = catch_unwind(AssertUnwindSafe(|| serve(&theirs, namespaces, user)));
            exit_now(1);
        };
        drop(theirs);
        let started = receive(&channel).and_then(|m| open_result(m.ok_or_else(no_socket)?));
        let process = rustix::process::Pid::from_raw(pid.as_raw())
            .ok_or_else(no_socket)
            .and_then(|raw| Ok(pidfd_open(raw, PidfdFlags::empty())?));
        let (started, process) = match (started, process) {
            (Ok(started), Ok(process)) => (started, process),
            (Err(error), _) | (_, Err(error)) => {
                drop(channel);
                let _ = waitpid(pid, None);
                return Err(error);
            }
        };
        set_socket_timeout(&channel, Timeout::Recv, Some(TIMEOUT))?;
        let refused = String::from_utf8_lossy(&started.bytes);
        Ok(Self {
            opener: Mutex::new(Opener {
                channel: Some(channel),
                unused: [Vec::new(), Vec::new()],
            }),
            pid,
            process,
            refused: refused.lines().map(str::to_owned).collect(),
        })
    }

    /// Returns the restrictions that the kernel has refused to the child process, one line each.
    pub fn refused_restrictions(&self) -> &[String] {
        &self.refused
    }

    /// Returns an unconnected, non-blocking TCP socket of the family of `to`.
    ///
    /// # Errors
    /// The error of the operating system in the child process.
    pub(crate) fn stream(&self, to: SocketAddr) -> io::Result<Socket> {
        let mut opener = self.opener.lock();
        let family = usize::from(to.is_ipv6());
        if opener.unused[family].is_empty() {
            // Several sockets are opened at once, as waiting for the other process takes longer than a
            // system call.
            let sockets = opener.request(Request::Streams {
                is_ipv6: to.is_ipv6(),
            })?;
            opener.unused[family] = sockets;
        }
        opener.unused[family].pop().ok_or_else(no_socket)
    }

    /// Returns a non-blocking TCP socket that listens at `at`.
    ///
    /// # Errors
    /// The error of the operating system in the child process, e.g. `AddrInUse`.
    pub(crate) fn listener(&self, at: SocketAddr) -> io::Result<Socket> {
        let mut sockets = self.opener.lock().request(Request::Listener(at))?;
        sockets.pop().ok_or_else(no_socket)
    }
}

impl Opener {
    /// Sends a request to the child process and waits for its answer.
    fn request(&mut self, request: Request) -> io::Result<Vec<Socket>> {
        let text = request.to_string();
        let channel = self.channel.as_ref().ok_or_else(no_socket)?;
        let answer = send(channel, text.as_bytes(), &[]).and_then(|()| receive(channel));
        let Ok(Some(message)) = answer else {
            // A later answer would be taken for that of the next request.
            self.channel = None;
            tracing::warn!("{}; its forwards fail or use the link", no_socket());
            return Err(no_socket());
        };
        let fds = open_result(message)?.fds;
        Ok(fds.into_iter().map(Socket::from).collect())
    }
}

fn no_socket() -> io::Error {
    io::Error::other("the process that opens sockets in the guest's namespace does not answer")
}

/// A request to the child process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    /// Sockets for connections.
    Streams { is_ipv6: bool },
    /// A listening socket.
    Listener(SocketAddr),
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Streams { is_ipv6: false } => f.write_str("4"),
            Self::Streams { is_ipv6: true } => f.write_str("6"),
            Self::Listener(at) => at.fmt(f),
        }
    }
}

impl FromStr for Request {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        match text {
            "4" => Ok(Self::Streams { is_ipv6: false }),
            "6" => Ok(Self::Streams { is_ipv6: true }),
            at => match at.parse() {
                Ok(at) => Ok(Self::Listener(at)),
                Err(_) => Err(io::ErrorKind::InvalidInput.into()),
            },
        }
    }
}

impl Request {
    /// Opens the requested sockets in the calling process's namespace.
    fn open(self) -> io::Result<Vec<Socket>> {
        let kind = Type::STREAM.nonblocking().cloexec();
        match self {
            Self::Streams { is_ipv6 } => {
                let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
                (0..MAX_FDS)
                    .map(|_| Socket::new(domain, kind, None))
                    .collect()
            }
            Self::Listener(at) => {
                let socket = Socket::new(Domain::for_address(at), kind, None)?;
                if at.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                socket.set_reuse_address(true)?;
                socket.bind(&at.into())?;
                socket.listen(BACKLOG)?;
                Ok(vec![socket])
            }
        }
    }
}

/// Runs the child process: enters the namespaces and opens sockets until the gateway has ended.
fn serve(channel: &OwnedFd, namespaces: &Namespaces, user: Option<Identity>) {
    let entered = enter(channel, namespaces, user);
    let failed = entered.is_err();
    let message = entered.map(|refused| Message {
        bytes: refused.join("\n").into_bytes(),
        fds: Vec::new(),
    });
    if send_result(channel, message).is_err() || failed {
        return;
    }
    while let Ok(Some(message)) = receive(channel) {
        let text = String::from_utf8_lossy(&message.bytes);
        let opened = text.parse().and_then(Request::open);
        let opened = opened.map(|sockets| Message {
            bytes: Vec::new(),
            fds: sockets.into_iter().map(OwnedFd::from).collect(),
        });
        if send_result(channel, opened).is_err() {
            return;
        }
    }
}

/// Enters the namespaces, and gives up everything that opening sockets does not need. Returns the
/// restrictions that the kernel refuses, one line each.
fn enter(
    channel: &OwnedFd,
    namespaces: &Namespaces,
    user: Option<Identity>,
) -> io::Result<Vec<String>> {
    // The memory is a copy of the gateway's: the guest, root in its user namespace, must not read it.
    set_dumpable(false)?;
    // The user changes before the namespace, as the guest's user namespace may not have this user.
    user.map_or(Ok(()), Identity::assume)?;
    namespaces.enter()?;
    detach(channel, &[])?;
    let sandbox = Sandbox {
        visible: Vec::new(),
        ..Sandbox::default()
    };
    Ok(sandbox.apply_where_possible())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written() {
        for request in [
            Request::Streams { is_ipv6: false },
            Request::Streams { is_ipv6: true },
            Request::Listener("127.0.0.1:80".parse().unwrap()),
            Request::Listener("[fe80::1%3]:80".parse().unwrap()),
        ] {
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        assert!("5".parse::<Request>().is_err());
    }
}
