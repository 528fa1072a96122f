//! The connection: its parts, and the calls of its host.

mod ack;
mod build;
mod close;
mod ecn;
mod fastopen;
mod half_open;
mod handshake;
mod icmp;
mod info;
mod input;
mod inspect;
mod memory;
mod mtu_probing;
mod payload;
mod prefetch;
mod readable;
mod readiness;
mod recovery;
mod retransmit;
mod rto_stats;
mod send_cx;
mod settings;
mod state;
mod syn_loss;
mod timers;
mod transmit;
mod uncommon;
mod urgent;
mod user;
mod watch;
mod writable;

use alloc::boxed::Box;

use fullsend_wire::{Instant, Mss, Nanos};

use crate::congestion::Congestion;
use crate::ecn::Ecn;
use crate::recovery::Recovery;
use crate::recv::Receiver;
use crate::rtt::RttEstimator;
use crate::send::Sender;
use crate::{TcpError, TimeWait, Wakes};

pub use fastopen::{FastopenClient, FastopenEvent};
pub use half_open::SynAckSent;
pub(crate) use mtu_probing::MtuProbeDecision;
pub use readiness::Readiness;
pub use settings::IpSettings;
pub(crate) use settings::Settings;
pub use state::State;
pub(crate) use timers::Timers;
pub(crate) use uncommon::Uncommon;
pub use watch::{TxEvent, TxStage, TxStages};

/// One end of one TCP connection.
///
/// The host calls [`handle_segment`](Self::handle_segment),
/// [`handle_timeout`](Self::handle_timeout) when [`poll_deadline`](Self::poll_deadline) has passed,
/// [`handle_icmp`](Self::handle_icmp) and [`handle_tx_complete`](Self::handle_tx_complete); the
/// application's calls come in between. After any of them the host calls
/// [`poll_transmit`](Self::poll_transmit) until it returns `None` if
/// [`needs_transmit`](Self::needs_transmit), then [`take_wakes`](Self::take_wakes) and
/// [`take_time_wait`](Self::take_time_wait).
pub struct Connection {
    state: State,
    local_port: u16,
    remote_port: u16,
    /// The largest segment that we can receive (sent as MSS option).
    adv_mss: Mss,
    negotiated: NegotiatedOptions,
    user: UserState,
    snd: Sender,
    rcv: Receiver,
    ts: TsState,
    congestion: Congestion,
    rtt: RttEstimator,
    recovery: Recovery,
    /// Present if the connection uses or requests ECN.
    ecn: Option<Box<Ecn>>,
    timers: Timers,
    settings: Settings,
    stats: Stats,
    time_wait: Option<Box<TimeWait>>,
    /// State of features that few connections use.
    uncommon: Option<Box<Uncommon>>,
    /// Units of memory that the host has been charged for our queues.
    mem_units: u32,
    /// Bytes of the window that the host counts; 0 without data.
    mem_window: u32,
}

/// The options of the handshake: those that our SYN offers, then those that both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NegotiatedOptions {
    timestamps: bool,
    sack: bool,
    window_scale: bool,
}

/// The application's side: its requests and the wake-ups it waits for.
#[derive(Debug, Default)]
pub(crate) struct UserState {
    /// A task waits to read, or to write (NOSPACE).
    reader_waiting: bool,
    writer_waiting: bool,
    wakes: Wakes,
    error: Option<TcpError>,
    /// The error that ICMP reported for a connection that continues (RFC 1122 4.2.3.9).
    soft_error: Option<TcpError>,
    /// The connection ended before all data written was acknowledged.
    lost_data: bool,
    read_shut: bool,
    /// Data that arrives from now on resets the connection.
    resets_on_data: bool,
    write_shut: bool,
    /// The application has closed the socket; nothing is read or reported any more.
    orphan: bool,
    /// The application opened the connection actively.
    active_open: bool,
}

/// The state of the timestamps option (RFC 7323 3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TsState {
    offset: u32,
    recent: u32,
    /// The time at which `recent` was received, in seconds since the host's start.
    recent_at_s: u32,
    /// `recent` is valid (RFC 7323 5.3 R1).
    has_recent: bool,
}

/// Counters for `tcp_info`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    bytes_acked: u64,
    bytes_retrans: u64,
    segs_out: u32,
    segs_in: u32,
    data_segs_out: u32,
    data_segs_in: u32,
    total_retrans: u32,
    /// Segments known to be delivered to the peer; wraps.
    delivered: u32,
    bytes_received: u64,
}

