//! The addresses of guests that have ended.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PortId;

/// Time during which the addresses of an ended guest are kept for its return: that of a DHCP lease.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Most guests whose addresses are kept; a further one replaces the one that ended first.
const ENDED_MAX: usize = 1024;

/// An IP address of a guest that has ended.
struct KeptIp {
    /// The first Ethernet address of the guest.
    mac: [u8; 6],
    until: Instant,
    /// The ports whose guests were connected when the guest ended.
    beside: Arc<[PortId]>,
}

/// The first Ethernet address and the IP addresses of guests that have ended, e.g. because a virtual machine
/// restarts or its monitor connects again.
///
/// The gateway's connections and forwards to such a guest still exist. A guest that was connected beside it must
/// not continue them: the Ethernet address is kept for a port that uses it first, and the IP addresses for the
/// port that then has it, or for one whose guest was not connected yet.
#[derive(Default)]
pub(super) struct EndedGuests {
    /// The times until which Ethernet addresses are kept.
    macs: BTreeMap<[u8; 6], Instant>,
    ips: BTreeMap<IpAddr, KeptIp>,
}

impl EndedGuests {
    /// Records the end of the guest with the Ethernet address `mac`, `beside` which other guests were connected.
    pub(super) fn add(
        &mut self,
        now: Instant,
        mac: [u8; 6],
        ips: &[IpAddr],
        beside: &Arc<[PortId]>,
    ) {
        if self.macs.len() >= ENDED_MAX && !self.macs.contains_key(&mac) {
            let first = self.macs.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(mac, _)| *mac) {
                self.macs.remove(&first);
                self.ips.retain(|_, kept| kept.mac != first);
            }
        }
        let until = now + KEPT;
        self.macs.insert(mac, until);
        for ip in ips {
            let kept = KeptIp {
                mac,
                until,
                beside: beside.clone(),
            };
            self.ips.insert(*ip, kept);
        }
    }

    /// Returns whether the Ethernet address is that of an ended guest.
    pub(super) fn has_mac(&self, now: Instant, mac: [u8; 6]) -> bool {
        self.macs.get(&mac).is_some_and(|until| now < *until)
    }

    /// Returns the Ethernet address without which `port` may not use `ip`: that of an ended guest beside
    /// which the port's guest was connected.
    pub(super) fn owner_of_ip(&self, now: Instant, ip: IpAddr, port: PortId) -> Option<[u8; 6]> {
        let kept = self.ips.get(&ip)?;
        (now < kept.until && kept.beside.contains(&port)).then_some(kept.mac)
    }

    /// Keeps the IP address no longer.
    pub(super) fn release_ip(&mut self, ip: IpAddr) {
        self.ips.remove(&ip);
    }
}
