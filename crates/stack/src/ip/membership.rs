//! Multicast groups on a host: the calls of sockets, and the messages of IGMP and MLD.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_offload::{HeaderBuf, Layers, Packet, Slice};
use fullsend_wire::checksum::sum;
use fullsend_wire::igmp::{self, IgmpRepr};
use fullsend_wire::ipv6::Ipv6Repr;
use fullsend_wire::mld::{self, MldRepr};
use fullsend_wire::numbers::{ethertype, protocol};
use fullsend_wire::{Instant, ipv4, ipv6};

use super::IpMeta;
use super::multicast::{MAX_GROUPS, Query, Report};
use crate::{Host, IfaceId, StackError};

/// The group of all multicast routers, for leave messages of IGMPv2.
const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// The group of all routers that use IGMPv3.
const REPORTS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// The group of all routers, for done messages of `MLDv1`.
const ALL_ROUTERS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// The group of all routers that use `MLDv2`.
const REPORTS_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// The IPv4 option of packets that routers inspect (RFC 2113).
const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// The hop-by-hop header of packets that routers inspect (RFC 2711), without the next header.
const ROUTER_ALERT_V6: [u8; 7] = [0, 5, 2, 0, 0, 1, 0];
/// Internetwork control, the type of service of these messages (RFC 3376 4).
const TOS: u8 = 0xc0;
/// Longest IGMP message that is read, bytes. Queriers split longer source lists (RFC 3376 4.1.8).
const MAX_IGMP_LEN: usize = 1500;

impl Host {
    /// Returns the interface on which a group is joined: `iface`, or that of the route to the group.
    ///
    /// # Errors
    /// [`Config`](StackError::Config) if there is no such interface, and
    /// [`NoRoute`](StackError::NoRoute) without an interface for the group's family.
    pub fn group_iface(
        &self,
        group: IpAddr,
        iface: Option<IfaceId>,
    ) -> Result<IfaceId, StackError> {
        if let Some(iface) = iface {
            self.check_iface(iface)?;
            return Ok(iface);
        }
        let iface = self.ip.route_iface(group).map(IfaceId);
        iface.ok_or(StackError::NoRoute(group))
    }

    /// Returns the interface that has an address.
    pub fn iface_of(&self, ip: IpAddr) -> Option<IfaceId> {
        let mut own = self.ip.addresses.iter();
        let (iface, _) = own.find(|(_, cidr)| cidr.addr == ip)?;
        Some(IfaceId(iface))
    }

    /// Returns the interface with an index in Linux's numbering ([`IfaceId::index`]).
    pub fn iface_with_index(&self, index: u32) -> Option<IfaceId> {
        let ifaces = 0..self.ifaces.len() as u16;
        ifaces.map(IfaceId).find(|iface| iface.index() == index)
    }

    /// Joins a group on an interface for one socket.
    pub(crate) fn join_group(
        &mut self,
        now: Instant,
        iface: u16,
        group: IpAddr,
    ) -> Result<(), StackError> {
        let mut reports = Vec::new();
        let rng = &mut self.env.rng;
        if !self
            .ip
            .multicast
            .join(now, (iface, group), rng, &mut reports)
        {
            return Err(StackError::TooManyGroups { max: MAX_GROUPS });
        }
        self.send_reports(now, reports);
        Ok(())
    }

    /// Leaves a group on an interface for one socket.
    pub(crate) fn leave_group(&mut self, now: Instant, iface: u16, group: IpAddr) {
        let mut reports = Vec::new();
        let rng = &mut self.env.rng;
        self.ip
            .multicast
            .leave(now, (iface, group), rng, &mut reports);
        self.send_reports(now, reports);
    }

    /// Sends the reports that are due.
    pub(super) fn poll_multicast(&mut self, now: Instant) {
        let mut reports = Vec::new();
        self.ip.multicast.poll(now, &mut self.env.rng, &mut reports);
        self.send_reports(now, reports);
    }

