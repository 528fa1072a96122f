//! Deferred SYNs (transparent gateways): they are answered only when the application has reached
//! the destination.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::task::Waker;

use fullsend_wire::icmpv4::{Icmpv4Repr, unreachable};
use fullsend_wire::icmpv6::unreachable as unreachable6;
use fullsend_wire::icmpv6::{self, Icmpv6Repr};
use fullsend_wire::ipv4::{self, Ipv4Repr};
use fullsend_wire::ipv6::{self, Ipv6Repr};
use fullsend_wire::numbers::protocol;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};
use fullsend_wire::{EcnField, Instant, Nanos};

use super::socket::{ConnectionOwner, DeferredSyn, SocketEntry};
use super::{ListenerId, TcpId};
use crate::demux::{FlowKey, FlowOwner};
use crate::waiters::{WaitKey, WaitList, Waiter};
use crate::{Host, StackError};

/// Lifetime of a deferred SYN; the peer has stopped retransmitting it by then (RFC 6298 5.7 gives
/// at least three minutes; Linux sends seven SYNs in 127 s).
const DEFERRED_SYN_TIMEOUT: Nanos = Nanos::from_secs(130);

/// The reason of a "destination unreachable" message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnreachableCode {
    /// No route: the peer's connect fails with `NetworkUnreachable`.
    Network,
    /// The host does not answer: `HostUnreachable`.
    Host,
    /// A filter: Linux reports `HostUnreachable` for IPv4 and `PermissionDenied` for IPv6.
    Prohibited,
    /// No socket is bound to the port: `ConnectionRefused`.
    Port,
}

impl UnreachableCode {
    /// Returns the code in an ICMP (`v6`: ICMPv6) message.
    pub const fn code(self, v6: bool) -> u8 {
        match (self, v6) {
            (Self::Network, false) => unreachable::NET,
            (Self::Host, false) => unreachable::HOST,
            (Self::Prohibited, false) => unreachable::ADMIN_PROHIBITED,
            (Self::Port, false) => unreachable::PORT,
            (Self::Network, true) => unreachable6::NO_ROUTE,
            (Self::Host, true) => unreachable6::ADDRESS,
            (Self::Prohibited, true) => unreachable6::ADMIN_PROHIBITED,
            (Self::Port, true) => unreachable6::PORT,
        }
    }
}

/// Builds a "destination unreachable" message that quotes a packet. The checksum is not set.
fn unreachable_message(quote: &[u8], code: UnreachableCode, v6: bool) -> Vec<u8> {
    let mut message = vec![0; icmpv6::HEADER_LEN + quote.len()];
    if v6 {
        let repr = Icmpv6Repr::Unreachable {
            code: code.code(true),
            quote,
        };
        // The checksum depends on the source address, which the caller selects.
        let none = core::net::Ipv6Addr::UNSPECIFIED;
        repr.emit(none, none, &mut message);
    } else {
        let repr = Icmpv4Repr::Unreachable {
            code: code.code(false),
            mtu: 0,
            quote,
        };
        repr.emit(&mut message);
    }
    message
}

