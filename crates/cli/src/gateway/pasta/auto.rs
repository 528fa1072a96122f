//! Forwards that follow the ports on which the guest listens.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use fullsend_gateway::namespace::SocketTables;
use fullsend_gateway::{Forward, ForwardId, Handle, Protocol};

use super::network::Plan;

const INTERVAL: Duration = Duration::from_secs(1);

/// The forwards that exist because the guest listens.
pub(super) struct AutoForwards {
    tables: SocketTables,
    protocols: Vec<Protocol>,
    /// The addresses to listen on, and the guest's address that each leads to.
    addresses: Vec<(IpAddr, IpAddr)>,
    bound: BTreeMap<(Protocol, u16), Vec<ForwardId>>,
}

impl AutoForwards {
    /// Returns `None` if no ports are to be followed.
    pub(super) fn new(plan: &Plan, tables: SocketTables) -> Option<Self> {
        let protocols = [
            (Protocol::Tcp, plan.auto_tcp),
            (Protocol::Udp, plan.auto_udp),
        ];
        let protocols: Vec<_> = protocols.iter().filter(|p| p.1).map(|p| p.0).collect();
        if protocols.is_empty() {
            return None;
        }
        let v4 = plan.config.ipv4.as_ref().map(|v4| v4.guest.into());
        let v6 = plan
            .config
            .ipv6
            .as_ref()
            .and_then(|v6| v6.guest)
            .map(Into::into);
        let unspecified = [
            (IpAddr::from(Ipv4Addr::UNSPECIFIED), v4),
            (IpAddr::from(Ipv6Addr::UNSPECIFIED), v6),
        ];
        let addresses = unspecified
            .into_iter()
            .filter_map(|(host, guest)| Some((host, guest?)));
        Some(Self {
            tables,
            protocols,
            addresses: addresses.collect(),
            bound: BTreeMap::new(),
        })
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
            for id in self.bound.remove(&key).unwrap_or_default() {
                let _ = handle.remove_forward(id);
            }
        }
        for &port in ports {
            let addresses = &self.addresses;
            self.bound.entry((protocol, port)).or_insert_with(|| {
                let forwards = addresses.iter().map(|&(host, guest)| Forward {
                    protocol,
                    host: (host, port).into(),
                    guest: (guest, port).into(),
                    interface: None,
                });
                // A port that the host itself uses, or a low one, stays the host's.
                forwards
                    .filter_map(|forward| handle.add_forward(forward).ok())
                    .collect()
            });
        }
    }
}
