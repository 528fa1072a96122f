//! The table of UDP flows and of the sockets that they share. It is bounded: idle flows end, and a new
//! flow replaces the one that has been idle for the longest time. The flows that guests open, those that
//! other hosts open to them and those of forwards have separate bounds, so that neither other hosts nor
//! clients of a forward end the guest's flows.

mod mapping;
mod order;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Bound;
use std::sync::Arc;

use fullsend_device::PortId;
use tokio::task::AbortHandle;

use self::mapping::MappingEntry;
use self::order::{Kind, Order};
use super::flow::{FlowKey, MappingKey, Opener, PeerKey, SharedSocket, UdpFlow};
use super::forward::ForwardSocket;
use super::host_socket::HostUdp;
use super::local_addr::LocalAddr;
use crate::config::Outbound;
use crate::forward::ForwardId;

/// Ports that replace a client's port if another flow uses its address and port.
const SUBSTITUTE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// The bounds of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Flows that all guests have opened, and separately flows that other hosts have opened to guests.
    pub(super) flows: usize,
    /// Sockets of the host for the flows of all guests.
    pub(super) sockets: usize,
    /// Flows of the host's clients of forwards.
    pub(super) forwarded: usize,
    /// Those of them that have a socket in the guest's namespace.
    pub(super) spliced: usize,
}

/// The largest numbers of flows and sockets of one guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestShare {
    pub(super) flows: usize,
    pub(super) sockets: usize,
}

/// The socket of the host for a new flow of the guest.
pub(super) enum SocketChoice {
    /// A socket that other flows use, with the source address of datagrams unless the kernel chooses it.
    Shared(SharedSocket, Arc<HostUdp>, Option<LocalAddr>),
    /// A new socket, the first for an address and port of the guest.
    New(MappingKey),
    /// A connected socket of the flow's own: two destinations of the guest lead to one address of the
    /// host's network, and their answers must be distinguished.
    Connected,
}

struct Entry {
    flow: Arc<UdpFlow>,
    /// A number that distinguishes the flow from an earlier one with the same key, and its entries in
    /// orders.
    id: u64,
    kind: Kind,
    /// The task that receives from a connected socket of the flow.
    task: Option<AbortHandle>,
}

/// Most busy flows that have a connected socket in addition to the shared one.
const CONNECTED_MAX: usize = 64;

/// The flows and sockets, with their order of use.
pub(super) struct Table {
    flows: BTreeMap<FlowKey, Entry>,
    /// The flows of shared sockets, by their peers.
    peers: BTreeMap<PeerKey, FlowKey>,
    mappings: BTreeMap<MappingKey, MappingEntry>,
    /// The sockets of forwards, by the guest's address to which they lead.
    forwards: BTreeMap<(SocketAddr, ForwardId), ForwardSocket>,
    /// The order of use, for each kind that has flows.
    orders: BTreeMap<Kind, Order>,
    /// The number of sockets for the flows of each guest that has some.
    sockets: BTreeMap<Option<PortId>, usize>,
    /// The number of busy flows that have a connected socket.
    connected: usize,
    bounds: Bounds,
    last_id: u64,
    /// The substitute port that is tried next.
    next_substitute: u16,
}

impl Table {
    /// Returns an empty table.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            flows: BTreeMap::new(),
            peers: BTreeMap::new(),
            mappings: BTreeMap::new(),
            forwards: BTreeMap::new(),
            orders: BTreeMap::new(),
            sockets: BTreeMap::new(),
            connected: 0,
            bounds: Bounds {
                flows: bounds.flows.max(1),
                sockets: bounds.sockets.max(1),
                forwarded: bounds.forwarded.max(1),
                spliced: bounds.spliced.max(1),
            },
            last_id: 0,
            next_substitute: *SUBSTITUTE_PORTS.start(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    pub(super) fn get(&self, key: &FlowKey) -> Option<&Arc<UdpFlow>> {
        self.flows.get(key).map(|entry| &entry.flow)
    }

    /// Returns the first flows after `key` in the order of their addresses, at most `max`.
    pub(super) fn after(&self, key: Option<FlowKey>, max: usize) -> Vec<Arc<UdpFlow>> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.flows.range((from, Bound::Unbounded));
        rest.take(max)
            .map(|(_, entry)| entry.flow.clone())
            .collect()
    }

