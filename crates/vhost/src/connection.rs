//! A monitor's connection: its messages are handled only when they have arrived whole, so that no call
//! waits for the peer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::backend::Backend;

/// Length of a message's header: request, flags, and the length of the rest.
const HEADER_LEN: usize = 12;

/// Most bytes after the header, as in `vhost`.
const BODY_MAX: usize = 4096;

/// Most messages handled in one call.
const BUDGET: usize = 64;

/// The reason why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer has closed it.
    Closed,
    /// The peer has violated the protocol, or requested something that is not offered.
    Violation(String),
}

impl From<Errno> for End {
    fn from(error: Errno) -> Self {
        match error {
            Errno::CONNRESET | Errno::PIPE => Self::Closed,
            error => Self::Violation(error.to_string()),
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        match error {
            Error::Disconnected | Error::SocketBroken(_) => Self::Closed,
            error => Self::Violation(error.to_string()),
        }
    }
}

pub(crate) struct Connection {
    /// The same socket as that of `handler`.
    socket: UnixStream,
    handler: BackendReqHandler<Mutex<Backend>>,
    epoll: Arc<OwnedFd>,
    token: u64,
}

impl Connection {
    /// Handles the messages of `socket`, which becomes readable at `epoll` with `token`.
    pub(crate) fn new(
        socket: UnixStream,
        backend: Arc<Mutex<Backend>>,
        epoll: Arc<OwnedFd>,
        token: u64,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, backend);
        let data = epoll::EventData::new_u64(token);
        epoll::add(&epoll, &socket, data, Self::events())?;
        Ok(Self {
            socket,
            handler,
            epoll,
            token,
        })
    }

    /// Edge-triggered: a message whose end is missing must not keep the device readable.
    fn events() -> epoll::EventFlags {
        epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
    }

    /// Handles the messages that have arrived.
    pub(crate) fn process(&mut self) -> Result<(), End> {
        for _ in 0..BUDGET {
            if !self.has_message()? {
                return Ok(());
            }
            self.handler.handle_request()?;
        }
        // Makes the device readable again, for the rest.
        let data = epoll::EventData::new_u64(self.token);
        epoll::modify(&self.epoll, &self.socket, data, Self::events())?;
        Ok(())
    }

    /// Returns whether a whole message can be read, and its reply be written, without waiting.
    fn has_message(&self) -> Result<bool, End> {
        let mut header = [0; HEADER_LEN];
        let len = match recv(&self.socket, &mut header, RecvFlags::PEEK) {
            Ok((0, _)) => return Err(End::Closed),
            Ok((len, _)) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if len < HEADER_LEN {
            return self.wait_for_rest();
        }
        let [.., a, b, c, d] = header;
        let body = u32::from_ne_bytes([a, b, c, d]) as usize;
        if body > BODY_MAX {
            let text = format!("a message of {body} bytes; at most {BODY_MAX} are possible");
            return Err(End::Violation(text));
        }
        if ioctl_fionread(&self.socket)? < (HEADER_LEN + body) as u64 {
            return self.wait_for_rest();
        }
        // A socket is writable while at least three quarters of its buffer are free, so a reply fits.
        if !self.is(PollFlags::OUT)? {
            let text = "the peer sends requests and does not read the replies";
            return Err(End::Violation(text.to_owned()));
        }
        Ok(true)
    }

    /// Returns false, or that the connection has ended in the middle of a message.
    fn wait_for_rest(&self) -> Result<bool, End> {
        if self.is(PollFlags::RDHUP)? {
            return Err(End::Closed);
        }
        Ok(false)
    }

    fn is(&self, state: PollFlags) -> Result<bool, End> {
        let mut file = [PollFd::new(&self.socket, state)];
        poll(&mut file, Some(&Timespec::default()))?;
        Ok(file[0].revents().contains(state))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Another process may have the same open socket, so closing ours may leave it registered.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}
