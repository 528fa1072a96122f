//! The addresses that DHCP has given to clients.

use std::net::Ipv4Addr;
use std::time::Duration;

use fullsend::control::LeaseView;
use fullsend_device::PortId;
use tokio::time::Instant;

use crate::config::Ipv4Config;

/// Largest number of addresses that clients get after the first.
const MAX_RANGE: u32 = 256;
/// Time for which an offered address is reserved for its client.
const OFFER_TIME: Duration = Duration::from_secs(30);
/// Time for which an address is not given out after a client has found another host with it.
const DECLINE_TIME: Duration = Duration::from_secs(10 * 60);

struct Entry {
    /// The client's identifier; empty for an address that another host uses.
    client: Vec<u8>,
    /// The client's Ethernet address, once it has the address.
    mac: Option<[u8; 6]>,
    /// The port of the client's guest; `None` for the only guest.
    guest: Option<PortId>,
    address: Ipv4Addr,
    expires: Instant,
}

/// An address that DHCP has given to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The address.
    pub address: Ipv4Addr,
    /// The client's Ethernet address.
    pub mac: [u8; 6],
}

/// A client, and the guest that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct Client<'a> {
    /// The client's identifier; with several guests, its Ethernet address.
    pub(crate) id: &'a [u8],
    /// The port of the client's guest; `None` for the only guest.
    pub(crate) guest: Option<PortId>,
    /// Returns whether the client with an identifier is still connected.
    pub(crate) is_present: &'a dyn Fn(&[u8]) -> bool,
}

/// The leases of a network, at most one for each address.
pub(crate) struct Leases {
    /// All addresses, in the order in which they are given out.
    addresses: Vec<Ipv4Addr>,
    entries: Vec<Entry>,
    /// Whether the clients are several guests.
    are_several: bool,
    /// Addresses of leases that ended before their time was over.
    ended: Vec<Ipv4Addr>,
}

/// Most addresses of each of several guests. A further client takes the address of another one of its
/// guest.
const LEASES_OF_GUEST: usize = 8;

impl Leases {
    /// Returns the leases of a network, which are always empty without one.
    pub(crate) fn new(config: Option<&Ipv4Config>, are_several: bool) -> Self {
        Self {
            addresses: config.map(addresses).unwrap_or_default(),
            entries: Vec::new(),
            are_several,
            ended: Vec::new(),
        }
    }

    /// Returns the address for a client: the one it has, the requested one if that is free, or the first
    /// free one; it is reserved for [`OFFER_TIME`]. A network with one address has one guest, which gets
    /// it under any identifier. Without a free address, a declined one is given out early: a client that
    /// finds another host there again declines it again.
    pub(crate) fn offer(
        &mut self,
        now: Instant,
        client: &Client<'_>,
        requested: Option<Ipv4Addr>,
    ) -> Option<Ipv4Addr> {
        let Client {
            id: client,
            guest,
            is_present,
        } = *client;
        self.entries.retain(|lease| lease.expires > now);
        if self.addresses.len() == 1 && !self.are_several {
            // The only guest may have another identifier now, e.g. another MAC address.
            self.entries
                .retain(|lease| lease.client.is_empty() || lease.client == client);
        }
        if let Some(lease) = self.entries.iter().find(|lease| lease.client == client) {
            return Some(lease.address);
        }
        let of_guest = |lease: &&Entry| guest.is_some() && lease.guest == guest;
        if self.entries.iter().filter(of_guest).count() >= LEASES_OF_GUEST {
            self.remove_first_to_expire(|lease| lease.guest == guest);
        }
        // Guests that have ended keep their addresses until others need them.
        if self.entries.len() >= self.addresses.len() {
            self.remove_first_to_expire(|lease| !is_present(&lease.client));
        }
        let is_free = |address: &Ipv4Addr| self.entries.iter().all(|l| l.address != *address);
        let requested = requested.filter(|address| self.addresses.contains(address));
        let address = requested
            .filter(is_free)
            .or_else(|| self.addresses.iter().copied().find(is_free))
            .or_else(|| self.take_declined())?;
        self.entries.push(Entry {
            client: client.to_vec(),
            mac: None,
            guest,
            address,
            expires: now + OFFER_TIME,
        });
        Some(address)
    }

