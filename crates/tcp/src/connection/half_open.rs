//! The transfer of a half-open connection, which the host kept in a smaller form or not at all (RFC
//! 4987 3.6), to a [`Connection`].

use fullsend_offload::Chain;
use fullsend_wire::{Instant, WindowScale};

use super::{Connection, State};
use crate::Cx;
use crate::recovery::SuperSegment;

/// The SYN-ACK that the host sent before the connection existed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SynAckSent {
    /// The time at which the SYN-ACK was first sent.
    pub first_at: Instant,
    /// The time at which the SYN-ACK was last sent.
    pub at: Instant,
    /// Whether its answer gives no RTT sample: the SYN-ACK was sent more than once (Karn), or at an
    /// unknown time.
    pub ambiguous: bool,
    /// The window scale that it offered.
    pub window_scale: u8,
    /// Number of retransmissions.
    pub repeats: u8,
    /// Number of timeouts.
    pub timeouts: u8,
    /// Whether the SYN was retransmitted without its ECN flags.
    pub ecn_withdrawn: bool,
}

impl Connection {
    /// Returns the window scale that our SYN or SYN-ACK offers.
    pub fn offered_scale(&self) -> u8 {
        self.rcv.scale().shift()
    }

    /// Enables receive-buffer autotuning once the application has accepted the connection.
    pub fn on_accepted(&mut self) {
        self.rcv.set_awaiting_accept(false);
    }

    /// Continues a connection created by [`accept`](Self::accept) as if it had sent its SYN-ACK
    /// already: it waits for the answer.
    pub fn assume_syn_ack(&mut self, cx: &mut Cx<'_>, sent: SynAckSent) {
        debug_assert!(self.state == State::SynReceived && self.recovery.rtx.is_empty());
        let iss = self.snd.una();
        self.rcv.set_awaiting_accept(true);
        self.snd.pending_mut().cancel_all();
        self.recovery.rtx.push(SuperSegment {
            seq: iss,
            payload: Chain::new(),
            syn: true,
            fin: false,
            push: false,
            sent_at: sent.at,
            truesize: 0,
            number: 0,
        });
        if sent.ambiguous {
            self.recovery.rtx.retransmit_head(sent.at, 1);
        }
        self.snd.on_syn_sent();
        if self.negotiated.window_scale {
            let scale = WindowScale::clamped(sent.window_scale);
            self.rcv.set_scale(scale);
        }
        self.stats.total_retrans = sent.repeats.into();
        self.timers.retransmits = sent.timeouts;
        self.timers.progress_at = sent.first_at;
        if let Some(ecn) = self.ecn.as_mut().filter(|_| sent.ecn_withdrawn) {
            ecn.on_syn_without_ecn();
        }
        self.arm_rto(cx);
    }

    /// Requests a retransmission of the SYN-ACK.
    pub fn retransmit_syn_ack(&mut self) {
        if self.state == State::SynReceived {
            self.snd.pending_mut().request_syn();
        }
    }
}
