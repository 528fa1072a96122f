//! ICMP and ICMPv6: echo replies, errors received about packets of this host, and errors sent.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;

use fullsend_offload::{Chain, HeaderBuf, Packet};
use fullsend_tcp::{IcmpError, Sysctl};
use fullsend_wire::checksum::{RunningSum, Sum, update};
use fullsend_wire::icmpv4::Icmpv4Repr;
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::mld;
use fullsend_wire::numbers::protocol;
use fullsend_wire::{Instant, Nanos, Rng, SeqNum};

use crate::rate::{HostBuckets, RateLimit, TokenBucket};
use crate::siphash::SipKey;

mod error;
mod mib;
mod quote;
#[cfg(test)]
mod tests;

pub(crate) use error::Problem;
pub(crate) use mib::{Icmp6Mib, IcmpMib};
pub(crate) use quote::host_unreachable;

/// Maximum number of bytes of a message that are inspected: errors quote at most 1280. Echo replies
/// return all data.
const MAX_INSPECTED: usize = 1500;
pub(super) const HEADER_LEN: usize = 8;

/// A packet for IP to send: transport header and payload, with a complete checksum.
#[derive(Debug)]
pub(crate) struct IcmpPacket {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) packet: Packet,
}

/// An error that a router or the destination reports about a packet of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TransportError {
    /// The protocol of the quoted packet: TCP, UDP, or ICMP of the family for an echo request.
    pub(crate) protocol: u8,
    /// Source of the quoted packet. The port of an echo request is its identifier.
    pub(crate) local: (IpAddr, u16),
    /// Destination of the quoted packet. The port of an echo request is its sequence number.
    pub(crate) remote: (IpAddr, u16),
    /// The sequence number of a quoted TCP segment, to be checked against the data in flight (RFC
    /// 5927 4.1).
    pub(crate) seq: SeqNum,
    /// The error that the transport protocol reports to the application.
    pub(crate) error: IcmpError,
    /// Type and code of the message.
    pub(crate) kind: (u8, u8),
    pub(crate) offender: IpAddr,
    /// The part of the payload that is quoted of a UDP datagram or an echo request.
    pub(crate) payload: Vec<u8>,
}

/// The addresses of a received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IcmpAddrs {
    pub(crate) src: IpAddr,
    /// Destination in the header: an address of this host, a group or a broadcast address.
    pub(crate) dst: IpAddr,
    /// The local address to answer from, if there is one: `dst` if that is a local address.
    pub(crate) own: Option<IpAddr>,
}

/// The effect of a received message.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "the value is matched immediately and never stored"
)]
pub(crate) enum IcmpAction {
    /// The message needs no further processing.
    None,
    /// A reply is to be sent.
    Reply(IcmpPacket),
    /// An error that TCP, UDP or a ping socket is to process.
    Error(TransportError),
    /// An echo reply with this identifier and sequence number.
    EchoReply(u16, u16),
    /// A message that Neighbour Discovery is to process; its checksum is correct.
    Ndp(Vec<u8>),
    /// A message of Multicast Listener Discovery; its checksum is correct.
    Mld(Vec<u8>),
}

/// The ICMP state of both families.
#[derive(Debug, Default)]
pub(crate) struct Icmp {
    errors: TokenBucket,
    hosts: HostBuckets,
    pub(crate) v4: IcmpMib,
    pub(crate) v6: Icmp6Mib,
}

impl Icmp {
    pub(super) fn new(key: SipKey) -> Self {
        Self {
            hosts: HostBuckets::new(key),
            ..Self::default()
        }
    }

    /// Processes a message, without its IP headers.
    pub(crate) fn input(&mut self, addrs: &IcmpAddrs, message: &Chain) -> IcmpAction {
        let v6 = addrs.src.is_ipv6();
        *self.in_msgs(v6) += 1;
        if !checksum_ok(addrs, message) {
            *self.in_csum_errors(v6) += 1;
            *self.in_errors(v6) += 1;
            return IcmpAction::None;
        }
        let mut head = vec![0; message.len().min(MAX_INSPECTED)];
        message.copy_to(&mut head);
        let received = if v6 {
            self.input_v6(addrs, &head, message)
        } else {
            self.input_v4(addrs, &head, message)
        };
        match received {
            Ok(IcmpAction::Error(mut report)) => {
                report.kind = (head[0], head[1]);
                report.offender = addrs.src;
                IcmpAction::Error(report)
            }
            Ok(received) => received,
            Err(Malformed) => {
                *self.in_errors(v6) += 1;
                IcmpAction::None
            }
        }
    }

