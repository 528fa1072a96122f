//! Deferred SYNs (transparent gateways): they are answered only when the application has reached
//! the destination.

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use super::socket::{Entry, Held, Owner};
use super::{ListenerId, TcpId};
use crate::demux::{FlowKey, Target};
use crate::{Host, StackError};

/// Lifetime of a deferred SYN; the peer has stopped retransmitting it by then (RFC 6298 5.7 gives
/// at least three minutes; Linux sends seven SYNs in 127 s).
const HELD_TIMEOUT: Nanos = Nanos::from_secs(130);

impl Host {
    /// Adds a SYN to its listener's queue without an answer.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        listener: ListenerId,
        key: FlowKey,
        (syn, syn_ecn): (TcpRepr, EcnField),
    ) {
        let expires = now + HELD_TIMEOUT;
        let held = Held {
            syn,
            syn_ecn,
            key,
            listener,
            taken: false,
            expires,
        };
        let Some((index, _)) = self.tcp.table.insert(Entry::Held(Box::new(held))) else {
            return;
        };
        self.tcp.flows.insert(&key, Target::Socket(index));
        self.tcp.wheel.arm(index, expires);
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending += 1;
            listener.accept.push_back(index);
            listener.waiting.wake(&mut self.wakers);
        }
    }

    /// Removes a deferred SYN without an answer.
    pub(super) fn drop_held(&mut self, index: u32) {
        let Some(Entry::Held(held)) = self.tcp.table.get(index) else {
            return;
        };
        let (listener, taken) = (held.listener, held.taken);
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
            if !taken {
                listener.accept.retain(|i| *i != index);
            }
        }
        self.forget(index);
    }

    /// Rejects a deferred SYN with a RST.
    pub(super) fn reject_held(&mut self, now: Instant, index: u32) {
        let Some(Entry::Held(held)) = self.tcp.table.get(index) else {
            return;
        };
        let (key, syn) = (held.key, held.syn);
        self.drop_held(index);
        self.send_reset(now, &key, &syn, 0);
    }

    /// Processes a segment for a deferred SYN.
    pub(super) fn held_input(&mut self, index: u32, repr: &TcpRepr) {
        let Some(Entry::Held(held)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let next = held.syn.seq + 1;
        if repr.flags.contains(TcpFlags::RST) && (repr.seq == next || repr.seq == held.syn.seq) {
            self.drop_held(index);
        } else if repr.flags.contains(TcpFlags::SYN) && repr.seq == held.syn.seq {
            // A retransmission: its timestamp is the one to echo.
            held.syn = *repr;
        }
    }

    fn taken_held(&mut self, id: TcpId) -> Result<u32, StackError> {
        match self.tcp.table.by_id(id.0) {
            Some((index, Entry::Held(held))) if held.taken => Ok(index),
            _ => Err(StackError::NoSuchSocket),
        }
    }

    /// Answers a deferred SYN; the connection becomes established as usual.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the handle is not
    /// that of a deferred SYN; [`NoRoute`](StackError::NoRoute) if the answer has no route.
    pub fn pending_accept(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        let index = self.taken_held(id)?;
        let Some(Entry::Held(held)) = self.tcp.table.get(index) else {
            return Err(StackError::NoSuchSocket);
        };
        let (key, syn, listener) = (held.key, (held.syn, held.syn_ecn), held.listener);
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
        }
        let iss = self.initial_sequence(now, &key);
        let socket = self.embryo(now, &key, (&syn.0, syn.1), iss, Owner::User)?;
        self.env.mib.passive_opens += 1;
        self.tcp.wheel.disarm(index);
        if let Some(entry) = self.tcp.table.get_mut(index) {
            *entry = Entry::Conn(socket);
        }
        self.settle(now, index);
        Ok(())
    }

    /// Rejects a deferred SYN with a RST.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if the peer has given up or the handle is not
    /// that of a deferred SYN.
    pub fn pending_reject(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        let index = self.taken_held(id)?;
        self.reject_held(now, index);
        Ok(())
    }
}