    /// Returns the flow of a shared socket with this peer.
    pub(super) fn of_peer(&self, key: &PeerKey) -> Option<&Arc<UdpFlow>> {
        self.get(self.peers.get(key)?)
    }

    /// Returns a flow of a shared socket with this peer, whatever address of the host it uses.
    pub(super) fn any_of_peer(
        &self,
        socket: SharedSocket,
        peer: SocketAddr,
    ) -> Option<&Arc<UdpFlow>> {
        let key = |asked| PeerKey {
            socket,
            peer,
            asked,
        };
        let last = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));
        let mut all = self.peers.range(key(None)..=key(Some(last)));
        self.get(all.next()?.1)
    }

    /// Returns the socket for a new flow from `guest` to `host`: that of a forward to the guest's
    /// address, so that its datagrams come from the port at which others reach it, or else the one that
    /// all flows of this address share.
    pub(super) fn choose_socket(
        &self,
        guest: SocketAddr,
        host: SocketAddr,
        outbound: &Outbound,
    ) -> SocketChoice {
        let ids = (guest, ForwardId(0))..=(guest, ForwardId(u64::MAX));
        for ((_, id), forward) in self.forwards.range(ids) {
            let shared = SharedSocket::Forward(*id);
            if let Some((socket, from)) = forward.socket_to(host, outbound)
                && self.any_of_peer(shared, host).is_none()
            {
                return SocketChoice::Shared(shared, socket, from);
            }
        }
        let key = MappingKey::new(guest, host, outbound);
        let shared = SharedSocket::Mapping(key);
        match self.mappings.get(&key) {
            None => SocketChoice::New(key),
            Some(_) if self.any_of_peer(shared, host).is_some() => SocketChoice::Connected,
            Some(mapping) => SocketChoice::Shared(shared, mapping.socket().clone(), None),
        }
    }

    /// Returns an unused key for a client that the guest sees as `remote`, with another port if that one
    /// is in use. `None` if all ports are in use.
    pub(super) fn free_key(&mut self, guest: SocketAddr, remote: SocketAddr) -> Option<FlowKey> {
        let mut key = FlowKey { guest, remote };
        for _ in 0..=SUBSTITUTE_PORTS.len() {
            if !self.flows.contains_key(&key) {
                return Some(key);
            }
            key.remote.set_port(self.next_substitute);
            // Recently used ports come last, so that few are tried.
            self.next_substitute = match self.next_substitute.checked_add(1) {
                Some(next) => next,
                None => *SUBSTITUTE_PORTS.start(),
            };
        }
        None
    }

    /// Adds a flow, and its task if it has a connected socket. `share` is the share of its guest. Returns
    /// the number of flows that were removed for it.
    pub(super) fn insert(
        &mut self,
        flow: &Arc<UdpFlow>,
        task: Option<AbortHandle>,
        share: GuestShare,
    ) -> usize {
        self.remove(&flow.key);
        let kind = Kind::of(flow);
        // This precedes the removal of a flow, which may be the only other one of its socket.
        self.add_contact(kind, flow);
        let mut removed = 0;
        if task.is_some() && kind != Kind::Spliced {
            removed += self.make_room_for_socket(flow.owner.port, share);
            self.count_socket(flow.owner.port);
        }
        let full = self.full_kind(kind, share.flows);
        removed += usize::from(full.is_some_and(|full| self.remove_least_recently_used(full)));
        if let Some((peer, _)) = &flow.peer {
            self.peers.insert(*peer, flow.key);
        }
        let id = self.enqueue(kind, flow);
        let flow = flow.clone();
        let entry = Entry {
            flow,
            id,
            kind,
            task,
        };
        self.flows.insert(entry.flow.key, entry);
        removed
    }

    /// Counts a flow that another host has opened, and that the guest has answered, as one of the
    /// guest's. Returns the number of flows that were removed for it.
    pub(super) fn promote(&mut self, key: &FlowKey, share: GuestShare) -> usize {
        let Some(entry) = self.flows.get(key) else {
            return 0;
        };
        let (flow, before) = (entry.flow.clone(), entry.kind);
        let Kind::OfRemotes(port) = before else {
            return 0;
        };
        let kind = Kind::OfGuest(port);
        // This precedes the removal of a flow, which may be the only one that keeps the socket.
        self.add_contact(kind, &flow);
        let full = self.full_kind(kind, share.flows);
        let removed = full.is_some_and(|full| self.remove_least_recently_used(full));
        self.forget(before);
        let id = self.enqueue(kind, &flow);
        if let Some(entry) = self.flows.get_mut(key) {
            (entry.kind, entry.id) = (kind, id);
        }
        usize::from(removed)
    }

    /// Ends a flow, and the socket that only it uses. Its entry in a queue is removed when it reaches the
    /// front.
    pub(super) fn remove(&mut self, key: &FlowKey) {
        let Some(entry) = self.flows.remove(key) else {
            return;
        };
        entry.flow.mark_ended();
        self.forget(entry.kind);
        if let Some((peer, _)) = &entry.flow.peer {
            self.peers.remove(peer);
        }
        self.end_contact(entry.kind, &entry.flow);
        self.end_socket(&entry.flow, entry.task);
    }

    /// Returns whether a busy flow may have a connected socket without ending another flow.
    pub(super) fn may_connect(&self, flow: &UdpFlow, share: GuestShare) -> bool {
        let own = self.sockets.get(&flow.owner.port).copied().unwrap_or(0);
        self.connected < CONNECTED_MAX
            && own < share.sockets
            && self.socket_count() < self.bounds.sockets
            && self.get(&flow.key).is_some()
    }

    /// Adds the task that receives from the connected socket of a busy flow.
    pub(super) fn add_connected(&mut self, key: &FlowKey, task: AbortHandle) {
        let Some(entry) = self.flows.get_mut(key) else {
            return task.abort();
        };
        let port = entry.flow.owner.port;
        entry.task = Some(task);
        self.connected += 1;
        self.count_socket(port);
    }

    /// Closes the connected socket of a busy flow.
    pub(super) fn remove_connected(&mut self, key: &FlowKey) {
        if let Some(entry) = self.flows.get_mut(key) {
            let (flow, task) = (entry.flow.clone(), entry.task.take());
            self.end_socket(&flow, task);
        }
    }

    /// Closes the connected socket of a flow, if it has one.
    fn end_socket(&mut self, flow: &UdpFlow, task: Option<AbortHandle>) {
        let Some(task) = task else { return };
        task.abort();
        if Kind::of(flow) == Kind::Spliced {
            return;
        }
        self.release_socket(flow.owner.port);
        if flow.peer.is_some() && flow.spliced().is_none() {
            self.connected -= 1;
        }
        flow.set_connected(None);
    }

    /// Adds the socket of a forward.
    pub(super) fn add_forward(&mut self, id: ForwardId, forward: ForwardSocket) {
        self.forwards.insert((forward.guest(), id), forward);
    }

    /// Removes the socket of a forward to `guest`, and its flows.
    pub(super) fn remove_forward(&mut self, id: ForwardId, guest: SocketAddr) {
        self.forwards.remove(&(guest, id));
        self.remove_all_of(SharedSocket::Forward(id));
    }

    /// Ends all flows for which `is_wanted` is true.
    pub(super) fn remove_where(&mut self, is_wanted: impl Fn(&UdpFlow) -> bool) {
        let found = self.flows.values().filter(|entry| is_wanted(&entry.flow));
        let keys: Vec<_> = found.map(|entry| entry.flow.key).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Ends all flows of a shared socket.
    fn remove_all_of(&mut self, socket: SharedSocket) {
        let first = PeerKey {
            socket,
            peer: SocketAddr::from(([0; 4], 0)),
            asked: None,
        };
        let rest = self.peers.range(first..);
        let own = rest.take_while(|(key, _)| key.socket == socket);
        let keys: Vec<_> = own.map(|(_, key)| *key).collect();
        for key in keys {
            self.remove(&key);
        }
    }
}

impl Kind {
    fn of(flow: &UdpFlow) -> Self {
        match flow.opener {
            Opener::Guest => Self::OfGuest(flow.owner.port),
            Opener::Remote => Self::OfRemotes(flow.owner.port),
            Opener::Client if flow.spliced().is_some() => Self::Spliced,
            Opener::Client => Self::Forwarded,
        }
    }
}
