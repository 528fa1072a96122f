//! TCP listeners: which one accepts a SYN, the number of handshakes in progress, and the accept
//! queue.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use fullsend_wire::Instant;
use smallvec::SmallVec;

use super::fastopen::FastopenQueue;
use super::listener_settings::ListenerSettings;
use super::socket::{ConnectionOwner, SocketEntry};
use super::{TcpId, addr_is_usable};
use crate::demux::{Addr, FlowKey};
use crate::ip::canonical;
use crate::siphash::SipKey;
use crate::slab::Slab;
use crate::waiters::WaitList;
use crate::{Host, StackError};

/// A TCP listener's ID; [`Host::listener`] gives access to it. It is never reused for another
/// listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub u64);

/// The settings of a listener for new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenConfig {
    /// Maximum number of established connections waiting to be accepted (`listen(2)`'s backlog); as
    /// many more may be in the handshake or deferred.
    pub backlog: usize,
    /// Whether a connection is yielded at its SYN, before the SYN is answered; the application then
    /// accepts or rejects it (transparent gateways).
    pub defer_syn_ack: bool,
    /// Whether SYNs for any destination address are accepted, local or not and, if listening on
    /// port 0, for any port (transparent gateways).
    pub any_destination: bool,
}

/// A connection that a listener yields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The connection's ID.
    pub id: TcpId,
    /// The destination that the peer connected to.
    pub local: SocketAddr,
    /// The peer's address.
    pub remote: SocketAddr,
}

/// A listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) config: ListenConfig,
    /// Number of connections in the handshake, or deferred.
    pub(super) pending: usize,
    /// Number of half-open connections whose SYN-ACK has not timed out yet.
    pub(super) young: usize,
    /// The time at which a SYN was last answered with a cookie.
    pub(super) overflowed_at: Option<Instant>,
    /// The accept queue: slots of the socket table.
    pub(super) accept_queue: VecDeque<u32>,
    pub(super) accept_waiters: WaitList,
    /// `SO_REUSEPORT`: other listeners may use the same address in the same way.
    pub(super) shared: bool,
    /// `IPV6_V6ONLY`.
    pub(super) v6only: bool,
    pub(super) settings: ListenerSettings,
    pub(super) fastopen: FastopenQueue,
}

impl Listener {
    /// As on Linux, one more connection than the backlog is admitted, so that a backlog of 0 works.
    pub(super) fn is_accept_queue_full(&self) -> bool {
        self.accept_queue.len() > self.config.backlog
    }

    pub(super) fn is_syn_queue_full(&self) -> bool {
        self.pending > self.config.backlog
    }

    /// Returns the maximum number of SYN-ACK retransmissions. As on Linux, when the queue is more
    /// than half full and old half-open connections prevail, the number is reduced, down to two.
    pub(super) fn synack_retries(&self, most: u32) -> u32 {
        if self.pending * 2 <= self.config.backlog.max(8) {
            return most;
        }
        let (mut retries, mut young) = (most, self.young * 2);
        while retries > 2 && self.pending >= young {
            retries -= 1;
            young *= 2;
        }
        retries
    }

    /// Returns whether the listener accepts connections to `addr`. The caller has compared the
    /// port.
    fn accepts(&self, addr: Addr, ip: IpAddr) -> bool {
        let family = match self.local.ip() {
            // An IPv6 wildcard accepts both families, as with `bindv6only=0`.
            IpAddr::V6(own) if own.is_unspecified() => !(self.v6only && addr.is_v4()),
            own => own.is_ipv4() == addr.is_v4(),
        };
        let wildcard = self.local.ip().is_unspecified() || self.config.any_destination;
        family && (wildcard || self.local.ip() == ip)
    }

    /// Returns how specific the listener's address is; the most specific listener gets the SYN.
    fn specificity(&self) -> (bool, bool) {
        (
            !self.config.any_destination,
            !self.local.ip().is_unspecified(),
        )
    }
}

/// All listeners, by port.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) table: Slab<Listener>,
    /// Listeners by port; those on port 0 accept any port.
    ports: BTreeMap<u16, SmallVec<[u32; 2]>>,
    /// The key of the hash that distributes flows over listeners that share a port.
    group_key: SipKey,
}

