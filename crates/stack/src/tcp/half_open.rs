//! A listener's processing of SYNs and of the segments that follow: the queues and their bounds,
//! SYN cookies when the queues are full (RFC 4987), and the creation of connections.

use alloc::boxed::Box;

use fullsend_buf::Chain;
use fullsend_tcp::{Connection, SegmentIn, SegmentOut, SynAckSent};
use fullsend_units::{Instant, SeqNum};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{FastopenCookie, TcpFlags, TcpRepr};

use super::ListenerId;
use super::cookie::{Carried, VALID};
use super::fastopen::Opening;
use super::listen::Listener;
use super::request::{ECN, Fault, Request, SynSummary, Verdict};
use super::socket::{Entry, Owner, Socket};
use super::syn_limit::Budget;
use crate::Host;
use crate::demux::{FlowKey, Target};
use crate::ip::Path;

/// The SYN-ACK for a SYN, and its path.
struct SynAck {
    path: Path,
    segment: SegmentOut,
    ts_offset: u32,
}

impl Host {
    /// Processes a SYN in LISTEN (RFC 9293 3.10.7.2). `reuse` means that it replaces a connection
    /// in TIME-WAIT, so its source address is not spoofed.
    pub(super) fn listen_input(
        &mut self,
        now: Instant,
        id: ListenerId,
        key: &FlowKey,
        (segment, headers): (&mut SegmentIn, &[u8]),
        reuse: bool,
    ) {
        let syn = segment.repr;
        let sysctl = &self.env.sysctl;
        let (cookies, max_syn_backlog) = (sysctl.tcp_syncookies, sysctl.tcp_max_syn_backlog);
        let Some((index, listener)) = self.tcp.listeners.table.by_id(id.0) else {
            return;
        };
        let mib = &mut self.mib.socket;
        let full = listener.pending_is_full() && !reuse;
        if self.env.mem.is_refused() {
            mib.listen_drops += 1;
            return;
        }
        let hold = listener.config.hold;
        let with_cookie = !hold && !reuse && (cookies == 2 || (full && cookies == 1));
        if full && !with_cookie {
            mib.req_q_full_drop += 1;
            mib.listen_drops += 1;
            return;
        }
        if hold {
            return self.hold(now, id, *key, (syn, segment.ecn));
        }
        if listener.accept_is_full() {
            mib.listen_overflows += 1;
            mib.listen_drops += 1;
            return;
        }
        // As on Linux: without cookies, the last quarter of the queue is for peers known to be
        // real.
        let room = (max_syn_backlog as usize).saturating_sub(listener.pending);
        if cookies == 0 && !reuse && room < max_syn_backlog as usize / 4 {
            mib.listen_drops += 1;
            return;
        }
        if with_cookie {
            if self.admits_syn(now, key, syn.seq, true).is_some() {
                self.mib.socket.req_q_full_do_cookies += u64::from(full);
                if let Some(listener) = self.tcp.listeners.table.get_mut(index) {
                    listener.overflowed_at = Some(now);
                }
                self.send_cookie(now, index, key, &syn);
            }
            return;
        }
        if let Opening::Ordinary(cookie) = self.try_fastopen(now, index, key, segment) {
            let budget = if reuse {
                Some(Budget::First)
            } else {
                self.admits_syn(now, key, syn.seq, false)
            };
            let Some(budget) = budget else {
                return;
            };
            self.open_half(now, (index, key), (&syn, segment.ecn), cookie, budget);
        }
        self.save_syn(index, key, headers);
    }

    /// Returns the budget with which the limit of SYN-ACKs admits this SYN. If there is none,
    /// counts the SYN.
    fn admits_syn(
        &mut self,
        now: Instant,
        key: &FlowKey,
        irs: SeqNum,
        with_cookie: bool,
    ) -> Option<Budget> {
        let (limit, rng) = (&mut self.tcp.syn_limit, &mut self.env.rng);
        limit.set_limit(self.env.sysctl.tcp_syn_limit);
        let admitted = limit.admits(now, (key, irs), with_cookie, rng);
        if admitted.is_none() {
            self.mib.socket.syns_limited += 1;
            self.mib.socket.listen_drops += 1;
        }
        admitted
    }

