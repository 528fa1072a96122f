//! Checks of the settings.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use crate::config::{Config, Ipv4Config, Target};
use crate::forward::Forward;

/// Checks for settings that the types allow but that cannot be used.
///
/// # Errors
/// `InvalidInput`, with the value and the fix.
pub(crate) fn validate(config: &Config) -> io::Result<()> {
    if let Some(v4) = &config.ipv4 {
        check_prefix(v4.prefix, 32)?;
        check_dhcp_range(v4, config.proxy_neighbors)?;
    }
    if let Some(v6) = &config.ipv6 {
        check_prefix(v6.prefix, 128)?;
    }
    for mapping in &config.mappings {
        if let Target::Address(to) = mapping.target
            && to.is_ipv4() != mapping.guest.is_ipv4()
        {
            return Err(invalid(format_args!(
                "the mapping of {} to {to} is between families; write an address of the same family",
                mapping.guest
            )));
        }
    }
    Ok(())
}

/// Checks for settings that several guests on one link cannot use.
///
/// # Errors
/// `InvalidInput`, with the value and the fix.
pub(crate) fn validate_for_several(config: &Config) -> io::Result<()> {
    if config.proxy_neighbors {
        return Err(invalid(
            "a gateway that answers for all addresses has one guest; set proxy_neighbors to false",
        ));
    }
    if let Some(v6) = &config.ipv6
        && let Some(guest) = v6.guest
        && v6.dhcp
    {
        return Err(invalid(format_args!(
            "DHCPv6 has one address, {guest}, for several guests; set Ipv6Config::guest to None, so \
             that each chooses its own"
        )));
    }
    Ok(())
}

fn check_prefix(prefix: u8, max: u8) -> io::Result<()> {
    if (1..=max).contains(&prefix) {
        return Ok(());
    }
    Err(invalid(format_args!(
        "{prefix} is no prefix length; write 1 to {max}"
    )))
}

/// Checks the range of DHCP. With `is_only_neighbor`, the gateway answers for all addresses, so that its
/// guest may have any address.
fn check_dhcp_range(config: &Ipv4Config, is_only_neighbor: bool) -> io::Result<()> {
    let Some(range) = config.dhcp else {
        return Ok(());
    };
    let (first, last) = (range.first, range.last);
    if first > last {
        return Err(invalid(format_args!(
            "the DHCP range {first} to {last} ends before it begins; exchange its addresses"
        )));
    }
    if is_only_neighbor && [first, last] == [config.guest; 2] {
        return Ok(());
    }
    let host_bits = u32::MAX.checked_shr(config.prefix.into()).unwrap_or(0);
    let base = config.gateway.to_bits() & !host_bits;
    let (lowest, highest) = (
        Ipv4Addr::from_bits(base),
        Ipv4Addr::from_bits(base | host_bits),
    );
    for address in [first, last] {
        if !(lowest..=highest).contains(&address) {
            return Err(invalid(format_args!(
                "{address} of the DHCP range is outside of the gateway's network; write one of \
                 {lowest} to {highest}"
            )));
        }
    }
    Ok(())
}

/// Checks that a forward leads to a single host.
///
/// # Errors
/// `InvalidInput`, with the value and the fix.
pub(crate) fn check_forward(forward: &Forward) -> io::Result<()> {
    let to = forward.target();
    let is_group = match to.ip() {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    if is_group || to.ip().is_unspecified() || to.port() == 0 {
        return Err(invalid(format_args!(
            "{to} is no destination of a forward; write the address of one host or guest, and a port \
             from 1 to 65535"
        )));
    }
    Ok(())
}

fn invalid(message: impl Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DhcpRange, Mapping};
    use crate::forward::{Protocol, Side};

    /// Returns the error of the default settings after `change`.
    fn error_after(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::default();
        change(&mut config);
        let error = validate(&config).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        error.to_string()
    }

    #[test]
    fn the_default_is_valid() {
        validate(&Config::default()).unwrap();
    }

    #[test]
    fn errors_name_the_value_and_the_remedy() {
        let v4 = |change: fn(&mut Ipv4Config)| {
            error_after(|config| change(config.ipv4.as_mut().unwrap()))
        };
        let range = |first: [u8; 4], last: [u8; 4]| {
            Some(DhcpRange {
                first: first.into(),
                last: last.into(),
            })
        };
        assert!(v4(|v4| v4.prefix = 33).contains("33 is no prefix length; write 1 to 32"));
        assert!(v4(|v4| v4.prefix = 0).contains("write 1 to 32"));
        let error = error_after(|config| config.ipv6.as_mut().unwrap().prefix = 129);
        assert!(error.contains("129 is no prefix length; write 1 to 128"));
        let error = error_after(|config| {
            config.ipv4.as_mut().unwrap().dhcp = range([10, 0, 2, 9], [10, 0, 2, 8]);
        });
        assert!(error.contains("10.0.2.9 to 10.0.2.8"), "{error}");
        let error = error_after(|config| {
            config.ipv4.as_mut().unwrap().dhcp = range([10, 0, 2, 9], [10, 0, 3, 8]);
        });
        assert!(error.contains("10.0.3.8"), "{error}");
        assert!(error.contains("10.0.2.0 to 10.0.2.255"), "{error}");
        let error = error_after(|config| {
            config.mappings.push(Mapping {
                guest: "10.0.2.9".parse().unwrap(),
                target: Target::Address("2001:db8::1".parse().unwrap()),
            });
        });
        assert!(error.contains("10.0.2.9 to 2001:db8::1"), "{error}");
    }

    #[test]
    fn the_guest_of_a_gateway_that_answers_for_all_may_have_any_address() {
        let mut config = Config::default();
        let v4 = config.ipv4.as_mut().unwrap();
        let guest = Ipv4Addr::new(192, 0, 2, 1);
        v4.guest = guest;
        v4.dhcp = Some(DhcpRange {
            first: guest,
            last: guest,
        });
        assert!(validate(&config).is_err());
        config.proxy_neighbors = true;
        validate(&config).unwrap();
        config.ipv4.as_mut().unwrap().prefix = 32;
        validate(&config).unwrap();
    }

    #[test]
    fn a_forward_leads_to_one_host_and_port() {
        let local = "127.0.0.1:0".parse().unwrap();
        let forward = |from, host, guest| Forward {
            from,
            protocol: Protocol::Tcp,
            host,
            guest,
            interface: None,
        };
        let both = |to: &str| {
            let to = to.parse().unwrap();
            let from_guest = forward(Side::Guest, to, local);
            [forward(Side::Host, local, to), from_guest]
        };
        for to in ["10.0.2.100:80", "[fd00::64]:80"] {
            for forward in both(to) {
                check_forward(&forward).unwrap();
            }
        }
        for to in ["10.0.2.100:0", "0.0.0.0:80", "[ff02::1]:80", "224.0.0.1:80"] {
            for forward in both(to) {
                let error = check_forward(&forward).unwrap_err();
                assert!(error.to_string().contains(to), "{error}");
            }
        }
    }
}
