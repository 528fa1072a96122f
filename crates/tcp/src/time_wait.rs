//! TIME-WAIT: the state of a connection that is kept for 2 MSL (RFC 9293 3.10.7.4, RFC 6191).

use fullsend_offload::Chain;
use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};
use fullsend_wire::{EcnField, Instant, Nanos, SeqNum, WireWindow};

use crate::{Cx, SegmentIn, SegmentOut};

/// 2 MSL; matches Linux.
const TIME_WAIT: Nanos = Nanos::from_secs(60);

/// A closed connection that still answers its old segments.
#[derive(Debug)]
pub struct TimeWait {
    /// The time at which the host may drop the entry.
    pub expires: Instant,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    pub(crate) snd_nxt: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) window: WireWindow,
    /// The peer's last timestamp and the offset of ours, if the connection used timestamps.
    pub(crate) timestamps: Option<TwTimestamps>,
    pub(crate) last_reply: Option<Instant>,
}

/// RFC 7323 state that outlives the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TwTimestamps {
    pub(crate) recent: u32,
    pub(crate) offset: u32,
}

/// The host's action for a segment of a TIME-WAIT entry.
#[derive(Debug)]
pub enum TimeWaitAction {
    /// Drop the segment.
    Drop,
    /// Send this segment.
    Reply(SegmentOut),
    /// The segment is a new SYN that is provably later (RFC 6191, RFC 9293): remove the entry and
    /// pass the segment to the listener, with an ISN not before [`TimeWait::reuse_isn`].
    Reuse,
    /// Remove the entry: an acceptable RST, and RFC 1337 is off.
    Remove,
}

impl TimeWait {
    /// Starts the period of 2 MSL again.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.expires = now + TIME_WAIT;
    }

    /// Returns the least ISN with which a new incarnation cannot be confused with the old one.
    pub fn reuse_isn(&self) -> SeqNum {
        self.snd_nxt + 65_537
    }

    /// Returns whether a new connection of this host may replace the entry. From one second after
    /// the entry's last segment, timestamps distinguish the two (RFC 6191; Linux's `tcp_tw_reuse`).
    pub fn is_reusable(&self, now: Instant) -> bool {
        self.timestamps.is_some() && now + TIME_WAIT >= self.expires + Nanos::from_secs(1)
    }

    /// Processes a segment for the entry and returns the host's action.
    pub fn handle_segment(&mut self, cx: &mut Cx<'_>, segment: &SegmentIn) -> TimeWaitAction {
        let repr = &segment.repr;
        let flags = repr.flags;
        let ts = repr.options.timestamps.zip(self.timestamps);
        let later_ts = ts.is_some_and(|(seg, tw)| (seg.val.wrapping_sub(tw.recent) as i32) > 0);
        // A TSval of 0 is no clock's (see `TsState::take`).
        let stale_ts = ts.is_some_and(|(seg, tw)| {
            tw.recent != 0 && (seg.val.wrapping_sub(tw.recent) as i32) < 0
        });
        let empty = segment.payload.is_empty() && !flags.intersects(syn_or_fin());

        if !stale_ts && repr.seq == self.rcv_nxt && (empty || flags.contains(TcpFlags::RST)) {
            return self.on_in_sequence(cx, segment);
        }
        // RFC 6191 2 / RFC 9293 3.10.7.4: a SYN is later by timestamp or by sequence number.
        let fresh_syn = flags.contains(TcpFlags::SYN)
            && !flags.intersects(TcpFlags::RST.union(TcpFlags::ACK))
            && !stale_ts;
        if fresh_syn && (repr.seq.after(self.rcv_nxt) || later_ts) {
            return TimeWaitAction::Reuse;
        }
        if stale_ts {
            cx.mib.paws_estab += 1;
        }
        let acks = flags.contains(TcpFlags::ACK);
        // RFC 5961 4.2: a SYN is challenged. A peer in SYN-SENT answers by a RST, which ends
        // TIME-WAIT, and its next SYN opens the connection.
        let needs_reply = stale_ts || acks || flags.contains(TcpFlags::SYN);
        if flags.contains(TcpFlags::RST) || !needs_reply {
            return TimeWaitAction::Drop;
        }
        if stale_ts || acks {
            // RFC 9293 3.10.7.4: the peer did not receive our last ACK; restart the wait.
            self.restart(cx.now);
        }
        self.reply(cx)
    }

    fn on_in_sequence(&mut self, cx: &Cx<'_>, segment: &SegmentIn) -> TimeWaitAction {
        if segment.repr.flags.contains(TcpFlags::RST) {
            // With RFC 1337 enabled, an old RST must not end the wait.
            return if cx.sysctl.tcp_rfc1337 {
                TimeWaitAction::Drop
            } else {
                TimeWaitAction::Remove
            };
        }
        if let (Some(seg), Some(tw)) = (segment.repr.options.timestamps, &mut self.timestamps) {
            tw.recent = seg.val;
        }
        TimeWaitAction::Drop
    }

    fn reply(&mut self, cx: &mut Cx<'_>) -> TimeWaitAction {
        // RFC 5961 10: two desynchronized ends must not keep answering each other.
        let interval = Nanos::from_millis(cx.sysctl.tcp_invalid_ratelimit.into());
        if self
            .last_reply
            .is_some_and(|last| cx.now.since(last) < interval)
        {
            cx.mib.ack_skipped_time_wait += 1;
            return TimeWaitAction::Drop;
        }
        self.last_reply = Some(cx.now);
        cx.mib.out_segs += 1;
        TimeWaitAction::Reply(SegmentOut {
            repr: TcpRepr {
                src_port: self.local_port,
                dst_port: self.remote_port,
                seq: self.snd_nxt,
                ack: self.rcv_nxt,
                flags: TcpFlags::ACK,
                window: self.window,
                urgent: 0,
                options: TcpOptions {
                    timestamps: self.timestamps.map(|tw| Timestamps {
                        val: (cx.now.as_millis() as u32).wrapping_add(tw.offset),
                        ecr: tw.recent,
                    }),
                    ..TcpOptions::default()
                },
            },
            payload: Chain::new(),
            gso_size: 0,
            gso_segs: 1,
            ecn: EcnField::NotEct,
            repeats_cwr: false,
            departure: Instant::ZERO,
            truesize: 0,
        })
    }
}

fn syn_or_fin() -> TcpFlags {
    TcpFlags::SYN.union(TcpFlags::FIN)
}
