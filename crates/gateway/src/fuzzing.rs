//! Entry points for fuzz targets of the state machines that guests drive.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, DhcpRange};
use crate::dhcp::{Leases, LeasingClient};
use crate::dns::{AddressNames, Learnt, NAMES_MAX};

/// A step of a DHCP client. Clients have identifiers of one byte.
#[derive(Clone, Copy, Debug)]
pub enum DhcpStep {
    /// Sends DISCOVER, with the host number of an address that it requests.
    Discover(u8, Option<u8>),
    /// Sends REQUEST for the address with this host number, for a lease of these seconds.
    Request(u8, u8, u16),
    /// Sends RELEASE.
    Release(u8),
    /// Sends DECLINE.
    Decline(u8),
    /// Lets these seconds pass.
    Wait(u16),
}

/// Runs steps of DHCP clients against the leases of a network with 16 addresses.
///
/// # Panics
/// If two clients have one address, or an address is not one of the network's.
pub fn lease_addresses(steps: &[DhcpStep], are_several: bool) {
    let host = |number: u8| Ipv4Addr::new(10, 0, 2, number);
    let Some(mut network) = Config::default().ipv4 else {
        return;
    };
    network.dhcp = Some(DhcpRange {
        first: host(15),
        last: host(30),
    });
    let mut leases = Leases::new(Some(&network), are_several);
    let mut now = Instant::now();
    for step in steps {
        let id = match *step {
            DhcpStep::Discover(id, _)
            | DhcpStep::Request(id, ..)
            | DhcpStep::Release(id)
            | DhcpStep::Decline(id) => [id],
            DhcpStep::Wait(seconds) => {
                now += Duration::from_secs(seconds.into());
                continue;
            }
        };
        let client = LeasingClient {
            id: &id,
            guest: None,
            is_present: &|id| id[0].is_multiple_of(2),
        };
        match *step {
            DhcpStep::Discover(_, wanted) => {
                leases.offer(now, &client, wanted.map(host));
            }
            DhcpStep::Request(id, number, seconds) => {
                let time = Duration::from_secs(seconds.into());
                if leases.confirm(now, &client, host(number), time) {
                    leases.set_mac(&[id], [2, 0, 0, 0, 0, id]);
                }
            }
            DhcpStep::Release(_) => leases.release(&id),
            DhcpStep::Decline(_) => leases.decline(now, &id),
            DhcpStep::Wait(_) => {}
        }
        let views = leases.views(now);
        let addresses: BTreeSet<_> = views.iter().map(|view| view.address.clone()).collect();
        assert_eq!(addresses.len(), views.len(), "one address for two clients");
        for lease in leases.current(now) {
            let number = lease.address.octets()[3];
            let is_own = (15..=30).contains(&number) || lease.address == network.guest;
            assert!(is_own, "{}", lease.address);
        }
        leases.take_ended();
    }
}

/// A step of the table of resolved names. Names and addresses are numbers.
#[derive(Clone, Copy, Debug)]
pub enum NameStep {
    /// An answer gives a name an address for these seconds; the guest has queried the name, or it is an
    /// alias of one.
    Learn(u8, u8, u16, bool),
    /// Lets these seconds pass.
    Wait(u16),
    /// Removes the pairs whose time is over.
    Expire,
}

/// Learns names in a table of 32 pairs, and looks each address up after each step.
///
/// # Panics
/// If the table exceeds its bounds, or an address has a name that it was not given.
pub fn learn_names(steps: &[NameStep]) {
    const MAX: usize = 32;
    let mut table = AddressNames::new(MAX, Duration::from_secs(60));
    let mut now = Instant::now();
    let mut given = BTreeSet::new();
    for step in steps {
        match *step {
            NameStep::Learn(name, address, seconds, is_queried) => {
                given.insert((name, address));
                let how = if is_queried {
                    Learnt::Queried
                } else {
                    Learnt::Alias
                };
                let name: Arc<str> = name.to_string().into();
                let ttl = Duration::from_secs(seconds.into());
                table.learn((&name, how), address_of(address), ttl, now);
            }
            NameStep::Wait(seconds) => now += Duration::from_secs(seconds.into()),
            NameStep::Expire => table.expire(now),
        }
        assert!(table.len() <= MAX);
        for address in 0..=u8::MAX {
            let names = table.of(address_of(address), now);
            assert!(names.queried.len() + names.aliases.len() <= NAMES_MAX);
            for name in names.queried.iter().chain(&names.aliases) {
                let name = name.parse().expect("names are numbers");
                assert!(given.contains(&(name, address)));
            }
        }
    }
}

fn address_of(number: u8) -> IpAddr {
    [192, 0, 2, number].into()
}
