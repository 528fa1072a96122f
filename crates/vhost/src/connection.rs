//! A monitor's connection, which handles a message only when it has arrived whole, so that no call waits
//! for the peer.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread, read, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut};

use crate::backend::Backend;
use crate::source::new_timer;

/// Length of a message's header: request, flags, and the length of the rest.
const HEADER_LEN: usize = 12;

/// Most bytes after the header, as in the crate `vhost`.
const BODY_MAX: usize = 4096;

const SET_VRING_ENABLE: u32 = 18;
/// Bits of the header's flags.
const FLAG_VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// Most time for the rest of a message. The peer may have ended although the connection is open: its own
/// socket, sent over the connection, keeps it open until the message is read.
const REST_TIMEOUT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Most messages handled in one call.
const BUDGET: usize = 64;

/// The reason why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer has closed the connection.
    Closed,
    /// The peer has violated the protocol, or requested a feature that is not offered.
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
    /// The socket that `handler` uses, too.
    socket: UnixStream,
    handler: BackendReqHandler<Mutex<Backend>>,
    backend: Arc<Mutex<Backend>>,
    epoll: Arc<OwnedFd>,
    token: u64,
    /// A timer that makes the device readable after [`REST_TIMEOUT`].
    timer: OwnedFd,
    /// Whether the rest of a message is missing, and the timer is set.
    waits_for_rest: bool,
}

impl Connection {
    /// Returns the connection of `socket`, whose messages make `epoll` readable with `token`.
    pub(crate) fn new(
        socket: UnixStream,
        backend: Arc<Mutex<Backend>>,
        epoll: Arc<OwnedFd>,
        token: u64,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, backend.clone());
        let data = epoll::EventData::new_u64(token);
        epoll::add(&epoll, &socket, data, Self::events())?;
        let timer = new_timer(&epoll, token)?;
        Ok(Self {
            socket,
            handler,
            backend,
            epoll,
            token,
            timer,
            waits_for_rest: false,
        })
    }

    /// The events are edge-triggered, because an incomplete message must not keep the device readable.
    fn events() -> epoll::EventFlags {
        epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET
    }

    /// Handles the messages that have arrived.
    pub(crate) fn process(&mut self) -> Result<(), End> {
        for _ in 0..BUDGET {
            let Some(request) = self.next_request()? else {
                return Ok(());
            };
            if request == SET_VRING_ENABLE {
                self.enable_ring()?;
            } else {
                self.handler.handle_request()?;
            }
        }
        // Makes the device readable again for the remaining messages.
        let data = epoll::EventData::new_u64(self.token);
        epoll::modify(&self.epoll, &self.socket, data, Self::events())?;
        Ok(())
    }

    /// Returns the type of the next message, or `None` if it cannot be read and answered without waiting.
    fn next_request(&mut self) -> Result<Option<u32>, End> {
        let mut header = [0; HEADER_LEN];
        let len = match recv(&self.socket, &mut header, RecvFlags::PEEK) {
            Ok((0, _)) => return Err(End::Closed),
            Ok((len, _)) => len,
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if len < HEADER_LEN {
            return self.wait_for_rest();
        }
        let body = word(&header, 2) as usize;
        if body > BODY_MAX {
            let text = format!("a message of {body} bytes; at most {BODY_MAX} are possible");
            return Err(End::Violation(text));
        }
        if ioctl_fionread(&self.socket)? < (HEADER_LEN + body) as u64 {
            return self.wait_for_rest();
        }
        if self.waits_for_rest {
            self.waits_for_rest = false;
            self.set_timer(Timespec::default())?;
        }
        // A socket is writable while at least three quarters of its buffer are free, so a reply fits.
        if !self.is(PollFlags::OUT)? {
            let text = "the peer sends requests and does not read the replies";
            return Err(End::Violation(text.to_owned()));
        }
        Ok(Some(word(&header, 0)))
    }

    /// Returns `None`, or an error if the connection has ended within a message or the rest takes too
    /// long.
    fn wait_for_rest(&mut self) -> Result<Option<u32>, End> {
        if self.is(PollFlags::RDHUP)? {
            return Err(End::Closed);
        }
        if !self.waits_for_rest {
            self.waits_for_rest = true;
            self.set_timer(REST_TIMEOUT)?;
        } else if read(&self.timer, &mut [0; 8]).is_ok() {
            let text = "a message stopped in the middle for a second";
            return Err(End::Violation(text.to_owned()));
        }
        Ok(None)
    }

    /// Sets the timer, or stops it if `time` is 0.
    fn set_timer(&self, time: Timespec) -> Result<(), Errno> {
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: time,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Handles `SET_VRING_ENABLE`, which QEMU sends before it has set the features: `BackendReqHandler`
    /// would end the connection.
    fn enable_ring(&mut self) -> Result<(), End> {
        let mut message = [0; HEADER_LEN + 8];
        let len = recv(&self.socket, &mut message, RecvFlags::empty())?.0;
        let flags = word(&message, 1);
        let is_valid = flags & !FLAG_NEED_REPLY == FLAG_VERSION && word(&message, 2) == 8;
        if len < message.len() || !is_valid {
            return Err(Error::InvalidMessage.into());
        }
        let mut backend = self.backend.lock().unwrap_or_else(PoisonError::into_inner);
        let result = match word(&message, 4) {
            enable @ 0..=1 => backend.set_vring_enable(word(&message, 3), enable != 0),
            _ => Err(Error::InvalidParam),
        };
        if flags & FLAG_NEED_REPLY != 0 && backend.replies() {
            let failed = u32::from(result.is_err());
            let reply = [SET_VRING_ENABLE, FLAG_VERSION | FLAG_REPLY, 8, failed, 0];
            let bytes: Vec<u8> = reply.iter().flat_map(|word| word.to_ne_bytes()).collect();
            send(&self.socket, &bytes, SendFlags::NOSIGNAL)?;
        }
        Ok(result?)
    }

    fn is(&self, state: PollFlags) -> Result<bool, End> {
        let mut file = [PollFd::new(&self.socket, state)];
        retry_on_intr(|| poll(&mut file, Some(&Timespec::default())))?;
        Ok(file[0].revents().contains(state))
    }
}

/// Returns a 32-bit field of a message, in the machine's byte order.
fn word(message: &[u8], index: usize) -> u32 {
    let bytes = message.get(4 * index..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Another process may have the same open socket, so closing this descriptor may leave it
        // registered.
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}
