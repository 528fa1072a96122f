//! The table of the ports' addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::PortId;
use super::ended::EndedGuests;

/// Most Ethernet addresses, and most IP addresses, of a port. A new address replaces the port's own least
/// recently used one.
const ADDRESSES_MAX: usize = 32;
/// Number of a port's first addresses that do not age: the guest's own.
const LASTING_MACS: usize = 1;
const LASTING_IPS: usize = 4;
/// Time after the last frame of an address during which no other port can have it, and frames to it do
/// not go to all ports.
const AGE: Duration = Duration::from_secs(300);

struct Entry {
    port: PortId,
    last_used: Instant,
    is_lasting: bool,
}

/// The addresses of one port.
struct Own<A> {
    /// The addresses in the order of their first use, unless one was replaced.
    addresses: Vec<A>,
    lasting: usize,
}

/// The ports of all addresses of one kind.
struct Addresses<A> {
    entries: BTreeMap<A, Entry>,
    of_port: BTreeMap<PortId, Own<A>>,
    /// Most addresses of a port that do not age.
    lasting: usize,
}

impl<A: Ord + Copy> Addresses<A> {
    const fn new(lasting: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            of_port: BTreeMap::new(),
            lasting,
        }
    }

    /// Returns whether the port may use the address, and records it as the port's. With `may_last`, the
    /// address does not age if it is one of the port's first.
    fn claim(&mut self, now: Instant, port: PortId, address: A, may_last: bool) -> bool {
        if let Some(entry) = self.entries.get_mut(&address) {
            if entry.port == port {
                entry.last_used = now;
                if may_last && !entry.is_lasting {
                    let own = self.of_port.get_mut(&port);
                    entry.is_lasting = own.is_some_and(|own| own.try_add_lasting(self.lasting));
                }
                return true;
            }
            if entry.is_lasting || now.saturating_duration_since(entry.last_used) < AGE {
                return false;
            }
            self.remove(address);
        }
        let own = self.of_port.entry(port).or_insert(Own {
            addresses: Vec::new(),
            lasting: 0,
        });
        if own.addresses.len() >= ADDRESSES_MAX {
            let unused = own.addresses.iter().enumerate().filter_map(|(n, address)| {
                let entry = self.entries.get(address)?;
                (!entry.is_lasting).then_some((entry.last_used, n))
            });
            let Some((_, oldest)) = unused.min() else {
                return false;
            };
            self.entries.remove(&own.addresses.swap_remove(oldest));
        }
        own.addresses.push(address);
        let entry = Entry {
            port,
            last_used: now,
            is_lasting: may_last && own.try_add_lasting(self.lasting),
        };
        self.entries.insert(address, entry);
        true
    }

    fn remove(&mut self, address: A) {
        if let Some(entry) = self.entries.remove(&address)
            && let Some(own) = self.of_port.get_mut(&entry.port)
        {
            own.addresses.retain(|other| *other != address);
            own.lasting -= usize::from(entry.is_lasting);
        }
    }

    fn remove_port(&mut self, port: PortId) {
        let own = self.of_port.remove(&port);
        for address in own.into_iter().flat_map(|own| own.addresses) {
            self.entries.remove(&address);
        }
    }

    fn owner(&self, address: &A) -> Option<PortId> {
        Some(self.entries.get(address)?.port)
    }

    /// Returns the port that receives frames to the address.
    fn current(&self, now: Instant, address: &A) -> Option<PortId> {
        let entry = self.entries.get(address)?;
        let is_current = entry.is_lasting || now.saturating_duration_since(entry.last_used) < AGE;
        is_current.then_some(entry.port)
    }

    fn first(&self, port: PortId) -> Option<A> {
        self.of_port.get(&port)?.addresses.first().copied()
    }

    /// Returns the addresses of the port that do not age.
    fn lasting(&self, port: PortId) -> Vec<A> {
        let own = self.of_port.get(&port).into_iter();
        let addresses = own.flat_map(|own| own.addresses.iter().copied());
        let is_lasting = |address: &A| self.entries.get(address).is_some_and(|e| e.is_lasting);
        addresses.filter(is_lasting).collect()
    }
}

impl<A> Own<A> {
    /// Counts one more address that does not age, and returns `true`, if there are fewer than `max`.
    const fn try_add_lasting(&mut self, max: usize) -> bool {
        let has_room = self.lasting < max;
        self.lasting += has_room as usize;
        has_room
    }
}

