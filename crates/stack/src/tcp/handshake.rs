//! A listener's processing of SYNs and of the segments that follow: the queues and their bounds,
//! SYN cookies when the queues are full (RFC 4987), and the creation of connections.

use alloc::boxed::Box;

use fullsend_offload::Chain;
use fullsend_tcp::{Connection, SegmentIn, SegmentOut, SynAckSent};
use fullsend_wire::tcp::{FastopenCookie, TcpFlags, TcpRepr};
use fullsend_wire::{EcnField, Instant, SeqNum};

use super::ListenerId;
use super::cookie::{COOKIE_WINDOW, EncodedOptions};
use super::fastopen::SynHandling;
use super::half_open::{ECN, HalfOpen, HalfOpenAction, RejectReason, SynSummary};
use super::listen::Listener;
use super::socket::{ConnectionOwner, Socket, SocketEntry};
use super::syn_limit::SynBudget;
use crate::Host;
use crate::demux::{FlowKey, FlowOwner};
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
        let no_socket = self.tcp.is_full(sysctl);
        let Some((index, listener)) = self.tcp.listeners.table.by_id(id.0) else {
            return;
        };
        let mib = &mut self.mib.socket;
        let full = listener.is_syn_queue_full() && !reuse;
        if self.env.mem.is_refused() || no_socket {
            mib.sockets_limited += u64::from(no_socket);
            mib.listen_drops += 1;
            if no_socket {
                self.send_reset(now, key, &syn, segment.payload.len() as u32);
            }
            return;
        }
        let defer_syn_ack = listener.config.defer_syn_ack;
        let use_cookie = !defer_syn_ack && !reuse && (cookies == 2 || (full && cookies == 1));
        if full && !use_cookie {
            mib.req_q_full_drop += 1;
            mib.listen_drops += 1;
            return;
        }
        if defer_syn_ack {
            return self.add_deferred_syn(now, id, *key, (syn, segment.ecn));
        }
        if listener.is_accept_queue_full() {
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
        if use_cookie {
            if self.admit_syn(now, key, syn.seq, true).is_some() {
                self.mib.socket.req_q_full_do_cookies += u64::from(full);
                if let Some(listener) = self.tcp.listeners.table.get_mut(index) {
                    listener.overflowed_at = Some(now);
                }
                self.send_cookie(now, index, key, &syn);
            }
            return;
        }
        if let SynHandling::WithoutFastopen(cookie) = self.try_fastopen(now, index, key, segment) {
            let budget = if reuse {
                Some(SynBudget::All)
            } else {
                self.admit_syn(now, key, syn.seq, false)
            };
            let Some(budget) = budget else {
                return;
            };
            self.add_half_open(now, (index, key), (&syn, segment.ecn), cookie, budget);
        }
        self.save_syn(index, key, headers);
    }

    /// Returns the budget with which the limit of SYN-ACKs admits this SYN. If there is none,
    /// counts the SYN.
    fn admit_syn(
        &mut self,
        now: Instant,
        key: &FlowKey,
        irs: SeqNum,
        use_cookie: bool,
    ) -> Option<SynBudget> {
        let (limit, rng) = (&mut self.tcp.syn_limit, &mut self.env.rng);
        limit.set_limit(self.env.sysctl.tcp_syn_limit);
        let admitted = limit.admit(now, (key, irs), use_cookie, rng);
        if admitted.is_none() {
            self.mib.socket.syns_limited += 1;
            self.mib.socket.listen_drops += 1;
        }
        admitted
    }

    /// Answers a SYN and adds a half-open connection.
    fn add_half_open(
        &mut self,
        now: Instant,
        (listener, key): (u32, &FlowKey),
        syn: (&TcpRepr, EcnField),
        cookie: Option<FastopenCookie>,
        budget: SynBudget,
    ) {
        let iss = self.initial_sequence(now, key);
        let Some(mut syn_ack) = self.build_syn_ack(now, (key, listener), syn, iss, None) else {
            return;
        };
        syn_ack.segment.repr.options.fastopen = cookie;
        let (summary, sent) = (SynSummary::of(syn, budget), &syn_ack.segment.repr);
        let half_open = HalfOpen::new(now, (*key, listener), summary, sent, syn_ack.ts_offset);
        let due = half_open.due;
        let Some((index, _)) = self
            .tcp
            .table
            .insert(SocketEntry::HalfOpen(Box::new(half_open)))
        else {
            return;
        };
        self.tcp.flows.insert(key, FlowOwner::Socket(index));
        self.tcp.wheel.arm(index, due);
        if let Some(listener) = self.tcp.listeners.table.get_mut(listener) {
            listener.pending += 1;
            listener.young += 1;
        }
        self.send_stateless_on_path(now, key, &syn_ack.path, syn_ack.segment);
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
        let Some(mut syn_ack) =
            self.build_syn_ack(now, (key, listener), (&syn, EcnField::NotEct), iss, None)
        else {
            return;
        };
        let repr = &mut syn_ack.segment.repr;
        let ecn_negotiated = repr.flags.contains(TcpFlags::ECE);
        let encoded = EncodedOptions::of(&repr.options, &syn.options, ecn_negotiated);
        if let Some(ts) = &mut repr.options.timestamps {
            let ours = ts.val.wrapping_sub(syn_ack.ts_offset);
            ts.val = encoded.to_timestamp(ours).wrapping_add(syn_ack.ts_offset);
        }
        self.mib.socket.syncookies_sent += 1;
        self.send_stateless_on_path(now, key, &syn_ack.path, syn_ack.segment);
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
        let Some((listener, listener_state)) = self.tcp.listeners.table.by_id(id.0) else {
            return false;
        };
        // No cookie was sent recently, so none can come back.
        let recent = listener_state
            .overflowed_at
            .is_some_and(|at| now.since(at) < COOKIE_WINDOW);
        if self.env.sysctl.tcp_syncookies == 0
            || !recent
            || repr.flags.0 & ack_only.0 != TcpFlags::ACK.0
        {
            return false;
        }
        let irs = repr.seq - 1;
        let cookie = self.tcp.cookies.check(now, key, irs, repr.ack - 1);
        if self.tcp.is_full(&self.env.sysctl) {
            // It is reset, so that the peer need not try for minutes. What has no cookie is no
            // connection that the limit has refused.
            self.mib.socket.sockets_limited += u64::from(cookie.is_some());
            return false;
        }
        // A valid answer could not be accepted now. The segments after it (data, a tail loss probe)
        // are no reason to reset a peer that will try again.
        if !self.accept_queue_has_room(listener) {
            return true;
        }
        let Some((mss, issue_slot)) = cookie else {
            self.mib.socket.syncookies_failed += 1;
            return false;
        };
        self.mib.socket.syncookies_recv += 1;
        let Some(syn) = self.syn_of_cookie(key, &repr, mss) else {
            return true;
        };
        let Ok(mut socket) = self.create_child(
            now,
            key,
            (&syn, EcnField::NotEct),
            repr.ack - 1,
            ConnectionOwner::Listener(listener),
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
        let Some((index, _)) = self.tcp.table.insert(SocketEntry::Conn(socket)) else {
            return true;
        };
        self.tcp.connections += 1;
        self.env.mem.set_connections(self.tcp.connections);
        self.tcp.flows.insert(key, FlowOwner::Socket(index));
        // Only now, as the segment may be sent any number of times; the next one finds the
        // connection.
        self.tcp
            .syn_limit
            .on_cookie_returned(now, key.remote, issue_slot);
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
        // As on Linux, an echo of 0 is none, and says that there are no options but an unscaled window.
        let echoed = match ts.ecr {
            0 => 0,
            ecr => ecr.wrapping_sub(self.tcp.timestamp_offset(key)),
        };
        let encoded = EncodedOptions::from_timestamp(echoed);
        let is_invalid = !sysctl.tcp_timestamps
            || (encoded.sack && !sysctl.tcp_sack)
            || (encoded.window_scale.is_some() && !sysctl.tcp_window_scaling);
        syn.options.window_scale = encoded.window_scale;
        syn.options.sack_permitted = encoded.sack;
        if encoded.ecn {
            syn.flags = syn.flags.union(TcpFlags::ECE).union(TcpFlags::CWR);
        }
        (!is_invalid).then_some(syn)
    }

    /// Processes a segment for a half-open connection.
    pub(super) fn half_open_input(&mut self, now: Instant, index: u32, segment: &mut SegmentIn) {
        let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let (action, reason) = half_open.classify(segment);
        let (key, listener, budget) = (half_open.key, half_open.listener, half_open.syn.budget);
        if action != HalfOpenAction::Establish {
            self.env.mib.in_segs += u64::from(segment.gso_segs);
        }
        match reason {
            RejectReason::OldTimestamp => self.env.mib.paws_estab += 1,
            RejectReason::UnknownEcho => self.mib.socket.ts_ecr_rejected += 1,
            RejectReason::DifferentSyn => self.env.mib.syn_challenge += 1,
            RejectReason::None => {}
        }
        match action {
            HalfOpenAction::Drop => {}
            HalfOpenAction::RetransmitSynAck | HalfOpenAction::SendAck => {
                if !half_open.may_send_challenge_ack(now, &self.env.sysctl) {
                    self.mib.socket.ack_skipped_syn_recv += 1;
                } else if action == HalfOpenAction::RetransmitSynAck {
                    self.retransmit_syn_ack(now, index, false);
                } else {
                    let repr = half_open.build_ack(now);
                    self.env.mib.out_segs += 1;
                    self.send_stateless(now, &key, empty_segment(repr));
                }
            }
            HalfOpenAction::SendReset => {
                let len = segment.payload.len() as u32;
                self.send_reset(now, &key, &segment.repr, len);
            }
            HalfOpenAction::Abort => {
                self.env.mib.attempt_fails += 1;
                self.mib.socket.embryonic_rsts += 1;
                self.tcp.syn_limit.on_reset(now, key.remote, budget);
                self.drop_half_open(index);
            }
            HalfOpenAction::Establish => self.complete_handshake(now, index, listener, segment),
        }
    }

    /// Processes the segment that completes the handshake.
    fn complete_handshake(
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
        if !self.accept_queue_has_room(listener) {
            self.env.mib.in_segs += u64::from(segment.gso_segs);
            if self.env.sysctl.tcp_abort_on_overflow || self.tcp.is_full(&self.env.sysctl) {
                self.reset_half_open(now, index, segment);
            } else if let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get_mut(index) {
                // The peer's data or the retransmission of the SYN-ACK causes another ACK.
                half_open.acked = true;
            }
            return;
        }
        let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get(index) else {
            return;
        };
        let (key, iss, sent) = (half_open.key, half_open.iss, half_open.syn_ack_sent());
        let (syn, young) = (half_open.syn.repr(&key), half_open.timeouts == 0);
        let syn = (&syn, half_open.syn.ecn);
        let Ok(mut socket) =
            self.create_child(now, &key, syn, iss, ConnectionOwner::Listener(listener))
        else {
            return;
        };
        let mut cx = self.env.cx(now, &socket.path, socket.conn.ts_offset());
        socket.conn.assume_syn_ack(&mut cx, sent);
        self.tcp.wheel.disarm(index);
        self.leave_syn_queue(listener, young);
        if let Some(entry) = self.tcp.table.get_mut(index) {
            *entry = SocketEntry::Conn(socket);
            self.tcp.connections += 1;
            self.env.mem.set_connections(self.tcp.connections);
        }
        self.queue_for_accept(now, listener, index, segment);
    }

    /// Returns whether `TCP_DEFER_ACCEPT` defers the connection: for some SYN-ACK timeouts, an ACK
    /// without data does not complete the handshake, and the application is not notified.
    fn defers_accept(&mut self, index: u32, listener: u32, segment: &SegmentIn) -> bool {
        let without_data =
            segment.payload.is_empty() && !segment.repr.flags.contains(TcpFlags::FIN);
        let listener = self.tcp.listeners.table.get(listener);
        let timeouts = listener.map_or(0, |listener_state| listener_state.settings.defer_accept);
        match self.tcp.table.get_mut(index) {
            Some(SocketEntry::HalfOpen(half_open))
                if without_data && half_open.timeouts < timeouts =>
            {
                half_open.acked = true;
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
            listener.accept_queue.push_back(index);
            listener.accept_waiters.wake(&mut self.wakers);
        }
        self.socket_input(now, index, segment);
    }

    /// Returns whether there is room for a connection in the accept queue and in memory. If not,
    /// counts the drop.
    fn accept_queue_has_room(&mut self, listener: u32) -> bool {
        let listener = self.tcp.listeners.table.get(listener);
        let full = listener.is_none_or(Listener::is_accept_queue_full);
        let no_socket = self.tcp.is_full(&self.env.sysctl);
        let drop = full || no_socket || self.env.mem.is_refused();
        self.mib.socket.sockets_limited += u64::from(no_socket);
        self.mib.socket.listen_overflows += u64::from(full);
        self.mib.socket.listen_drops += u64::from(drop);
        !drop
    }

    /// Resets a half-open connection (`tcp_abort_on_overflow`).
    fn reset_half_open(&mut self, now: Instant, index: u32, segment: &SegmentIn) {
        if let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get(index) {
            let key = half_open.key;
            self.env.mib.attempt_fails += 1;
            self.mib.socket.embryonic_rsts += 1;
            self.drop_half_open(index);
            self.send_reset(now, &key, &segment.repr, segment.payload.len() as u32);
        }
    }

    /// Removes a half-open connection without an answer.
    pub(super) fn drop_half_open(&mut self, index: u32) {
        let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get(index) else {
            return;
        };
        let (listener, young) = (half_open.listener, half_open.timeouts == 0);
        self.leave_syn_queue(listener, young);
        self.remove_entry(index);
    }

    fn leave_syn_queue(&mut self, listener: u32, young: bool) {
        if let Some(listener) = self.tcp.listeners.table.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
            listener.young = listener.young.saturating_sub(usize::from(young));
        }
    }

    /// Processes the timer of a half-open connection.
    pub(super) fn half_open_timeout(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get(index) else {
            return;
        };
        if now < half_open.due {
            let due = half_open.due;
            return self.tcp.wheel.arm(index, due);
        }
        let listener = self.tcp.listeners.table.get(half_open.listener);
        let max = self.env.sysctl.tcp_synack_retries;
        let defer_accept =
            listener.map_or(0, |listener_state| listener_state.settings.defer_accept);
        let max = listener.map_or(0, |listener_state| {
            // As on Linux: `TCP_SYNCNT` of a listener limits its SYN-ACKs.
            listener_state.synack_retries(listener_state.settings.syncnt.map_or(max, u32::from))
        });
        // As on Linux: a connection whose peer has answered waits for data as long as it is
        // deferred, and its SYN-ACK is retransmitted only at the end of that time.
        let deferred = half_open.acked && half_open.timeouts < defer_accept;
        if u32::from(half_open.timeouts) >= max && !deferred {
            self.env.mib.attempt_fails += 1;
            return self.drop_half_open(index);
        }
        let wait_only = deferred && half_open.timeouts + 1 < defer_accept;
        if half_open.timeouts == 0
            && let Some(listener) = self.tcp.listeners.table.get_mut(half_open.listener)
        {
            listener.young = listener.young.saturating_sub(1);
        }
        if wait_only {
            self.on_deferred_timeout(now, index);
        } else {
            self.retransmit_syn_ack(now, index, true);
        }
    }

    /// Processes a timeout of the SYN-ACK without a retransmission.
    fn on_deferred_timeout(&mut self, now: Instant, index: u32) {
        if let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get_mut(index) {
            let rto_max = self
                .tcp
                .listeners
                .rto_max(half_open.listener, &self.env.sysctl);
            half_open.on_timeout_without_retransmit(now, rto_max);
            let due = half_open.due;
            self.tcp.wheel.arm(index, due);
        }
    }

    fn retransmit_syn_ack(&mut self, now: Instant, index: u32, by_timer: bool) {
        let Some(SocketEntry::HalfOpen(half_open)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let sent = half_open.syn_ack_sent();
        let rto_max = self
            .tcp
            .listeners
            .rto_max(half_open.listener, &self.env.sysctl);
        half_open.on_retransmit(now, by_timer, rto_max);
        let (key, listener, due) = (half_open.key, half_open.listener, half_open.due);
        let (syn, ecn, iss) = (half_open.syn.repr(&key), half_open.syn.ecn, half_open.iss);
        self.tcp.wheel.arm(index, due);
        if let Some(syn_ack) =
            self.build_syn_ack(now, (&key, listener), (&syn, ecn), iss, Some(sent))
        {
            self.send_stateless_on_path(now, &key, &syn_ack.path, syn_ack.segment);
        }
    }

    /// Returns the SYN-ACK that a connection would send, as a retransmission if `previous` is set. The
    /// connection itself is not kept.
    fn build_syn_ack(
        &mut self,
        now: Instant,
        (key, listener): (&FlowKey, u32),
        syn: (&TcpRepr, EcnField),
        iss: SeqNum,
        previous: Option<SynAckSent>,
    ) -> Option<SynAck> {
        if self.tcp.listeners.has_inherited_options(listener) {
            let owner = ConnectionOwner::Listener(listener);
            let mut socket = self
                .create_child_for_syn_ack(now, key, syn, iss, owner)
                .ok()?;
            let Socket { conn, path, .. } = &mut *socket;
            return self.poll_syn_ack(now, conn, path, previous);
        }
        // The usual case of a SYN flood: no options to inherit, so no socket is needed.
        let (path, mut conn) = self.create_child_connection(now, key, syn, iss).ok()?;
        self.poll_syn_ack(now, &mut conn, &path, previous)
    }

    fn poll_syn_ack(
        &mut self,
        now: Instant,
        conn: &mut Connection,
        path: &Path,
        previous: Option<SynAckSent>,
    ) -> Option<SynAck> {
        let ts_offset = conn.ts_offset();
        let mut cx = self.env.cx(now, path, ts_offset);
        if let Some(sent) = previous {
            conn.assume_syn_ack(&mut cx, sent);
            conn.retransmit_syn_ack();
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
pub(super) fn empty_segment(repr: TcpRepr) -> SegmentOut {
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
