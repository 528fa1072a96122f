//! TCP Fast Open (RFC 7413): data in the SYN, before the handshake ends. The host keeps the
//! cookies.

use alloc::boxed::Box;

use fullsend_offload::Chain;
use fullsend_wire::tcp::{FastopenCookie, TcpRepr};
use fullsend_wire::{Mss, SeqNum};

use super::{Connection, State};
use crate::recovery::SuperSegment;
use crate::{Cx, TcpError};

/// Consecutive timeouts after which the path is suspected to drop Fast Open segments (RFC 7413
/// 4.1.3.1).
const BLACKHOLE_TIMEOUTS: u8 = 2;

/// The permissions of a Fast Open client, from its host's settings and cookie cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastopenClient {
    /// The cookie for the SYN, or the request for one if none is known; `None`: Fast Open is not
    /// used.
    pub cookie: Option<FastopenCookie>,
    /// Data may be sent without a cookie, and then without the option.
    pub no_cookie: bool,
    /// The MSS that the peer last advertised, if it is known.
    pub mss: Option<u16>,
    /// The host had disabled Fast Open for a while, and expects a report if it works again.
    pub on_trial: bool,
}

/// A Fast Open event that a connection reports to its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastopenEvent {
    /// The peer answered a client's SYN.
    SynAckReceived {
        /// The peer's MSS.
        mss: u16,
        /// The cookie that the peer sent.
        cookie: Option<FastopenCookie>,
        /// The peer sent no cookie although one was requested; `true` if the request had the
        /// option's experimental form.
        refused: Option<bool>,
    },
    /// The path seems to drop Fast Open segments.
    Blackhole,
    /// A connection on trial received data: the path carries Fast Open segments.
    TrialSucceeded,
    /// The handshake of a connection opened by a SYN with data ended; `true` if the peer reset it.
    HandshakeEnded(bool),
}

/// The reason why data was not delivered with a client's SYN (`tcpi_fastopen_client_fail`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum FastopenFail {
    #[default]
    Unspecified = 0,
    CookieUnavailable = 1,
    DataNotAcked = 2,
    SynRetransmitted = 3,
}

/// The Fast Open state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Fastopen {
    client: Option<FastopenClient>,
    /// The SYN waits for the first write.
    deferred: bool,
    /// The SYN carried the option or data.
    used: bool,
    /// The option that the SYN carried.
    requested: Option<FastopenCookie>,
    /// The application waits to write.
    expects_write: bool,
    /// Payload bytes of the SYN.
    syn_data: u32,
    /// The data in the SYN was accepted, by the peer or by us.
    pub(super) syn_data_acked: bool,
    pub(super) fail: FastopenFail,
    /// On a server: opened by a SYN with a cookie, and still in the handshake.
    child: bool,
    /// On a server: opened by a SYN with a cookie.
    pub(super) opened_early: bool,
    /// The cookie for the first SYN-ACK.
    syn_ack_cookie: Option<FastopenCookie>,
    events: [Option<FastopenEvent>; 2],
}

impl Fastopen {
    fn push_event(&mut self, event: FastopenEvent) {
        if let Some(slot) = self.events.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(event);
        }
    }

    /// Returns whether the SYN may carry data. `no_cookie` is the socket's own option.
    fn carries_data(&self, no_cookie: bool) -> bool {
        self.client.is_some_and(|client| {
            let known = client.cookie.is_some_and(|cookie| !cookie.is_request());
            known || client.no_cookie || no_cookie
        })
    }

    /// Returns the option of the first SYN.
    fn syn_option(&self, no_cookie: bool) -> Option<FastopenCookie> {
        let client = self.client?;
        client.cookie.filter(|_| !(client.no_cookie || no_cookie))
    }
}

impl Connection {
    pub(crate) fn fastopen(&self) -> Option<&Fastopen> {
        self.uncommon.as_ref()?.fastopen.as_deref()
    }