/// The reservation of an IP address for the port with an Ethernet address.
struct Lease {
    mac: [u8; 6],
    until: Instant,
}

/// The addresses of the ports, of ended guests and of the gateway, and the leases.
pub(super) struct Table {
    gateway_mac: [u8; 6],
    gateway_addresses: BTreeSet<IpAddr>,
    macs: Addresses<[u8; 6]>,
    ips: Addresses<IpAddr>,
    leases: BTreeMap<IpAddr, Lease>,
    ended: EndedGuests,
}

/// Most leases; further ones have no effect.
const LEASES_MAX: usize = 4096;

impl Table {
    pub(super) fn new(gateway_mac: [u8; 6], gateway_addresses: BTreeSet<IpAddr>) -> Self {
        Self {
            gateway_mac,
            gateway_addresses,
            macs: Addresses::new(LASTING_MACS),
            ips: Addresses::new(LASTING_IPS),
            leases: BTreeMap::new(),
            ended: EndedGuests::default(),
        }
    }

    /// Returns whether a frame of the port may have this source. The address of an ended guest is for a port
    /// that uses it before any other.
    pub(super) fn claim_mac(&mut self, now: Instant, port: PortId, mac: [u8; 6]) -> bool {
        let is_first = self.macs.first(port).is_none_or(|first| first == mac);
        mac != self.gateway_mac
            && (is_first || !self.ended.has_mac(now, mac))
            && self.macs.claim(now, port, mac, true)
    }

    /// Returns whether a guest may probe for other users of an address that it is about to use.
    /// Afterwards no other guest may use the address, so that none answers in order to get it. The
    /// gateway answers for its own addresses.
    pub(super) fn probe_ip(&mut self, now: Instant, port: PortId, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.gateway_addresses.contains(&ip) || self.try_claim_ip(now, port, ip, false)
    }

    /// Returns whether a frame of the port may have this IP address.
    pub(super) fn claim_ip(&mut self, now: Instant, port: PortId, ip: IpAddr) -> bool {
        // A mapped address stands for the IPv4 address.
        let ip = ip.to_canonical();
        !self.gateway_addresses.contains(&ip) && self.try_claim_ip(now, port, ip, true)
    }

    fn try_claim_ip(&mut self, now: Instant, port: PortId, ip: IpAddr, may_last: bool) -> bool {
        if let Some(lease) = self.leases.get(&ip) {
            let is_other = self.macs.owner(&lease.mac) != Some(port);
            if lease.until <= now {
                self.leases.remove(&ip);
            } else if is_other {
                return false;
            }
        }
        let kept_for = self.ended.owner_of_ip(now, ip, port);
        kept_for.is_none_or(|mac| self.macs.owner(&mac) == Some(port))
            && self.ips.claim(now, port, ip, may_last)
    }

    /// Reserves `ip` for the port with an Ethernet address until a time.
    pub(super) fn lease(&mut self, now: Instant, ip: IpAddr, mac: [u8; 6], until: Instant) {
        if self.leases.len() >= LEASES_MAX {
            self.leases.retain(|_, lease| lease.until > now);
        }
        if self.leases.len() >= LEASES_MAX && !self.leases.contains_key(&ip) {
            return;
        }
        self.ended.release_ip(ip);
        let owner = self.macs.owner(&mac);
        if self.ips.owner(&ip) != owner {
            self.ips.remove(ip);
        }
        if let Some(port) = owner {
            self.ips.claim(now, port, ip, true);
        }
        self.leases.insert(ip, Lease { mac, until });
    }

    pub(super) fn end_lease(&mut self, ip: IpAddr) {
        self.leases.remove(&ip);
    }

    /// Removes a port, and keeps the addresses of its guest, `beside` which others were connected.
    pub(super) fn remove_port(&mut self, now: Instant, port: PortId, beside: Vec<PortId>) {
        if let Some(mac) = self.first_mac(port) {
            let ips = self.ips.lasting(port);
            self.ended.add(now, mac, &ips, &Arc::from(beside));
        }
        self.macs.remove_port(port);
        self.ips.remove_port(port);
    }

    /// Returns whether the Ethernet address is kept for a guest that has ended.
    pub(super) fn has_ended(&self, now: Instant, mac: [u8; 6]) -> bool {
        self.ended.has_mac(now, mac) && self.macs.owner(&mac).is_none()
    }

    /// Returns the port that receives frames to the Ethernet address.
    pub(super) fn port_to(&self, now: Instant, mac: [u8; 6]) -> Option<PortId> {
        self.macs.current(now, &mac)
    }

