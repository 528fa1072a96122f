//! Forwards that follow the ports on which the guest or the host listens.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use fullsend_gateway::namespace::SocketTables;
use fullsend_gateway::{Forward, ForwardId, Handle, Protocol, Side};

use super::network::{LOOPBACKS, Plan};

const INTERVAL: Duration = Duration::from_secs(1);

/// The forwards that exist because one side listens.
pub(super) struct AutoForwards {
    /// The sockets of the side that listens.
    tables: SocketTables,
    /// The side of the clients.
    from: Side,
    protocols: Vec<Protocol>,
    /// The addresses to listen on, and the address that each leads to.
    addresses: Vec<(IpAddr, IpAddr)>,
    /// The forwards of each port, in the order of the addresses; `None` where it is in use.
    bound: BTreeMap<(Protocol, u16), Vec<Option<ForwardId>>>,
}

impl AutoForwards {
    /// Follows the ports on which the guest listens. Returns `None` if none are to be followed.
    pub(super) fn of_guest(plan: &Plan, tables: SocketTables) -> Option<Self> {
        let protocols = [
            (Protocol::Tcp, plan.auto_tcp),
            (Protocol::Udp, plan.auto_udp),
        ];
        let protocols: Vec<_> = protocols.iter().filter(|p| p.1).map(|p| p.0).collect();
        if protocols.is_empty() {
            return None;
        }
        let unspecified = [
            IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::from(Ipv6Addr::UNSPECIFIED),
        ];
        let addresses = unspecified.into_iter().zip(guest_addresses(plan));
        let addresses = addresses.filter_map(|(host, guest)| Some((host, guest?)));
        Some(Self {
            tables,
            from: Side::Host,
            protocols,
            addresses: addresses.collect(),
            bound: BTreeMap::new(),
        })
    }

    /// Follows the ports on which the host listens: they lead from the guest's loopback to the
    /// host's. Returns `None` if none are to be followed.
    ///
    /// # Errors
    /// The error of opening the host's tables.
    pub(super) fn of_host(plan: &Plan) -> io::Result<Option<Self>> {
        if !plan.auto_guest_tcp {
            return Ok(None);
        }
        let addresses = LOOPBACKS.into_iter().zip(guest_addresses(plan));
        let addresses = addresses.filter_map(|(loopback, guest)| guest.and(Some(loopback)));
        Ok(Some(Self {
            tables: SocketTables::of_this_thread()?,
            from: Side::Guest,
            protocols: vec![Protocol::Tcp],
            addresses: addresses.map(|loopback| (loopback, loopback)).collect(),
            bound: BTreeMap::new(),
        }))
    }

    /// Adds and removes forwards each second.
    pub(super) async fn follow(mut self, handle: Handle) {
        loop {
            for protocol in self.protocols.clone() {
                // A table that cannot be read now keeps its forwards.
                if let Ok(ports) = self.tables.listening(protocol) {
                    self.update(protocol, &ports, &handle);
                }
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn update(&mut self, protocol: Protocol, ports: &[u16], handle: &Handle) {
        let gone: Vec<_> = self
            .bound
            .keys()
            .filter(|(p, port)| *p == protocol && ports.binary_search(port).is_err())
            .copied()
            .collect();
        for key in gone {
            for id in self.bound.remove(&key).into_iter().flatten().flatten() {
                let _ = handle.remove_forward(id);
            }
        }
        // A port on which this gateway listens for the other direction would lead back.
        let own: BTreeSet<u16> = handle
            .list_forwards()
            .into_iter()
            .filter(|(_, f)| f.from != self.from && f.protocol == protocol)
            .map(|(_, f)| match f.from {
                Side::Host => f.host.port(),
                Side::Guest => f.guest.port(),
            })
            .collect();
        for &port in ports.iter().filter(|port| !own.contains(port)) {
            let bound = self.bound.entry((protocol, port)).or_default();
            bound.resize(self.addresses.len(), None);
            for (id, &(listen, to)) in bound.iter_mut().zip(&self.addresses) {
                let (host, guest) = match self.from {
                    Side::Host => (listen, to),
                    Side::Guest => (to, listen),
                };
                // A port that this side itself uses, or a low one, stays its own for as long.
                if id.is_none() {
                    let added = handle.add_forward(Forward {
                        from: self.from,
                        protocol,
                        host: (host, port).into(),
                        guest: (guest, port).into(),
                        interface: None,
                    });
                    *id = added.ok();
                }
            }
        }
    }
}

/// Returns the guest's IPv4 and IPv6 address.
fn guest_addresses(plan: &Plan) -> [Option<IpAddr>; 2] {
    let v4 = plan.config.ipv4.as_ref().map(|v4| v4.guest.into());
    let v6 = plan.config.ipv6.as_ref().and_then(|v6| v6.guest);
    [v4, v6.map(IpAddr::from)]
}