impl Listeners {
    /// Creates an empty set of listeners. `key` must be secret.
    pub(super) const fn new(SipKey(a, b): SipKey) -> Self {
        Self {
            table: Slab::new(),
            ports: BTreeMap::new(),
            group_key: SipKey(!a, b),
        }
    }

    /// Returns the listener that accepts a SYN of this 4-tuple. `ours` is whether the destination
    /// is a local address.
    pub(super) fn find(&self, key: &FlowKey, ours: bool) -> Option<ListenerId> {
        let (addr, port) = (key.local, key.local_port);
        let ip = addr.to_ip();
        let on = |port: u16| self.ports.get(&port).into_iter().flatten().copied();
        on(port)
            .chain(on(0))
            .filter_map(|index| Some((index, self.table.get(index)?)))
            .filter(|(_, l)| (ours || l.config.any_destination) && l.accepts(addr, ip))
            .max_by_key(|(_, l)| (l.local.port() != 0, l.specificity()))
            .and_then(|(index, l)| {
                self.table
                    .id(self.select_from_group(index, l, key))
                    .map(ListenerId)
            })
    }

    /// Returns the listener of a `SO_REUSEPORT` group that gets this flow: the one with the highest
    /// keyed hash of flow and listener, so that closing a listener moves only its own flows.
    fn select_from_group(&self, found: u32, listener: &Listener, key: &FlowKey) -> u32 {
        if !listener.shared {
            return found;
        }
        let flow = key.hash(self.group_key);
        let on_port = self.ports.get(&listener.local.port()).into_iter().flatten();
        let group = on_port.copied().filter_map(|index| {
            let candidate = self.table.get(index)?;
            let same = candidate.shared
                && candidate.local == listener.local
                && candidate.config.any_destination == listener.config.any_destination;
            let id = self.table.id(index).filter(|_| same)?;
            Some((self.group_key.hash([flow, id], 0), index))
        });
        group.max().map_or(found, |(_, index)| index)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.table.by_id(id.0).map(|(_, listener)| listener)
    }

    /// Returns whether there is a listener on this port.
    pub(super) fn uses_port(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    fn conflicts(&self, local: SocketAddr, config: ListenConfig, shared: bool) -> bool {
        let on_port = self.ports.get(&local.port()).into_iter().flatten();
        on_port
            .filter_map(|&index| self.table.get(index))
            .filter(|l| !(shared && l.shared))
            .any(|l| l.local == local && l.config.any_destination == config.any_destination)
    }

    /// Returns the IDs of all listeners.
    pub(super) fn ids(&self) -> Vec<ListenerId> {
        let indices = self.table.iter().map(|(index, _)| index);
        indices
            .filter_map(|index| self.table.id(index).map(ListenerId))
            .collect()
    }

    fn remove(&mut self, index: u32) -> Option<Listener> {
        let listener = self.table.remove(index)?;
        let port = listener.local.port();
        if let Some(on_port) = self.ports.get_mut(&port) {
            on_port.retain(|i| *i != index);
            if on_port.is_empty() {
                self.ports.remove(&port);
            }
        }
        Some(listener)
    }
}

impl Host {
    /// Creates a listener. For port 0 a port is chosen or, with `any_destination`, all ports are
    /// accepted. A listener on the unspecified IPv6 address accepts IPv4 connections, too, and
    /// shows their addresses as IPv4 addresses. An IPv4-mapped IPv6 address stands for the IPv4
    /// address.
    ///
    /// # Errors
    /// [`AddressInUse`](StackError::AddressInUse) if another listener has the address;
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable),
    /// [`TentativeAddress`](StackError::TentativeAddress) or
    /// [`DuplicateAddress`](StackError::DuplicateAddress) if the host cannot use it;
    /// [`NoPorts`](StackError::NoPorts) if no port is free.
    pub fn tcp_listen(
        &mut self,
        local: SocketAddr,
        config: ListenConfig,
    ) -> Result<ListenerId, StackError> {
        self.listen(local, config, false)
    }

