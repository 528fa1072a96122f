//! The connection: what it consists of, and the calls of its host.

mod ack;
mod close;
mod extras;
mod fastopen;
mod fetch;
mod half_open;
mod handshake;
mod icmp;
mod input;
mod mtu_probing;
mod readiness;
mod rto_stats;
mod settings;
mod state;
mod syn_loss;
mod timers;
mod urgent;
mod user;
mod watch;
mod writable;

use alloc::boxed::Box;

use fullsend_units::{Instant, Mss, Nanos, SeqNum, WindowScale};

use crate::congestion::{CongestionControl, Cwnd};
use crate::ecn::Ecn;
use crate::recovery::{Recovery, RtxQueue};
use crate::recv::{AckPolicy, RecvQueue, RecvWindow};
use crate::rtt::RttEstimator;
use crate::send::{Blocked, Flow, Force, Pacing, WriteQueue};
use crate::{Cx, SegmentOut, TcpError, TimeWait, Wakes};

pub(crate) use extras::Extras;
pub use fastopen::{FastopenClient, FastopenNews};
pub use half_open::SynAckSent;
pub(crate) use mtu_probing::ProbeNow;
pub use readiness::Readiness;
pub use settings::IpSettings;
pub(crate) use settings::Settings;
pub use state::State;
pub(crate) use timers::Timers;
pub use watch::{TxEvent, TxStage, TxStages};

/// One end of one TCP connection.
///
/// In: [`handle_segment`](Self::handle_segment), [`handle_timeout`](Self::handle_timeout) when
/// [`poll_deadline`](Self::poll_deadline) has passed, [`handle_icmp`](Self::handle_icmp),
/// [`handle_tx_complete`](Self::handle_tx_complete), and the calls of the user. After any of them:
/// [`poll_transmit`](Self::poll_transmit) until `None` if
/// [`wants_transmit`](Self::wants_transmit), then [`take_wakes`](Self::take_wakes) and
/// [`take_time_wait`](Self::take_time_wait).
pub struct Connection {
    pub(crate) state: State,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// The most we take in one segment (sent as MSS option).
    pub(crate) adv_mss: Mss,
    pub(crate) agreed: Agreed,
    pub(crate) user: UserSide,
    pub(crate) out: Pending,
    pub(crate) snd: Sender,
    pub(crate) rcv: Receiver,
    pub(crate) ts: TsState,
    pub(crate) cwnd: Cwnd,
    pub(crate) cc: Box<dyn CongestionControl>,
    pub(crate) rtt: RttEstimator,
    pub(crate) recovery: Recovery,
    /// There if the connection uses ECN, or asks for it.
    pub(crate) ecn: Option<Box<Ecn>>,
    pub(crate) timers: Timers,
    pub(crate) settings: Settings,
    pub(crate) stats: Stats,
    pub(crate) time_wait: Option<Box<TimeWait>>,
    /// What few connections need.
    pub(crate) extras: Option<Box<Extras>>,
    /// What the host has been charged for our queues.
    pub(crate) mem_pages: u32,
}

/// Options: what we offer on our SYN, then what both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) window_scale: bool,
}

/// What the user did and waits for.
#[derive(Debug, Default)]
pub(crate) struct UserSide {
    /// Someone waits to read, to write (NOSPACE).
    pub(crate) wants_read: bool,
    pub(crate) wants_write: bool,
    pub(crate) wakes: Wakes,
    pub(crate) error: Option<TcpError>,
    /// What ICMP told of a connection that goes on (RFC 1122 4.2.3.9).
    pub(crate) soft_error: Option<TcpError>,
    /// The connection ended before all that was written was acknowledged.
    pub(crate) lost_data: bool,
    pub(crate) read_shut: bool,
    /// Nobody wants text that is still to come.
    pub(crate) refuses_text: bool,
    pub(crate) write_shut: bool,
    /// The user let go; nobody reads or is told.
    pub(crate) orphan: bool,
    /// The user opened the connection, instead of accepting it.
    pub(crate) connects: bool,
}

