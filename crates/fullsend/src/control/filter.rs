//! Capture filters, in a subset of tcpdump's language.
//!
//! The primitives are `tcp`, `udp`, `icmp`, `icmp6`, `ip`, `ip6`, `arp`, and `host ADDR`,
//! `net CIDR` and `port N`, these three optionally preceded by `src` or `dst`. They are joined by
//! `and`, `or`, `not` and parentheses. `tcp port 80` stands for `tcp and port 80`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_stack::Cidr;
use fullsend_wire::numbers::{ethertype, protocol};

/// Maximum nesting of `not` and parentheses.
const MAX_DEPTH: usize = 64;
/// IPv6 extension headers that are skipped to find the transport header.
const EXTENSIONS: [u8; 3] = [
    protocol::HOP_BY_HOP,
    protocol::ROUTING,
    protocol::DESTINATION,
];

/// A filter: the condition on a packet to be captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Filter {
    Ethertype(u16),
    Protocol(u8),
    Host(Direction, IpAddr),
    Net(Direction, Cidr),
    Port(Direction, u16),
    Not(Box<Filter>),
    And(Box<[Filter; 2]>),
    Or(Box<[Filter; 2]>),
}

/// The end of a packet that a condition applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Source,
    Destination,
    Either,
}

impl Direction {
    fn matches<T>(self, (source, destination): (T, T), condition: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => condition(source),
            Self::Destination => condition(destination),
            Self::Either => condition(source) || condition(destination),
        }
    }
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// A message with what is wrong and what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.replace('(', " ( ").replace(')', " ) ");
        let mut parser = FilterParser {
            words: text.split_whitespace().collect(),
            depth: 0,
        };
        parser.words.reverse();
        let filter = parser.parse_or()?;
        match parser.words.last() {
            None => Ok(filter),
            Some(word) => Err(format!(
                "filter: `{word}` is not expected here; write `and` or `or` before it"
            )),
        }
    }

    /// Returns whether a frame passes. With `ethernet` it begins with an Ethernet header, otherwise
    /// with an IP header.
    pub(super) fn passes(&self, frame: &[u8], ethernet: bool) -> bool {
        self.matches(&PacketFields::parse(frame, ethernet))
    }

    fn matches(&self, fields: &PacketFields) -> bool {
        match self {
            Self::Ethertype(wanted) => fields.ethertype == Some(*wanted),
            Self::Protocol(wanted) => fields.protocol == Some(*wanted),
            Self::Host(direction, ip) => fields
                .hosts
                .is_some_and(|hosts| direction.matches(hosts, |a| a == *ip)),
            Self::Net(direction, net) => fields
                .hosts
                .is_some_and(|hosts| direction.matches(hosts, |a| net.contains(a))),
            Self::Port(direction, port) => fields
                .ports
                .is_some_and(|ports| direction.matches(ports, |p| p == *port)),
            Self::Not(inner) => !inner.matches(fields),
            Self::And(operands) => operands.iter().all(|one| one.matches(fields)),
            Self::Or(operands) => operands.iter().any(|one| one.matches(fields)),
        }
    }
}

/// The words still to parse, in reverse order.
struct FilterParser<'a> {
    words: Vec<&'a str>,
    depth: usize,
}