    /// Creates a listener with `SO_REUSEPORT`: several may use one address, and each new connection
    /// goes to one of them, selected by its 4-tuple.
    ///
    /// # Errors
    /// The errors of [`tcp_listen`](Self::tcp_listen).
    pub fn tcp_listen_shared(
        &mut self,
        local: SocketAddr,
        config: ListenConfig,
    ) -> Result<ListenerId, StackError> {
        self.listen(local, config, true)
    }

    fn listen(
        &mut self,
        local: SocketAddr,
        config: ListenConfig,
        shared: bool,
    ) -> Result<ListenerId, StackError> {
        let config = ListenConfig {
            backlog: config.backlog.min(self.env.sysctl.somaxconn as usize),
            ..config
        };
        let mut local = canonical(local);
        let ours = local.ip().is_unspecified() || self.ip.addresses.is_local(local.ip().into());
        if !(ours || config.any_destination && addr_is_usable(local)) {
            return Err(self.not_available(local));
        }
        if local.port() == 0 && !config.any_destination {
            local.set_port(self.listening_port(local)?);
        }
        let listeners = &mut self.tcp.listeners;
        if listeners.conflicts(local, config, shared) {
            return Err(StackError::AddressInUse(local));
        }
        let listener = Listener {
            local,
            config,
            pending: 0,
            young: 0,
            overflowed_at: None,
            accept_queue: VecDeque::new(),
            accept_waiters: WaitList::default(),
            shared,
            v6only: false,
            settings: ListenerSettings::default(),
            fastopen: FastopenQueue::default(),
        };
        let (index, id) = listeners
            .table
            .insert(listener)
            .ok_or(StackError::NoPorts)?;
        listeners.ports.entry(local.port()).or_default().push(index);
        Ok(ListenerId(id))
    }

    /// Returns a port without a listener.
    fn listening_port(&mut self, local: SocketAddr) -> Result<u16, StackError> {
        self.tcp_free_port(local.ip(), |_| true)
    }

    /// Returns an ephemeral port without a listener for which `free` returns `true`. It is not
    /// reserved.
    ///
    /// # Errors
    /// [`NoPorts`](StackError::NoPorts) if there is no such port.
    pub fn tcp_free_port(
        &mut self,
        local: IpAddr,
        mut free: impl FnMut(u16) -> bool,
    ) -> Result<u16, StackError> {
        let [first, last] = self.env.sysctl.ip_local_port_range;
        let listeners = &self.tcp.listeners;
        let to = (local.into(), Addr::v4([0; 4]), 0);
        let free = |port| !listeners.uses_port(port) && free(port);
        self.tcp
            .ports
            .choose(first..=last, to, free)
            .ok_or(StackError::NoPorts)
    }

    /// Returns the tasks that wait for a connection to accept.
    pub(crate) fn accept_waiters(&mut self, id: ListenerId) -> Option<&mut WaitList> {
        let listener = self.tcp.listeners.get_mut(id)?;
        Some(&mut listener.accept_waiters)
    }

    /// Implements [`ListenerHandle::close`](crate::ListenerHandle::close).
    pub(super) fn close_listener(&mut self, now: Instant, id: ListenerId) {
        let Some((index, _)) = self.tcp.listeners.table.by_id(id.0) else {
            return;
        };
        let Some(mut listener) = self.tcp.listeners.remove(index) else {
            return;
        };
        listener.accept_waiters.wake(&mut self.wakers);
        let belongs_to_listener = |entry: &SocketEntry| match entry {
            SocketEntry::Conn(socket) => {
                matches!(socket.owner, ConnectionOwner::Listener(l) if l == index)
            }
            SocketEntry::DeferredSyn(deferred) => deferred.listener == id && !deferred.user_owned,
            SocketEntry::HalfOpen(half_open) => half_open.listener == index,
        };
        let all = self.tcp.table.iter();
        let owned: Vec<u32> = all
            .filter(|(_, e)| belongs_to_listener(e))
            .map(|(i, _)| i)
            .collect();
        for index in owned {
            match self.tcp.table.get(index) {
                Some(SocketEntry::Conn(_)) => self.orphan(now, index, true),
                Some(SocketEntry::DeferredSyn(_)) => self.reject_deferred_syn(now, index),
                Some(SocketEntry::HalfOpen(_)) => self.drop_half_open(index),
                None => {}
            }
        }
    }
}
