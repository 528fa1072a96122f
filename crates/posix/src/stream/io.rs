//! `sendmsg` and `recvmsg` on a stream.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fullsend_offload::{Chain, Slice};
use fullsend_stack::{Host, StackError, TcpId};
use fullsend_tcp::{State, TcpError, TxStages, WriteFlags};
use fullsend_wire::Instant;

use super::{ConnectState, HostSocket, Stream, may_fastopen};
use crate::abi::{
    IPPROTO_TCP, MSG_EOR, MSG_ERRQUEUE, MSG_FASTOPEN, MSG_MORE, MSG_OOB, MSG_PEEK, MSG_TRUNC,
    MSG_ZEROCOPY, TCP_CM_INQ,
};
use crate::addr::SockAddr;
use crate::cmsg::{CmsgWriter, messages};
use crate::errno::{Errno, Result};
use crate::timestamps::{EpochClock, requested_tx_flags};
use crate::wake::WakeQueue;
use crate::{Handle, Received};

/// Converts the error `WouldBlock` to `None`.
fn would_block_to_none<T>(result: core::result::Result<T, StackError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(StackError::Tcp(TcpError::WouldBlock)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Queues as many bytes of lent memory as there is room for, and returns their number.
fn write_lent(host: &mut Host, now: Instant, id: TcpId, data: Slice, more: bool) -> Result<usize> {
    let len = data.len();
    match host.tcp(id).write_slice_with(now, data, more) {
        Ok(()) => Ok(len),
        Err((StackError::Tcp(TcpError::WouldBlock), left)) if left.len() < len => {
            Ok(len - left.len())
        }
        Err((error, _)) => Err(error.into()),
    }
}

/// Requests reports on the bytes just written.
fn watch_tx_stages(host: &mut Host, id: TcpId, stages: TxStages) {
    if stages != TxStages::NONE {
        let end = Stream::written(host, id);
        // The connection exists until it is closed here.
        let _ = host.tcp(id).watch_tx(end, stages);
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
            own = Some(requested_tx_flags(&message?)?);
        }
        let id = self.sendable_connection(host)?;
        let is_zerocopy = flags & MSG_ZEROCOPY != 0 && self.common.zerocopy;
        if is_zerocopy {
            self.check_zerocopy_limit()?;
        }
        let written = if self.is_deferred() {
            self.write_with_syn(host, now, id, data)?
        } else {
            self.write_all(host, now, id, data, flags)?
        };
        watch_tx_stages(host, id, self.common.timestamps.stages(own));
        if is_zerocopy && written > 0 {
            self.complete_copied();
        }
        Ok(written)
    }

    /// Returns the connection if data can be sent on it.
    fn sendable_connection(&mut self, host: &mut Host) -> Result<TcpId> {
        self.errors_before_send = self.errors.count;
        match self.host_socket {
            HostSocket::Connection(id) if !self.shut.write => Ok(id),
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
        // The last part with bytes: a write of no bytes does not end the wait of an earlier one with
        // `more`.
        let last = data.iter().rposition(|part| !part.is_empty()).unwrap_or(0);
        let is_zerocopy = flags & MSG_ZEROCOPY != 0 && self.common.zerocopy;
        let most = match host.sysctl().max_skb_frags as usize {
            most if is_zerocopy => most,
            _ => usize::MAX,
        };
        for (i, part) in data.iter().enumerate() {
            let is_last = i == last;
            // With MSG_ZEROCOPY, as on Linux: at most `max_skb_frags` parts in a segment.
            let full = i % most == most - 1;
            let write_flags = WriteFlags {
                more: !is_last || flags & MSG_MORE != 0,
                eor: full || is_last && flags & MSG_EOR != 0,
                oob: is_last && flags & MSG_OOB != 0,
            };
            let result = if write_flags.eor || write_flags.oob {
                host.tcp(id).write_with(now, part, write_flags)
            } else {
                host.tcp(id).write(now, part, write_flags.more)
            };
            match would_block_to_none(result) {
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
        const MAX_SYN_DATA: usize = 65_535;
        let mut joined = Vec::new();
        for part in data {
            joined.extend_from_slice(&part[..part.len().min(MAX_SYN_DATA - joined.len())]);
        }
        if joined.is_empty() {
            host.tcp(id).send_syn(now)?;
            self.update_after_syn(host);
            return Err(Errno::EINPROGRESS);
        }
        let written = would_block_to_none(host.tcp(id).write(now, &joined, false))?;
        self.update_after_syn(host);
        written.ok_or(Errno::EAGAIN)
    }

    /// Returns whether the SYN is deferred until the first write, while the connection counts as
    /// established.
    pub(crate) fn is_deferred(&self) -> bool {
        self.connect_state == ConnectState::Deferred
    }

    /// Updates the phase after a deferred SYN was sent.
    fn update_after_syn(&mut self, host: &Host) {
        if self.connect_state == ConnectState::Deferred {
            self.connect_state = match self.state(host) {
                State::SynSent => ConnectState::Connecting,
                _ => ConnectState::Connected,
            };
        }
    }

    /// Connects and sends (`sendto` with `MSG_FASTOPEN`). The data is on the SYN if a cookie is
    /// known; otherwise it returns EINPROGRESS.
    pub(crate) fn send_fastopen(
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
        if self.connect_state != ConnectState::Deferred {
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
        if let HostSocket::Connection(id) = self.host_socket {
            // The connection exists until it is closed here.
            let _ = host.tcp(id).expect_write();
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
        let id = self.sendable_connection(host)?;
        let more = flags & MSG_MORE != 0;
        if flags & MSG_ZEROCOPY == 0 || !self.common.zerocopy {
            let accepted = write_lent(host, now, id, data, more)?;
            watch_tx_stages(host, id, self.common.timestamps.stages(None));
            return Ok(accepted);
        }
        self.check_zerocopy_limit()?;
        let call = self.lend(data, wake);
        let accepted = write_lent(host, now, id, Slice::lend(call.clone()), more);
        if matches!(accepted, Ok(1..)) {
            self.commit_lent();
            watch_tx_stages(host, id, self.common.timestamps.stages(None));
        } else {
            call.cancel();
        }
        accepted
    }

    pub(crate) fn receive(
        &mut self,
        host: &mut Host,
        clock: EpochClock,
        data: &mut [&mut [u8]],
        flags: i32,
        control: &mut [u8],
    ) -> Result<Received> {
        if flags & MSG_ERRQUEUE != 0 {
            return self.receive_report(host, clock, control);
        }
        let id = match self.host_socket {
            HostSocket::Listener(_) => return Err(Errno::ENOTCONN),
            // Urgent data stays in the stream (RFC 6093 2).
            _ if flags & MSG_OOB != 0 => return Err(Errno::EINVAL),
            HostSocket::Connection(id) => id,
            HostSocket::None if self.error.is_some() => {
                return Err(self.error.take().unwrap_or(Errno::ENOTCONN));
            }
            HostSocket::None if self.shut.read => return Ok(Received::default()),
            HostSocket::None => return Err(Errno::ENOTCONN),
        };
        let len = match flags & (MSG_PEEK | MSG_TRUNC) {
            0 => self.read_parts(host, clock.now, id, data)?,
            flags => self.peek_or_discard(host, clock.now, id, data, flags)?,
        };
        let mut out = CmsgWriter::new(control);
        self.put_control_messages(host, clock, id, len, &mut out);
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
            let n = match self.would_block_to_eof(host.tcp(id).read(now, part)) {
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
    fn peek_or_discard(
        &mut self,
        host: &mut Host,
        now: Instant,
        id: TcpId,
        data: &mut [&mut [u8]],
        flags: i32,
    ) -> Result<usize> {
        let room: usize = data.iter().map(|part| part.len()).sum();
        if flags == MSG_TRUNC {
            let accepted = host.tcp(id).read_chain(now, room);
            return self.would_block_to_eof(accepted.map(|chain| chain.len()));
        }
        if flags & MSG_TRUNC != 0 {
            self.would_block_to_eof(host.tcp(id).peek(&mut []))?;
            return Ok(host.tcp(id).queues()?.readable.min(room));
        }
        let first = match data {
            [part] => return self.would_block_to_eof(host.tcp(id).peek(part)),
            _ => self.would_block_to_eof(host.tcp(id).peek(&mut []))?,
        };
        let mut all = alloc::vec![0; room.min(host.tcp(id).queues()?.readable)];
        let len = first + self.would_block_to_eof(host.tcp(id).peek(&mut all))?;
        let mut rest = &all[..len];
        for part in data {
            let (here, left) = rest.split_at(part.len().min(rest.len()));
            part[..here.len()].copy_from_slice(here);
            rest = left;
        }
        Ok(len)
    }

    /// Converts WouldBlock to the end of the stream if the user has shut the read direction down.
    fn would_block_to_eof(&self, read: core::result::Result<usize, StackError>) -> Result<usize> {
        match would_block_to_none(read)? {
            Some(n) => Ok(n),
            None if self.shut.read => Ok(0),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Writes the control messages of received data.
    fn put_control_messages(
        &self,
        host: &mut Host,
        clock: EpochClock,
        id: TcpId,
        len: usize,
        out: &mut CmsgWriter<'_>,
    ) {
        if len > 0
            && self.common.timestamps.is_rx_enabled()
            && let Ok(Some(at)) = host.tcp(id).rx_time()
        {
            self.common.timestamps.put_rx_timestamps(clock, at, out);
        }
        if self.inq
            && let Ok(now) = host.tcp(id).readiness()
        {
            // The end of the stream counts as one byte, as another read returns it.
            let left = now.readable + usize::from(now.fin_received);
            out.put(IPPROTO_TCP, TCP_CM_INQ, &(left as i32).to_ne_bytes());
        }
    }

    /// Returns whether the next byte has arrived and the peer marked it as urgent.
    pub(crate) fn is_at_mark(&self, host: &mut Host) -> bool {
        match self.host_socket {
            HostSocket::Connection(id) => {
                host.tcp(id).at_mark() == Ok(true)
                    && host.tcp(id).readiness().is_ok_and(|now| now.readable > 0)
            }
            _ => false,
        }
    }

    /// Takes received data without copying; an empty chain is the end of the stream.
    pub(crate) fn read_chain(
        &mut self,
        host: &mut Host,
        now: Instant,
        max: usize,
    ) -> Result<Chain> {
        let HostSocket::Connection(id) = self.host_socket else {
            return Err(Errno::ENOTCONN);
        };
        match would_block_to_none(host.tcp(id).read_chain(now, max))? {
            Some(chain) => Ok(chain),
            None if self.shut.read => Ok(Chain::new()),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Writes without copying. An error is returned with the part that was not accepted.
    pub(crate) fn write_slice(
        &mut self,
        host: &mut Host,
        now: Instant,
        slice: Slice,
        more: bool,
    ) -> core::result::Result<(), (Errno, Slice)> {
        let id = match self.sendable_connection(host) {
            Ok(id) => id,
            Err(error) => return Err((error, slice)),
        };
        let result = host.tcp(id).write_slice_with(now, slice, more);
        self.update_after_syn(host);
        result.map_err(|(error, left)| (error.into(), left))
    }
}