    /// Removes and returns the address that was declined first.
    fn take_declined(&mut self) -> Option<Ipv4Addr> {
        let declined = self.entries.iter().enumerate();
        let declined = declined.filter(|(_, lease)| lease.client.is_empty());
        let (index, _) = declined.min_by_key(|(_, lease)| lease.expires)?;
        Some(self.entries.remove(index).address)
    }

    /// Gives `address` to a client for `time`. Returns `false` if the client may not have it.
    pub(crate) fn confirm(
        &mut self,
        now: Instant,
        client: &Client<'_>,
        address: Ipv4Addr,
        time: Duration,
    ) -> bool {
        if self.offer(now, client, Some(address)) != Some(address) {
            return false;
        }
        let own = |lease: &&mut Entry| lease.client == client.id;
        if let Some(lease) = self.entries.iter_mut().find(own) {
            lease.guest = client.guest;
            lease.expires = now + time;
        }
        true
    }

    /// Ends the lease that expires first among those for which `may_end` returns true. Does nothing for a
    /// single guest.
    fn remove_first_to_expire(&mut self, may_end: impl Fn(&Entry) -> bool) {
        let candidates = self.entries.iter().enumerate();
        let candidates = candidates.filter(|(_, lease)| self.are_several && may_end(lease));
        if let Some((index, _)) = candidates.min_by_key(|(_, lease)| lease.expires) {
            self.ended.push(self.entries.remove(index).address);
        }
    }

