//! Sockets in the guest's network namespace.

use std::collections::BTreeMap;
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
use crate::forward::Protocol;
use crate::udp::{report_errors, report_local_address};

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
    /// Sockets without an address, to be connected, of each protocol and family.
    unused: BTreeMap<Unbound, Vec<Socket>>,
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
                unused: BTreeMap::new(),
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

    /// Returns a non-blocking socket of the family of `to`, to be connected.
    ///
    /// # Errors
    /// The error of the operating system in the child process.
    pub(crate) fn unbound(&self, protocol: Protocol, to: SocketAddr) -> io::Result<Socket> {
        let mut opener = self.opener.lock();
        let kind = Unbound {
            protocol,
            is_ipv6: to.is_ipv6(),
        };
        if let Some(socket) = opener.unused.get_mut(&kind).and_then(Vec::pop) {
            return Ok(socket);
        }
        // Several sockets are opened at once, as waiting for the other process takes longer than a system call.
        let mut sockets = opener.request(Request::Unbound(kind))?;
        let socket = sockets.pop().ok_or_else(no_socket);
        opener.unused.insert(kind, sockets);
        socket
    }

    /// Returns a non-blocking socket for the clients at `at`: a TCP socket that listens, or a UDP socket
    /// that reports errors and the address that each datagram was sent to.
    ///
    /// # Errors
    /// The error of the operating system in the child process, e.g. `AddrInUse`.
    pub(crate) fn bound(&self, protocol: Protocol, at: SocketAddr) -> io::Result<Socket> {
        let request = Request::Bound { protocol, at };
        let mut sockets = self.opener.lock().request(request)?;
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

/// A kind of sockets without an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Unbound {
    protocol: Protocol,
    is_ipv6: bool,
}

/// A request to the child process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    /// Sockets for connections.
    Unbound(Unbound),
    /// A socket for clients.
    Bound { protocol: Protocol, at: SocketAddr },
}

const fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unbound(Unbound { protocol, is_ipv6 }) => {
                let family = if *is_ipv6 { '6' } else { '4' };
                write!(f, "{} {family}", name(*protocol))
            }
            Self::Bound { protocol, at } => write!(f, "{} {at}", name(*protocol)),
        }
    }
}

impl FromStr for Request {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        let (protocol, what) = text.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let unbound = |is_ipv6| Self::Unbound(Unbound { protocol, is_ipv6 });
        match what {
            "4" => Ok(unbound(false)),
            "6" => Ok(unbound(true)),
            at => match at.parse() {
                Ok(at) => Ok(Self::Bound { protocol, at }),
                Err(_) => Err(io::ErrorKind::InvalidInput.into()),
            },
        }
    }
}

impl Request {
    /// Opens the requested sockets in the calling process's namespace.
    fn open(self) -> io::Result<Vec<Socket>> {
        match self {
            Self::Unbound(Unbound { protocol, is_ipv6 }) => {
                let domain = if is_ipv6 { Domain::IPV6 } else { Domain::IPV4 };
                (0..MAX_FDS)
                    .map(|_| Socket::new(domain, socket_type(protocol), None))
                    .collect()
            }
            Self::Bound { protocol, at } => {
                let kind = socket_type(protocol);
                let socket = Socket::new(Domain::for_address(at), kind, None)?;
                if at.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                match protocol {
                    Protocol::Tcp => {
                        socket.set_reuse_address(true)?;
                        socket.bind(&at.into())?;
                        socket.listen(BACKLOG)?;
                    }
                    Protocol::Udp => {
                        report_local_address(&socket, at.is_ipv6())?;
                        report_errors(&socket, at.is_ipv6())?;
                        socket.bind(&at.into())?;
                    }
                }
                Ok(vec![socket])
            }
        }
    }
}

const fn socket_type(protocol: Protocol) -> Type {
    let kind = match protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    kind.nonblocking().cloexec()
}

/// The child process: enters the namespaces and opens sockets until the gateway has ended.
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
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let unbound = |is_ipv6| Request::Unbound(Unbound { protocol, is_ipv6 });
            let bound = |at: &str| Request::Bound {
                protocol,
                at: at.parse().unwrap(),
            };
            for request in [
                unbound(false),
                unbound(true),
                bound("127.0.0.1:80"),
                bound("[fe80::1%3]:80"),
            ] {
                assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
            }
        }
        for text in ["5", "tcp", "tcp 5", "sctp 4", "127.0.0.1:80"] {
            assert!(text.parse::<Request>().is_err(), "{text}");
        }
    }
}