    /// Answers a SYN and adds a half-open connection.
    fn open_half(
        &mut self,
        now: Instant,
        (listener, key): (u32, &FlowKey),
        syn: (&TcpRepr, EcnField),
        cookie: Option<FastopenCookie>,
        budget: Budget,
    ) {
        let iss = self.initial_sequence(now, key);
        let Some(mut answer) = self.syn_ack(now, (key, listener), syn, iss, None) else {
            return;
        };
        answer.segment.repr.options.fastopen = cookie;
        let (summary, sent) = (SynSummary::of(syn, budget), &answer.segment.repr);
        let request = Request::new(now, (*key, listener), summary, sent, answer.ts_offset);
        let due = request.due;
        let Some((index, _)) = self.tcp.table.insert(Entry::Request(Box::new(request))) else {
            return;
        };
        self.tcp.flows.insert(key, Target::Socket(index));
        self.tcp.wheel.arm(index, due);
        if let Some(listener) = self.tcp.listeners.table.get_mut(listener) {
            listener.pending += 1;
            listener.young += 1;
        }
        self.send_on_path(now, key, &answer.path, answer.segment);
    }

    /// Answers a SYN with a cookie and keeps no state.
    fn send_cookie(&mut self, now: Instant, listener: u32, key: &FlowKey, syn: &TcpRepr) {
        let mut syn = *syn;
        let timestamps = syn.options.timestamps.is_some() && self.env.sysctl.tcp_timestamps;
        let ecn = syn.flags.0 & ECN.0 == TcpFlags::ECE.union(TcpFlags::CWR).0;
        if !timestamps {
            // Without timestamps, a cookie cannot carry these options.
            syn.options.window_scale = None;
            syn.options.sack_permitted = false;
        }
        if !timestamps || !ecn {
            syn.flags = syn.flags.without(ECN);
        }
        let iss = self
            .tcp
            .cookies
            .issue(now, key, syn.seq, syn.options.mss.unwrap_or(0));
        let Some(mut answer) =
            self.syn_ack(now, (key, listener), (&syn, EcnField::NotEct), iss, None)
        else {
            return;
        };
        let repr = &mut answer.segment.repr;
        let agreed = repr.flags.contains(TcpFlags::ECE);
        let carried = Carried::of(&repr.options, &syn.options, agreed);
        if let Some(ts) = &mut repr.options.timestamps {
            let ours = ts.val.wrapping_sub(answer.ts_offset);
            ts.val = carried.timestamp(ours).wrapping_add(answer.ts_offset);
        }
        self.mib.socket.syncookies_sent += 1;
        self.send_on_path(now, key, &answer.path, answer.segment);
    }

