//! Sending and receiving. A call on a stream that may wait continues until all bytes are
//! transferred; if it fails after some, it returns their number.

use fullsend_offload::Slice;
use fullsend_posix::{Errno, Handle, Posix, Received, Result, SockAddr};

use super::Timeout;
use crate::abi::{
    AF_INET, EPOLLERR, EPOLLHUP, EPOLLRDHUP, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_PEEK,
    MSG_ZEROCOPY,
};
use crate::stack::Stack;

impl Stack {
    /// Sends data: `sendmsg(2)`. Waits for at most `SO_SNDTIMEO` until all of it is in the send
    /// buffer, and returns the number of bytes. With `MSG_FASTOPEN` and no cookie, it also waits
    /// for the handshake.
    ///
    /// # Errors
    /// The errors of [`Posix::sendmsg`], EAGAIN only for a non-blocking call or after the timeout.
    /// On a stack that has ended, the error that it ended with. If some bytes were queued before,
    /// their number is returned instead.
    pub fn sendmsg(
        &self,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<usize> {
        let total: usize = data.iter().map(|part| part.len()).sum();
        let mut done = 0;
        // The error of a call that times out.
        let mut timeout_error = Errno::EAGAIN;
        // Only the first attempt opens the connection.
        let mut fastopen_flag = flags & MSG_FASTOPEN;
        // Set when the accepted bytes are on a SYN: the call then returns the result of the
        // handshake.
        let mut is_connecting = false;
        // Completes a copying call with MSG_ZEROCOPY, once its last part is queued.
        let mut copied = None;
        let sent = self.wait(
            &[handle],
            |posix, now| call_timeout(flags, Timeout::Send).deadline(posix, now, handle),
            |posix, now| loop {
                if is_connecting {
                    match posix.connect(now, handle, SockAddr::any(AF_INET)) {
                        Err(Errno::EALREADY) => return Ok(None),
                        Ok(()) | Err(Errno::EISCONN) => is_connecting = false,
                        Err(error) => return Err(error),
                    }
                    if done >= total {
                        return Ok(Some(()));
                    }
                }
                let flags = flags & !MSG_FASTOPEN | fastopen_flag;
                let sent = if done == 0 {
                    let first = posix.sendmsg_in_parts(now, handle, data, flags, dest, control);
                    first.map(|(n, call)| {
                        copied = call;
                        n
                    })
                } else {
                    // The first part has used the completion number of this call.
                    let flags = flags & !MSG_ZEROCOPY;
                    posix.sendmsg(now, handle, &rest(data, done), flags, dest, control)
                };
                fastopen_flag = 0;
                match sent {
                    Ok(n) => done += n,
                    Err(Errno::EINPROGRESS) => {
                        timeout_error = Errno::EINPROGRESS;
                        return Ok(None);
                    }
                    Err(Errno::EAGAIN) => return Ok(None),
                    Err(error) => return Err(error),
                }
                // Before the handshake has ended, a write succeeds only if its data is on the SYN.
                if posix.is_opening(handle) {
                    is_connecting = true;
                } else if done >= total {
                    copied = None;
                    return Ok(Some(()));
                }
            },
        );
        if copied.is_some() {
            // The call ends early. The value is dropped in a call of the stack, which reports the
            // completion.
            let _ = self.call(|_, _| {
                copied = None;
                Ok(())
            });
        }
        match sent {
            Err(error) if is_connecting => Err(error),
            _ if done > 0 => Ok(done),
            Ok(Some(())) => Ok(0),
            Ok(None) => Err(timeout_error),
            Err(error) => Err(error),
        }
    }

    /// Sends lent memory without a copy: see [`Posix::send_lent`]. Waits for room for at most
    /// `SO_SNDTIMEO`. Returns the number of bytes queued from the front, which may be less than
    /// all.
    ///
    /// # Errors
    /// The errors of [`Posix::send_lent`], EAGAIN only for a non-blocking call or after the
    /// timeout. On a stack that has ended, the error that it ended with.
    pub fn send_lent(&self, handle: Handle, data: &Slice, flags: i32) -> Result<usize> {
        if self.call(|posix, _| Ok(posix.is_deferred(handle)))? {
            // The SYN carries a copy of the data, and the call waits for the handshake.
            return self.sendmsg(handle, &[data], flags, None, &[]);
        }
        self.retry(handle, call_timeout(flags, Timeout::Send), |posix, now| {
            posix.send_lent(now, handle, data.clone(), flags)
        })
    }

    /// Receives data: `recvmsg(2)`. Waits for at most `SO_RCVTIMEO` until `SO_RCVLOWAT` bytes have
    /// arrived, or with `MSG_WAITALL` until the buffers are full.
    ///
    /// # Errors
    /// The errors of [`Posix::recvmsg`], EAGAIN only for a non-blocking call or after the timeout.
    /// On a stack that has ended, the error that it ended with. If some bytes were received before,
    /// they are returned instead.
    pub fn recvmsg(
        &self,
        handle: Handle,
        data: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        let room: usize = data.iter().map(|part| part.len()).sum();
        let is_peek = flags & MSG_PEEK != 0;
        let mut received_so_far = Received::default();
        let mut target = None;
        let received = self.wait(
            &[handle],
            |posix, now| call_timeout(flags, Timeout::Receive).deadline(posix, now, handle),
            |posix, now| loop {
                let got = if received_so_far.len == 0 || is_peek {
                    posix.recvmsg(now, handle, data, flags, control)
                } else {
                    posix.recvmsg(
                        now,
                        handle,
                        &mut rest_mut(data, received_so_far.len),
                        flags,
                        control,
                    )
                };
                let got = match got {
                    Err(Errno::EAGAIN) => return Ok(None),
                    got => got?,
                };
                let before = if is_peek { 0 } else { received_so_far.len };
                received_so_far = Received {
                    len: before + got.len,
                    ..got
                };
                let is_errqueue = flags & MSG_ERRQUEUE != 0;
                if is_errqueue || got.len == 0 || received_so_far.len >= room {
                    return Ok(Some(()));
                }
                let target = match target {
                    Some(target) => target,
                    None => *target.insert(posix.receive_target(handle, room, flags)?),
                };
                if received_so_far.len >= target || is_peek && admits_no_more(posix, handle) {
                    return Ok(Some(()));
                }
                if is_peek {
                    return Ok(None);
                }
            },
        );
        match received {
            Ok(None) if received_so_far.len == 0 => Err(Errno::EAGAIN),
            Err(error) if received_so_far.len == 0 => Err(error),
            _ => Ok(received_so_far),
        }
    }
}

/// Returns the timeout of a call with `flags`. `MSG_ERRQUEUE` never waits, as on Linux.
fn call_timeout(flags: i32, socket_timeout: Timeout) -> Timeout {
    if flags & (MSG_DONTWAIT | MSG_ERRQUEUE) == 0 {
        socket_timeout
    } else {
        Timeout::None
    }
}

/// Returns whether no more data will arrive, ever or before the peeked data is read.
fn admits_no_more(posix: &mut Posix, handle: Handle) -> bool {
    let events = posix.poll_events(handle).unwrap_or(EPOLLERR);
    events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) != 0
        || posix.is_receive_limited(handle).unwrap_or(true)
}

/// Returns `data` without its first `done` bytes.
pub(super) fn rest<'a>(data: &[&'a [u8]], mut done: usize) -> Vec<&'a [u8]> {
    let mut out = Vec::with_capacity(data.len());
    for part in data {
        let skip = done.min(part.len());
        done -= skip;
        out.push(&part[skip..]);
    }
    out
}

fn rest_mut<'a>(data: &'a mut [&mut [u8]], mut done: usize) -> Vec<&'a mut [u8]> {
    let mut out = Vec::with_capacity(data.len());
    for part in data {
        let skip = done.min(part.len());
        done -= skip;
        out.push(&mut part[skip..]);
    }
    out
}
