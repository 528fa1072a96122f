//! Cumulative acknowledgement.

use fullsend_wire::{Instant, Nanos, SeqNum, cold_path};

use super::ranges::Pos;
use super::scoreboard::{RetransState, Scoreboard};
use super::{MIN_CAPACITY, RtxQueue};

/// The effects of a cumulative ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AckOutcome {
    /// Segments no longer outstanding, those SACKed earlier included.
    pub(crate) acked_segs: u32,
    /// Segments of `acked_segs` not SACKed earlier: newly delivered.
    pub(crate) delivered_segs: u32,
    /// Bytes of data no longer outstanding.
    pub(crate) acked_bytes: u32,
    /// Round trip time of the oldest super-segment that this ACK delivered, for the RTO; `None` where a
    /// retransmission makes it ambiguous (Karn).
    pub(crate) rtt: Option<Nanos>,
    /// Round trip time of the newest one, without the peer's ACK delay, for congestion control.
    pub(crate) rtt_newest: Option<Nanos>,
    /// The time at which the oldest super-segment was first sent: no echo is older.
    pub(crate) first_sent: Option<Instant>,
    /// The ACK covers retransmitted data.
    pub(crate) retransmitted: bool,
    /// The lowest newly delivered segment that was sent only once.
    pub(crate) original: Option<SeqNum>,
    /// Number of segments by which `original` was late because the path reorders; 0 if it was not.
    pub(crate) reordering_segs: u32,
    /// The new head was SACKed: the receiver discarded it (reneging, RFC 2018 8).
    pub(crate) reneged: bool,
    /// The ACK covers our SYN.
    pub(crate) syn: bool,
    /// The ACK covers our FIN.
    pub(crate) fin: bool,
}

/// The effects of a cumulative ACK while nothing is SACKed, lost or retransmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct UnmarkedAck {
    /// Segments no longer outstanding.
    pub(crate) segs: u32,
    /// Bytes of data no longer outstanding.
    pub(crate) bytes: u32,
    /// The time at which the oldest outstanding super-segment was sent: no echo is older.
    pub(crate) first_sent: Option<Instant>,
    /// Round trip times of the oldest and the newest super-segment that this ACK delivered.
    pub(crate) rtts: Option<(Nanos, Nanos)>,
    /// The ACK covers our FIN.
    pub(crate) fin: bool,
}

/// The segments that an ACK removed from the queue.
#[derive(Clone, Copy, Default)]
struct Removed {
    segs: u32,
    /// Send time of the newest super-segment of which the ACK covers a segment.
    newest: Option<Instant>,
    syn: bool,
    fin: bool,
}

/// The scoreboard's entries for the data that an ACK covers.
struct AckedMarks {
    sacked_segs: u32,
    /// Send times of the oldest and the newest super-segment with data not SACKed and sent only once.
    span: Option<(Instant, Instant)>,
}

impl RtxQueue {
    /// Processes a cumulative ACK up to `snd_una`.
    pub(crate) fn ack(&mut self, now: Instant, snd_una: SeqNum) -> AckOutcome {
        let mut out = AckOutcome::default();
        let Some(first_sent) = self.entries.front().map(|head| head.sent_at) else {
            return out;
        };
        out.first_sent = Some(first_sent);
        let known = if self.board.is_some() {
            cold_path();
            Some(self.ack_board(snd_una, &mut out))
        } else {
            self.record_delivered(snd_una);
            None
        };
        let prior = core::mem::replace(&mut self.una, snd_una);
        let removed = self.remove_acked(snd_una);
        let newest = removed.newest;
        (out.syn, out.fin) = (removed.syn, removed.fin);
        out.acked_segs = removed.segs;
        let flags = u32::from(out.syn) + u32::from(out.fin);
        out.acked_bytes = snd_una.since(prior).saturating_sub(flags);
        out.delivered_segs = out.acked_segs;
        let mut span = newest.map(|newest| (first_sent, newest));
        if let Some(known) = known {
            cold_path();
            out.delivered_segs -= known.sacked_segs.min(out.acked_segs);
            span = known.span;
            self.update_board_after_ack(snd_una, &mut out);
        }
        // Karn: an ACK that covers a retransmission may be for the original or the retransmission, and
        // other data that it covers may have waited for either.
        if let Some((oldest, newest)) = span
            && !out.retransmitted
        {
            out.rtt = Some(now.since(oldest));
            out.rtt_newest = Some(now.since(newest));
        }
        out
    }

