//! Parsers of option values that several programs have.

use std::net::IpAddr;
use std::str::FromStr;

/// Parses a decimal number without a sign.
pub(crate) fn parse_number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Parses six bytes in hexadecimal between `separators`. Returns `None` for the address of a group.
pub(crate) fn parse_mac(text: &str, separators: &[char]) -> Option<[u8; 6]> {
    let parse_byte = |byte: &str| {
        let is_hex = byte.len() <= 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
        u8::from_str_radix(byte, 16).ok().filter(|_| is_hex)
    };
    let bytes: Option<Vec<u8>> = text.split(separators).map(parse_byte).collect();
    let mac = <[u8; 6]>::try_from(bytes?).ok()?;
    // The lowest bit of the first byte marks the address of a group.
    (mac[0] & 1 == 0).then_some(mac)
}

/// Returns whether an address can belong to a host of a network.
pub(crate) fn is_host_address(address: IpAddr) -> bool {
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    let is_other_family = match address {
        // 0.0.0.0/8 is this network, and 240.0.0.0/4 is reserved (RFC 6890).
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.octets()[0] >= 240,
        IpAddr::V6(v6) => v6.to_ipv4_mapped().is_some(),
    };
    !is_special && !is_other_family
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_only_digits() {
        assert_eq!(parse_number::<u16>("080"), Some(80));
        for text in ["", "+80", "-1", " 1", "70000", "0x1"] {
            assert_eq!(parse_number::<u16>(text), None, "{text}");
        }
    }

    #[test]
    fn the_bytes_of_an_ethernet_address_have_only_digits() {
        let mac = Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(parse_mac("52:54:0:12:34:56", &[':']), mac);
        assert_eq!(parse_mac("52-54-00:12-34-56", &[':', '-']), mac);
        for text in [
            "+2:54:0:12:34:56",
            "52:54:0:12:34",
            "52:54::12:34:56",
            "53:54:0:12:34:56",
        ] {
            assert_eq!(parse_mac(text, &[':']), None, "{text}");
        }
    }

    #[test]
    fn the_address_of_a_host_is_unicast_and_not_that_of_the_loopback() {
        let is_host = |text: &str| is_host_address(text.parse().unwrap());
        for text in ["192.0.2.1", "169.254.1.1", "fe80::1", "2001:db8::1"] {
            assert!(is_host(text), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.0.0.1",
            "127.0.0.2",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "ff02::1",
            "::ffff:192.0.2.1",
        ] {
            assert!(!is_host(text), "{text}");
        }
    }
}