    /// Counts a message to another host, and returns whether its checksum is correct.
    pub(crate) fn check_foreign(&mut self, (src, dst): (IpAddr, IpAddr), message: &Chain) -> bool {
        let v6 = src.is_ipv6();
        *self.in_msgs(v6) += 1;
        let addrs = IcmpAddrs {
            src,
            dst,
            own: None,
        };
        let valid = message.len() >= HEADER_LEN && checksum_ok(&addrs, message);
        if !valid {
            *self.in_csum_errors(v6) += 1;
            *self.in_errors(v6) += 1;
        }
        valid
    }

    /// Counts a message that an application sends.
    pub(crate) fn count_out(&mut self, v6: bool) {
        *self.out_msgs(v6) += 1;
    }

    /// Counts an echo request that a ping socket sends.
    pub(crate) fn count_echo_out(&mut self, v6: bool) {
        *self.out_echos(v6) += 1;
    }

    /// Counts a reply that a ping socket has no room for.
    pub(crate) fn count_ping_dropped(&mut self, v6: bool) {
        *self.ping_dropped(v6) += 1;
    }

    fn input_v4(
        &mut self,
        addrs: &IcmpAddrs,
        head: &[u8],
        message: &Chain,
    ) -> Result<IcmpAction, Malformed> {
        let mib = &mut self.v4;
        let (error, quote) = match Icmpv4Repr::parse(head).map_err(|_| Malformed)? {
            Icmpv4Repr::EchoRequest { .. } => {
                mib.in_echos += 1;
                // RFC 1122 3.2.2.6: pings to groups may be ignored. That prevents amplification.
                if addrs.own != Some(addrs.dst) {
                    return Ok(IcmpAction::None);
                }
                mib.out_echo_reps += 1;
                mib.out_msgs += 1;
                return Ok(IcmpAction::Reply(echo_reply(addrs, addrs.dst, message)));
            }
            Icmpv4Repr::EchoReply { ident, seq, .. } => {
                mib.in_echo_reps += 1;
                return Ok(IcmpAction::EchoReply(ident, seq));
            }
            Icmpv4Repr::Unreachable { code, mtu, quote } => {
                mib.in_dest_unreachs += 1;
                (quote::unreachable_v4(code, mtu, quote), quote)
            }
            // A lost fragment says nothing about the path. Linux reports it to no socket either.
            Icmpv4Repr::TimeExceeded { code: 1, .. } => {
                mib.in_time_excds += 1;
                return Ok(IcmpAction::None);
            }
            Icmpv4Repr::TimeExceeded { quote, .. } => {
                mib.in_time_excds += 1;
                (Some(quote::TIME_EXCEEDED), quote)
            }
            Icmpv4Repr::ParameterProblem { quote, .. } => {
                mib.in_parm_probs += 1;
                (Some(quote::PARAMETER_PROBLEM), quote)
            }
            Icmpv4Repr::Other { .. } => return Ok(IcmpAction::None),
        };
        let report = error.and_then(|error| quote::parse_v4(quote, error));
        report.map(IcmpAction::Error).ok_or(Malformed)
    }

    fn input_v6(
        &mut self,
        addrs: &IcmpAddrs,
        head: &[u8],
        message: &Chain,
    ) -> Result<IcmpAction, Malformed> {
        let mib = &mut self.v6;
        let (error, quote) = match Icmpv6Repr::parse(head).map_err(|_| Malformed)? {
            Icmpv6Repr::EchoRequest { .. } => {
                mib.in_echos += 1;
                // A reply needs a source and a destination address.
                let Some(own) = addrs.own.filter(|_| !addrs.src.is_unspecified()) else {
                    return Ok(IcmpAction::None);
                };
                mib.out_echo_replies += 1;
                mib.out_msgs += 1;
                return Ok(IcmpAction::Reply(echo_reply(addrs, own, message)));
            }
            Icmpv6Repr::EchoReply { ident, seq, .. } => {
                mib.in_echo_replies += 1;
                return Ok(IcmpAction::EchoReply(ident, seq));
            }
            Icmpv6Repr::Unreachable { code, quote } => {
                mib.in_dest_unreachs += 1;
                (quote::unreachable_v6(code), quote)
            }
            Icmpv6Repr::PacketTooBig { mtu, quote } => {
                mib.in_pkt_too_bigs += 1;
                (IcmpError::TooBig { mtu }, quote)
            }
            Icmpv6Repr::TimeExceeded { quote, .. } => {
                mib.in_time_excds += 1;
                (quote::TIME_EXCEEDED, quote)
            }
            Icmpv6Repr::ParameterProblem { quote, .. } => {
                mib.in_parm_problems += 1;
                (quote::PARAMETER_PROBLEM, quote)
            }
            Icmpv6Repr::Ndp(ndp) => {
                mib.count_ndp_in(&ndp);
                return Ok(IcmpAction::Ndp(head.to_vec()));
            }
            Icmpv6Repr::Other { kind, .. } if mld::is_mld(kind) => {
                return Ok(IcmpAction::Mld(head.to_vec()));
            }
            Icmpv6Repr::Other { .. } => return Ok(IcmpAction::None),
        };
        quote::parse_v6(quote, error)
            .map(IcmpAction::Error)
            .ok_or(Malformed)
    }