    /// Performs [`ack`](Self::ack) while nothing is SACKed, lost or retransmitted and no delivery rates
    /// are sampled.
    #[inline(always)]
    pub(crate) fn ack_unmarked(&mut self, now: Instant, snd_una: SeqNum) -> UnmarkedAck {
        debug_assert!(self.board.is_none() && self.delivery.is_none());
        let Some(head) = self.entries.front() else {
            cold_path();
            return UnmarkedAck::default();
        };
        let first_sent = head.sent_at;
        let prior = core::mem::replace(&mut self.una, snd_una);
        let removed = self.remove_acked(snd_una);
        let flags = u32::from(removed.syn) + u32::from(removed.fin);
        UnmarkedAck {
            segs: removed.segs,
            bytes: snd_una.since(prior).saturating_sub(flags),
            first_sent: Some(first_sent),
            rtts: removed
                .newest
                .map(|newest| (now.since(first_sent), now.since(newest))),
            fin: removed.fin,
        }
    }

    /// Removes the super-segments, and the whole segments of the head, that an ACK covers.
    #[inline(always)]
    fn remove_acked(&mut self, snd_una: SeqNum) -> Removed {
        let mut removed = Removed::default();
        let mut truesize = 0;
        while let Some(head) = self.entries.front() {
            if head.end().after(snd_una) {
                removed.segs += self.trim_head(snd_una, &mut removed);
                break;
            }
            removed.newest = Some(head.sent_at);
            removed.segs += head.segs;
            truesize += head.truesize;
            removed.syn |= head.syn;
            removed.fin |= head.fin;
            if let Some(delivery) = &mut self.delivery {
                cold_path();
                delivery.on_entry_removed();
            }
            self.entries.pop_front();
        }
        self.packets_out -= removed.segs;
        self.truesize -= truesize;
        if self.entries.is_empty() && self.entries.capacity() > MIN_CAPACITY {
            cold_path();
            self.entries.shrink_to(MIN_CAPACITY);
        }
        removed
    }

    /// Reports the newest super-segment of which the ACK covers a segment to the sampler.
    #[inline]
    fn record_delivered(&mut self, snd_una: SeqNum) {
        if self.delivery.is_none() {
            return;
        }
        cold_path();
        let last = self.index_after(self.floor(snd_una) - 1);
        if let (Some(entry), Some(delivery)) = (self.entries.get(last), &mut self.delivery) {
            delivery.on_entry_delivered(last, entry.sent_at, snd_una);
        }
    }

    /// Removes the whole segments of the head that the ACK covers. Returns their number.
    #[inline]
    fn trim_head(&mut self, snd_una: SeqNum, removed: &mut Removed) -> u32 {
        let mss = self.mss.bytes();
        let Some(head) = self
            .entries
            .front_mut()
            .filter(|head| snd_una.after(head.seq))
        else {
            return 0;
        };
        if head.syn {
            cold_path();
            (head.syn, removed.syn) = (false, true);
            head.seq += 1;
        }
        let data_len = head.payload.len() as u32;
        // The last segment stays: an ACK that covered it whole would have removed the head.
        let whole = (snd_una.since(head.seq) / mss).min(head.segs - 1);
        let bytes = (whole * mss).min(data_len);
        if whole == 0 {
            return 0;
        }
        head.payload.advance(bytes as usize);
        head.seq += bytes;
        head.segs -= whole;
        head.first_seg = head.first_seg.wrapping_add(whole);
        removed.newest = Some(head.sent_at);
        whole
    }

    /// Removes the scoreboard's entries for the data that the ACK covers, and returns them.
    #[cold]
    fn ack_board(&mut self, snd_una: SeqNum, out: &mut AckOutcome) -> AckedMarks {
        let mut board = self.take_board();
        let from = board.pos(self.entries.front().map_or(self.una, |u| u.seq));
        let to = board.pos(self.floor(snd_una.earliest(self.end())));
        let highest = board.sacked.end();
        let mut span = None;
        if let Some((first, last)) = originals_within(&board, from, to) {
            let seq = board.seq(first);
            out.original = Some(seq);
            if let Some(highest) = highest.filter(|&high| first < high) {
                out.reordering_segs = self.mss.segments(board.seq(highest).since(seq));
            }
            let i = self.index_after(board.seq(last));
            let sent_at = self.entries[i].sent_at;
            span = Some((self.entries[self.index_after(seq)].sent_at, sent_at));
            board.rack.record_delivered(sent_at, last + 1);
            if let Some(delivery) = &mut self.delivery {
                delivery.on_entry_delivered(i, sent_at, board.seq(last) + 1);
            }
        }
        self.ack_retrans(&mut board, to, out);
        let base = board.base;
        let (mut sacked_segs, mut lost_pending) = (0, 0);
        let count = |n: &mut u32, a, b| *n += self.segs(base, a, b);
        board
            .sacked
            .remove(0, to, |a, b| count(&mut sacked_segs, a, b));
        board
            .lost
            .remove(0, to, |a, b| count(&mut lost_pending, a, b));
        board.sacked_out -= sacked_segs;
        board.lost_pending -= lost_pending;
        board.rack.scan_start = board.rack.scan_start.max(to);
        self.board = Some(board);
        AckedMarks { sacked_segs, span }
    }

