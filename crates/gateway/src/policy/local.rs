//! Addresses that do not belong to a single host of the Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether an address belongs to this host, a link, a private network or a group (RFC 6890), also
/// if an IPv6 address [contains it](embedded_v4).
pub(crate) fn is_special(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_special_v4(address),
        IpAddr::V6(address) => is_special_v6(address),
    }
}

fn is_special_v4(address: Ipv4Addr) -> bool {
    match address.octets() {
        // This network, private networks and the loopback; link-local addresses, where clouds serve
        // metadata; carriers' networks, protocol assignments and benchmarks.
        [0 | 10 | 127, ..]
        | [192, 168, ..]
        | [172, 16..=31, ..]
        | [169, 254, ..]
        | [100, 64..=127, ..]
        | [192, 0, 0, _]
        | [198, 18 | 19, ..] => true,
        // Groups, reserved addresses and the broadcast address.
        [first, ..] => first >= 224,
    }
}

fn is_special_v6(address: Ipv6Addr) -> bool {
    match embedded_v4(address) {
        Some(address) => is_special_v4(address),
        // Global unicast addresses are in 2000::/3.
        None => address.segments()[0] & 0xe000 != 0x2000,
    }
}

/// Returns whether an address is link-local (169.254.0.0/16, fe80::/10), where clouds also serve
/// metadata.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            let v4 = embedded_v4(address);
            address.is_unicast_link_local() || v4.is_some_and(|v4| v4.is_link_local())
        }
    }
}

/// Returns the IPv4 address that packets to an IPv6 address may reach: a mapped one (RFC 4291 2.5.5.2),
/// one translated with the well-known prefix (RFC 6052 2.1), or one of 6to4 (RFC 3056 2).
pub(crate) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_internet_are_not_special() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.0.1",
            "100.128.0.1",
            "126.0.0.1",
            "169.253.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.2.1",
            "192.167.0.1",
            "198.51.100.1",
            "223.255.255.255",
            "2001:db8::1",
            "2606:4700::1111",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
            "::ffff:1.1.1.1",
        ] {
            assert!(!is_special(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn those_of_the_host_of_links_and_of_private_networks_are() {
        for address in [
            "0.0.0.0",
            "10.0.2.2",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.251",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "fc00::1",
            "fd00::2",
            "fe80::1",
            "fec0::1",
            "ff02::fb",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::1",
            "2002:a00:1::1",
        ] {
            assert!(is_special(address.parse().unwrap()), "{address}");
        }
    }
}
