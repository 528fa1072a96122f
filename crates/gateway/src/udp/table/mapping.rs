//! The sockets that the flows of one address and port of the guest share, and their number.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use fullsend_device::PortId;
use tokio::task::AbortHandle;

use super::order::Kind;
use super::{GuestShare, Table};
use crate::config::Outbound;
use crate::udp::flow::{MappingKey, SharedSocket, UdpFlow};
use crate::udp::host_socket::HostUdp;

/// A socket of the host for an address and port of the guest. It lasts as long as a flow that the guest
/// has opened (RFC 4787 4.3, REQ-6): datagrams of other hosts alone do not keep it open.
pub(super) struct MappingEntry {
    socket: Arc<HostUdp>,
    /// The task that receives from the socket.
    task: AbortHandle,
    owner: Option<PortId>,
    /// The addresses of the host's network that the guest has sent to.
    contacts: BTreeMap<IpAddr, Contact>,
}

/// An address that the guest has sent to.
struct Contact {
    /// The address as the guest sees it.
    visible: IpAddr,
    /// The number of the guest's flows to the address.
    flows: usize,
}

impl MappingEntry {
    pub(super) const fn socket(&self) -> &Arc<HostUdp> {
        &self.socket
    }
}

impl MappingKey {
    /// Returns the key of the socket for datagrams from `guest` to `host`.
    pub(in crate::udp) fn new(guest: SocketAddr, host: SocketAddr, outbound: &Outbound) -> Self {
        Self {
            guest,
            v6: host.is_ipv6(),
            loopback: host.ip().is_loopback() && outbound.separates_loopback(host.is_ipv6()),
        }
    }
}

impl Table {
    /// Adds the socket of an address and port of the guest, with the task that receives from it. The
    /// caller must add a flow to it under the same lock. Returns the number of flows that were removed
    /// for it.
    pub(in crate::udp) fn insert_mapping(
        &mut self,
        key: MappingKey,
        (socket, task): (Arc<HostUdp>, AbortHandle),
        (owner, share): (Option<PortId>, GuestShare),
    ) -> usize {
        self.end_mapping(&key);
        let removed = self.make_room_for_socket(owner, share);
        self.count_socket(owner);
        let entry = MappingEntry {
            socket,
            task,
            owner,
            contacts: BTreeMap::new(),
        };
        self.mappings.insert(key, entry);
        removed
    }

    /// Returns whether a socket exists.
    pub(in crate::udp) fn has_mapping(&self, key: &MappingKey) -> bool {
        self.mappings.contains_key(key)
    }

    /// Returns the address under which the guest sees `host`, if the guest has sent to it through the
    /// socket of `key`.
    pub(in crate::udp) fn contact(&self, key: &MappingKey, host: IpAddr) -> Option<IpAddr> {
        let contact = self.mappings.get(key)?.contacts.get(&host)?;
        Some(contact.visible)
    }

    /// Returns the number of the host's sockets for flows of guests.
    pub(in crate::udp) fn socket_count(&self) -> usize {
        self.sockets.values().sum()
    }

    /// Ends flows of a guest, the least recently used first, until it may have another socket. If all
    /// guests together have too many, ends those of the guest with the most. Returns the number of flows
    /// ended.
    pub(super) fn make_room_for_socket(
        &mut self,
        owner: Option<PortId>,
        share: GuestShare,
    ) -> usize {
        let mut removed = 0;
        loop {
            let own = self.sockets.get(&owner).copied().unwrap_or(0);
            let full = if own >= share.sockets.max(1) {
                Some(owner)
            } else if self.socket_count() >= self.bounds.sockets {
                let largest = self.sockets.iter().max_by_key(|(_, count)| **count);
                largest.map(|(owner, _)| *owner)
            } else {
                None
            };
            let Some(full) = full else {
                return removed;
            };
            if !self.remove_least_recently_used(Kind::OfGuest(full)) {
                return removed;
            }
            removed += 1;
        }
    }

    pub(super) fn count_socket(&mut self, owner: Option<PortId>) {
        *self.sockets.entry(owner).or_default() += 1;
    }

    pub(super) fn release_socket(&mut self, owner: Option<PortId>) {
        if let Some(count) = self.sockets.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.sockets.remove(&owner);
            }
        }
    }

    /// Records that the guest uses its socket to reach the peer of `flow`.
    pub(super) fn add_contact(&mut self, kind: Kind, flow: &UdpFlow) {
        if let Some(key) = mapping_of(kind, flow)
            && let Some(mapping) = self.mappings.get_mut(&key)
        {
            let contact = mapping.contacts.entry(flow.host.ip()).or_insert(Contact {
                visible: flow.key.remote.ip(),
                flows: 0,
            });
            contact.flows += 1;
        }
    }

    /// Records that a flow of the guest has ended. After the last one, its socket is closed.
    pub(super) fn end_contact(&mut self, kind: Kind, flow: &UdpFlow) {
        let Some(key) = mapping_of(kind, flow) else {
            return;
        };
        let Some(mapping) = self.mappings.get_mut(&key) else {
            return;
        };
        if let Some(contact) = mapping.contacts.get_mut(&flow.host.ip()) {
            contact.flows -= 1;
            if contact.flows == 0 {
                mapping.contacts.remove(&flow.host.ip());
            }
        }
        if mapping.contacts.is_empty() {
            self.end_mapping(&key);
        }
    }

    /// Closes a socket, and ends its flows.
    pub(in crate::udp) fn end_mapping(&mut self, key: &MappingKey) {
        if let Some(mapping) = self.mappings.remove(key) {
            mapping.task.abort();
            self.release_socket(mapping.owner);
            self.remove_all_of(SharedSocket::Mapping(*key));
        }
    }
}

/// Returns the key of the socket that a flow of this kind keeps open.
fn mapping_of(kind: Kind, flow: &UdpFlow) -> Option<MappingKey> {
    match (kind, flow.peer.as_ref()?.0.socket) {
        (Kind::OfGuest(_), SharedSocket::Mapping(key)) => Some(key),
        _ => None,
    }
}
