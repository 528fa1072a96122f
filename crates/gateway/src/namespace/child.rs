//! Jobs in child processes, which pass bytes and descriptors back.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, chdir, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::sys::{close_others, exit_now, fork, set_signal_handler};
use super::{descriptor_hint, open_null};

/// Most descriptors of one message; the kernel accepts 253.
pub(super) const MAX_FDS: usize = 8;
/// Largest message, bytes.
const MESSAGE_MAX: usize = 64 << 10;

/// The signals with which a terminal or a service manager ends the caller.
pub(super) const END_SIGNALS: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
];

/// A message of a child to its parent.
#[derive(Default)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Returns both ends of a socket that preserves message boundaries.
pub(super) fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    Ok(ends)
}

/// Separates a forked child from the caller's terminal, files and directory, so that only the end of
/// `channel` ends it. Closes all descriptors except `channel` and `kept`.
pub(super) fn detach(channel: &OwnedFd, kept: &[RawFd]) -> io::Result<()> {
    setsid()?;
    for signal in END_SIGNALS {
        set_signal_handler(signal, SigHandler::SigIgn);
    }
    chdir("/")?;
    // A caller that reads the gateway's output to its end does not wait for the child.
    let null = open_null()?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    drop(null);
    close_others(&[&[channel.as_raw_fd()], kept].concat());
    Ok(())
}

/// Starts a process without the caller's terminal, files and directory, which runs `serve` with its end
/// of a channel and then ends. Returns the caller's end and the process ID. [`END_SIGNALS`] stay blocked
/// in the process. Must be called before this process has threads.
pub(super) fn start_server(serve: impl FnOnce(&OwnedFd)) -> io::Result<(OwnedFd, Pid)> {
    start_server_with([], serve)
}

/// Starts a process like [`start_server`], which also keeps the descriptors `kept`.
pub(super) fn start_server_with<const N: usize>(
    kept: [RawFd; N],
    serve: impl FnOnce(&OwnedFd),
) -> io::Result<(OwnedFd, Pid)> {
    let (ours, theirs) = channel()?;
    // A signal that ends the caller while the process starts must not end the process.
    let blocked: SigSet = END_SIGNALS.into_iter().collect();
    let mask = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let forked = match fork() {
        Ok(None) => {
            drop(ours);
            // If it fails, the process only keeps descriptors that it does not need.
            let _ = detach(&theirs, &kept);
            serve(&theirs);
            exit_now(0)
        }
        Ok(Some(pid)) => Ok((ours, pid)),
        Err(error) => Err(error),
    };
    mask.thread_set_mask()?;
    forked
}

/// Requests the end of a process of [`start_server`] with a message, and waits for it.
pub(super) fn end_server(channel: &OwnedFd, pid: Pid, request: &[u8]) {
    // Closing the channel alone does not suffice: a child of this process may have a copy.
    let sent = send(channel, request, &[]);
    // If the message cannot be sent, the process has ended, or waiting for it could block for ever.
    let flags = sent.is_err().then_some(WaitPidFlag::WNOHANG);
    while waitpid(pid, flags) == Err(Errno::EINTR) {}
}

/// Sends a message with at most [`MAX_FDS`] descriptors.
pub(super) fn send(socket: &impl AsRawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let data = [IoSlice::new(bytes)];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &data,
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    Ok(())
}

/// Receives a message, or `None` if the other end is closed.
pub(super) fn receive(socket: &impl AsRawFd) -> io::Result<Option<Message>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut control = nix::cmsg_space!([RawFd; MAX_FDS]);
    let (len, fds) = loop {
        let mut data = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket.as_raw_fd(), &mut data, Some(&mut control), flags) {
            Ok(got) => {
                let mut fds = Vec::new();
                for message in got.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(received) = message {
                        fds.extend(received);
                    }
                }
                break (got.bytes, fds);
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    let fds: Vec<OwnedFd> = fds.into_iter().map(super::sys::owned).collect();
    if len == 0 && fds.is_empty() {
        return Ok(None);
    }
    bytes.truncate(len);
    Ok(Some(Message { bytes, fds }))
}

/// Runs `job` in a child process and returns its result.
///
/// # Errors
/// The error of `job` with its kind and text, or the error of starting the child.
pub(super) fn in_child(job: impl FnOnce() -> io::Result<Message>) -> io::Result<Message> {
    let (ours, theirs) = channel()?;
    let Some(child) = fork()? else {
        drop(ours);
        let result = catch_unwind(AssertUnwindSafe(job))
            .unwrap_or_else(|_| Err(io::Error::other("the child process panicked")));
        let sent = send_result(&theirs, result);
        exit_now(i32::from(sent.is_err()));
    };
    drop(theirs);
    let reply = receive(&ours);
    while waitpid(child, None) == Err(Errno::EINTR) {}
    let gone = || io::Error::other("the child process ended without a result");
    open_result(reply?.ok_or_else(gone)?)
}

/// Sends the result of a job. A success is a zero byte and the message; an error is a byte 1, its errno
/// or else 0 in 4 bytes, and its text.
pub(super) fn send_result(socket: &OwnedFd, result: io::Result<Message>) -> io::Result<()> {
    match result {
        Ok(message) => {
            let bytes = [&[0], &message.bytes[..]].concat();
            let fds: Vec<_> = message.fds.iter().map(AsRawFd::as_raw_fd).collect();
            send(socket, &bytes, &fds)
        }
        Err(error) => {
            let errno = error
                .raw_os_error()
                .unwrap_or_else(|| errno_of(error.kind()));
            // The receiver has the text alone.
            let hint = descriptor_hint(&error).unwrap_or_default();
            let text = format!("{error}{hint}");
            send(
                socket,
                &[&[1], &errno.to_ne_bytes()[..], text.as_bytes()].concat(),
                &[],
            )
        }
    }
}

/// Returns the result that [`send_result`] has sent.
pub(super) fn open_result(mut message: Message) -> io::Result<Message> {
    match message.bytes.split_first() {
        Some((0, bytes)) => {
            message.bytes = bytes.to_vec();
            Ok(message)
        }
        Some((1, rest)) if rest.len() >= 4 => {
            let (errno, text) = rest.split_at(4);
            let errno = i32::from_ne_bytes(errno.try_into().expect("four bytes"));
            let kind = match errno {
                0 => io::ErrorKind::Other,
                errno => io::Error::from_raw_os_error(errno).kind(),
            };
            Err(io::Error::new(kind, String::from_utf8_lossy(text)))
        }
        _ => Err(io::Error::other("the child process sent no result")),
    }
}

/// Returns an errno of this kind, or 0 for kinds that no caller distinguishes.
fn errno_of(kind: io::ErrorKind) -> i32 {
    let errno = match kind {
        io::ErrorKind::NotFound => Errno::ENOENT,
        io::ErrorKind::PermissionDenied => Errno::EPERM,
        io::ErrorKind::AlreadyExists => Errno::EEXIST,
        io::ErrorKind::InvalidInput => Errno::EINVAL,
        io::ErrorKind::ResourceBusy => Errno::EBUSY,
        io::ErrorKind::AddrInUse => Errno::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => Errno::EADDRNOTAVAIL,
        _ => return 0,
    };
    errno as i32
}
