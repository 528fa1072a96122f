//! `sendmsg` and `recvmsg` on a stream.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fullsend_buf::{Chain, Slice};
use fullsend_stack::{Host, StackError, TcpId};
use fullsend_tcp::{State, TcpError, TxStages, WriteFlags};
use fullsend_units::Instant;

use super::{Core, Phase, Stream, may_fastopen};
use crate::abi::{
    IPPROTO_TCP, MSG_EOR, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_MORE, MSG_OOB, MSG_PEEK, MSG_TRUNC,
    MSG_ZEROCOPY, TCP_CM_INQ,
};
use crate::addr::SockAddr;
use crate::cmsg::{Writer, messages};
use crate::errno::{Errno, Result};
use crate::stamps::{Clock, asked_for};
use crate::wake::WakeQueue;
use crate::{Handle, Received};

/// Returns `None` for WouldBlock.
fn or_not_now<T>(result: core::result::Result<T, StackError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StackError::Tcp(TcpError::WouldBlock)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Queues as many bytes of lent memory as there is room for, and returns their number.
fn write_lent(host: &mut Host, now: Instant, id: TcpId, data: Slice, more: bool) -> Result<usize> {
    let len = data.len();
    match host.tcp_write_slice_with(now, id, data, more) {
        Ok(()) => Ok(len),
        Err((StackError::Tcp(TcpError::WouldBlock), left)) if left.len() < len => {
            Ok(len - left.len())
        }
        Err((error, _)) => Err(error.into()),
    }
}

/// Requests reports on the bytes just written.
fn watch_written(host: &mut Host, id: TcpId, stages: TxStages) {
    if stages != TxStages::NONE {
        let end = Stream::written(host, id);
        // The connection exists until it is closed here.
        let _ = host.tcp_watch_tx(id, end, stages);
    }
}

impl Stream {
    pub(crate) fn send(
        &mut self,
        host: &mut Host,
        now: Instant,
        data: &[&[u8]],
        flags: i32,
        control: &[u8],
    ) -> Result<usize> {
        let mut own = None;
        for message in messages(control) {
            own = Some(asked_for(&message?)?);
        }
        let id = self.sendable(host)?;
        let completes = flags & MSG_ZEROCOPY != 0 && self.common.zerocopy;
        if completes {
            self.may_lend()?;
        }
        let written = if self.is_deferred() {
            self.write_with_syn(host, now, id, data)?
        } else {
            self.write_all(host, now, id, data, flags)?
        };
        watch_written(host, id, self.common.stamps.stages(own));
        if completes && written > 0 {
            self.note_copied();
        }
        Ok(written)
    }

    /// Returns the connection if data can be sent on it.
    fn sendable(&mut self, host: &mut Host) -> Result<TcpId> {
        self.noticed = self.errors.count;
        match self.core {
            Core::Connection(id) if !self.shut.write => Ok(id),
            _ => Err(self.take_error(host).unwrap_or(Errno::EPIPE)),
        }
    }

    fn write_all(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        data: &[&[u8]],
        flags: i32,
    ) -> Result<usize> {
        let mut done = 0;
        let last = data.len().saturating_sub(1);
        let lends = flags & MSG_ZEROCOPY != 0 && self.common.zerocopy;
        let most = match host.sysctl().max_skb_frags as usize {
            most if lends => most,
            _ => usize::MAX,
        };
        for (i, part) in data.iter().enumerate() {
            let ends = i == last;
            // With MSG_ZEROCOPY, as on Linux: at most `max_skb_frags` parts in a segment.
            let full = i % most == most - 1;
            let how = WriteFlags {
                more: !ends || flags & MSG_MORE != 0,
                eor: full || ends && flags & MSG_EOR != 0,
                oob: ends && flags & MSG_OOB != 0,
            };
            let result = if how.eor || how.oob {
                host.tcp_write_with(now, id, part, how)
            } else {
                host.tcp_write(now, id, part, how.more)
            };
            match or_not_now(result) {
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

    /// Makes the first write of a deferred connection: the SYN carries the first bytes of all
    /// parts. If there are none, it is sent without data and the call returns EINPROGRESS.
    fn write_with_syn(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        data: &[&[u8]],
    ) -> Result<usize> {
        /// Larger than any packet.
        const MOST: usize = 65_535;
        let mut joined = Vec::new();
        for part in data {
            joined.extend_from_slice(&part[..part.len().min(MOST - joined.len())]);
        }
        if joined.is_empty() {
            host.tcp_connect_now(now, id)?;
            self.begun(host);
            return Err(Errno::EINPROGRESS);
        }
        let written = or_not_now(host.tcp_write(now, id, &joined, false))?;
        self.begun(host);
        written.ok_or(Errno::EAGAIN)
    }

    /// Returns whether the SYN is deferred until the first write, while the connection counts as
    /// established.
    pub(crate) fn is_deferred(&self) -> bool {
        self.phase == Phase::Deferred
    }

    /// Updates the phase after a deferred SYN was sent.
    fn begun(&mut self, host: &Host) {
        if self.phase == Phase::Deferred {
            self.phase = match self.state(host) {
                State::SynSent => Phase::Connecting,
                _ => Phase::Connected,
            };
        }
    }

    /// Connects and sends (`sendto` with `MSG_FASTOPEN`). The data is on the SYN if a cookie is
    /// known; otherwise it returns EINPROGRESS.
    pub(crate) fn send_opening(
        &mut self,
        host: &mut Host,
        now: Instant,
        data: &[&[u8]],
        flags: i32,
        dest: Option<SockAddr>,
    ) -> Result<usize> {
        if !may_fastopen(host) || dest == Some(SockAddr::Unspec) {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.phase != Phase::Deferred {
            // Without an address, the call can only complete a connect in progress.
            let none = SockAddr::any(self.domain);
            if dest.is_none() && self.is_unconnected() {
                return Err(Errno::EINVAL);
            }
            self.open(host, now, dest.unwrap_or(none), true)?;
        }
        self.send(host, now, data, flags & !MSG_FASTOPEN, &[])
    }

    /// Announces that the call which opened the connection waits, and will then write.
    pub(crate) fn expect_write(&self, host: &mut Host) {
        if let Core::Connection(id) = self.core {
            // The connection exists until it is closed here.
            let _ = host.tcp_expect_write(id);
        }
    }

    /// Sends lent memory and returns the number of bytes accepted. With `MSG_ZEROCOPY` and
    /// `SO_ZEROCOPY` the error queue reports when the memory is no longer used, and wakes the
    /// handle in `wake`.
    pub(crate) fn send_lent(
        &mut self,
        host: &mut Host,
        now: Instant,
        (data, flags): (Slice, i32),
        wake: (&Arc<WakeQueue>, Handle),
    ) -> Result<usize> {
        if self.is_deferred() {
            // The SYN carries a copy.
            return self.send(host, now, &[&data], flags, &[]);
        }
        let id = self.sendable(host)?;
        let more = flags & MSG_MORE != 0;
        if flags & MSG_ZEROCOPY == 0 || !self.common.zerocopy {
            let taken = write_lent(host, now, id, data, more)?;
            watch_written(host, id, self.common.stamps.stages(None));
            return Ok(taken);
        }
        self.may_lend()?;
        let call = self.lend(data, wake);
        let taken = write_lent(host, now, id, Slice::lend(call.clone()), more);
        if matches!(taken, Ok(1..)) {
            self.note_lent();
            watch_written(host, id, self.common.stamps.stages(None));
        } else {
            call.void();
        }
        taken
    }

    pub(crate) fn receive(
        &mut self,
        host: &mut Host,
        clock: Clock,
        data: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        if flags & MSG_ERRQUEUE != 0 {
            return self.receive_notice(host, clock, control);
        }
        let id = match self.core {
            Core::Listener(_) => return Err(Errno::ENOTCONN),
            // Urgent data stays in the stream (RFC 6093 2).
            _ if flags & MSG_OOB != 0 => return Err(Errno::EINVAL),
            Core::Connection(id) => id,
            Core::None if self.error.is_some() => {
                return Err(self.error.take().unwrap_or(Errno::ENOTCONN));
            }
            Core::None if self.shut.read => return Ok(Received::default()),
            Core::None => return Err(Errno::ENOTCONN),
        };
        let len = match flags & (MSG_PEEK | MSG_TRUNC) {
            0 => self.read_parts(host, clock.now, id, data)?,
            flags => self.look(host, clock.now, id, data, flags)?,
        };
        let mut out = Writer::new(control);
        self.tell_with(host, clock, id, len, &mut out);
        Ok(Received {
            len,
            flags: out.flags,
            control_len: out.used(),
            ..Received::default()
        })
    }

    fn read_parts(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        data: &mut [&mut [u8]],
    ) -> Result<usize> {
        let mut len = 0;
        for part in data {
            let n = match self.or_end(host.tcp_read(now, id, part)) {
                Ok(n) => n,
                Err(error) if len == 0 => return Err(error),
                Err(_) => break,
            };
            len += n;
            if n < part.len() {
                break;
            }
        }
        Ok(len)
    }

    /// Reads with `MSG_PEEK`, `MSG_TRUNC` (discards and counts), or both (counts).
    fn look(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        data: &mut [&mut [u8]],
        flags: i32,
    ) -> Result<usize> {
        let room: usize = data.iter().map(|part| part.len()).sum();
        if flags == MSG_TRUNC {
            let taken = host.tcp_read_chain(now, id, room);
            return self.or_end(taken.map(|chain| chain.len()));
        }
        if flags & MSG_TRUNC != 0 {
            self.or_end(host.tcp_peek(id, &mut []))?;
            return Ok(host.tcp_queues(id)?.readable.min(room));
        }
        let first = match data {
            [part] => return self.or_end(host.tcp_peek(id, part)),
            _ => self.or_end(host.tcp_peek(id, &mut []))?,
        };
        let mut all = alloc::vec![0; room.min(host.tcp_queues(id)?.readable)];
        let len = first + self.or_end(host.tcp_peek(id, &mut all))?;
        let mut rest = &all[..len];
        for part in data {
            let (here, left) = rest.split_at(part.len().min(rest.len()));
            part[..here.len()].copy_from_slice(here);
            rest = left;
        }
        Ok(len)
    }

    /// Converts WouldBlock to the end of the stream if the user has shut the read direction down.
    fn or_end(&self, read: core::result::Result<usize, StackError>) -> Result<usize> {
        match or_not_now(read)? {
            Some(n) => Ok(n),
            None if self.shut.read => Ok(0),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Writes the control messages of received data.
    fn tell_with(
        &self,
        host: &mut Host,
        clock: Clock,
        id: TcpId,
        len: usize,
        out: &mut Writer<'_>,
    ) {
        if len > 0
            && self.common.stamps.wants_received()
            && let Ok(Some(at)) = host.tcp_rx_time(id)
        {
            self.common.stamps.tell_received(clock, at, out);
        }
        if self.inq
            && let Ok(now) = host.tcp_readiness(id)
        {
            // The end of the stream counts as one byte, as another read returns it.
            let left = now.readable + usize::from(now.fin_received);
            out.put(IPPROTO_TCP, TCP_CM_INQ, &(left as i32).to_ne_bytes());
        }
    }

    /// Returns whether the next byte has arrived and the peer marked it as urgent.
    pub(crate) fn is_at_mark(&self, host: &mut Host) -> bool {
        match self.core {
            Core::Connection(id) => {
                host.tcp_at_mark(id) == Ok(true)
                    && host.tcp_readiness(id).is_ok_and(|now| now.readable > 0)
            }
            _ => false,
        }
    }

    /// Takes received data without copying; an empty chain is the end of the stream.
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

    /// Writes without copying. An error comes with the part that was not accepted.
    pub(crate) fn give(
        &mut self,
        host: &mut Host,
        now: Instant,
        slice: Slice,
        more: bool,
    ) -> core::result::Result<(), (Errno, Slice)> {
        let id = match self.sendable(host) {
            Ok(id) => id,
            Err(error) => return Err((error, slice)),
        };
        let result = host.tcp_write_slice_with(now, id, slice, more);
        self.begun(host);
        result.map_err(|(error, left)| (error.into(), left))
    }
}