impl TsState {
    /// Returns the TSval of a segment that is sent now.
    #[inline]
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    /// Returns the time since the segment was sent that `ecr` echoes; `None` for a value from the
    /// future or from before `since`, which no segment had that the peer may acknowledge now.
    pub(crate) fn since_echo(&self, now: Instant, ecr: u32, since: Instant) -> Option<Nanos> {
        let ms = self.value(now).wrapping_sub(ecr);
        let most = now.since(since).as_millis() + 1;
        // The clock ticks in milliseconds: an age below one tick is not zero.
        (u64::from(ms) <= most).then(|| Nanos::from_millis(ms.max(1).into()))
    }
}

impl Connection {
    /// Returns whether `poll_transmit` may return a segment (cheap; false positives are possible).
    #[inline]
    pub fn needs_transmit(&self) -> bool {
        self.snd.pending().is_requested() || self.rcv.is_ack_due()
    }

    /// Returns when to call `handle_timeout`. The deadline may move later without notice; the
    /// caller reads it again when it fires.
    #[inline]
    pub fn poll_deadline(&self) -> Option<Instant> {
        let ack = self.rcv.ack_deadline();
        let first = self.timers.earliest().min(ack);
        let first = first.min(self.snd.send_timer());
        (first != Instant::FAR_FUTURE).then_some(first)
    }

    /// Returns until when pacing defers data; calling `poll_transmit` later costs throughput.
    #[inline]
    pub fn paced_until(&self) -> Option<Instant> {
        self.snd.paced_until()
    }

    /// Returns the wake-ups due since the last call, and clears them.
    #[inline]
    pub fn take_wakes(&mut self) -> Wakes {
        core::mem::take(&mut self.user.wakes)
    }

    /// Returns the offset of our timestamps, from the `Cx` that the connection was created with.
    #[inline]
    pub fn ts_offset(&self) -> u32 {
        self.ts.offset
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the TIME-WAIT entry, once, when TIME-WAIT begins: the host lets it answer in this
    /// connection's place. The connection itself is then [`State::Closed`]: it sends what
    /// [`Self::needs_transmit`] still announces, and its application can read received data.
    pub fn take_time_wait(&mut self) -> Option<TimeWait> {
        let mut time_wait = *self.time_wait.take()?;
        // The segment that began TIME-WAIT may have carried a later timestamp (RFC 7323 4.3).
        if let Some(timestamps) = &mut time_wait.timestamps {
            timestamps.recent = self.ts.recent;
        }
        Some(time_wait)
    }
}

/// The parts, for tests that check one of them.
#[cfg(test)]
pub(crate) struct TestParts<'a> {
    pub(crate) snd: &'a Sender,
    pub(crate) recovery: &'a Recovery,
    pub(crate) congestion: &'a Congestion,
    pub(crate) rtt: &'a RttEstimator,
    pub(crate) settings: &'a Settings,
    pub(crate) data_segs_out: &'a u32,
    pub(crate) uncommon: &'a Option<Box<Uncommon>>,
}

/// The parts, for tests that set one of them up.
#[cfg(test)]
pub(crate) struct TestPartsMut<'a> {
    pub(crate) snd: &'a mut Sender,
    pub(crate) recovery: &'a mut Recovery,
    pub(crate) congestion: &'a mut Congestion,
    pub(crate) rtt: &'a mut RttEstimator,
    pub(crate) settings: &'a mut Settings,
    pub(crate) data_segs_out: &'a mut u32,
    pub(crate) state: &'a mut State,
}

#[cfg(test)]
impl Connection {
    /// Returns the parts, for tests of one of them.
    pub(crate) fn parts(&self) -> TestParts<'_> {
        TestParts {
            snd: &self.snd,
            recovery: &self.recovery,
            congestion: &self.congestion,
            rtt: &self.rtt,
            settings: &self.settings,
            data_segs_out: &self.stats.data_segs_out,
            uncommon: &self.uncommon,
        }
    }

    /// Returns the parts, for tests of one of them.
    pub(crate) fn parts_mut(&mut self) -> TestPartsMut<'_> {
        TestPartsMut {
            snd: &mut self.snd,
            recovery: &mut self.recovery,
            congestion: &mut self.congestion,
            rtt: &mut self.rtt,
            settings: &mut self.settings,
            data_segs_out: &mut self.stats.data_segs_out,
            state: &mut self.state,
        }
    }
}