    /// Processes a segment with ACK that belongs to no connection, sent to a listener. Returns
    /// whether it answers a SYN cookie and needs no further processing.
    pub(super) fn cookie_input(
        &mut self,
        now: Instant,
        id: ListenerId,
        key: &FlowKey,
        segment: &mut SegmentIn,
    ) -> bool {
        let repr = segment.repr;
        let ack_only = TcpFlags::ACK.union(TcpFlags::SYN).union(TcpFlags::RST);
        let Some((listener, l)) = self.tcp.listeners.table.by_id(id.0) else {
            return false;
        };
        // No cookie was sent recently, so none can come back.
        let recent = l.overflowed_at.is_some_and(|at| now.since(at) < VALID);
        if self.env.sysctl.tcp_syncookies == 0
            || !recent
            || repr.flags.0 & ack_only.0 != TcpFlags::ACK.0
        {
            return false;
        }
        // A valid answer could not be accepted now. The segments after it (data, a tail loss probe)
        // are no reason to reset a peer that will try again.
        if !self.accept_has_room(listener) {
            return true;
        }
        let irs = repr.seq - 1;
        let Some((mss, made)) = self.tcp.cookies.check(now, key, irs, repr.ack - 1) else {
            self.mib.socket.syncookies_failed += 1;
            return false;
        };
        self.mib.socket.syncookies_recv += 1;
        let Some(syn) = self.syn_of_cookie(key, &repr, mss) else {
            return true;
        };
        let Ok(mut socket) = self.embryo(
            now,
            key,
            (&syn, EcnField::NotEct),
            repr.ack - 1,
            Owner::Queued(listener),
        ) else {
            return true;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        let sent = SynAckSent {
            first_at: now,
            at: now,
            ambiguous: true,
            window_scale: socket.conn.offered_scale(),
            repeats: 0,
            timeouts: 0,
            ecn_withdrawn: false,
        };
        socket.conn.assume_syn_ack(&mut cx, sent);
        let Some((index, _)) = self.tcp.table.insert(Entry::Conn(socket)) else {
            return true;
        };
        self.tcp.flows.insert(key, Target::Socket(index));
        // Only now, as the segment may be sent any number of times; the next one finds the
        // connection.
        self.tcp.syn_limit.on_return(now, key.remote, made);
        self.queue_for_accept(now, listener, index, segment);
        true
    }

    /// Rebuilds the SYN from the answer to a cookie. Returns `None` if its options cannot be those
    /// of the SYN-ACK.
    fn syn_of_cookie(&self, key: &FlowKey, repr: &TcpRepr, mss: u16) -> Option<TcpRepr> {
        let sysctl = &self.env.sysctl;
        let mut syn = TcpRepr {
            seq: repr.seq - 1,
            flags: TcpFlags::SYN,
            ack: SeqNum::new(0),
            ..*repr
        };
        syn.options.mss = Some(mss);
        let Some(ts) = repr.options.timestamps else {
            return Some(syn);
        };
        let carried = Carried::read(ts.ecr.wrapping_sub(self.tcp.timestamp_offset(key)));
        let impossible = !sysctl.tcp_timestamps
            || (carried.sack && !sysctl.tcp_sack)
            || (carried.window_scale.is_some() && !sysctl.tcp_window_scaling);
        syn.options.window_scale = carried.window_scale;
        syn.options.sack_permitted = carried.sack;
        if carried.ecn {
            syn.flags = syn.flags.union(TcpFlags::ECE).union(TcpFlags::CWR);
        }
        (!impossible).then_some(syn)
    }

    /// Processes a segment for a half-open connection.
    pub(super) fn request_input(&mut self, now: Instant, index: u32, segment: &mut SegmentIn) {
        let Some(Entry::Request(request)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let (verdict, fault) = request.judge(segment);
        let (key, listener, budget) = (request.key, request.listener, request.syn.budget);
        if verdict != Verdict::Establish {
            self.env.mib.in_segs += u64::from(segment.gso_segs);
        }
        match fault {
            Fault::Stale => self.env.mib.paws_estab += 1,
            Fault::Echo => self.mib.socket.ts_ecr_rejected += 1,
            Fault::OtherSyn => self.env.mib.syn_challenge += 1,
            Fault::None => {}
        }
        match verdict {
            Verdict::Drop => {}
            Verdict::Repeat | Verdict::Acknowledge => {
                if !request.may_answer(now, &self.env.sysctl) {
                    self.mib.socket.ack_skipped_syn_recv += 1;
                } else if verdict == Verdict::Repeat {
                    self.repeat_syn_ack(now, index, false);
                } else {
                    let repr = request.acknowledgement(now);
                    self.env.mib.out_segs += 1;
                    self.send_alone(now, &key, bare(repr));
                }
            }
            Verdict::Reset => {
                let len = segment.payload.len() as u32;
                self.send_reset(now, &key, &segment.repr, len);
            }
            Verdict::Forget => {
                self.env.mib.attempt_fails += 1;
                self.mib.socket.embryonic_rsts += 1;
                self.tcp.syn_limit.on_reset(now, key.remote, budget);
                self.drop_request(index);
            }
            Verdict::Establish => self.complete_request(now, index, listener, segment),
        }
    }

    /// Processes the segment that completes the handshake.
    fn complete_request(
        &mut self,
        now: Instant,
        index: u32,
        listener: u32,
        segment: &mut SegmentIn,
    ) {
        if self.defers_accept(index, listener, segment) {
            self.env.mib.in_segs += u64::from(segment.gso_segs);
            self.mib.socket.defer_accept_drop += 1;
            return;
        }
        if !self.accept_has_room(listener) {
            self.env.mib.in_segs += u64::from(segment.gso_segs);
            if self.env.sysctl.tcp_abort_on_overflow {
                self.refuse_request(now, index, segment);
            } else if let Some(Entry::Request(request)) = self.tcp.table.get_mut(index) {
                // The peer's data or the retransmission of the SYN-ACK causes another ACK.
                request.acked = true;
            }
            return;
        }
        let Some(Entry::Request(request)) = self.tcp.table.get(index) else {
            return;
        };
        let (key, iss, sent) = (request.key, request.iss, request.syn_ack_sent());
        let (syn, young) = (request.syn.repr(&key), request.timeouts == 0);
        let syn = (&syn, request.syn.ecn);
        let Ok(mut socket) = self.embryo(now, &key, syn, iss, Owner::Queued(listener)) else {
            return;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        socket.conn.assume_syn_ack(&mut cx, sent);
        self.tcp.wheel.disarm(index);
        self.leave_queue(listener, young);
        if let Some(entry) = self.tcp.table.get_mut(index) {
            *entry = Entry::Conn(socket);
        }
        self.queue_for_accept(now, listener, index, segment);
    }

    /// Returns whether `TCP_DEFER_ACCEPT` defers the connection: for some SYN-ACK timeouts, an ACK
    /// without data does not complete the handshake, and the application is not notified.
    fn defers_accept(&mut self, index: u32, listener: u32, segment: &SegmentIn) -> bool {
        let bare = segment.payload.is_empty() && !segment.repr.flags.contains(TcpFlags::FIN);
        let listener = self.tcp.listeners.table.get(listener);
        let timeouts = listener.map_or(0, |l| l.settings.defer_accept);
        match self.tcp.table.get_mut(index) {
            Some(Entry::Request(request)) if bare && request.timeouts < timeouts => {
                request.acked = true;
                true
            }
            _ => false,
        }
    }

    /// Adds a connection in SYN-RECEIVED to the accept queue and processes the segment that
    /// establishes it.
    fn queue_for_accept(
        &mut self,
        now: Instant,
        listener: u32,
        index: u32,
        segment: &mut SegmentIn,
    ) {
        self.env.mib.passive_opens += 1;
        if let Some(listener) = self.tcp.listeners.table.get_mut(listener) {
            listener.accept.push_back(index);
            listener.waiting.wake(&mut self.wakers);
        }
        self.socket_input(now, index, segment);
    }

    /// Returns whether there is room for a connection in the accept queue and in memory. If not,
    /// counts the drop.
    fn accept_has_room(&mut self, listener: u32) -> bool {
        let listener = self.tcp.listeners.table.get(listener);
        let full = listener.is_none_or(Listener::accept_is_full);
        let drop = full || self.env.mem.is_refused();
        self.mib.socket.listen_overflows += u64::from(full);
        self.mib.socket.listen_drops += u64::from(drop);
        !drop
    }

    /// Resets a half-open connection (`tcp_abort_on_overflow`).
    fn refuse_request(&mut self, now: Instant, index: u32, segment: &SegmentIn) {
        if let Some(Entry::Request(request)) = self.tcp.table.get(index) {
            let key = request.key;
            self.env.mib.attempt_fails += 1;
            self.mib.socket.embryonic_rsts += 1;
            self.drop_request(index);
            self.send_reset(now, &key, &segment.repr, segment.payload.len() as u32);
        }
    }

    /// Removes a half-open connection without an answer.
    pub(super) fn drop_request(&mut self, index: u32) {
        let Some(Entry::Request(request)) = self.tcp.table.get(index) else {
            return;
        };
        let (listener, young) = (request.listener, request.timeouts == 0);
        self.leave_queue(listener, young);
        self.forget(index);
    }

    fn leave_queue(&mut self, listener: u32, young: bool) {
        if let Some(listener) = self.tcp.listeners.table.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
            listener.young = listener.young.saturating_sub(usize::from(young));
        }
    }

    /// Processes the timer of a half-open connection.
    pub(super) fn request_timeout(&mut self, now: Instant, index: u32) {
        let Some(Entry::Request(request)) = self.tcp.table.get(index) else {
            return;
        };
        if now < request.due {
            let due = request.due;
            return self.tcp.wheel.arm(index, due);
        }
        let listener = self.tcp.listeners.table.get(request.listener);
        let most = self.env.sysctl.tcp_synack_retries;
        let defer = listener.map_or(0, |l| l.settings.defer_accept);
        let most = listener.map_or(0, |l| {
            // As on Linux: `TCP_SYNCNT` of a listener limits its SYN-ACKs.
            l.synack_retries(l.settings.syncnt.map_or(most, u32::from))
        });
        // As on Linux: a connection whose peer has answered waits for data as long as it is
        // deferred, and its SYN-ACK is retransmitted only at the end of that time.
        let deferred = request.acked && request.timeouts < defer;
        if u32::from(request.timeouts) >= most && !deferred {
            self.env.mib.attempt_fails += 1;
            return self.drop_request(index);
        }
        let silent = deferred && request.timeouts + 1 < defer;
        if request.timeouts == 0
            && let Some(listener) = self.tcp.listeners.table.get_mut(request.listener)
        {
            listener.young = listener.young.saturating_sub(1);
        }
        if silent {
            self.pass_timeout(now, index);
        } else {
            self.repeat_syn_ack(now, index, true);
        }
    }

    /// Processes a timeout of the SYN-ACK without a retransmission.
    fn pass_timeout(&mut self, now: Instant, index: u32) {
        if let Some(Entry::Request(request)) = self.tcp.table.get_mut(index) {
            let rto_max = self
                .tcp
                .listeners
                .rto_max(request.listener, &self.env.sysctl);
            request.on_silent_timeout(now, rto_max);
            let due = request.due;
            self.tcp.wheel.arm(index, due);
        }
    }

    fn repeat_syn_ack(&mut self, now: Instant, index: u32, by_timer: bool) {
        let Some(Entry::Request(request)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let sent = request.syn_ack_sent();
        let rto_max = self
            .tcp
            .listeners
            .rto_max(request.listener, &self.env.sysctl);
        request.on_repeat(now, by_timer, rto_max);
        let (key, listener, due) = (request.key, request.listener, request.due);
        let (syn, ecn, iss) = (request.syn.repr(&key), request.syn.ecn, request.iss);
        self.tcp.wheel.arm(index, due);
        if let Some(answer) = self.syn_ack(now, (&key, listener), (&syn, ecn), iss, Some(sent)) {
            self.send_on_path(now, &key, &answer.path, answer.segment);
        }
    }

    /// Returns the SYN-ACK that a connection would send, as a retransmission if `again` is set. The
    /// connection itself is not kept.
    fn syn_ack(
        &mut self,
        now: Instant,
        (key, listener): (&FlowKey, u32),
        syn: (&TcpRepr, EcnField),
        iss: SeqNum,
        again: Option<SynAckSent>,
    ) -> Option<SynAck> {
        if self.tcp.listeners.has_inheritance(listener) {
            let owner = Owner::Queued(listener);
            let mut socket = self.embryo(now, key, syn, iss, owner).ok()?;
            let Socket { conn, path, .. } = &mut *socket;
            return self.syn_ack_of(now, conn, path, again);
        }
        // The usual case of a SYN flood: no options to inherit, so no socket is needed.
        let (path, mut conn) = self.embryo_connection(now, key, syn, iss).ok()?;
        self.syn_ack_of(now, &mut conn, &path, again)
    }

    fn syn_ack_of(
        &mut self,
        now: Instant,
        conn: &mut Connection,
        path: &Path,
        again: Option<SynAckSent>,
    ) -> Option<SynAck> {
        let ts_offset = conn.ts_offset();
        let mut cx = self.env.cx(now, path, ts_offset);
        if let Some(sent) = again {
            conn.assume_syn_ack(&mut cx, sent);
            conn.repeat_syn_ack();
        }
        let segment = conn.poll_transmit(&mut cx)?;
        Some(SynAck {
            path: *path,
            segment,
            ts_offset,
        })
    }
}

/// Returns a segment without data.
pub(super) fn bare(repr: TcpRepr) -> SegmentOut {
    SegmentOut {
        repr,
        payload: Chain::new(),
        gso_size: 0,
        gso_segs: 1,
        ecn: EcnField::NotEct,
        repeats_cwr: false,
        departure: Instant::ZERO,
        truesize: 0,
    }
}
