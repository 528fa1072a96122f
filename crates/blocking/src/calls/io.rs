//! Sending and receiving. A stream's call that may wait goes on until it has done what it was
//! asked for, and tells what it did so far when it cannot.

use fullsend_buf::Slice;
use fullsend_posix::{Errno, Handle, Posix, Received, Result, SockAddr};

use super::Patience;
use crate::abi::{
    AF_INET, EPOLLERR, EPOLLHUP, EPOLLRDHUP, MSG_DONTWAIT, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_PEEK,
    MSG_ZEROCOPY,
};
use crate::stack::Stack;

impl Stack {
    /// `sendmsg(2)`: waits for room, at most `SO_SNDTIMEO`, until all is taken; how much was.
    /// With `MSG_FASTOPEN` and no cookie to send data with, it waits for the connection too.
    pub fn sendmsg(
        &self,
        handle: Handle,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
        control: &[u8],
    ) -> Result<usize> {
        let want: usize = data.iter().map(|part| part.len()).sum();
        let mut done = 0;
        // What a call whose time is up gives.
        let mut late = Errno::EAGAIN;
        // The first attempt opens the connection, others go on with it.
        let mut opens = flags & MSG_FASTOPEN;
        // What was taken rides on a SYN: how that fares is for this call to tell.
        let mut opening = false;
        // Completes a copied call with MSG_ZEROCOPY after its last part.
        let mut copied = None;
        let sent = self.wait(
            &[handle],
            |posix, now| patience(flags, Patience::Send).until(posix, now, handle),
            |posix, now| loop {
                if opening {
                    match posix.connect(now, handle, SockAddr::any(AF_INET)) {
                        Err(Errno::EALREADY) => return Ok(None),
                        Ok(()) | Err(Errno::EISCONN) => opening = false,
                        Err(error) => return Err(error),
                    }
                    if done >= want {
                        return Ok(Some(()));
                    }
                }
                let flags = flags & !MSG_FASTOPEN | opens;
                let sent = if done == 0 {
                    let first = posix.sendmsg_in_parts(now, handle, data, flags, dest, control);
                    first.map(|(n, call)| {
                        copied = call;
                        n
                    })
                } else {
                    // The first part has used the number of this call.
                    let flags = flags & !MSG_ZEROCOPY;
                    posix.sendmsg(now, handle, &rest(data, done), flags, dest, control)
                };
                opens = 0;
                match sent {
                    Ok(n) => done += n,
                    Err(Errno::EINPROGRESS) => {
                        late = Errno::EINPROGRESS;
                        return Ok(None);
                    }
                    Err(Errno::EAGAIN) => return Ok(None),
                    Err(error) => return Err(error),
                }
                // A write succeeds before the handshake is over only with the SYN.
                if posix.is_opening(handle) {
                    opening = true;
                } else if done >= want {
                    copied = None;
                    return Ok(Some(()));
                }
            },
        );
        if copied.is_some() {
            // The call ends early. Its completion is reported by a call of the stack.
            let _ = self.call(|_, _| {
                copied = None;
                Ok(())
            });
        }
        match sent {
            Err(error) if opening => Err(error),
            _ if done > 0 => Ok(done),
            Ok(Some(())) => Ok(0),
            Ok(None) => Err(late),
            Err(error) => Err(error),
        }
    }

    /// Sends memory that its owner lends, without a copy: see
    /// [`Posix::send_lent`]. Waits for room, at most `SO_SNDTIMEO`; how much was taken, from the
    /// front, which may be less than all.
    pub fn send_lent(&self, handle: Handle, data: &Slice, flags: i32) -> Result<usize> {
        if self.call(|posix, _| Ok(posix.is_deferred(handle)))? {
            // The SYN carries a copy of the data, and the call waits for the handshake.
            return self.sendmsg(handle, &[data], flags, None, &[]);
        }
        self.retry(handle, patience(flags, Patience::Send), |posix, now| {
            posix.send_lent(now, handle, data.clone(), flags)
        })
    }

    /// `recvmsg(2)`: waits for data, at most `SO_RCVTIMEO`: for `SO_RCVLOWAT` bytes of them, or
    /// for as many as the buffers hold with `MSG_WAITALL`.
    pub fn recvmsg(
        &self,
        handle: Handle,
        data: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        let room: usize = data.iter().map(|part| part.len()).sum();
        let peeks = flags & MSG_PEEK != 0;
        let mut sofar = Received::default();
        let mut target = None;
        let received = self.wait(
            &[handle],
            |posix, now| patience(flags, Patience::Receive).until(posix, now, handle),
            |posix, now| loop {
                let got = if sofar.len == 0 || peeks {
                    posix.recvmsg(now, handle, data, flags, control)
                } else {
                    posix.recvmsg(now, handle, &mut rest_mut(data, sofar.len), flags, control)
                };
                let got = match got {
                    Err(Errno::EAGAIN) => return Ok(None),
                    got => got?,
                };
                let before = if peeks { 0 } else { sofar.len };
                sofar = Received {
                    len: before + got.len,
                    ..got
                };
                let report = flags & MSG_ERRQUEUE != 0;
                if report || got.len == 0 || sofar.len >= room {
                    return Ok(Some(()));
                }
                let target = match target {
                    Some(target) => target,
                    None => *target.insert(posix.receive_target(handle, room, flags)?),
                };
                if sofar.len >= target || peeks && ended(posix, handle) {
                    return Ok(Some(()));
                }
                if peeks {
                    return Ok(None);
                }
            },
        );
        match received {
            Ok(None) if sofar.len == 0 => Err(Errno::EAGAIN),
            Err(error) if sofar.len == 0 => Err(error),
            _ => Ok(sofar),
        }
    }
}

/// Reports of errors are there or not; nobody waits for them.
fn patience(flags: i32, usual: Patience) -> Patience {
    if flags & (MSG_DONTWAIT | MSG_ERRQUEUE) == 0 {
        usual
    } else {
        Patience::None
    }
}

/// No more will come.
fn ended(posix: &mut Posix, handle: Handle) -> bool {
    let events = posix.poll_events(handle).unwrap_or(EPOLLERR);
    events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) != 0
}

/// What follows the first `done` bytes.
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
