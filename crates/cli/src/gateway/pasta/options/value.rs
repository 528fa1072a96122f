//! The values of pasta's options.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use fullsend_gateway::PortSpec;

use crate::gateway::values::{self, is_host_address, parse_number};

const MTU_MAX: u32 = 65_520;

/// An address that stands for another one, or `none`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::gateway::pasta) enum Mapped {
    None,
    Address(IpAddr),
}

pub(super) fn parse_ip(text: &str) -> Result<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let parsed = inner.unwrap_or(text).parse();
    parsed
        .with_context(|| format!("`{text}` is not an address; write e.g. 192.0.2.1 or 2001:db8::1"))
}

/// Parses an address that a host on a network can have.
pub(super) fn parse_host_ip(text: &str) -> Result<IpAddr> {
    let address = parse_ip(text)?;
    if !is_host_address(address) {
        bail!(
            "`{text}` is not an address that a host can have on a link; write e.g. 192.0.2.1 or \
             2001:db8::1"
        );
    }
    Ok(address)
}

pub(super) fn parse_address(text: &str) -> Result<(IpAddr, Option<u8>)> {
    let Some((address, prefix)) = text.split_once('/') else {
        return Ok((parse_host_ip(text)?, None));
    };
    let address = parse_host_ip(address)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = parse_number(prefix).filter(|prefix| (1..=most).contains(prefix));
    let prefix = prefix.with_context(|| {
        format!("`{text}` is not an address with a prefix length; write e.g. 192.0.2.1/24")
    })?;
    Ok((address, Some(prefix)))
}

pub(super) fn set_list(list: &mut Vec<IpAddr>, text: &str) -> Result<()> {
    match text {
        "none" => list.clear(),
        text => list.push(parse_ip(text)?),
    }
    Ok(())
}

/// Parses port specifications of the guest's loopback, which cannot have an interface.
pub(in crate::gateway) fn parse_guest_ports(option: &str, text: &str) -> Result<PortSpec> {
    let spec = text.parse()?;
    if let PortSpec::List(list) = &spec
        && list.interface.is_some()
    {
        bail!("{option} {text} names an interface; write an address of the guest, or none");
    }
    Ok(spec)
}

/// Checks that `none` is the only specification of an option, and that `auto` and `all` are not combined.
pub(super) fn check_combination(option: &str, specs: &[PortSpec]) -> Result<()> {
    let is_all = |spec: &PortSpec| matches!(spec, PortSpec::List(list) if list.all);
    let has = |wanted: &PortSpec| specs.contains(wanted);
    if has(&PortSpec::None) && specs.iter().any(|spec| *spec != PortSpec::None) {
        bail!("{option} none excludes other values of the option; give one of them");
    }
    if has(&PortSpec::Auto) && specs.iter().any(is_all) {
        bail!("{option} auto and {option} all exclude each other; give one of them");
    }
    Ok(())
}

pub(super) fn parse_mapped(text: &str) -> Result<Mapped> {
    match text {
        "none" => Ok(Mapped::None),
        text => Ok(Mapped::Address(parse_host_ip(text)?)),
    }
}

pub(super) fn parse_mtu(text: &str) -> Result<u32> {
    let mtu = parse_number(text).filter(|mtu| (68..=MTU_MAX).contains(mtu));
    mtu.with_context(|| format!("MTU `{text}` is not between 68 and {MTU_MAX}"))
}

/// Parses the number of a descriptor other than standard input, output and error.
pub(super) fn parse_fd(text: &str) -> Result<i32> {
    let fd = parse_number(text).filter(|fd| *fd > 2);
    fd.with_context(|| format!("`{text}` is not the number of an open socket; write 3 or more"))
}

/// Parses a prefix length or a mask, as in 24 or 255.255.255.0.
pub(super) fn parse_netmask(text: &str) -> Result<u8> {
    let from_mask = || {
        let mask = u32::from(text.parse::<Ipv4Addr>().ok()?);
        (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones() as u8)
    };
    let length = parse_number(text).or_else(from_mask);
    let length = length.filter(|length| (1..=32).contains(length));
    length.with_context(|| format!("netmask `{text}` is not one; write 24 or 255.255.255.0"))
}

/// Parses six bytes in hexadecimal, separated by colons or dashes.
pub(super) fn parse_mac(text: &str) -> Result<[u8; 6]> {
    values::parse_mac(text, &[':', '-']).with_context(|| {
        format!("MAC address `{text}` is not that of one interface; write e.g. 52:54:00:12:34:56")
    })
}