/// What the next `poll_transmit` has to do.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// Something may be sendable.
    pub(crate) any: bool,
    /// The SYN (or SYN-ACK) is to be sent: for the first time, or once more.
    pub(crate) syn: bool,
    /// An empty segment left of the window, to draw an ACK from the peer.
    pub(crate) probe: bool,
    /// The tail is to be probed (RFC 8985 7.3).
    pub(crate) tail_probe: bool,
    /// What is sendable goes although a gate would hold it.
    pub(crate) force: Force,
    pub(crate) reset: Option<Reset>,
}

impl Pending {
    /// Something other than text and acknowledgements.
    pub(crate) fn has_extras(&self) -> bool {
        self.syn || self.probe || self.reset.is_some()
    }
}

/// A RST to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reset {
    /// In answer to a segment that acknowledged this.
    At(SeqNum),
    /// Of a connection that the peer believes in.
    Abort,
}

/// The send side's variables (RFC 9293 3.3.1) and queues.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    /// `SND.WL1`: sequence number of the last window update.
    pub(crate) wl1: SeqNum,
    /// Bytes the peer takes from `una` on.
    pub(crate) wnd: u32,
    /// The largest window the peer ever offered.
    pub(crate) max_wnd: u32,
    pub(crate) scale: WindowScale,
    /// End of the last transmit unit that ended in a short segment (Minshall).
    pub(crate) sml: SeqNum,
    /// Where the writer last asked for PSH.
    pub(crate) pushed: SeqNum,
    /// Text bytes of a full segment.
    pub(crate) mss: Mss,
    /// Header and text of a full segment as the peer and the user bound it, options included.
    pub(crate) mss_clamp: u16,
    /// Path MTU in bytes, IP header included.
    pub(crate) pmtu: u32,
    pub(crate) ip_header_len: u16,
    pub(crate) fin: Fin,
    pub(crate) blocked: Blocked,
    /// The last write said that more follows (`MSG_MORE`).
    pub(crate) more: bool,
    /// The next completion of the device is to be followed by an attempt to send.
    pub(crate) throttled: bool,
    pub(crate) sndbuf_locked: bool,
    pub(crate) sndbuf: u32,
    /// Bytes handed to the device and not completed (spec: `sk_wmem_alloc`).
    pub(crate) wmem_inflight: u32,
    /// How full a write makes a transmit unit, and the device limit it was computed for.
    pub(crate) size_goal: u32,
    pub(crate) size_goal_for: u32,
    pub(crate) queue: WriteQueue,
    pub(crate) rtx: RtxQueue,
    /// When text was last sent.
    pub(crate) last_sent: Instant,
    pub(crate) pacing: Option<Box<Pacing>>,
    /// Begins with the first text.
    pub(crate) flow: Option<Box<Flow>>,
}

/// Our FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fin {
    No,
    Queued,
    Sent,
}

/// The receive side.
#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) queue: RecvQueue,
    pub(crate) window: RecvWindow,
    pub(crate) ack: AckPolicy,
}

/// Timestamps (RFC 7323 3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TsState {
    pub(crate) offset: u32,
    pub(crate) recent: u32,
    /// When `recent` was taken, in seconds since the host's start.
    pub(crate) recent_at_s: u32,
    pub(crate) has_recent: bool,
}

/// For `tcp_info`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_retrans: u64,
    pub(crate) segs_out: u32,
    pub(crate) segs_in: u32,
    pub(crate) data_segs_out: u32,
    pub(crate) data_segs_in: u32,
    pub(crate) total_retrans: u32,
    /// Segments that the peer is known to have got; wraps.
    pub(crate) delivered: u32,
    pub(crate) bytes_received: u64,
}

impl Sender {
    /// Bytes the window admits from `nxt` on; 0 when the peer took window back.
    #[inline]
    pub(crate) fn usable_window(&self) -> u32 {
        (self.una + self.wnd).distance(self.nxt).max(0) as u32
    }

