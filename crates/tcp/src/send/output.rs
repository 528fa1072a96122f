//! The transmit loop: what leaves next, and what holds it back.

use fullsend_units::Nanos;
use fullsend_wire::tcp::TcpFlags;

use super::build::Draft;
use super::nagle::{Nagle, small_outstanding};
use super::split::{DeferInput, defers, split_point};
use crate::connection::{Connection, Fin, State};
use crate::recovery::{Phase, TransmitUnit};
use crate::{Cx, SegmentOut, SendLimit};

/// What kept unsent text back at the last attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blocked {
    /// Nothing did.
    No,
    /// Nagle, or a cork.
    Nagle,
    Cwnd,
    Rwnd,
    Pacing,
    /// A larger unit will be possible soon.
    Defer,
}

/// Text that may go now.
struct Grant {
    /// Bytes; 0 is a FIN by itself.
    len: u32,
    /// The rule that determined it.
    limit: SendLimit,
    /// Bytes that window and cwnd still admit.
    headroom: u32,
}

impl Connection {
    pub(crate) fn transmit(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if !self.state.is_synchronized() || self.out.reset.is_some() {
            let segment = self.unusual_segment(cx);
            self.after_transmit(cx, segment.is_some());
            return segment;
        }
        let Some(draft) = self.next_draft(cx) else {
            self.after_transmit(cx, false);
            return None;
        };
        let segment = self.build(cx, draft);
        self.after_transmit(cx, true);
        Some(segment)
    }

    #[inline]
    fn after_transmit(&mut self, cx: &mut Cx<'_>, sent: bool) {
        self.out.any = sent && self.has_more();
        if !self.snd.has_unsent() {
            self.report_held(cx, SendLimit::Application);
        }
        if !self.out.any {
            // What left the queue counts against TCP_NOTSENT_LOWAT no longer.
            self.wake_writer_if_room(cx);
        }
    }

    /// Behind the segment that has just been built another one might follow.
    #[inline]
    fn has_more(&self) -> bool {
        self.snd.has_unsent()
            || self.rcv.ack.is_due()
            || self.snd.rtx.has_lost()
            || self.out.has_extras()
    }

    /// A reset, and what goes while there is no connection yet or no longer.
    #[inline(never)]
    fn unusual_segment(&mut self, cx: &mut Cx<'_>) -> Option<SegmentOut> {
        if let Some(reset) = self.out.reset.take() {
            return Some(self.build_reset(cx, reset));
        }
        let syn = match self.state {
            State::SynSent => return self.syn_segment(cx),
            State::SynReceived => self.syn_segment(cx),
            _ => None,
        };
        syn.or_else(|| self.due_ack(cx).map(|draft| self.build(cx, draft)))
    }

    /// Repairs go before new text, and an acknowledgement by itself goes only if nothing else
    /// carried it.
    #[inline]
    fn next_draft(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if self.snd.rtx.has_lost()
            && let Some(draft) = self.retransmission(cx)
        {
            return Some(draft);
        }
        if let Some(grant) = self.new_text(cx) {
            return Some(self.send_text(cx, &grant));
        }
        self.probe(cx).or_else(|| self.due_ack(cx))
    }