    /// Returns the addresses of the leases that have ended early since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<Ipv4Addr> {
        std::mem::take(&mut self.ended)
    }

    /// Records the Ethernet address of a client that has a lease.
    pub(crate) fn set_mac(&mut self, client: &[u8], mac: [u8; 6]) {
        if let Some(lease) = self.entries.iter_mut().find(|lease| lease.client == client) {
            lease.mac = Some(mac);
        }
    }

    /// Returns the leases that clients have confirmed and that have not expired.
    pub(crate) fn current(&self, now: Instant) -> Vec<Lease> {
        let current = self.entries.iter().filter(|lease| lease.expires > now);
        let of_clients = current.filter(|lease| !lease.client.is_empty());
        let lease = |entry: &Entry| {
            Some(Lease {
                address: entry.address,
                mac: entry.mac?,
            })
        };
        of_clients.filter_map(lease).collect()
    }

    /// Returns the leases and offers that have not expired.
    pub(crate) fn views(&self, now: Instant) -> Vec<LeaseView> {
        let current = self.entries.iter().filter(|lease| lease.expires > now);
        let view = |lease: &Entry| LeaseView {
            address: lease.address.to_string(),
            client: hex(&lease.client),
            expires_s: (lease.expires - now).as_secs(),
        };
        current.map(view).collect()
    }

    /// Ends the lease of a client.
    pub(crate) fn release(&mut self, client: &[u8]) {
        let ended = &mut self.ended;
        self.entries.retain(|lease| {
            let is_own = lease.client == client;
            ended.extend(is_own.then_some(lease.address));
            !is_own
        });
    }

    /// Ends the lease of a client because another host uses its address (RFC 2131 4.3.3).
    pub(crate) fn decline(&mut self, now: Instant, client: &[u8]) {
        if let Some(lease) = self.entries.iter_mut().find(|lease| lease.client == client) {
            lease.client.clear();
            lease.expires = now + DECLINE_TIME;
            self.ended.push(lease.address);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

/// Returns the addresses of a network in the order in which they are given out.
fn addresses(config: &Ipv4Config) -> Vec<Ipv4Addr> {
    let range = config.dhcp.iter().flat_map(|range| {
        let (first, last) = (range.first.to_bits(), range.last.to_bits());
        (first..=last).take(MAX_RANGE as usize)
    });
    let others = range.map(Ipv4Addr::from_bits).filter(|address| {
        ![config.guest, config.gateway].contains(address) && config.dns != Some(*address)
    });
    [config.guest].into_iter().chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DhcpRange};

    const LEASE: Duration = Duration::from_secs(3600);

    fn leases() -> Leases {
        let mut config = Config::default().ipv4.unwrap();
        config.dhcp = Some(DhcpRange {
            first: ip(2),
            last: ip(16),
        });
        let mut leases = Leases::new(Some(&config), false);
        leases.addresses.retain(|a| *a == ip(100) || *a >= ip(15));
        leases
    }

    fn client(id: &[u8]) -> Client<'_> {
        Client {
            id,
            guest: None,
            is_present: &|_| true,
        }
    }

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 2, last)
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_client_is_the_guest_and_others_get_the_range() {
        let (mut leases, now) = (leases(), Instant::now());
        assert_eq!(leases.offer(now, &client(b"a"), None), Some(ip(100)));
        assert_eq!(leases.offer(now, &client(b"b"), None), Some(ip(15)));
        assert_eq!(leases.offer(now, &client(b"a"), None), Some(ip(100)));
        assert_eq!(leases.offer(now, &client(b"c"), Some(ip(15))), Some(ip(16)));
        assert_eq!(leases.offer(now, &client(b"d"), None), None);
        assert!(!leases.confirm(now, &client(b"d"), ip(16), LEASE));
        leases.release(b"c");
        assert!(leases.confirm(now, &client(b"d"), ip(16), LEASE));
    }

    #[tokio::test(start_paused = true)]
    async fn tools_see_leases_until_they_expire() {
        let (mut leases, now) = (leases(), Instant::now());
        assert!(leases.confirm(now, &client(&[1, 0xab]), ip(100), LEASE));
        let lease = LeaseView {
            address: "10.0.2.100".to_owned(),
            client: "01ab".to_owned(),
            expires_s: 3600,
        };
        assert_eq!(leases.views(now), [lease]);
        assert_eq!(leases.views(now + LEASE), []);
    }

    #[tokio::test(start_paused = true)]
    async fn current_leases_have_the_clients_ethernet_address() {
        let (mut leases, now) = (leases(), Instant::now());
        assert_eq!(leases.offer(now, &client(b"offered"), None), Some(ip(100)));
        assert!(leases.confirm(now, &client(b"a"), ip(15), LEASE));
        let mac = [2, 0, 0, 0, 0, 9];
        leases.set_mac(b"a", mac);
        let lease = Lease {
            address: ip(15),
            mac,
        };
        assert_eq!(leases.current(now), [lease]);
        assert_eq!(leases.current(now + LEASE), []);
    }

    #[tokio::test(start_paused = true)]
    async fn the_only_address_is_given_to_every_client() {
        let mut config = Config::default().ipv4.unwrap();
        config.dhcp = Some(DhcpRange {
            first: config.guest,
            last: config.guest,
        });
        let (mut leases, now) = (Leases::new(Some(&config), false), Instant::now());
        assert!(leases.confirm(now, &client(b"a"), ip(100), LEASE));
        assert_eq!(leases.offer(now, &client(b"b"), None), Some(ip(100)));
        assert!(leases.confirm(now, &client(b"b"), ip(100), LEASE));
        assert!(!leases.confirm(now, &client(b"b"), ip(101), LEASE));
        assert!(leases.confirm(now, &client(b"a"), ip(100), LEASE));
        leases.decline(now, b"a");
        for id in [b"a", b"b"] {
            assert_eq!(leases.offer(now, &client(id), None), Some(ip(100)));
            assert!(leases.confirm(now, &client(id), ip(100), LEASE));
            leases.decline(now, id);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn declined_addresses_are_given_again_once_no_other_is_left() {
        let (mut leases, now) = (leases(), Instant::now());
        let later = now + Duration::from_secs(1);
        for (at, address) in [(now, ip(100)), (later, ip(15))] {
            assert_eq!(leases.offer(at, &client(b"a"), None), Some(address));
            leases.decline(at, b"a");
        }
        for (id, address) in [(b"a", ip(16)), (b"b", ip(100)), (b"c", ip(15))] {
            assert_eq!(leases.offer(later, &client(id), None), Some(address));
        }
        assert_eq!(leases.offer(later, &client(b"d"), None), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_of_several_uses_up_its_own_addresses_only() {
        let mut config = Config::default().ipv4.unwrap();
        config.dhcp = Some(DhcpRange {
            first: ip(10),
            last: ip(20),
        });
        let (mut leases, now) = (Leases::new(Some(&config), true), Instant::now());
        let port = switch_port();
        let of = |n: &'static [u8; 1], guest, is_present: &'static dyn Fn(&[u8]) -> bool| Client {
            id: n,
            guest,
            is_present,
        };
        let one = of(b"a", None, &|_| true);
        assert!(leases.confirm(now, &one, ip(100), LEASE));
        for n in [
            b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9", b"x", b"y",
        ] {
            let client = of(n, Some(port), &|_| true);
            let address = leases.offer(now, &client, None).unwrap();
            assert!(leases.confirm(now, &client, address, LEASE));
        }
        assert_eq!(leases.entries.len(), 1 + LEASES_OF_GUEST);
        let ended = leases.take_ended();
        assert_eq!(ended.len(), 12 - LEASES_OF_GUEST);
        assert!(leases.take_ended().is_empty());
        assert_eq!(leases.offer(now, &one, None), Some(ip(100)));
        // The addresses of guests that have ended are given to others.
        for n in [b"A", b"B", b"C", b"D", b"E", b"F", b"G"] {
            let client = of(n, None, &|id| !b"0123456789xy".contains(&id[0]));
            assert!(leases.offer(now, &client, None).is_some());
        }
        assert_eq!(leases.entries.len(), 12);
        assert_eq!(leases.offer(now, &of(b"H", None, &|_| true), None), None);
    }

    /// Returns the number of a port.
    fn switch_port() -> PortId {
        let config = fullsend_device::SwitchConfig {
            mtu: 1500,
            is_joined: false,
            mac: [2; 6],
            addresses: std::collections::BTreeSet::new(),
        };
        let switch = fullsend_device::Switch::new(config).unwrap();
        let (end, _) = fullsend_device::pair(fullsend_device::PairConfig::default());
        switch.handle().attach(Box::new(end)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn offers_and_leases_expire() {
        let (mut leases, now) = (leases(), Instant::now());
        assert!(leases.confirm(now, &client(b"a"), ip(100), LEASE));
        assert_eq!(leases.offer(now, &client(b"b"), Some(ip(16))), Some(ip(16)));
        assert_eq!(
            leases.offer(now + OFFER_TIME, &client(b"c"), Some(ip(16))),
            Some(ip(16))
        );
        assert_eq!(
            leases.offer(now + LEASE, &client(b"c"), Some(ip(100))),
            Some(ip(100))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_declined_address_is_not_given_out_for_a_time() {
        let (mut leases, now) = (leases(), Instant::now());
        assert!(leases.confirm(now, &client(b"a"), ip(100), LEASE));
        leases.decline(now, b"a");
        assert_eq!(
            leases.offer(now, &client(b"a"), Some(ip(100))),
            Some(ip(15))
        );
        assert!(!leases.confirm(now, &client(b"b"), ip(100), LEASE));
        leases.decline(now, b"unknown");
        let later = now + DECLINE_TIME;
        assert_eq!(leases.offer(later, &client(b"c"), None), Some(ip(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_gateways_addresses_are_not_given_out() {
        let (mut leases, now) = (leases(), Instant::now());
        for address in [ip(2), ip(3), ip(50)] {
            assert!(!leases.confirm(now, &client(b"a"), address, LEASE));
        }
    }
}
