//! Forwards that follow the ports on which the guest or the host listens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_gateway::namespace::SocketTables;
use fullsend_gateway::{Forward, ForwardId, Handle, Protocol, Side};

use super::network::LOOPBACKS;

/// Ports of a protocol that are bound at each [`poll`](AutoForwards::poll).
pub(super) const BINDS_AT_ONCE: usize = 64;

/// The forwards that exist because one side listens.
pub(super) struct AutoForwards {
    /// The sockets of the side that listens.
    tables: SocketTables,
    /// The side of the clients.
    from: Side,
    protocols: BTreeSet<Protocol>,
    /// The addresses to listen on, and the address that each leads to.
    addresses: Vec<(IpAddr, IpAddr)>,
    /// The forwards of each port, in the order of the addresses; `None` where it is in use.
    bound: BTreeMap<(Protocol, u16), Vec<Option<ForwardId>>>,
    /// The port of each protocol that was bound last.
    last: BTreeMap<Protocol, u16>,
}

impl AutoForwards {
    /// Follows the ports on which the guest listens, of no protocol yet. `guest` has its IPv4 and
    /// IPv6 address.
    pub(super) fn of_guest(tables: SocketTables, guest: [Option<IpAddr>; 2]) -> Self {
        let unspecified: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = unspecified.into_iter().zip(guest);
        let addresses = addresses.filter_map(|(host, guest)| Some((host, guest?)));
        Self::new(Side::Host, tables, addresses.collect())
    }

    /// Follows the ports on which the host listens, of no protocol yet: they lead from the guest's
    /// loopback to the host's.
    pub(super) fn of_host(tables: SocketTables, guest: [Option<IpAddr>; 2]) -> Self {
        let addresses = LOOPBACKS.into_iter().zip(guest);
        let addresses = addresses.filter_map(|(loopback, guest)| guest.and(Some(loopback)));
        let addresses = addresses.map(|loopback| (loopback, loopback));
        Self::new(Side::Guest, tables, addresses.collect())
    }

    const fn new(from: Side, tables: SocketTables, addresses: Vec<(IpAddr, IpAddr)>) -> Self {
        Self {
            tables,
            from,
            protocols: BTreeSet::new(),
            addresses,
            bound: BTreeMap::new(),
            last: BTreeMap::new(),
        }
    }

    /// Returns the side of the clients, and the protocols, of the forwards.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (Side, Protocol)> {
        self.protocols.iter().map(|protocol| (self.from, *protocol))
    }

    /// Changes the protocols whose ports are followed to those among `kinds`. The forwards of the
    /// others are removed.
    pub(super) fn set_kinds(&mut self, kinds: &BTreeSet<(Side, Protocol)>, handle: &Handle) {
        let own = kinds.iter().filter(|(side, _)| *side == self.from);
        self.protocols = own.map(|(_, protocol)| *protocol).collect();
        let ended = |(protocol, _): &&(Protocol, u16)| !self.protocols.contains(protocol);
        let gone: Vec<_> = self.bound.keys().filter(ended).copied().collect();
        for (protocol, port) in gone {
            self.release(protocol, port, handle);
        }
    }

    /// Removes the forwards of a port, until the next [`poll`](Self::poll).
    pub(super) fn release(&mut self, protocol: Protocol, port: u16, handle: &Handle) {
        let forwards = self.bound.remove(&(protocol, port));
        for id in forwards.into_iter().flatten().flatten() {
            let _ = handle.remove_forward(id);
        }
    }

    /// Adds and removes forwards as the sockets of the side that listens require.
    pub(super) fn poll(&mut self, handle: &Handle) {
        for protocol in self.protocols.clone() {
            // A table that cannot be read now keeps its forwards.
            if let Ok(ports) = self.tables.listening(protocol) {
                self.update(protocol, &ports, handle);
            }
        }
    }

    fn update(&mut self, protocol: Protocol, ports: &[u16], handle: &Handle) {
        let gone: Vec<_> = self
            .bound
            .keys()
            .filter(|(p, port)| *p == protocol && ports.binary_search(port).is_err())
            .copied()
            .collect();
        for (protocol, port) in gone {
            self.release(protocol, port, handle);
        }
        // A port on which this gateway listens for the other direction would lead back.
        let own: BTreeSet<u16> = handle
            .list_forwards()
            .into_iter()
            .filter(|(_, f)| f.from != self.from && f.protocol == protocol)
            .map(|(_, f)| f.listen().port())
            .collect();
        let bound = &self.bound;
        let is_missing = |port: &u16| {
            let ids = bound.get(&(protocol, *port));
            !own.contains(port) && ids.is_none_or(|ids| ids.contains(&None))
        };
        let missing: Vec<u16> = ports.iter().copied().filter(is_missing).collect();
        let last = self.last.get(&protocol).copied().unwrap_or(0);
        for port in next_ports(&missing, last) {
            self.bind(protocol, port, handle);
            self.last.insert(protocol, port);
        }
    }

    fn bind(&mut self, protocol: Protocol, port: u16, handle: &Handle) {
        let bound = self.bound.entry((protocol, port)).or_default();
        bound.resize(self.addresses.len(), None);
        for (id, &(listen, to)) in bound.iter_mut().zip(&self.addresses) {
            // A port that this side itself uses, or a low one, stays its own for as long.
            if id.is_none() {
                let (listen, to) = ((listen, port).into(), (to, port).into());
                let forward = Forward::new(self.from, protocol, listen, to);
                *id = handle.add_forward(forward).ok();
            }
        }
    }
}

/// Returns the ports to bind now, those behind `last` first: the guest's packets do not wait for
/// thousands of them, and ports that cannot be bound do not keep others from it.
fn next_ports(missing: &[u16], last: u16) -> impl Iterator<Item = u16> {
    let first = missing.partition_point(|port| *port <= last);
    let (before, behind) = missing.split_at(first);
    behind.iter().chain(before).copied().take(BINDS_AT_ONCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ports_get_their_turn_and_only_some_at_once() {
        let missing: Vec<u16> = (1..=100).collect();
        let count = BINDS_AT_ONCE as u16;
        let first: Vec<_> = next_ports(&missing, 0).collect();
        assert_eq!(first, (1..=count).collect::<Vec<_>>());
        let second: Vec<_> = next_ports(&missing, count).collect();
        let expected: Vec<_> = (count + 1..=100).chain(1..=2 * count - 100).collect();
        assert_eq!(second, expected);
        assert_eq!(next_ports(&[], 7).count(), 0);
    }
}