    /// Processes an IGMP message.
    pub(super) fn igmp_input(&mut self, now: Instant, meta: &IpMeta, packet: &Packet) {
        // A router forwards unicast packets, so only a neighbour can have sent one to a group.
        let dst = meta.dst.to_ip();
        if !dst.is_multicast() || packet.payload.len() > MAX_IGMP_LEN {
            return;
        }
        // Only the fields before the sources are read, but the checksum covers all.
        let mut message = vec![0; packet.payload.len()];
        packet.payload.copy_to(&mut message);
        match IgmpRepr::parse(&message) {
            Ok(IgmpRepr::Query {
                version,
                group,
                max_response,
            }) => self.on_group_query(
                now,
                &Query {
                    iface: meta.iface,
                    v6: false,
                    version,
                    group: group.map(Into::into),
                    max_response,
                },
            ),
            // RFC 2236 3: a report is sent to the group that it is about.
            Ok(IgmpRepr::Report { group }) if dst == group => {
                self.ip.multicast.on_report(now, meta.iface, group.into());
            }
            Ok(IgmpRepr::Report { .. } | IgmpRepr::Other) | Err(_) => {}
        }
    }

    /// Processes a message of MLD whose checksum has been verified. A router must not have forwarded
    /// it (RFC 3810 6.2).
    pub(super) fn mld_input(&mut self, now: Instant, meta: &IpMeta, hop_limit: u8, message: &[u8]) {
        let link_local = matches!(meta.src.to_ip(), IpAddr::V6(src) if src.is_unicast_link_local());
        if hop_limit != 1 || !link_local {
            return;
        }
        match MldRepr::parse(message) {
            Ok(MldRepr::Query {
                version,
                group,
                max_response,
            }) => self.on_group_query(
                now,
                &Query {
                    iface: meta.iface,
                    v6: true,
                    version: version + 1,
                    group: group.map(Into::into),
                    max_response,
                },
            ),
            // RFC 2710 4: a report is sent to the group that it is about.
            Ok(MldRepr::Report { group }) if meta.dst.to_ip() == group => {
                self.ip.multicast.on_report(now, meta.iface, group.into());
            }
            Ok(MldRepr::Report { .. }) | Err(_) => {}
        }
    }

    fn on_group_query(&mut self, now: Instant, query: &Query) {
        self.ip.multicast.on_query(now, query, &mut self.env.rng);
        self.poll_multicast(now);
    }

    fn send_reports(&mut self, now: Instant, reports: Vec<Report>) {
        for report in reports {
            self.ip.multicast.mib.reports += 1;
            let (iface, v6) = match &report {
                Report::Records { iface, records } => (*iface, records[0].1.is_ipv6()),
                Report::Old { iface, group, .. } => (*iface, group.is_ipv6()),
            };
            let source = self.report_source(iface, v6);
            let (to, packet) = build_report(&report, source);
            let octets = packet.len();
            self.mib.count_output(!v6, octets);
            if self.ifaces[usize::from(iface)].neighbours.is_some() {
                self.send_unresolved(now, iface, (source, to), packet);
            } else {
                self.queue_packet(now, iface, !v6, packet);
            }
        }
    }

    /// Returns the source address of reports: the unspecified one if there is none that is valid.
    /// Reports over IPv6 come from a link-local address (RFC 3810 5.2.13).
    fn report_source(&self, iface: u16, v6: bool) -> IpAddr {
        let mut own = self
            .ip
            .addresses
            .iter()
            .filter(|(on, _)| *on == iface)
            .map(|(_, cidr)| cidr.addr);
        let found = own.find(|ip| match ip {
            IpAddr::V4(_) => !v6,
            IpAddr::V6(ip) => v6 && ip.is_unicast_link_local(),
        });
        found.unwrap_or(if v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        })
    }
}

/// Builds a report and its headers below, without link header. Returns it with its destination.
fn build_report(report: &Report, source: IpAddr) -> (IpAddr, Packet) {
    match source {
        IpAddr::V4(source) => {
            let (to, message) = igmp_message(report);
            (to.into(), ipv4_packet(source, to, &message))
        }
        IpAddr::V6(source) => {
            let (to, message) = mld_message(report, source);
            (to.into(), ipv6_packet(source, to, &message))
        }
    }
}

