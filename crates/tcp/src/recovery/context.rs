//! The values that recovery reads of other parts of the connection, and the actions that it requires of
//! them.

use fullsend_wire::{Instant, Mss, SeqNum};

use crate::congestion::Congestion;
use crate::rtt::RttEstimator;
use crate::{Sysctl, TcpMib};

/// The parts and values that recovery uses while it processes one event.
pub(crate) struct RecoveryCx<'a> {
    pub(crate) now: Instant,
    pub(crate) sysctl: &'a Sysctl,
    pub(crate) mib: &'a mut TcpMib,
    pub(crate) congestion: &'a mut Congestion,
    pub(crate) rtt: &'a RttEstimator,
    /// Both sides use SACK.
    pub(crate) sack: bool,
    /// Both sides use timestamps.
    pub(crate) timestamps: bool,
    pub(crate) snd: SendVars,
    /// The requests to other parts, applied after the event.
    pub(crate) actions: RecoveryActions,
}

/// The variables of the send side that recovery reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendVars {
    pub(crate) una: SeqNum,
    pub(crate) nxt: SeqNum,
    pub(crate) max_wnd: u32,
    pub(crate) mss: Mss,
    /// The window admits unsent data.
    pub(crate) may_send: bool,
    /// Segments ever retransmitted.
    pub(crate) total_retrans: u32,
    /// The retransmission timer fired since data was last acknowledged.
    pub(crate) timed_out: bool,
    /// The start of the path MTU probe in flight.
    pub(crate) mtu_probe: Option<SeqNum>,
}

/// The actions that recovery requires of other parts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecoveryActions {
    /// The timer to set, which the retransmission timer must not replace.
    pub(crate) timer: Option<RecoveryTimer>,
    /// The report of a reduction to the peer by CWR (RFC 3168 6.1.2).
    pub(crate) cwr: Option<CwrAction>,
    /// The timeouts were spurious and do not count.
    pub(crate) forget_timeouts: bool,
    /// The path MTU probe is lost.
    pub(crate) mtu_probe_lost: bool,
}

/// A timer of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryTimer {
    /// Overtaken segments count as lost at this time (RFC 8985 6.3).
    Reordering(Instant),
    /// The peer has discarded SACKed data if it does not acknowledge it by this time (RFC 2018 8).
    Reneging(Instant),
}

/// A change of the pending CWR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CwrAction {
    /// cwnd is reduced.
    Queue,
    /// The reduction was undone.
    Withdraw,
}
