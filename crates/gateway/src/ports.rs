//! Port specifications in the syntax of pasta: the forwarded ports and their targets.
//!
//! ```text
//! SPEC  = none | auto | [ADDRESS[%INTERFACE]/ | %INTERFACE/] ITEM[,ITEM]...
//! ITEM  = PORTS[:[ADDRESS/]PORTS] | ~PORTS | all
//! PORTS = FIRST[-LAST]
//! ```

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A specification of the ports to forward.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortSpec {
    /// No ports.
    None,
    /// The ports on which the other side listens.
    Auto,
    /// The listed ports.
    List(PortList),
}

/// Ports that are forwarded from an address or an interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortList {
    /// The address to listen on; all addresses of both families if it is missing.
    pub address: Option<IpAddr>,
    /// The interface to listen on (`SO_BINDTODEVICE`).
    pub interface: Option<String>,
    /// The ranges of ports, in the order of the specification.
    pub ranges: Vec<PortRange>,
    /// Whether all other ports are forwarded as well, except the ephemeral ones and those in use.
    pub all: bool,
    /// First and last ports of ranges that are never forwarded.
    pub excluded: Vec<(u16, u16)>,
}

/// Consecutive ports, and the ports to which they lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
    /// The address to which the ports lead; `None` for the guest's.
    pub to: Option<IpAddr>,
    /// The port to which `first` leads.
    pub to_first: u16,
}

/// One forwarded port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortForward {
    /// The port to listen on.
    pub port: u16,
    /// The address to which the port leads; `None` for the guest's.
    pub to: Option<IpAddr>,
    /// The port to which the port leads.
    pub to_port: u16,
    /// Whether the port was not named but belongs to `all`: it is not an error if the port is in use.
    pub optional: bool,
}

/// An error in a port specification.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpecError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for PortSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, reason } = self;
        write!(
            f,
            "invalid port specification `{text}`: {reason}; write e.g. 8080:80, 127.0.0.1/5000-5010, \
             ~22, auto or none"
        )
    }
}

impl std::error::Error for PortSpecError {}

impl PortList {
    /// Returns the forwarded ports one by one. `ephemeral` are the ports that the host gives to its own
    /// connections, which `all` leaves out.
    pub fn forwards(&self, ephemeral: &RangeInclusive<u16>) -> Vec<PortForward> {
        let is_excluded = |port| self.excluded.iter().any(|&(a, b)| (a..=b).contains(&port));
        let mut forwards = Vec::new();
        for range in &self.ranges {
            let ports = (range.first..=range.last).zip(range.to_first..=u16::MAX);
            let ports = ports.filter(|(port, _)| !is_excluded(*port));
            forwards.extend(ports.map(|(port, to_port)| PortForward {
                port,
                to: range.to,
                to_port,
                optional: false,
            }));
        }
        if self.all {
            let is_named = |port| {
                self.ranges
                    .iter()
                    .any(|r| (r.first..=r.last).contains(&port))
            };
            let others = (1..=u16::MAX).filter(|port| {
                !ephemeral.contains(port) && !is_excluded(*port) && !is_named(*port)
            });
            forwards.extend(others.map(|port| PortForward {
                port,
                to: None,
                to_port: port,
                optional: true,
            }));
        }
        forwards
    }

    fn add(&mut self, item: &str) -> Result<(), &'static str> {
        if item == "all" {
            self.all = true;
            return Ok(());
        }
        if let Some(ports) = item.strip_prefix('~') {
            self.excluded.push(parse_ports(ports)?);
            return Ok(());
        }
        let (ports, target) = match item.split_once(':') {
            Some((ports, target)) => (ports, Some(target)),
            None => (item, None),
        };
        let (first, last) = parse_ports(ports)?;
        let (to, to_first) = match target {
            Some(target) => parse_target(target, last - first)?,
            None => (None, first),
        };
        if self
            .ranges
            .iter()
            .any(|r| r.first <= last && first <= r.last)
        {
            return Err("a port is named twice");
        }
        self.ranges.push(PortRange {
            first,
            last,
            to,
            to_first,
        });
        Ok(())
    }
}

