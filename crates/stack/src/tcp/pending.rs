//! SYNs that a user holds (transparent gateways): answered only when the far side is reached.

use alloc::boxed::Box;

use fullsend_units::{Instant, Nanos};
use fullsend_wire::EcnField;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use super::socket::{Entry, Held, Owner};
use super::{ListenerId, TcpId};
use crate::demux::{FlowKey, Target};
use crate::{Host, StackError};

/// A held SYN is given up after this: its peer has stopped sending it (RFC 6298 5.7 gives at
/// least three minutes; Linux sends seven SYNs in 127 s).
const HELD_TIMEOUT: Nanos = Nanos::from_secs(130);

impl Host {
    /// Keeps a SYN for its listener's user.
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

    /// Forgets a held SYN without an answer.
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

    /// Refuses a held SYN.
    pub(super) fn reject_held(&mut self, now: Instant, index: u32) {
        let Some(Entry::Held(held)) = self.tcp.table.get(index) else {
            return;
        };
        let (key, syn) = (held.key, held.syn);
        self.drop_held(index);
        self.send_reset(now, &key, &syn, 0);
    }

    /// A segment for a held SYN came.
    pub(super) fn held_input(&mut self, index: u32, repr: &TcpRepr) {
        let Some(Entry::Held(held)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let next = held.syn.seq + 1;
        if repr.flags.contains(TcpFlags::RST) && (repr.seq == next || repr.seq == held.syn.seq) {
            self.drop_held(index);
        } else if repr.flags.contains(TcpFlags::SYN) && repr.seq == held.syn.seq {
            // Sent again: the newest timestamp is the one to echo.
            held.syn = *repr;
        }
    }

    fn taken_held(&mut self, id: TcpId) -> Result<u32, StackError> {
        match self.tcp.table.by_id(id.0) {
            Some((index, Entry::Held(held))) if held.taken => Ok(index),
            _ => Err(StackError::NoSuchSocket),
        }
    }

    /// Answers a held connection's SYN; it becomes established like any other. Fails with
    /// `NoSuchSocket` when the peer gave up in the meantime.
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

    /// Refuses a held connection with a RST.
    pub fn pending_reject(&mut self, now: Instant, id: TcpId) -> Result<(), StackError> {
        let index = self.taken_held(id)?;
        self.reject_held(now, index);
        Ok(())
    }
}