/// Builds the packet of a SYN again, without its checksum and its original TTL: the sender finds
/// its connection by the addresses, the ports and the sequence number (RFC 5927 4.1).
fn quote_of(key: &FlowKey, syn: &TcpRepr) -> Vec<u8> {
    let tcp_len = syn.header_len();
    let (peer, destination) = (key.remote.to_ip(), key.local.to_ip());
    let mut quote = match (peer, destination) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut quote = vec![0; ipv4::HEADER_LEN + tcp_len];
            Ipv4Repr::new(src, dst, protocol::TCP, tcp_len as u16).emit(&mut quote);
            quote
        }
        (src, dst) => {
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (src, dst) else {
                return Vec::new();
            };
            let mut quote = vec![0; ipv6::HEADER_LEN + tcp_len];
            Ipv6Repr::new(src, dst, protocol::TCP, tcp_len as u16).emit(&mut quote);
            quote
        }
    };
    let tcp_at = quote.len() - tcp_len;
    syn.emit(&mut quote[tcp_at..]);
    quote
}

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
            min_isn: None,
            listener,
            user_owned: false,
            expires,
            waiters: WaitList::default(),
        };
        let Some((index, _)) = self
            .tcp
            .table
            .insert(SocketEntry::DeferredSyn(Box::new(deferred)))
        else {
            return;
        };
        // The 4-tuple has one owner: with a second one, the ACK could reach the old connection.
        let replaced = self.replace_time_wait(&key);
        if let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get_mut(index) {
            deferred.min_isn = replaced;
        }
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
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get_mut(index) else {
            return;
        };
        deferred.waiters.wake(&mut self.wakers);
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

    /// Rejects a deferred SYN with an ICMP error that quotes it, from an address of this host.
    pub(super) fn reject_deferred_syn_with(
        &mut self,
        now: Instant,
        index: u32,
        code: UnreachableCode,
    ) -> Result<(), StackError> {
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get(index) else {
            return Err(StackError::NoSuchSocket);
        };
        let (key, syn) = (deferred.key, deferred.syn);
        self.drop_deferred_syn(index);
        let (guest, destination) = (key.remote.to_ip(), key.local.to_ip());
        let own = self.source_for(guest)?;
        let message = unreachable_message(&quote_of(&key, &syn), code, destination.is_ipv6());
        self.icmp_send(now, (own, guest), message, None)
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

    /// Implements
    /// [`TcpHandle::poll_deferred_ended`](crate::TcpHandle::poll_deferred_ended).
    pub(super) fn poll_deferred_syn_ended(&mut self, id: TcpId, waiter: Waiter<'_>) -> bool {
        match self.tcp.table.by_id(id.0) {
            Some((_, SocketEntry::DeferredSyn(deferred))) => {
                deferred.waiters.register(waiter, &mut self.replaced_wakers);
                false
            }
            _ => true,
        }
    }

    /// Removes a task that waits for the end of a deferred SYN, and returns its waker.
    pub(crate) fn stop_waiting_for_deferred_syn(
        &mut self,
        id: TcpId,
        key: Option<&mut WaitKey>,
    ) -> Option<Waker> {
        match self.tcp.table.by_id(id.0) {
            Some((_, SocketEntry::DeferredSyn(deferred))) => deferred.waiters.remove(key),
            _ => None,
        }
    }

    /// Implements [`TcpHandle::accept_deferred`](crate::TcpHandle::accept_deferred).
    pub(super) fn accept_deferred_syn(
        &mut self,
        now: Instant,
        id: TcpId,
    ) -> Result<(), StackError> {
        let index = self.user_deferred_syn(id)?;
        if self.tcp.is_full(&self.env.sysctl) {
            return Err(self.too_many_sockets());
        }
        let Some(SocketEntry::DeferredSyn(deferred)) = self.tcp.table.get(index) else {
            return Err(StackError::NoSuchSocket);
        };
        let (key, syn, listener) = (
            deferred.key,
            (deferred.syn, deferred.syn_ecn),
            deferred.listener,
        );
        let iss = self.tcp.isn.generate(now, &key);
        let iss = deferred.min_isn.map_or(iss, |min_isn| iss.latest(min_isn));
        // After an error the SYN stays, and counts, until it is rejected.
        let socket = self.create_child(now, &key, (&syn.0, syn.1), iss, ConnectionOwner::User)?;
        if let Some(listener) = self.tcp.listeners.get_mut(listener) {
            listener.pending = listener.pending.saturating_sub(1);
        }
        self.env.mib.passive_opens += 1;
        self.tcp.wheel.disarm(index);
        if let Some(entry) = self.tcp.table.get_mut(index) {
            if let SocketEntry::DeferredSyn(deferred) = entry {
                deferred.waiters.wake(&mut self.wakers);
            }
            *entry = SocketEntry::Conn(socket);
            self.tcp.connections += 1;
            self.env.mem.set_connections(self.tcp.connections);
        }
        self.post_process(now, index);
        Ok(())
    }
}