impl FromStr for PortSpec {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<Self, PortSpecError> {
        match text {
            "none" => Ok(Self::None),
            "auto" => Ok(Self::Auto),
            text => parse_list(text)
                .map(Self::List)
                .map_err(|reason| PortSpecError {
                    text: text.to_owned(),
                    reason,
                }),
        }
    }
}

fn parse_list(text: &str) -> Result<PortList, &'static str> {
    let mut list = PortList::default();
    let items = match split_binding(text) {
        Some((binding, items)) => {
            (list.address, list.interface) = parse_binding(binding)?;
            items
        }
        None => text,
    };
    for item in items.split(',') {
        list.add(item)?;
    }
    // A list of only exclusions excludes them from all ports.
    if list.ranges.is_empty() {
        list.all = true;
    }
    Ok(list)
}

/// Splits at the slash after the address and interface to listen on, if there is one. A slash after a
/// colon of an item belongs to that item's target, but an IPv6 address contains colons, too.
fn split_binding(text: &str) -> Option<(&str, &str)> {
    let (before, after) = text.split_once('/')?;
    let is_binding = before.starts_with(['[', '%'])
        || !before.contains(',') && {
            let address = before.split('%').next().unwrap_or_default();
            address.parse::<IpAddr>().is_ok() || !before.contains(':')
        };
    is_binding.then_some((before, after))
}

fn parse_binding(text: &str) -> Result<(Option<IpAddr>, Option<String>), &'static str> {
    let (address, interface) = match text.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (text, None),
    };
    let address = match (address, interface) {
        ("", Some(_)) => None,
        (address, _) => Some(parse_address(address)?),
    };
    // IFNAMSIZ without the NUL.
    let is_name = |name: &str| {
        (1..=15).contains(&name.len()) && !name.contains(|c: char| c.is_whitespace() || c == '/')
    };
    match interface {
        Some(name) if !is_name(name) => Err("the text behind % is not the name of an interface"),
        name => Ok((address, name.map(str::to_owned))),
    }
}

/// Parses an address, which is an IPv6 address if it is in brackets.
fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    const ERROR: &str = "the text in front of / is not an address";
    match text.strip_prefix('[') {
        Some(rest) => {
            let inner = rest.strip_suffix(']').ok_or(ERROR)?;
            inner.parse().map(IpAddr::V6).map_err(|_| ERROR)
        }
        None => text.parse().map_err(|_| ERROR),
    }
}

/// Parses `[ADDRESS/]FIRST[-LAST]` as the target of a range of `span + 1` ports.
fn parse_target(text: &str, span: u16) -> Result<(Option<IpAddr>, u16), &'static str> {
    let (to, ports) = match text.rsplit_once('/') {
        Some((address, ports)) => (Some(parse_address(address)?), ports),
        None => (None, text),
    };
    let (first, last) = parse_ports(ports)?;
    // The last port of the target may be left out.
    let is_short = first == last && !ports.contains('-');
    if !is_short && last - first != span {
        return Err("both ranges must have the same number of ports");
    }
    if first.checked_add(span).is_none() {
        return Err("the target's ports end beyond 65535");
    }
    Ok((to, first))
}

fn parse_ports(text: &str) -> Result<(u16, u16), &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_port(first)?, parse_port(last)?);
    if first > last {
        return Err("the first port of a range is above its last port");
    }
    Ok((first, last))
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port != 0);
    port.ok_or("a port is not between 1 and 65535")
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::List(list) => list.fmt(f),
        }
    }
}

impl fmt::Display for PortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Some(IpAddr::V4(address)) => write!(f, "{address}")?,
            None => {}
        }
        if let Some(interface) = &self.interface {
            write!(f, "%{interface}")?;
        }
        if self.address.is_some() || self.interface.is_some() {
            f.write_str("/")?;
        }
        let all = self.all.then(|| "all".to_owned());
        let ranges = self.ranges.iter().map(ToString::to_string);
        let excluded = self.excluded.iter().map(|&(a, b)| format!("~{a}-{b}"));
        let items: Vec<_> = all.into_iter().chain(ranges).chain(excluded).collect();
        f.write_str(&items.join(","))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}:", self.first, self.last)?;
        match self.to {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]/")?,
            Some(IpAddr::V4(address)) => write!(f, "{address}/")?,
            None => {}
        }
        write!(
            f,
            "{}-{}",
            self.to_first,
            self.to_first + (self.last - self.first)
        )
    }
}