    fn fastopen_mut(&mut self) -> Option<&mut Fastopen> {
        self.uncommon.as_mut()?.fastopen.as_deref_mut()
    }

    /// Defers the SYN until the first write, whose data it may carry, or until
    /// [`send_syn`](Self::send_syn).
    pub fn defer_syn(&mut self, client: FastopenClient) {
        if self.state == State::SynSent && self.recovery.rtx.is_empty() {
            self.snd.pending_mut().cancel_syn();
            self.uncommon_mut().fastopen = Some(Box::new(Fastopen {
                client: Some(client),
                deferred: true,
                ..Fastopen::default()
            }));
        }
    }

    /// Sends a deferred SYN without data.
    pub fn send_syn(&mut self) {
        let no_cookie = self.settings.fastopen_no_cookie();
        if self.is_syn_deferred()
            && let Some(fastopen) = self.fastopen_mut()
        {
            fastopen.deferred = false;
            if !fastopen.carries_data(no_cookie) {
                fastopen.fail = FastopenFail::CookieUnavailable;
            }
            self.snd.pending_mut().request_syn();
        }
    }

    /// Announces that the application of a deferred connection waits to write: the ACK of the
    /// SYN-ACK need not be sent separately.
    pub fn expect_write(&mut self) {
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.expects_write = true;
        }
    }

    pub(super) fn is_write_expected(&self) -> bool {
        self.fastopen().is_some_and(|f| f.expects_write)
    }

    /// Returns whether the SYN waits for a write.
    #[inline]
    pub(super) fn is_syn_deferred(&self) -> bool {
        self.state == State::SynSent && self.fastopen().is_some_and(|f| f.deferred)
    }

    /// Returns whether the SYN would carry the data of a write.
    pub fn is_fastopen_ready(&self) -> bool {
        let no_cookie = self.settings.fastopen_no_cookie();
        self.is_syn_deferred() && self.fastopen().is_some_and(|f| f.carries_data(no_cookie))
    }

    /// Performs the first write of a deferred connection, up to the capacity of the SYN.
    #[cold]
    pub(super) fn write_syn_data(
        &mut self,
        cx: &mut Cx<'_>,
        data: &[u8],
    ) -> Result<usize, TcpError> {
        if !self.is_fastopen_ready() {
            self.send_syn();
            self.user.writer_waiting = true;
            return Err(TcpError::WouldBlock);
        }
        let most = data.len().min(self.syn_room() as usize);
        let goal = self.snd.size_goal();
        let n = self
            .snd
            .append(cx.pool, &data[..most], goal.max(most), true);
        if n < most.min(1) {
            return Err(TcpError::OutOfMemory);
        }
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.deferred = false;
        }
        self.snd.pending_mut().request_syn();
        self.charge(cx);
        Ok(n)
    }

    /// Returns the payload bytes that fit into a SYN beside 40 bytes of options.
    fn syn_room(&self) -> u32 {
        let known = self.fastopen().and_then(|f| f.client?.mss);
        // Matches Linux: an unknown peer is assumed to have our MSS.
        let mss = known
            .unwrap_or(self.adv_mss.get())
            .min(self.snd.mss_clamp());
        u32::from(mss)
            .min(self.snd.mss().bytes())
            .saturating_sub(40)
    }

    /// Returns the option and the payload of the first SYN, when it is sent.
    #[cold]
    pub(super) fn fastopen_syn(&mut self, cx: &Cx<'_>) -> (Option<FastopenCookie>, Chain) {
        let no_cookie = self.settings.fastopen_no_cookie();
        let state = self.state;
        let Some(fastopen) = self.fastopen_mut() else {
            return (None, Chain::new());
        };
        if state == State::SynReceived {
            return (fastopen.syn_ack_cookie.take(), Chain::new());
        }
        let option = fastopen.syn_option(no_cookie);
        fastopen.used = option.is_some();
        fastopen.requested = option;
        if !fastopen.carries_data(no_cookie) {
            return (option, Chain::new());
        }
        (option, self.take_syn_data(cx))
    }

    /// Moves written data from the write queue into the retransmission queue, after the SYN.
    fn take_syn_data(&mut self, cx: &Cx<'_>) -> Chain {
        let room = self.syn_room() as usize;
        let (seq, taken) = self.snd.take_syn_data(room);
        let len = taken.payload.len() as u32;
        if len == 0 {
            return taken.payload;
        }
        self.recovery.rtx.push(SuperSegment {
            seq,
            payload: taken.payload.clone(),
            syn: false,
            fin: false,
            push: true,
            sent_at: cx.now,
            truesize: taken.truesize,
            number: 0,
        });
        self.stats.data_segs_out += 1;
        if let Some(fastopen) = self.fastopen_mut() {
            fastopen.used = true;
            fastopen.syn_data = len;
        }
        self.watch_scheduled(cx, 0);
        taken.payload
    }

    /// Sends the SYN again, without data, after it was larger than the path MTU.
    pub(super) fn fastopen_too_big(&mut self) {
        if self.fastopen().is_some_and(|f| f.syn_data > 0) {
            self.snd.pending_mut().request_syn();
        }
    }

    /// Processes the peer's SYN-ACK: its cookie, and whether it acknowledges our data.
    #[cold]
    pub(super) fn fastopen_syn_ack(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        let retransmitted = self.stats.total_retrans > 0;
        self.report_cookie(repr, retransmitted);
        let unacked = !self.recovery.rtx.is_empty();
        let Some(fastopen) = self.fastopen_mut().filter(|f| f.syn_data > 0) else {
            return;
        };
        if !unacked {
            fastopen.syn_data_acked = true;
            cx.mib.fastopen_active += 1;
            return;
        }
        fastopen.fail = if retransmitted {
            FastopenFail::SynRetransmitted
        } else {
            FastopenFail::DataNotAcked
        };
        cx.mib.fastopen_active_fail += 1;
        // RFC 7413 4.1.3: retransmit immediately; this is no sign of congestion.
        self.recovery.retransmit_too_big(self.snd.nxt());
        self.snd.pending_mut().retry();
    }

    /// Reports the peer's MSS and cookie to the host.
    fn report_cookie(&mut self, repr: &TcpRepr, retransmitted: bool) {
        let Some(fastopen) = self.fastopen_mut().filter(|f| f.used) else {
            return;
        };
        let (requested, option) = (fastopen.requested, repr.options.fastopen);
        let refused = option.is_none() && fastopen.syn_data == 0 && !retransmitted;
        let event = FastopenEvent::SynAckReceived {
            mss: repr.options.mss.unwrap_or(Mss::DEFAULT_V4.get()),
            // A cookie that was not requested is not to be trusted.
            cookie: option.filter(|cookie| requested.is_some() && !cookie.is_request()),
            refused: requested
                .filter(|_| refused)
                .map(|requested| requested.is_experimental()),
        };
        fastopen.push_event(event);
        self.user.wakes.read = true;
    }

    /// Processes the end of the handshake of a client or server.
    #[cold]
    pub(super) fn fastopen_established(&mut self, cx: &mut Cx<'_>, repr: &TcpRepr) {
        if self.state == State::SynSent {
            self.fastopen_syn_ack(cx, repr);
        }
        self.end_fastopen_child(false);
    }

    fn end_fastopen_child(&mut self, reset: bool) {
        if let Some(fastopen) = self.fastopen_mut()
            && core::mem::take(&mut fastopen.child)
        {
            fastopen.push_event(FastopenEvent::HandshakeEnded(reset));
            self.user.wakes.read = true;
        }
    }

    /// Processes the end of the connection.
    #[cold]
    pub(super) fn fastopen_finished(&mut self) {
        let reset = self.user.error == Some(TcpError::ConnectionReset);
        self.end_fastopen_child(reset);
        let received = self.stats.data_segs_in > 0;
        if !received && self.rcv.has_only_ofo_fin() {
            self.report_blackhole();
        }
        if let Some(fastopen) = self.fastopen_mut()
            && fastopen.client.is_some_and(|client| client.on_trial)
            && fastopen.used
            && received
        {
            fastopen.push_event(FastopenEvent::TrialSucceeded);
            self.user.wakes.read = true;
        }
    }

    /// Processes a RST inside the window that has not the expected sequence number.
    #[cold]
    pub(super) fn fastopen_unexpected_reset(&mut self) {
        if self.state == State::Established && self.stats.data_segs_in == 0 {
            self.report_blackhole();
        }
    }

    /// Reports that a middlebox may drop the segments of a Fast Open client (RFC 7413 4.1.3.1).
    fn report_blackhole(&mut self) {
        if let Some(fastopen) = self.fastopen_mut()
            && fastopen.client.is_some()
            && fastopen.used
        {
            fastopen.push_event(FastopenEvent::Blackhole);
            self.user.wakes.read = true;
        }
    }

    /// Processes a retransmission timeout; `has_timed_out` if it was the last one.
    #[cold]
    pub(super) fn fastopen_timeout(&mut self, has_timed_out: bool) {
        let timeouts = self.timers.retransmits;
        let suspect =
            timeouts == BLACKHOLE_TIMEOUTS || (timeouts < BLACKHOLE_TIMEOUTS && has_timed_out);
        if suspect {
            self.report_blackhole();
        }
    }

    /// Opens the connection before the handshake ends, so that the data of the SYN can be read: the
    /// host has accepted the cookie of the SYN, or needs none.
    pub fn open_early(&mut self, cx: &mut Cx<'_>, syn: &TcpRepr, payload: Chain) {
        let fastopen = self.uncommon_mut().fastopen.get_or_insert_default();
        fastopen.child = true;
        fastopen.opened_early = true;
        fastopen.syn_data_acked = !payload.is_empty();
        // The SYN's window begins after our SYN, which is still in flight when data follows it.
        self.snd.exclude_syn_from_window();
        self.on_syn_payload(cx, syn.seq + 1, payload);
    }

    fn on_syn_payload(&mut self, cx: &mut Cx<'_>, seq: SeqNum, mut payload: Chain) {
        payload.truncate(self.rcv.window_from(seq).0 as usize);
        if payload.is_empty() {
            return;
        }
        self.stats.bytes_received += payload.len() as u64;
        self.stats.data_segs_in += 1;
        self.rcv.insert(cx.pool, seq, payload, false);
        // The SYN-ACK acknowledges all of it, and its window begins there.
        self.rcv.on_ack_sent();
        let (scaled, segment_size) = (self.negotiated.window_scale, self.syn_segment_size());
        self.rcv.restart_window(cx.now, scaled, segment_size);
        self.charge(cx);
    }

    /// Sets the cookie of the first SYN-ACK.
    pub fn offer_cookie(&mut self, cookie: FastopenCookie) {
        let fastopen = self.uncommon_mut().fastopen.get_or_insert_default();
        fastopen.syn_ack_cookie = Some(cookie);
    }

    /// Returns whether a SYN with a cookie opened the connection and the handshake is unfinished:
    /// data may be sent already (RFC 7413 4.2.2).
    #[inline]
    pub(crate) fn is_fastopen_child(&self) -> bool {
        self.uncommon.is_some() && self.fastopen().is_some_and(|f| f.child)
    }

    /// Returns whether [`take_fastopen_event`](Self::take_fastopen_event) has an event, for which
    /// readers are woken.
    #[inline]
    pub fn has_fastopen_event(&self) -> bool {
        self.uncommon.is_some() && self.fastopen().is_some_and(|f| f.events[0].is_some())
    }

    /// Returns the next Fast Open event for the host.
    pub fn take_fastopen_event(&mut self) -> Option<FastopenEvent> {
        let [first, second] = &mut self.fastopen_mut()?.events;
        core::mem::replace(first, second.take())
    }
}
