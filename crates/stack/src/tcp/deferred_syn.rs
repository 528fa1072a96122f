//! Deferred SYNs (transparent gateways): they are answered only when the application has reached
//! the destination.

use alloc::boxed::Box;

use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{EcnField, Instant, Nanos};

use super::socket::{ConnectionOwner, DeferredSyn, SocketEntry};
use super::{ListenerId, TcpId};
use crate::demux::{FlowKey, FlowOwner};
use crate::{Host, StackError};

/// Lifetime of a deferred SYN; the peer has stopped retransmitting it by then (RFC 6298 5.7 gives
/// at least three minutes; Linux sends seven SYNs in 127 s).
const DEFERRED_SYN_TIMEOUT: Nanos = Nanos::from_secs(130);

impl Host {
    /// Adds a SYN to its listener's queue without an answer.
    pub(super) fn add_deferred_syn(
        &mut self,
        now: Instant,
        listener: ListenerId,
        key: FlowKey,
        (syn, syn_ecn): (TcpRepr, EcnField),
    ) {
        let expires = now + DEFERRED_SYN_TIMEOUT;
        let deferred = DeferredSyn {
            syn,
            syn_ecn,
            key,
            listener,
            user_owned: false,
            expires,
        };
        let Some((index, _)) = self
            .tcp
            .table
            .insert(SocketEntry::DeferredSyn(Box::new(deferred)))
        else {
            return;
        };
        self.tcp.flows.insert(&key, FlowOwner::Socket(index));
        self.tcp.wheel.arm(index, expires);
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending += 1;
            listener.accept_queue.push_back(index);
            listener.accept_waiters.wake(&mut self.wakers);
        }
    }

    /// Removes a deferred SYN without an answer.
    pub(super) fn drop_deferred_syn(&mut self, index: u32) {
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get(index) else {
            return;
        };
        let (listener, user_owned) = (deferred.listener, deferred.user_owned);
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
            if !user_owned {
                listener.accept_queue.retain(|i| *i != index);
            }
        }
        self.remove_entry(index);
    }

    /// Rejects a deferred SYN with a RST.
    pub(super) fn reject_deferred_syn(&mut self, now: Instant, index: u32) {
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get(index) else {
            return;
        };
        let (key, syn) = (deferred.key, deferred.syn);
        self.drop_deferred_syn(index);
        self.send_reset(now, &key, &syn, 0);
    }

    /// Processes a segment for a deferred SYN.
    pub(super) fn deferred_syn_input(&mut self, index: u32, repr: &TcpRepr) {
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get_mut(index) else {
            return;
        };
        let next = deferred.syn.seq + 1;
        if repr.flags.contains(TcpFlags::RST) && (repr.seq == next || repr.seq == deferred.syn.seq)
        {
            self.drop_deferred_syn(index);
        } else if repr.flags.contains(TcpFlags::SYN) && repr.seq == deferred.syn.seq {
            // A retransmission: its timestamp is the one to echo.
            deferred.syn = *repr;
        }
    }

    /// Returns the slot of a deferred SYN that the application has taken.
    pub(super) fn user_deferred_syn(&mut self, id: TcpId) -> Result<u32, StackError> {
        match self.tcp.table.by_id(id.0) {
            Some((index, SocketEntry::DeferredSyn(deferred))) if deferred.user_owned => Ok(index),
            _ => Err(StackError::NoSuchSocket),
        }
    }

    /// Implements [`TcpHandle::accept_deferred`](crate::TcpHandle::accept_deferred).
    pub(super) fn accept_deferred_syn(
        &mut self,
        now: Instant,
        id: TcpId,
    ) -> Result<(), StackError> {
        let index = self.user_deferred_syn(id)?;
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get(index) else {
            return Err(StackError::NoSuchSocket);
        };
        let (key, syn, listener) = (
            deferred.key,
            (deferred.syn, deferred.syn_ecn),
            deferred.listener,
        );
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
        }
        let iss = self.initial_sequence(now, &key);
        let socket = self.create_child(now, &key, (&syn.0, syn.1), iss, ConnectionOwner::User)?;
        self.env.mib.passive_opens += 1;
        self.tcp.wheel.disarm(index);
        if let Some(entry) = self.tcp.table.get_mut(index) {
            *entry = SocketEntry::Conn(socket);
        }
        self.post_process(now, index);
        Ok(())
    }
}