    #[inline(never)]
    fn retransmission(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        let room = self.cwnd.cwnd.saturating_sub(self.snd.rtx.in_flight());
        if room == 0 {
            return None;
        }
        let limit = room.min(self.max_segs(cx));
        let again = self.snd.rtx.next_retransmit(cx.now, limit)?;
        let len = again.payload.len() as u64;
        cx.mib.retrans_segs += u64::from(again.segs);
        match self.recovery.phase() {
            Phase::Loss => cx.mib.slow_start_retrans += u64::from(again.segs),
            _ => cx.mib.fast_retrans += u64::from(again.segs),
        }
        self.stats.total_retrans = self.stats.total_retrans.wrapping_add(again.segs);
        self.stats.bytes_retrans += len;
        let stamp = self.ts.value(cx.now);
        self.recovery.on_retransmit(stamp, again.segs);
        if again.seq == self.snd.una {
            // The repair deserves a round trip of its own before the timer judges it.
            self.arm_rto(cx);
        }
        self.snd.wmem_inflight = self.snd.wmem_inflight.saturating_add(again.truesize);
        self.pace(cx.now, cx.sysctl, len);
        let mut flags = TcpFlags::ACK;
        if len > 0 {
            flags = flags.union(TcpFlags::PSH);
        }
        if again.fin {
            flags = flags.union(TcpFlags::FIN);
        }
        Some(Draft {
            seq: again.seq,
            flags,
            payload: again.payload,
            segs: again.segs,
            truesize: again.truesize,
        })
    }

    /// Text that goes now for the first time.
    fn new_text(&mut self, cx: &mut Cx<'_>) -> Option<Grant> {
        if !self.snd.has_unsent() {
            self.snd.blocked = Blocked::No;
            return None;
        }
        let force = core::mem::take(&mut self.out.force);
        let admitted = match self.admit(cx) {
            Err(_) if force => self.force_one(),
            admitted => admitted,
        };
        match admitted {
            Ok(grant) => {
                self.snd.blocked = Blocked::No;
                Some(grant)
            }
            Err(why) => {
                self.on_blocked(cx, why);
                self.out.probe |= force;
                None
            }
        }
    }

    /// The gates in their order: what may go now.
    fn admit(&mut self, cx: &Cx<'_>) -> Result<Grant, Blocked> {
        if self.snd.pacing.as_mut().is_some_and(|p| p.holds(cx.now)) {
            return Err(Blocked::Pacing);
        }
        if self.snd.rtx.is_empty() {
            self.restart_after_idle(cx);
        }
        let cwnd = self.cwnd.cwnd;
        let room = cwnd.saturating_sub(self.snd.rtx.in_flight());
        if room == 0 {
            return Err(Blocked::Cwnd);
        }
        let unsent = self.snd.queue.len() as u32;
        let window = self.snd.usable_window();
        let grant = Grant {
            len: unsent,
            limit: SendLimit::Application,
            headroom: window.min(room.saturating_mul(self.snd.mss.bytes())),
        };
        if unsent == 0 {
            return Ok(grant);
        }
        let mss = self.snd.mss;
        let most_segs = self.max_segs(cx);
        let quota = room.min((cwnd / 2).max(1)).min(most_segs);
        // "Grow": the unit takes in as much of what is queued as it may carry.
        let len = unsent.min(most_segs * mss.bytes());
        let tail = len == unsent;
        // Sender's silly window avoidance: a whole segment, or all of a shorter rest.
        if len.min(mss.bytes()) > window {
            return Err(Blocked::Rwnd);
        }
        let nagle = self.nagle();
        if len <= mss.bytes() {
            let last = tail && self.snd.fin == Fin::Queued;
            let held = tail && !last && nagle.holds(len < mss.bytes());
            let grant = Grant {
                len,
                limit: if tail {
                    SendLimit::Application
                } else {
                    SendLimit::Size
                },
                ..grant
            };
            return if held { Err(Blocked::Nagle) } else { Ok(grant) };
        }
        if self.defers(cx, len, tail, most_segs, room) {
            return Err(Blocked::Defer);
        }
        // Here the small-queue check will stand: wmem_inflight against its limit.
        let split = split_point(len, window, mss, quota, tail, nagle);
        Ok(Grant {
            len: split,
            limit: self.what_cut(split, unsent, quota, most_segs),
            ..grant
        })
    }

