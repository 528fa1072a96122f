//! Networks in the rules of a policy.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::local::embedded_v4;
use super::rule::PolicyError;

/// The word that stands for all addresses of [`Flow::is_local`](super::Flow::is_local).
const LOCAL: &str = "local";

/// A set of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    /// The addresses of the host itself and of private networks.
    Local,
    V4 {
        base: u32,
        prefix: u8,
    },
    V6 {
        base: u128,
        prefix: u8,
    },
}

impl Network {
    /// Parses `local`, an address, or a network such as 10.0.0.0/8.
    pub(super) fn parse(text: &str) -> Result<Self, PolicyError> {
        if text == LOCAL {
            return Ok(Self::Local);
        }
        let error = || {
            PolicyError::new(format!(
                "`{}` is not a network; write e.g. 10.0.0.0/8, 2001:db8::/32, 192.0.2.7 or local",
                text.escape_debug()
            ))
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            None => bits,
            Some(text) => {
                let number = Some(text)
                    .filter(is_number)
                    .and_then(|text| text.parse().ok());
                number.filter(|prefix| *prefix <= bits).ok_or_else(error)?
            }
        };
        Self::new(address, prefix).map_err(|fix| {
            PolicyError::new(format!("`{text}` has bits after its prefix; write {fix}"))
        })
    }

    /// Returns the network, or as an error the network without the bits of `address` beyond the prefix.
    fn new(address: IpAddr, prefix: u8) -> Result<Self, Self> {
        let (network, is_exact) = match address {
            IpAddr::V4(address) => {
                let base = address.to_bits() & mask4(prefix);
                (Self::V4 { base, prefix }, base == address.to_bits())
            }
            IpAddr::V6(address) => {
                let base = address.to_bits() & mask6(prefix);
                (Self::V6 { base, prefix }, base == address.to_bits())
            }
        };
        let network = if let Self::V6 { base, prefix } = network
            && prefix >= 96
            && let Some(v4) = Ipv6Addr::from_bits(base).to_ipv4_mapped()
        {
            // Mapped addresses are IPv4 addresses.
            let prefix = prefix - 96;
            let base = v4.to_bits();
            Self::V4 { base, prefix }
        } else {
            network
        };
        if is_exact { Ok(network) } else { Err(network) }
    }

    /// Returns whether an address, whose locality is `is_local`, is in the network.
    pub(super) fn contains(self, address: IpAddr, is_local: bool) -> bool {
        match (self, address.to_canonical()) {
            (Self::Local, _) => is_local,
            (Self::V4 { base, prefix }, IpAddr::V4(address)) => {
                address.to_bits() & mask4(prefix) == base
            }
            (Self::V6 { base, prefix }, IpAddr::V6(address)) => {
                address.to_bits() & mask6(prefix) == base
            }
            _ => false,
        }
    }

    /// Returns whether an address is in the network, or leads to an IPv4 address in it through a
    /// translator (NAT64) or a tunnel (6to4).
    pub(super) fn covers(self, address: IpAddr, is_local: bool) -> bool {
        let embedded = match address {
            IpAddr::V6(address) => embedded_v4(address),
            IpAddr::V4(_) => None,
        };
        self.contains(address, is_local)
            || embedded.is_some_and(|address| self.contains(address.into(), is_local))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Local => f.write_str(LOCAL),
            Self::V4 { base, prefix } => write!(f, "{}/{prefix}", Ipv4Addr::from_bits(base)),
            Self::V6 { base, prefix } => write!(f, "{}/{prefix}", Ipv6Addr::from_bits(base)),
        }
    }
}

fn mask4(prefix: u8) -> u32 {
    !u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    !u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_the_addresses_of_their_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
            ("2001:db8::/32", "2001:db8:ffff::", "2001:db9::"),
            ("2001:db8::1/128", "2001:db8::1", "2001:db8::2"),
            ("::ffff:192.0.2.0/120", "192.0.2.9", "192.0.3.9"),
        ] {
            let network = Network::parse(network).unwrap();
            assert!(
                network.contains(inside.parse().unwrap(), false),
                "{network}"
            );
            assert!(
                !network.contains(outside.parse().unwrap(), true),
                "{network}"
            );
        }
        let local = Network::parse("local").unwrap();
        assert!(local.contains("10.0.2.2".parse().unwrap(), true));
        assert!(!local.contains("10.0.2.2".parse().unwrap(), false));
    }

    #[test]
    fn networks_cover_the_addresses_that_lead_to_theirs() {
        let network = Network::parse("192.0.2.0/24").unwrap();
        for (address, expected) in [
            ("192.0.2.7", true),
            ("::ffff:192.0.2.7", true),
            ("64:ff9b::192.0.2.7", true),
            ("2002:c000:207::1", true),
            ("64:ff9b::192.0.3.7", false),
            ("2002:c000:307::1", false),
            ("2001:db8::192.0.2.7", false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(network.covers(address, false), expected, "{address}");
        }
        let v6 = Network::parse("64:ff9b::/96").unwrap();
        assert!(v6.covers("64:ff9b::192.0.2.7".parse().unwrap(), false));
        assert!(!v6.covers("192.0.2.7".parse().unwrap(), false));
    }

    #[test]
    fn other_texts_are_rejected_with_the_fix() {
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0/8",
            "::/129",
            "fe80::1%1",
            "x",
            "Local",
            "10.0.0.0/8/8",
        ] {
            let error = Network::parse(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        for (text, fix) in [
            ("10.0.2.100/24", "10.0.2.0/24"),
            ("2001:db8::1/64", "2001:db8::/64"),
            ("::ffff:10.0.2.100/120", "10.0.2.0/24"),
        ] {
            let error = Network::parse(text).unwrap_err().to_string();
            let expected = format!("`{text}` has bits after its prefix; write {fix}");
            assert_eq!(error, expected);
        }
    }
}