    /// Builds the error that reports `problem` with `packet`, a parsed packet that was received, to
    /// its sender; `own` is the local address to send it from. Returns `None` where no error may be
    /// sent (RFC 1122 3.2.2, RFC 4443 2.4): about errors, packets to groups and later fragments, or
    /// when the rate limit is exceeded. `limits` is `None` for the host's own packets, whose errors
    /// are not limited, as on Linux.
    pub(crate) fn error(
        &mut self,
        now: Instant,
        problem: Problem,
        packet: &Packet,
        own: IpAddr,
        limits: Option<(&Sysctl, &mut Rng)>,
    ) -> Option<IcmpPacket> {
        let datagram = error::build_error(problem, packet, own)?;
        if let Some(limits) = limits
            && !self.may_send_error(now, datagram.dst, limits)
        {
            return None;
        }
        self.count_error(problem, own.is_ipv6());
        Some(datagram)
    }

    /// Takes a token for an error to `to` and returns whether there was one. Counts the error if it
    /// is rate limited.
    fn may_send_error(
        &mut self,
        now: Instant,
        to: IpAddr,
        (sysctl, rng): (&Sysctl, &mut Rng),
    ) -> bool {
        let v6 = to.is_ipv6();
        let rate = RateLimit {
            per_second: sysctl.icmp_msgs_per_sec,
            burst: sysctl.icmp_msgs_burst,
        };
        if !self.errors.has_token(now, rate) {
            *self.out_rate_limit_global(v6) += 1;
            return false;
        }
        let interval = Nanos::from_millis(sysctl.icmp_ratelimit.into());
        if !self.hosts.take(now, to.into(), interval) {
            *self.out_rate_limit_host(v6) += 1;
            return false;
        }
        self.errors.take(now, rate, rng);
        true
    }
}

/// The error for a message that cannot be parsed or does not apply.
struct Malformed;

fn checksum_ok(addrs: &IcmpAddrs, message: &Chain) -> bool {
    let mut sum = RunningSum::from(match (addrs.src, addrs.dst) {
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            Sum::pseudo_v6(src, dst, protocol::ICMPV6, message.len() as u32)
        }
        _ => Sum::ZERO,
    });
    for slice in message.slices() {
        sum.push(slice);
    }
    sum.sum().is_valid()
}

/// Builds the reply to an echo request, sent from `own`. It shares the request's data.
fn echo_reply(addrs: &IcmpAddrs, own: IpAddr, request: &Chain) -> IcmpPacket {
    let mut head = [0; HEADER_LEN];
    request.copy_to(&mut head);
    let mut payload = request.clone();
    payload.advance(HEADER_LEN);
    let (protocol, kind) = if addrs.src.is_ipv6() {
        (protocol::ICMPV6, 129)
    } else {
        (protocol::ICMP, 0)
    };
    let checksum = u16::from_be_bytes([head[2], head[3]]);
    let mut checksum = update(checksum, u16::from(head[0]) << 8, kind << 8);
    if own != addrs.dst {
        checksum = update_checksum_address(checksum, (addrs.dst, own));
    }
    head[0] = kind as u8;
    head[2..4].copy_from_slice(&checksum.to_be_bytes());
    IcmpPacket {
        src: own,
        dst: addrs.src,
        protocol,
        packet: Packet {
            header: HeaderBuf::from_slice(&head),
            payload,
            ..Packet::default()
        },
    }
}

/// Returns the checksum of a message whose address changes as given (RFC 1624): a request to a
/// group is answered from a unicast address.
fn update_checksum_address(checksum: u16, addrs: (IpAddr, IpAddr)) -> u16 {
    let (IpAddr::V6(old), IpAddr::V6(new)) = addrs else {
        return checksum;
    };
    let words = old.segments().into_iter().zip(new.segments());
    words.fold(checksum, |sum, (old, new)| update(sum, old, new))
}