    /// The rule that made a unit as long as it is.
    fn what_cut(&self, len: u32, unsent: u32, quota: u32, most_segs: u32) -> SendLimit {
        let mss = self.snd.mss.bytes();
        match len {
            _ if len == unsent => SendLimit::Application,
            _ if len == quota * mss && quota == most_segs => SendLimit::Size,
            _ if len == quota * mss => SendLimit::Cwnd,
            _ if unsent - len >= mss => SendLimit::Rwnd,
            _ => self.limit_of(Blocked::Nagle),
        }
    }

    /// Bytes that cwnd admits.
    fn usable_cwnd(&self) -> u32 {
        let room = self.cwnd.cwnd.saturating_sub(self.snd.rtx.in_flight());
        room.saturating_mul(self.snd.mss.bytes())
    }

    /// What a state of being held back is called in reports.
    fn limit_of(&self, why: Blocked) -> SendLimit {
        match why {
            Blocked::No => SendLimit::Application,
            Blocked::Nagle if self.settings.cork || self.snd.more => SendLimit::Cork,
            Blocked::Nagle => SendLimit::Nagle,
            Blocked::Defer if self.usable_cwnd() > self.snd.usable_window() => SendLimit::Rwnd,
            Blocked::Cwnd | Blocked::Defer => SendLimit::Cwnd,
            Blocked::Rwnd => SendLimit::Rwnd,
            Blocked::Pacing => SendLimit::Pacing,
        }
    }

    fn nagle(&self) -> Nagle {
        let snd = &self.snd;
        Nagle {
            off: self.settings.nodelay,
            cork: self.settings.cork || snd.more,
            in_flight: !snd.rtx.is_empty(),
            small_out: small_outstanding(snd.una, snd.sml, snd.nxt),
        }
    }

    fn defers(&self, cx: &Cx<'_>, len: u32, tail: bool, max_segs: u32, room: u32) -> bool {
        let snd = &self.snd;
        let ending = tail && snd.fin == Fin::Queued;
        let head_age = snd.rtx.head_sent_at().map(|at| cx.now.since(at));
        !ending
            && self.recovery.phase() == Phase::Open
            && defers(&DeferInput {
                len,
                tail,
                mss: snd.mss,
                max_segs,
                send_win: snd.usable_window(),
                cong_win: room.saturating_mul(snd.mss.bytes()),
                snd_wnd: snd.wnd,
                cwnd_bytes: self.cwnd.cwnd.saturating_mul(snd.mss.bytes()),
                win_divisor: cx.sysctl.tcp_tso_win_divisor,
                since_last: cx.now.since(snd.last_sent),
                head_age,
                srtt: self.rtt.srtt().unwrap_or(Nanos::ZERO),
            })
    }

    /// The probe timer fired: what the window admits of one segment goes, cork or not.
    fn force_one(&self) -> Result<Grant, Blocked> {
        let unsent = self.snd.queue.len() as u32;
        let len = unsent
            .min(self.snd.usable_window())
            .min(self.snd.mss.bytes());
        if len == 0 && unsent > 0 {
            return Err(Blocked::Rwnd);
        }
        Ok(Grant {
            len,
            limit: if len == unsent {
                SendLimit::Application
            } else {
                SendLimit::Rwnd
            },
            headroom: len,
        })
    }

    fn on_blocked(&mut self, cx: &Cx<'_>, why: Blocked) {
        self.snd.blocked = why;
        self.report_held(cx, self.limit_of(why));
        if matches!(why, Blocked::Cwnd | Blocked::Defer) {
            let packets_out = self.snd.rtx.packets_out();
            self.recovery.on_cwnd_blocked(self.snd.nxt, packets_out);
        }
        // Something must always be pending that sends it one day.
        if self.snd.rtx.is_empty() && why != Blocked::Pacing {
            self.arm_probe(cx);
        }
    }