impl FilterParser<'_> {
    /// Parses `TERM or TERM or ...`.
    fn parse_or(&mut self) -> Result<Filter, String> {
        let mut filter = self.parse_and()?;
        while self.skip_word("or") {
            filter = Filter::Or(Box::new([filter, self.parse_and()?]));
        }
        Ok(filter)
    }

    /// Parses `FACTOR and FACTOR ...`, where `and` may be omitted.
    fn parse_and(&mut self) -> Result<Filter, String> {
        let mut filter = self.parse_factor()?;
        loop {
            let has_and = self.skip_word("and");
            match self.words.last() {
                None | Some(&("or" | ")")) if !has_and => return Ok(filter),
                _ => filter = Filter::And(Box::new([filter, self.parse_factor()?])),
            }
        }
    }

    fn parse_factor(&mut self) -> Result<Filter, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "filter: it is nested deeper than {MAX_DEPTH} levels; use fewer parentheses and \
                 `not`"
            ));
        }
        let filter = match self.words.pop() {
            Some("not") => Ok(Filter::Not(Box::new(self.parse_factor()?))),
            Some("(") => {
                let inner = self.parse_or()?;
                if !self.skip_word(")") {
                    return Err("filter: a parenthesis is not closed; write `)`".to_owned());
                }
                Ok(inner)
            }
            Some(word) => self.parse_primitive(word),
            None => Err("filter: it ends too early; write e.g. `tcp port 80`".to_owned()),
        };
        self.depth -= 1;
        filter
    }

    fn parse_primitive(&mut self, word: &str) -> Result<Filter, String> {
        let (direction, word) = match word {
            "src" => (Direction::Source, self.words.pop().unwrap_or_default()),
            "dst" => (Direction::Destination, self.words.pop().unwrap_or_default()),
            word => (Direction::Either, word),
        };
        let wrong = |value: &str, expected: &str| {
            format!("filter: `{value}` is not a value of `{word}`; write {expected}")
        };
        let value = |parser: &mut Self| parser.words.pop().unwrap_or_default();
        Ok(match word {
            "host" => {
                let text = value(self);
                let ip = text
                    .parse()
                    .map_err(|_| wrong(text, "an IP address, e.g. 10.0.0.1"))?;
                Filter::Host(direction, ip)
            }
            "net" => {
                let text = value(self);
                let net = text.parse().map_err(|_| wrong(text, "e.g. 10.0.0.0/8"))?;
                Filter::Net(direction, net)
            }
            "port" => {
                let text = value(self);
                let port = text
                    .parse()
                    .map_err(|_| wrong(text, "a number up to 65535"))?;
                Filter::Port(direction, port)
            }
            "ip" => Filter::Ethertype(ethertype::IPV4),
            "ip6" => Filter::Ethertype(ethertype::IPV6),
            "arp" => Filter::Ethertype(ethertype::ARP),
            "tcp" => Filter::Protocol(protocol::TCP),
            "udp" => Filter::Protocol(protocol::UDP),
            "icmp" => Filter::Protocol(protocol::ICMP),
            "icmp6" => Filter::Protocol(protocol::ICMPV6),
            _ => {
                return Err(format!(
                    "filter: `{word}` is not a keyword; write tcp, udp, icmp, icmp6, ip, ip6, arp, \
                     host, net, port, src, dst, and, or, or not"
                ));
            }
        })
    }

    fn skip_word(&mut self, word: &str) -> bool {
        self.words.pop_if(|next| *next == word).is_some()
    }
}

/// The fields of a packet that filters inspect; `None` where a packet does not have one or is
/// truncated.
#[derive(Default)]
struct PacketFields {
    ethertype: Option<u16>,
    protocol: Option<u8>,
    hosts: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

impl PacketFields {
    fn parse(frame: &[u8], ethernet: bool) -> Self {
        let mut fields = Self::default();
        let packet = if ethernet {
            let mut at = 12;
            if be16(frame, at) == Some(ethertype::VLAN) {
                at += 4;
            }
            fields.ethertype = be16(frame, at);
            frame.get(at + 2..).unwrap_or_default()
        } else {
            fields.ethertype = match frame.first().map(|byte| byte >> 4) {
                Some(4) => Some(ethertype::IPV4),
                Some(6) => Some(ethertype::IPV6),
                _ => None,
            };
            frame
        };
        // A truncated packet has the fields before its end.
        let _ = match fields.ethertype {
            Some(ethertype::IPV4) => fields.read_v4(packet),
            Some(ethertype::IPV6) => fields.read_v6(packet),
            _ => None,
        };
        fields
    }

    fn read_v4(&mut self, packet: &[u8]) -> Option<()> {
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        self.hosts = Some((address(12)?.into(), address(16)?.into()));
        self.protocol = packet.get(9).copied();
        // Only the first fragment has ports.
        let offset = be16(packet, 6)? & 0x1fff;
        if offset == 0 {
            self.read_ports(packet, usize::from(packet[0] & 15) * 4);
        }
        Some(())
    }