    /// Sequence number for a segment without text. Where the peer took window back, `nxt` lies
    /// outside of it, and two peers who both did would never hear each other again.
    #[inline]
    pub(crate) fn acceptable_seq(&self) -> SeqNum {
        self.nxt.earliest(self.una + self.wnd)
    }

    /// Bytes of text sent and not acknowledged.
    pub(crate) fn text_in_flight(&self) -> u32 {
        let fin = u32::from(self.fin == Fin::Sent && self.una != self.nxt);
        self.nxt.since(self.una).saturating_sub(fin)
    }

    /// The sequence number behind the last byte written.
    #[inline]
    pub(crate) fn write_seq(&self) -> SeqNum {
        self.nxt + self.queue.len() as u32
    }

    /// Text or a FIN waits to be sent for the first time.
    #[inline]
    pub(crate) fn has_unsent(&self) -> bool {
        !self.queue.is_empty() || self.fin == Fin::Queued
    }
}

impl TsState {
    /// TSval for a segment that leaves now.
    #[inline]
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    /// Returns the time since the segment was sent that `ecr` echoes; `None` for a value from the
    /// future or from before `since`, which no segment had that the peer may acknowledge now.
    pub(crate) fn since_echo(&self, now: Instant, ecr: u32, since: Instant) -> Option<Nanos> {
        let ms = self.value(now).wrapping_sub(ecr);
        let most = now.since(since).as_millis() + 1;
        // The clock ticks in milliseconds: less than one is not nothing.
        (u64::from(ms) <= most).then(|| Nanos::from_millis(ms.max(1).into()))
    }
}

impl Connection {
    /// Bytes of memory held by text that was written and is not acknowledged, or arrived and is
    /// not read (`mem` of `sockstat`).
    #[inline]
    pub fn truesize(&self) -> usize {
        self.snd.queue.truesize() + self.snd.rtx.truesize() + self.rcv.queue.truesize()
    }

    /// The next segment to send, if the rules let one go now. Call until `None`.
    #[inline]
    pub fn poll_transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.out.any {
            return None;
        }
        self.transmit(cx)
    }

    /// `poll_transmit` might give something (cheap; may be wrong by saying yes).
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.out.any
    }

    /// When to call `handle_timeout`; it may move later without notice (the caller re-reads it
    /// when it fires).
    #[inline]
    pub fn poll_deadline(&self) -> Option<Instant> {
        let ack = self.rcv.ack.deadline();
        let first = self.timers.first().min(ack);
        let flow = self.snd.flow.as_deref();
        let first = flow.map_or(first, |flow| flow.wake_at.min(first));
        (first != Instant::FAR_FUTURE).then_some(first)
    }

    /// Pacing holds text back until then: being called later costs throughput.
    #[inline]
    pub fn paced_until(&self) -> Option<Instant> {
        match self.snd.blocked {
            Blocked::Pacing => self.snd.flow.as_ref().map(|flow| flow.wake_at),
            _ => None,
        }
    }

    /// What waiting users should be told since the last call.
    #[inline]
    pub fn take_wakes(&mut self) -> Wakes {
        core::mem::take(&mut self.user.wakes)
    }

    /// What is added to our timestamps, as `Cx` said when the connection was made.
    #[inline]
    pub fn ts_offset(&self) -> u32 {
        self.ts.offset
    }

    /// The state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Given once, when TIME-WAIT begins: the host lets it answer in this connection's place.
    /// The connection itself is [`State::Closed`] then; it sends what [`Self::wants_transmit`]
    /// still announces, and its user can read what has arrived.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        let mut time_wait = *self.time_wait.take()?;
        // The segment that began TIME-WAIT may have brought a later one (RFC 7323 4.3).
        if let Some(timestamps) = &mut time_wait.timestamps {
            timestamps.recent = self.ts.recent;
        }
        Some(time_wait)
    }
}
