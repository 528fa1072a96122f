//! Forwards that follow the ports on which the guest or the host listens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_gateway::namespace::SocketTables;
use fullsend_gateway::{Forward, ForwardId, Handle, Protocol, Side};

use super::network::{LOOPBACKS, ephemeral_ports};

/// Most ports of a protocol that are bound at each [`poll`](AutoForwards::poll).
pub(super) const BINDS_AT_ONCE: usize = 64;
/// Part of [`BINDS_AT_ONCE`] that is reserved for ports that could not be bound before.
const RETRIES_AT_ONCE: usize = 8;

/// The forwards that exist because one side listens.
pub(super) struct AutoForwards {
    /// The sockets of the side that listens.
    tables: SocketTables,
    /// The side of the clients.
    from: Side,
    protocols: BTreeSet<Protocol>,
    /// The addresses to listen on, each with the address to which it leads.
    addresses: Vec<(IpAddr, IpAddr)>,
    /// The forwards of each port that was tried, in the order of `addresses`; `None` for an address that
    /// could not be bound.
    bound: BTreeMap<(Protocol, u16), Vec<Option<ForwardId>>>,
    /// The last port of each protocol that was tried again.
    last: BTreeMap<Protocol, u16>,
}

impl AutoForwards {
    /// Returns the forwards to the ports on which the guest listens, at first for no protocol. `guest`
    /// has the guest's IPv4 and IPv6 address.
    pub(super) fn of_guest(tables: SocketTables, guest: [Option<IpAddr>; 2]) -> Self {
        let unspecified: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let addresses = unspecified.into_iter().zip(guest);
        let addresses = addresses.filter_map(|(host, guest)| Some((host, guest?)));
        Self::new(Side::Host, tables, addresses.collect())
    }

    /// Returns the forwards from the guest's loopback to the ports on which the host's loopback has
    /// listeners, at first for no protocol.
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

    /// Returns the side of the clients and the protocol of each kind of forwards.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (Side, Protocol)> {
        self.protocols.iter().map(|protocol| (self.from, *protocol))
    }

    /// Sets the followed protocols to those in `kinds`, and removes the forwards of all others.
    pub(super) fn set_kinds(&mut self, kinds: &BTreeSet<(Side, Protocol)>, handle: &Handle) {
        let own = kinds.iter().filter(|(side, _)| *side == self.from);
        self.protocols = own.map(|(_, protocol)| *protocol).collect();
        let ended = |(protocol, _): &&(Protocol, u16)| !self.protocols.contains(protocol);
        let gone: Vec<_> = self.bound.keys().filter(ended).copied().collect();
        for (protocol, port) in gone {
            self.release(protocol, port, handle);
        }
    }

    /// Removes the forwards of a port until the next [`poll`](Self::poll).
    pub(super) fn release(&mut self, protocol: Protocol, port: u16, handle: &Handle) {
        let forwards = self.bound.remove(&(protocol, port));
        for id in forwards.into_iter().flatten().flatten() {
            let _ = handle.remove_forward(id);
        }
    }

    /// Adds and removes forwards according to the listening sockets.
    pub(super) fn poll(&mut self, handle: &Handle) {
        for protocol in self.protocols.clone() {
            // If a table cannot be read now, its forwards stay.
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
        // A port on which this gateway listens for the other direction would make a loop.
        let own: BTreeSet<u16> = handle
            .list_forwards()
            .into_iter()
            .filter(|(_, f)| f.from != self.from && f.protocol == protocol)
            .map(|(_, f)| f.listen().port())
            .collect();
        let mut new = Vec::new();
        let mut failed = Vec::new();
        let is_followed = |port: &&u16| !own.contains(port) && !self.is_of_client(protocol, **port);
        for &port in ports.iter().filter(is_followed) {
            match self.bound.get(&(protocol, port)) {
                None => new.push(port),
                Some(ids) if ids.contains(&None) => failed.push(port),
                Some(_) => {}
            }
        }
        let last = self.last.entry(protocol).or_insert(0);
        for port in next_ports(&new, &failed, last) {
            self.bind(protocol, port, handle);
        }
    }

    /// Returns whether a socket of the host at a port is most likely that of a client: a UDP socket without a
    /// peer at a port that the kernel chooses. Those of gateways for their guests' ports are such ones.
    fn is_of_client(&self, protocol: Protocol, port: u16) -> bool {
        (self.from, protocol) == (Side::Guest, Protocol::Udp) && ephemeral_ports().contains(&port)
    }

    fn bind(&mut self, protocol: Protocol, port: u16, handle: &Handle) {
        let bound = self.bound.entry((protocol, port)).or_default();
        bound.resize(self.addresses.len(), None);
        for (id, &(listen, to)) in bound.iter_mut().zip(&self.addresses) {
            // Fails if a program on this side has the port, or if the port is low and this process must
            // not bind it. Later polls try again.
            if id.is_none() {
                let (listen, to) = ((listen, port).into(), (to, port).into());
                let forward = Forward::new(self.from, protocol, listen, to);
                *id = handle.add_forward(forward).ok();
            }
        }
    }
}

/// Returns the ports to bind now: new ones first, and at least [`RETRIES_AT_ONCE`] of those that could
/// not be bound, in rotation after `last`. They are few, so that the guest's packets do not wait for
/// thousands of calls.
fn next_ports(new: &[u16], failed: &[u16], last: &mut u16) -> Vec<u16> {
    let max_new = BINDS_AT_ONCE - failed.len().min(RETRIES_AT_ONCE);
    let mut ports: Vec<u16> = new.iter().copied().take(max_new).collect();
    let (before, behind) = failed.split_at(failed.partition_point(|port| port <= last));
    for &port in behind
        .iter()
        .chain(before)
        .take(BINDS_AT_ONCE - ports.len())
    {
        ports.push(port);
        *last = port;
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u16 = BINDS_AT_ONCE as u16;

    #[test]
    fn ports_that_cannot_be_bound_are_tried_again_in_rotation() {
        let failed: Vec<u16> = (1..=100).collect();
        let mut last = 0;
        let first = next_ports(&[], &failed, &mut last);
        assert_eq!(first, (1..=COUNT).collect::<Vec<_>>());
        let second = next_ports(&[], &failed, &mut last);
        let expected: Vec<_> = (COUNT + 1..=100).chain(1..=2 * COUNT - 100).collect();
        assert_eq!(second, expected);
        assert!(next_ports(&[], &[], &mut last).is_empty());
    }

    #[test]
    fn new_ports_are_bound_before_those_that_failed() {
        let failed: Vec<u16> = (1..=100).collect();
        let mut last = 50;
        let ports = next_ports(&[7, 2000], &failed, &mut last);
        let again: Vec<_> = (51..=100).chain(1..=COUNT - 52).collect();
        assert_eq!(ports, [&[7, 2000], &again[..]].concat());
        assert_eq!(last, COUNT - 52);
        let new: Vec<u16> = (2000..2100).collect();
        let ports = next_ports(&new, &failed, &mut last);
        let max_new = BINDS_AT_ONCE - RETRIES_AT_ONCE;
        assert_eq!(ports[..max_new], new[..max_new]);
        // The rotation continues behind the last one.
        assert_eq!(ports[max_new..], failed[12..12 + RETRIES_AT_ONCE]);
    }
}
