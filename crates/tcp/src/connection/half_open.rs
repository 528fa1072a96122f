//! A handshake that the host kept in a smaller form, or not at all (RFC 4987 3.6), goes on in a
//! connection.

use fullsend_buf::Chain;
use fullsend_units::{Instant, WindowScale};

use super::{Connection, State};
use crate::Cx;
use crate::recovery::TransmitUnit;

/// The SYN-ACK that was sent for a connection before there was one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SynAckSent {
    /// When it was sent first.
    pub first_at: Instant,
    /// When it was sent last.
    pub at: Instant,
    /// Its answer tells no round-trip time: it was sent more than once (Karn), or nobody knows
    /// when.
    pub ambiguous: bool,
    /// The window scale it offered.
    pub window_scale: u8,
    /// How often it had been sent before.
    pub repeats: u8,
    /// How often it had timed out.
    pub timeouts: u8,
    /// The SYN has come again without its ECN flags.
    pub ecn_withdrawn: bool,
}

impl Connection {
    /// The window scale that our SYN or SYN-ACK offers.
    pub fn offered_scale(&self) -> u8 {
        self.rcv.window.scale().shift()
    }

    /// The user has it, not its listener any more.
    pub fn on_accepted(&mut self) {
        self.rcv.window.set_waiting(false);
    }

    /// Takes a SYN-ACK of [`accept`](Self::accept)'s as sent already: the connection waits for its
    /// answer.
    pub fn assume_syn_ack(&mut self, cx: &mut Cx<'_>, sent: SynAckSent) {
        debug_assert!(self.state == State::SynReceived && self.snd.rtx.is_empty());
        let iss = self.snd.una;
        self.rcv.window.set_waiting(true);
        self.out.syn = false;
        self.out.any = false;
        self.snd.rtx.push(TransmitUnit {
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
            self.snd.rtx.retransmit_head(sent.at, 1);
        }
        self.snd.nxt = iss + 1;
        self.snd.pushed = self.snd.nxt;
        self.snd.sml = iss;
        if self.agreed.window_scale {
            let scale = WindowScale::clamped(sent.window_scale);
            self.rcv.window.set_scale(scale);
        }
        self.stats.total_retrans = sent.repeats.into();
        self.timers.retransmits = sent.timeouts;
        self.timers.progress_at = sent.first_at;
        if let Some(ecn) = self.ecn.as_mut().filter(|_| sent.ecn_withdrawn) {
            ecn.hear_bare_syn();
        }
        self.arm_rto(cx);
    }

    /// The SYN-ACK goes once more.
    pub fn repeat_syn_ack(&mut self) {
        if self.state == State::SynReceived {
            self.out.syn = true;
            self.out.any = true;
        }
    }
}