fn igmp_message(report: &Report) -> (Ipv4Addr, Vec<u8>) {
    let v4 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    match report {
        Report::Records { records, .. } => {
            let records: Vec<_> = records.iter().map(|(kind, ip)| (*kind, v4(*ip))).collect();
            let len = igmp::REPORT_HEADER_LEN + records.len() * igmp::RECORD_LEN;
            let mut message = vec![0; len];
            igmp::emit_report(&records, &mut message);
            (REPORTS_V4, message)
        }
        Report::Old {
            version,
            left,
            group,
            ..
        } => {
            let mut message = vec![0; igmp::HEADER_LEN];
            igmp::emit_old(*version, *left, v4(*group), &mut message);
            let to = if *left { ALL_ROUTERS_V4 } else { v4(*group) };
            (to, message)
        }
    }
}

fn mld_message(report: &Report, source: Ipv6Addr) -> (Ipv6Addr, Vec<u8>) {
    let v6 = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    match report {
        Report::Records { records, .. } => {
            let records: Vec<_> = records.iter().map(|(kind, ip)| (*kind, v6(*ip))).collect();
            let len = mld::REPORT_HEADER_LEN + records.len() * mld::RECORD_LEN;
            let mut message = vec![0; len];
            mld::emit_report(&records, (source, REPORTS_V6), &mut message);
            (REPORTS_V6, message)
        }
        Report::Old { left, group, .. } => {
            let group = v6(*group);
            let to = if *left { ALL_ROUTERS_V6 } else { group };
            let mut message = vec![0; mld::HEADER_LEN];
            mld::emit_old(*left, group, (source, to), &mut message);
            (to, message)
        }
    }
}

fn ipv4_packet(source: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> Packet {
    const LEN: usize = ipv4::HEADER_LEN + ROUTER_ALERT_V4.len();
    let mut header = HeaderBuf::new();
    let out = header.prepend(LEN);
    out.fill(0);
    out[0] = 0x40 | (LEN / 4) as u8;
    out[1] = TOS;
    out[2..4].copy_from_slice(&((LEN + message.len()) as u16).to_be_bytes());
    // RFC 6864: with DF set, the ID need not be unique.
    out[6] = 0x40;
    out[8] = 1;
    out[9] = protocol::IGMP;
    out[12..16].copy_from_slice(&source.octets());
    out[16..20].copy_from_slice(&to.octets());
    out[20..].copy_from_slice(&ROUTER_ALERT_V4);
    let checksum = sum(out).checksum();
    out[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet(header, message, (ethertype::IPV4, protocol::IGMP), LEN)
}

fn ipv6_packet(source: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> Packet {
    const EXTENSION_LEN: usize = 1 + ROUTER_ALERT_V6.len();
    let mut header = HeaderBuf::new();
    let extension = header.prepend(EXTENSION_LEN);
    extension[0] = protocol::ICMPV6;
    extension[1..].copy_from_slice(&ROUTER_ALERT_V6);
    let len = (EXTENSION_LEN + message.len()) as u16;
    let repr = Ipv6Repr {
        hop_limit: 1,
        ..Ipv6Repr::new(source, to, protocol::HOP_BY_HOP, len)
    };
    repr.emit(header.prepend(ipv6::HEADER_LEN));
    let offset = ipv6::HEADER_LEN + EXTENSION_LEN;
    packet(header, message, (ethertype::IPV6, protocol::ICMPV6), offset)
}

fn packet(
    header: HeaderBuf,
    message: &[u8],
    (ethertype, protocol): (u16, u8),
    transport: usize,
) -> Packet {
    Packet {
        header,
        payload: Slice::copied_from(message).into(),
        layers: Layers {
            transport: transport as u16,
            ethertype,
            protocol,
            ..Layers::default()
        },
        ..Packet::default()
    }
}
