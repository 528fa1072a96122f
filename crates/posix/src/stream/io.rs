//! `sendmsg` and `recvmsg` on a stream.

use fullsend_buf::{Chain, Slice};
use fullsend_stack::{Host, StackError, TcpId};
use fullsend_tcp::TcpError;
use fullsend_units::Instant;

use super::{Core, Stream};
use crate::Received;
use crate::abi::{MSG_MORE, MSG_PEEK, MSG_TRUNC};
use crate::errno::{Errno, Result};

/// The stack's answer, `None` for "not now".
fn or_not_now<T>(result: core::result::Result<T, StackError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StackError::Tcp(TcpError::WouldBlock)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Stream {
    pub(crate) fn send(
        &mut self,
        host: &mut Host,
        now: Instant,
        data: &[&[u8]],
        flags: i32,
    ) -> Result<usize> {
        let Core::Connection(id) = self.core else {
            return Err(Errno::EPIPE);
        };
        let mut done = 0;
        let last = data.len().saturating_sub(1);
        for (i, part) in data.iter().enumerate() {
            let more = i < last || flags & MSG_MORE != 0;
            match or_not_now(host.tcp_write(now, id, part, more)) {
                Ok(Some(n)) => {
                    done += n;
                    if n < part.len() {
                        break;
                    }
                }
                Ok(None) if done == 0 => return Err(Errno::EAGAIN),
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(done)
    }

    pub(crate) fn receive(
        &mut self,
        host: &mut Host,
        now: Instant,
        data: &mut [&mut [u8]],
        flags: i32,
    ) -> Result<Received> {
        let Core::Connection(id) = self.core else {
            return Err(Errno::ENOTCONN);
        };
        let mut len = 0;
        for part in data {
            let n = match self.read(host, now, id, part, flags) {
                Ok(n) => n,
                Err(error) if len == 0 => return Err(error),
                Err(_) => break,
            };
            len += n;
            if n < part.len() {
                break;
            }
        }
        Ok(Received {
            len,
            ..Received::default()
        })
    }

    /// Takes bytes without copying; none is the end of the stream.
    pub(crate) fn take(&mut self, host: &mut Host, now: Instant, max: usize) -> Result<Chain> {
        let Core::Connection(id) = self.core else {
            return Err(Errno::ENOTCONN);
        };
        match or_not_now(host.tcp_read_chain(now, id, max))? {
            Some(chain) => Ok(chain),
            None if self.shut.read => Ok(Chain::new()),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Writes without copying; with an error comes back what was not taken.
    pub(crate) fn give(
        &mut self,
        host: &mut Host,
        now: Instant,
        slice: Slice,
        more: bool,
    ) -> core::result::Result<(), (Errno, Slice)> {
        let Core::Connection(id) = self.core else {
            return Err((Errno::EPIPE, slice));
        };
        let result = host.tcp_write_slice_with(now, id, slice, more);
        result.map_err(|(error, left)| (error.into(), left))
    }

    fn read(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        out: &mut [u8],
        flags: i32,
    ) -> Result<usize> {
        let read = if flags & MSG_PEEK != 0 {
            host.tcp_peek(id, out)
        } else if flags & MSG_TRUNC != 0 {
            host.tcp_read_chain(now, id, out.len()).map(|c| c.len())
        } else {
            host.tcp_read(now, id, out)
        };
        match or_not_now(read)? {
            Some(n) => Ok(n),
            None if self.shut.read => Ok(0),
            None => Err(Errno::EAGAIN),
        }
    }
}