    fn read_v6(&mut self, packet: &[u8]) -> Option<()> {
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        self.hosts = Some((address(8)?.into(), address(24)?.into()));
        let (mut next, mut at) = (*packet.get(6)?, 40);
        loop {
            let len = match next {
                protocol::FRAGMENT if be16(packet, at + 2)? & 0xfff8 != 0 => {
                    self.protocol = packet.get(at).copied();
                    return Some(());
                }
                protocol::FRAGMENT => 8,
                next if EXTENSIONS.contains(&next) => (usize::from(*packet.get(at + 1)?) + 1) * 8,
                _ => break,
            };
            next = *packet.get(at)?;
            at += len;
        }
        self.protocol = Some(next);
        self.read_ports(packet, at);
        Some(())
    }

    fn read_ports(&mut self, packet: &[u8], at: usize) {
        if matches!(self.protocol, Some(protocol::TCP | protocol::UDP)) {
            self.ports = be16(packet, at).zip(be16(packet, at + 2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;

    /// Returns an IPv4 TCP packet from 10.0.0.1:1000 to 10.0.0.2:80.
    fn v4() -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        packet.extend([3, 0xe8, 0, 80]);
        packet.resize(40, 0);
        packet
    }

    /// Returns an Ethernet frame with a VLAN tag, and in it a UDP packet from fd00::1:53 to
    /// fd00::2:1000 with a hop-by-hop header.
    fn v6() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 16, 0, 64]);
        for host in [1, 2] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
        }
        frame.extend([17, 0, 1, 4, 0, 0, 0, 0, 0, 53, 3, 0xe8, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn filters_select_packets() {
        let (v4, v6) = (v4(), v6());
        for (text, passes) in [
            ("tcp", [true, false]),
            ("udp", [false, true]),
            ("ip or ip6", [true, true]),
            ("arp", [false, false]),
            ("host 10.0.0.2", [true, false]),
            ("src host 10.0.0.2", [false, false]),
            ("dst host fd00::2", [false, true]),
            ("net fd00::/16", [false, true]),
            ("port 1000", [true, true]),
            ("src port 1000", [true, false]),
            ("tcp port 80", [true, false]),
            ("not tcp", [false, true]),
            ("not ( port 80 or port 53 )", [false, false]),
            ("udp and (src port 53 or src port 67)", [false, true]),
            ("icmp6 or net 10.0.0.0/8 and port 80", [true, false]),
        ] {
            let filter = Filter::parse(text).unwrap();
            let got = [filter.passes(&v4, false), filter.passes(&v6, true)];
            assert_eq!(got, passes, "{text}");
        }
    }

    #[test]
    fn fragments_have_no_ports_and_truncated_packets_do_not_panic() {
        let port = Filter::parse("port 80").unwrap();
        let host = Filter::parse("host 10.0.0.2 and tcp").unwrap();
        let mut later = v4();
        later[7] = 1;
        assert!(!port.passes(&later, false) && host.passes(&later, false));
        for (packet, ethernet) in [(v4(), false), (v6(), true)] {
            for len in 0..packet.len() {
                port.passes(&packet[..len], ethernet);
            }
        }
    }

    #[test]
    fn errors_name_the_word_and_what_to_write() {
        for (text, part) in [
            ("", "ends too early"),
            ("tcp and", "ends too early"),
            ("(tcp", "not closed"),
            ("tcp )", "`)` is not expected"),
            (
                "port http",
                "`http` is not a value of `port`; write a number",
            ),
            ("host example.org", "write an IP address"),
            ("net 10.0.0.0", "write e.g. 10.0.0.0/8"),
            ("vlan 7", "`vlan` is not a keyword; write tcp"),
            ("src tcp or dst", "`` is not a keyword"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let deep = "not ".repeat(1000) + "tcp";
        assert!(Filter::parse(&deep).unwrap_err().contains("nested"));
    }
}