    /// RFC 2861: after an idle time cwnd is no longer validated.
    fn restart_after_idle(&mut self, cx: &Cx<'_>) {
        if self.snd.rtx.is_app_limited() {
            self.cc.on_restart(&mut self.cwnd, cx.now);
        }
        let idle = cx.now.since(self.snd.last_sent);
        let rto = self.rtt.rto().nanos();
        let wanted = cx.sysctl.tcp_slow_start_after_idle && !self.cc.owns_cwnd();
        if wanted && idle > rto {
            self.cwnd.restart_after_idle(idle, rto);
            self.cc.on_idle_restart(&self.cwnd, idle);
        }
    }

    fn send_text(&mut self, cx: &mut Cx<'_>, grant: &Grant) -> Draft {
        let len = grant.len;
        if len > 0 {
            self.report_sent(cx, len, grant.headroom, grant.limit);
        }
        let snd = &mut self.snd;
        let was_idle = snd.rtx.is_empty();
        let taken = snd.queue.take(len as usize);
        // A FIN by itself needs no completion.
        let truesize = if len == 0 { 0 } else { taken.truesize };
        let seq = snd.nxt;
        let segs = snd.mss.segments(len).max(1);
        let fin = snd.fin == Fin::Queued && snd.queue.is_empty();
        if fin {
            snd.fin = Fin::Sent;
        }
        let end = seq + len;
        snd.nxt = end + u32::from(fin);
        // Minshall: this unit ends in a short segment.
        if len < segs * snd.mss.bytes() {
            snd.sml = end;
        }
        snd.rtx.push(TransmitUnit {
            seq,
            payload: taken.payload.clone(),
            syn: false,
            fin,
            sent_at: cx.now,
            truesize,
        });
        snd.last_sent = cx.now;
        snd.wmem_inflight = snd.wmem_inflight.saturating_add(truesize);
        // PSH lets the peer's GRO hand a run of segments on at once.
        let asked = snd.pushed.after(seq) && snd.pushed.before_eq(end);
        let mut flags = TcpFlags::ACK;
        if segs > 1 || (asked && len > 0) {
            flags = flags.union(TcpFlags::PSH);
        }
        if fin {
            flags = flags.union(TcpFlags::FIN);
        }
        self.after_text_sent(cx, len, segs, was_idle);
        Draft {
            seq,
            flags,
            payload: taken.payload,
            segs,
            truesize,
        }
    }

    fn after_text_sent(&mut self, cx: &mut Cx<'_>, len: u32, segs: u32, was_idle: bool) {
        cx.mib.out_segs += u64::from(segs);
        self.stats.data_segs_out = self.stats.data_segs_out.wrapping_add(segs);
        self.recovery.on_sent_in_recovery(segs);
        let (packets_out, in_flight) = (self.snd.rtx.packets_out(), self.snd.rtx.in_flight());
        let limited = in_flight >= self.cwnd.cwnd;
        self.recovery
            .on_sent(self.snd.una, self.snd.nxt, packets_out, limited);
        if was_idle {
            if self.timers.is_probing() {
                self.rtt.reset_backoff();
            }
            self.timers.progress_at = cx.now;
            self.arm_rto(cx);
        }
        if self.snd.fin == Fin::No {
            self.rcv.ack.on_text_sent(cx.now);
        }
        self.pace(cx.now, cx.sysctl, u64::from(len) + u64::from(segs) * 60);
    }

    /// An empty segment just left of the window, which the peer must answer (RFC 9293 3.8.6.1,
    /// 3.8.4).
    fn probe(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if !core::mem::take(&mut self.out.probe) {
            return None;
        }
        cx.mib.win_probe += u64::from(self.snd.has_unsent());
        cx.mib.out_segs += 1;
        let seq = self.snd.una - 1;
        Some(Draft::empty(seq))
    }

    fn due_ack(&mut self, cx: &mut Cx<'_>) -> Option<Draft> {
        if !self.rcv.ack.is_due() {
            return None;
        }
        cx.mib.out_segs += 1;
        Some(Draft::empty(self.snd.acceptable_seq()))
    }
}