    pub(super) fn port_of_mac(&self, mac: [u8; 6]) -> Option<PortId> {
        self.macs.owner(&mac)
    }

    pub(super) fn port_of_ip(&self, ip: IpAddr) -> Option<PortId> {
        self.ips.owner(&ip.to_canonical())
    }

    /// Returns the number of ports with an Ethernet address.
    pub(super) fn guests(&self) -> usize {
        self.macs.of_port.len()
    }

    /// Returns the first Ethernet address of the port.
    pub(super) fn first_mac(&self, port: PortId) -> Option<[u8; 6]> {
        self.macs.first(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const ONE: PortId = PortId(1);
    const TWO: PortId = PortId(2);

    fn table() -> (Table, Instant) {
        let own = BTreeSet::from([ip(2)]);
        #[allow(clippy::disallowed_methods, reason = "a time to begin with")]
        (Table::new(GATEWAY, own), Instant::now())
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 2, last].into()
    }

    const fn mac(n: u32) -> [u8; 6] {
        let bytes = n.to_be_bytes();
        [2, 1, bytes[0], bytes[1], bytes[2], bytes[3]]
    }

    #[test]
    fn a_port_cannot_have_the_addresses_of_the_gateway_or_of_others() {
        let (mut table, now) = table();
        assert!(!table.claim_mac(now, ONE, GATEWAY));
        assert!(!table.claim_ip(now, ONE, ip(2)));
        assert!(!table.claim_ip(now, ONE, "::ffff:10.0.2.2".parse().unwrap()));
        assert!(table.claim_mac(now, ONE, mac(1)) && table.claim_ip(now, ONE, ip(15)));
        assert!(!table.claim_mac(now, TWO, mac(1)) && !table.claim_ip(now, TWO, ip(15)));
        // Its first addresses do not age.
        let later = now + 10 * AGE;
        assert!(!table.claim_mac(later, TWO, mac(1)) && !table.claim_ip(later, TWO, ip(15)));
        assert_eq!(table.port_to(later, mac(1)), Some(ONE));
        table.remove_port(now, ONE, [TWO].into());
        assert!(table.claim_mac(now, TWO, mac(1)) && table.claim_ip(now, TWO, ip(15)));
        assert_eq!(table.port_of_ip(ip(15)), Some(TWO));
    }

    #[test]
    fn many_addresses_of_a_port_replace_its_own() {
        let (mut table, now) = table();
        assert!(table.claim_mac(now, TWO, mac(1)) && table.claim_ip(now, TWO, ip(15)));
        assert!(table.claim_mac(now, ONE, mac(2)));
        for n in 0..100_000 {
            let at = now + Duration::from_micros(n.into());
            assert!(table.claim_mac(at, ONE, mac(1000 + n)));
            let spoofed = std::net::Ipv4Addr::from_bits(0x0b00_0000 + n);
            assert!(table.claim_ip(at, ONE, spoofed.into()));
        }
        let at = now + Duration::from_secs(1);
        assert_eq!(table.macs.entries.len(), ADDRESSES_MAX + 1);
        assert_eq!(table.ips.entries.len(), ADDRESSES_MAX + 1);
        assert_eq!(table.port_to(at, mac(1)), Some(TWO));
        assert_eq!(table.port_to(at, mac(2)), Some(ONE));
        assert_eq!(table.port_of_ip(ip(15)), Some(TWO));
        assert_eq!(table.first_mac(ONE), Some(mac(2)));
    }

    #[test]
    fn a_probed_address_is_not_given_to_others_and_lasts_once_it_is_used() {
        let (mut table, now) = table();
        assert!(table.probe_ip(now, ONE, ip(15)));
        assert!(!table.probe_ip(now, TWO, ip(15)) && !table.claim_ip(now, TWO, ip(15)));
        assert!(table.claim_ip(now, ONE, ip(15)));
        let later = now + AGE;
        assert!(!table.claim_ip(later, TWO, ip(15)));
        // Probes alone use up no lasting places.
        for n in 20..40 {
            assert!(table.probe_ip(now, TWO, ip(n)));
        }
        assert!(table.claim_ip(later, ONE, ip(20)));
        assert!(table.claim_ip(later, TWO, ip(50)));
        assert!(!table.claim_ip(later + AGE, ONE, ip(50)));
        // No guest has the gateway's, which the gateway defends.
        assert!(table.probe_ip(now, ONE, ip(2)));
        assert_eq!(table.port_of_ip(ip(2)), None);
    }

    #[test]
    fn further_addresses_age_and_then_may_move() {
        let (mut table, now) = table();
        assert!(table.claim_mac(now, ONE, mac(1)) && table.claim_mac(now, ONE, mac(2)));
        assert!(!table.claim_mac(now + AGE / 2, TWO, mac(2)));
        assert_eq!(table.port_to(now + AGE, mac(2)), None);
        assert!(table.claim_mac(now + AGE, TWO, mac(2)));
        assert_eq!(table.port_to(now + AGE, mac(2)), Some(TWO));
        table.remove_port(now, ONE, [TWO].into());
        assert_eq!(table.port_of_mac(mac(2)), Some(TWO));
    }

    #[test]
    fn the_addresses_of_an_ended_guest_are_kept_for_its_return() {
        let (mut table, now) = table();
        assert!(table.claim_mac(now, ONE, mac(1)) && table.claim_ip(now, ONE, ip(15)));
        assert!(table.claim_mac(now, TWO, mac(2)) && table.claim_ip(now, TWO, ip(16)));
        table.remove_port(now, ONE, [TWO].into());
        let later = now + 10 * AGE;
        assert!(table.has_ended(later, mac(1)));
        for at in [now, later] {
            assert!(!table.claim_mac(at, TWO, mac(1)) && !table.claim_ip(at, TWO, ip(15)));
            assert!(!table.probe_ip(at, TWO, ip(15)));
        }
        assert_eq!(table.guests(), 1);
        // A guest that connects later may be the same one with another Ethernet address.
        let (three, four) = (PortId(3), PortId(4));
        assert!(table.claim_mac(later, three, mac(3)));
        assert!(!table.claim_mac(later, three, mac(1)));
        assert!(table.claim_mac(later, four, mac(1)) && table.claim_ip(later, four, ip(15)));
        assert!(!table.has_ended(later, mac(1)));
        assert_eq!(table.port_to(later, mac(1)), Some(four));
        table.remove_port(later, four, [TWO, three].into());
        let fifth = PortId(5);
        assert!(table.claim_mac(later, fifth, mac(5)) && table.claim_ip(later, fifth, ip(15)));
        // A lease to another guest ends what is kept, as does the time of a lease.
        table.remove_port(later, fifth, [TWO].into());
        assert!(!table.claim_ip(later, TWO, ip(15)));
        table.lease(later, ip(15), mac(2), later + AGE);
        assert_eq!(table.port_of_ip(ip(15)), Some(TWO));
        let day = Duration::from_secs(24 * 3600);
        assert!(table.claim_mac(later + day, TWO, mac(1)));
    }

    #[test]
    fn many_ended_guests_replace_those_that_ended_first() {
        let (mut table, now) = table();
        assert!(table.claim_mac(now, ONE, mac(0)));
        for n in 1..=2000_u32 {
            let (at, port) = (
                now + Duration::from_secs(n.into()),
                PortId(u64::from(n) + 1),
            );
            assert!(table.claim_mac(at, port, mac(n)));
            table.remove_port(at, port, [ONE].into());
        }
        let at = now + Duration::from_secs(2001);
        assert!(!table.has_ended(at, mac(900)) && table.has_ended(at, mac(2000)));
        assert!(table.claim_mac(at, ONE, mac(900)) && !table.claim_mac(at, ONE, mac(2000)));
    }

    #[test]
    fn a_leased_address_is_that_of_the_port_with_the_client() {
        let (mut table, now) = table();
        let until = now + 2 * AGE;
        assert!(table.claim_mac(now, ONE, mac(1)) && table.claim_mac(now, TWO, mac(2)));
        // It has the address already, which is leased to another.
        assert!(table.claim_ip(now, TWO, ip(15)));
        table.lease(now, ip(15), mac(1), until);
        assert_eq!(table.port_of_ip(ip(15)), Some(ONE));
        assert!(!table.claim_ip(now, TWO, ip(15)));
        // The lease outlasts the connection of its client.
        table.remove_port(now, ONE, [TWO].into());
        assert!(!table.claim_ip(now, TWO, ip(15)));
        assert!(table.claim_mac(now, ONE, mac(1)) && table.claim_ip(now, ONE, ip(15)));
        table.remove_port(now, ONE, [TWO].into());
        // It is kept for the guest, also if the lease has ended.
        assert!(!table.claim_ip(until, TWO, ip(15)));
        assert!(table.claim_ip(until + Duration::from_secs(24 * 3600), TWO, ip(15)));
    }
}