    fn ack_retrans(&mut self, board: &mut Scoreboard, to: Pos, out: &mut AckOutcome) {
        board.split_retrans(to);
        while let Some((&start, &retrans)) = board.retransmissions.first_key_value() {
            if start >= to {
                break;
            }
            out.retransmitted = true;
            if board.sacked.at(start).is_none() {
                board
                    .rack
                    .record_retrans_acked(retrans.sent_at, retrans.end);
                if let (Some(delivery), Some(snapshot)) = (&mut self.delivery, retrans.snapshot) {
                    delivery.on_data_delivered(snapshot, retrans.sent_at, board.seq(retrans.end));
                }
            }
            if retrans.state != RetransState::Done {
                self.end_retrans(board, start);
            }
            board.retransmissions.remove(&start);
        }
    }

    /// Updates the scoreboard after the super-segments were removed: the count of duplicate ACKs, and
    /// the scoreboard itself if no range is marked and RACK has nothing to judge.
    fn update_board_after_ack(&mut self, snd_una: SeqNum, out: &mut AckOutcome) {
        let packets_out = self.packets_out;
        let mut board = self.take_board();
        board.rebase(snd_una);
        out.reneged = board.sacked.at(board.pos(snd_una)).is_some();
        // Without SACK: the first segment that this ACK covers filled the hole. Duplicate ACKs have
        // counted the others.
        let known = board.dupacks.min(out.acked_segs.saturating_sub(1));
        board.dupacks = (board.dupacks - known).min(packets_out);
        out.delivered_segs -= known.min(out.delivered_segs);
        if packets_out == 0 {
            board.rack.end_ack(false);
        }
        self.put_board(board);
    }

    /// Ends the processing of an ACK by RACK, and drops the scoreboard if it is empty.
    pub(crate) fn end_ack(&mut self) {
        if let Some(mut board) = self.board.take() {
            board.rack.end_ack(!self.entries.is_empty());
            self.put_board(board);
        }
    }

    /// Counts a duplicate ACK on a connection without SACK: one more segment has left the network
    /// (RFC 5681 3.2). Returns `false` if there are more than segments above the hole, which do not
    /// count.
    pub(crate) fn on_dupack(&mut self) -> bool {
        let packets_out = self.packets_out;
        let mut board = self.take_board();
        let most = packets_out.saturating_sub(board.lost_out().max(1));
        let counts = board.dupacks < most;
        board.dupacks = (board.dupacks + 1).min(most);
        self.put_board(board);
        counts
    }

    /// Discards the count of duplicate ACKs, because recovery ended, or new data was acknowledged before
    /// there were enough of them.
    pub(crate) fn forget_dupacks(&mut self) {
        if let Some(mut board) = self.board.take() {
            board.dupacks = 0;
            self.put_board(board);
        }
    }
}

/// Returns the first and the last byte in a range that were sent only once and are not SACKed.
fn originals_within(board: &Scoreboard, from: Pos, to: Pos) -> Option<(Pos, Pos)> {
    let known = |pos| {
        board.sacked.at(pos).or_else(|| {
            let (&start, retrans) = board.retransmissions.range(..=pos).next_back()?;
            (pos < retrans.end).then_some((start, retrans.end))
        })
    };
    let mut first = from;
    while first < to
        && let Some((_, end)) = known(first)
    {
        first = end;
    }
    if first >= to {
        return None;
    }
    let mut last = to - 1;
    while let Some((start, _)) = known(last) {
        last = start - 1;
    }
    Some((first, last))
}

#[cfg(test)]
mod tests;
