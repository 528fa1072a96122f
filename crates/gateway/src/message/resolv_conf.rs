//! The file of the host's resolvers, resolv.conf(5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

/// Largest number of resolvers that are used. The C library uses three.
pub const MAX_RESOLVERS: usize = 8;
const DNS_PORT: u16 = 53;

/// Returns the resolvers of a file, at most [`MAX_RESOLVERS`]. A file without any stands for the one on
/// the loopback, as in the C library.
pub fn parse(text: &str) -> Vec<SocketAddr> {
    let mut list: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next()? == "nameserver").then(|| parse_address(words.next()?))?
        })
        .take(MAX_RESOLVERS)
        .collect();
    if list.is_empty() {
        list.push((Ipv4Addr::LOCALHOST, DNS_PORT).into());
    }
    list
}

/// Parses an address, which may have a zone: `fe80::1%eth0`.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let Some((address, zone)) = text.split_once('%') else {
        let address: IpAddr = text.parse().ok()?;
        return Some(SocketAddr::new(address, DNS_PORT));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let zone = zone.parse().ok().or_else(|| interface_index(zone))?;
    Some(SocketAddrV6::new(address, DNS_PORT, 0, zone).into())
}

/// Returns the index of an interface. Does not use the C library, which opens a Unix socket that the
/// sandbox forbids.
fn interface_index(name: &str) -> Option<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    name_to_index(socket, name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[SocketAddr]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nameserver_lines_are_read_in_order() {
        let text = "# nameserver 192.0.2.9\n\
                    search example.com\n\
                    nameserver 127.0.0.53\n  nameserver\t2001:db8::53 # trailing\n\
                    nameserver fe80::1%1\n\
                    nameserver\nnameserver example.com\noptions edns0\n";
        assert_eq!(
            texts(&parse(text)),
            ["127.0.0.53:53", "[2001:db8::53]:53", "[fe80::1%1]:53"]
        );
    }

    #[test]
    fn without_nameservers_the_loopback_is_asked() {
        assert_eq!(texts(&parse("options edns0\n")), ["127.0.0.1:53"]);
    }

    #[test]
    fn the_number_of_resolvers_is_bounded() {
        let text = "nameserver 192.0.2.1\n".repeat(1000);
        assert_eq!(parse(&text).len(), MAX_RESOLVERS);
    }
}
