//! The connection.

use fullsend_buf::{Chain, Slice};
use fullsend_units::{Instant, Mss, SeqNum};
use fullsend_wire::tcp::TcpRepr;

use crate::{
    Cx, IcmpError, SegmentIn, SegmentOut, SocketOption, TcpError, TcpInfo, TimeWait, Wakes,
};

/// Where a connection stands (RFC 9293 3.3.2). LISTEN belongs to the host, TIME-WAIT to
/// [`TimeWait`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "RFC 9293's names")]
pub enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    Closed,
}

/// One end of one TCP connection.
pub struct Connection {}

#[allow(unused_variables)]
impl Connection {
    /// Active open: SYN-SENT; the SYN is the first thing `poll_transmit` gives.
    /// `mss` is what we can receive in one segment (MTU less IP and TCP headers, no options).
    pub fn connect(
        cx: &mut Cx<'_>,
        local_port: u16,
        remote_port: u16,
        iss: SeqNum,
        mss: Mss,
        ip_header_len: u16,
    ) -> Self {
        todo!()
    }

    /// Passive open from a SYN that the host has judged acceptable: SYN-RECEIVED; the SYN-ACK is
    /// the first thing `poll_transmit` gives.
    pub fn accept(
        cx: &mut Cx<'_>,
        syn: &TcpRepr,
        iss: SeqNum,
        mss: Mss,
        ip_header_len: u16,
    ) -> Self {
        todo!()
    }

    /// A segment for this connection arrived (RFC 9293 3.10.7).
    pub fn handle_segment(&mut self, cx: &mut Cx<'_>, segment: SegmentIn) {
        todo!()
    }

    /// `poll_deadline` has passed.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_>) {
        todo!()
    }

    /// An ICMP error quoted a segment of ours that began at `seq`.
    pub fn handle_icmp(&mut self, cx: &mut Cx<'_>, seq: SeqNum, error: IcmpError) {
        todo!()
    }

    /// The device completed a segment of `truesize` (spec 2).
    pub fn handle_tx_complete(&mut self, cx: &mut Cx<'_>, truesize: u32) {
        todo!()
    }

    /// The next segment to send, if the rules let one go now. Call until `None`.
    pub fn poll_transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        todo!()
    }

    /// `poll_transmit` might give something (cheap; may be wrong by saying yes).
    pub fn wants_transmit(&self) -> bool {
        todo!()
    }

    /// When to call `handle_timeout`; it may move later without notice (the caller re-reads it
    /// when it fires).
    pub fn poll_deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// What waiting users should be told since the last call.
    pub fn take_wakes(&mut self) -> Wakes {
        todo!()
    }

    /// The state.
    pub fn state(&self) -> State {
        todo!()
    }

    /// Set once the connection has nothing more to do in TIME-WAIT form: the host replaces it.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        todo!()
    }

    /// Appends a copy of `data` to the stream; how much was taken. `more` is `MSG_MORE`.
    pub fn write(&mut self, cx: &mut Cx<'_>, data: &[u8], more: bool) -> Result<usize, TcpError> {
        todo!()
    }

    /// Appends `data` without copying; all of it or `WouldBlock` (the slice comes back).
    pub fn write_slice(
        &mut self,
        cx: &mut Cx<'_>,
        data: Slice,
        more: bool,
    ) -> Result<(), (TcpError, Slice)> {
        todo!()
    }

    /// Copies received bytes out; 0 is the end of the stream.
    pub fn read(&mut self, cx: &mut Cx<'_>, out: &mut [u8]) -> Result<usize, TcpError> {
        todo!()
    }

    /// Takes received bytes without copying, at most `max`; empty is the end of the stream.
    pub fn read_chain(&mut self, cx: &mut Cx<'_>, max: usize) -> Result<Chain, TcpError> {
        todo!()
    }

    /// Copies received bytes, leaving them.
    pub fn peek(&mut self, out: &mut [u8]) -> Result<usize, TcpError> {
        todo!()
    }

    /// Bytes that can be read now, and whether the end or an error has been reached. Registers
    /// interest when not readable (a later `take_wakes` tells).
    pub fn poll_readable(&mut self) -> bool {
        todo!()
    }

    /// Writable in the sense of spec 3 (wake=1). Registers interest (NOSPACE) when not.
    pub fn poll_writable(&mut self, cx: &mut Cx<'_>) -> bool {
        todo!()
    }

    /// `shutdown(SHUT_WR)`: FIN after what is queued.
    pub fn shutdown_write(&mut self, cx: &mut Cx<'_>) {
        todo!()
    }

    /// `shutdown(SHUT_RD)`: reads give end of stream.
    pub fn shutdown_read(&mut self) {
        todo!()
    }

    /// The user let go (`close`): FIN, or RST when unread data is thrown away (RFC 2525 2.17) or
    /// linger is zero. The connection lives on as an orphan until done (`State::Closed`).
    pub fn close(&mut self, cx: &mut Cx<'_>) {
        todo!()
    }

    /// RST at once (RFC 9293 3.10.5).
    pub fn abort(&mut self, cx: &mut Cx<'_>) {
        todo!()
    }

    /// All that was written has been acknowledged (and the FIN, if sent).
    pub fn is_flushed(&self) -> bool {
        todo!()
    }

    /// The pending error (`SO_ERROR`), cleared by reading.
    pub fn take_error(&mut self) -> Option<TcpError> {
        todo!()
    }

    /// Sets an option.
    pub fn set_option(&mut self, cx: &mut Cx<'_>, option: SocketOption) -> Result<(), TcpError> {
        todo!()
    }

    /// Chooses the congestion control by name (`TCP_CONGESTION`).
    pub fn set_congestion(&mut self, cx: &mut Cx<'_>, name: &str) -> Result<(), TcpError> {
        todo!()
    }

    /// `TCP_INFO`.
    pub fn info(&self, cx: &Cx<'_>) -> TcpInfo {
        todo!()
    }
}
