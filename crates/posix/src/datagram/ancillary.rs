//! Ancillary data of UDP sockets: the destination, TTL and traffic class of received datagrams
//! (`IP_PKTINFO`, `IP_RECVTTL`, `IP_RECVTOS` and the IPv6 options), ICMP errors for sent datagrams
//! (`IP_RECVERR`), and control messages that apply to one sent datagram.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fullsend_stack::{Host, UdpDatagram, UdpError};
use fullsend_tcp::IpSettings;

use super::Datagram;
use crate::abi::{
    AF_INET, IP_PKTINFO, IP_RECVERR, IP_RECVTOS, IP_RECVTTL, IP_TOS, IP_TTL, IPPROTO_IP,
    IPPROTO_IPV6, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_RECVERR, IPV6_RECVHOPLIMIT, IPV6_RECVPKTINFO,
    IPV6_RECVTCLASS, IPV6_TCLASS, MSG_ERRQUEUE, MSG_TRUNC, SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6,
    SO_EE_ORIGIN_LOCAL,
};
use crate::addr::{SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN};
use crate::cmsg::{CmsgWriter, messages};
use crate::errno::{Errno, Result};
use crate::errqueue::EXTENDED_ERR_LEN;
use crate::sockopt::{OptionValue, byte_or_default, int, int_or_byte};
use crate::{Received, SockAddr};

/// The ancillary data that is enabled, by address family.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AncillaryOptions {
    v4: FamilyOptions,
    v6: FamilyOptions,
}

#[derive(Clone, Copy, Debug, Default)]
struct FamilyOptions {
    pktinfo: bool,
    ttl: bool,
    tos: bool,
    errors: bool,
}

impl AncillaryOptions {
    pub(super) const fn new() -> Self {
        const NONE: FamilyOptions = FamilyOptions {
            pktinfo: false,
            ttl: false,
            tos: false,
            errors: false,
        };
        Self { v4: NONE, v6: NONE }
    }

    /// Returns the switch of an option, or `None` for other options.
    fn option_mut(&mut self, level: i32, name: i32) -> Option<&mut bool> {
        Some(match (level, name) {
            (IPPROTO_IP, IP_PKTINFO) => &mut self.v4.pktinfo,
            (IPPROTO_IP, IP_RECVTTL) => &mut self.v4.ttl,
            (IPPROTO_IP, IP_RECVTOS) => &mut self.v4.tos,
            (IPPROTO_IP, IP_RECVERR) => &mut self.v4.errors,
            (IPPROTO_IPV6, IPV6_RECVPKTINFO) => &mut self.v6.pktinfo,
            (IPPROTO_IPV6, IPV6_RECVHOPLIMIT) => &mut self.v6.ttl,
            (IPPROTO_IPV6, IPV6_RECVTCLASS) => &mut self.v6.tos,
            (IPPROTO_IPV6, IPV6_RECVERR) => &mut self.v6.errors,
            _ => return None,
        })
    }

    /// Sets an option of ancillary data. Returns `None` for other options.
    pub(super) fn set(&mut self, level: i32, name: i32, value: &[u8]) -> Result<Option<()>> {
        let Some(option) = self.option_mut(level, name) else {
            return Ok(None);
        };
        let value = if level == IPPROTO_IP {
            int_or_byte(value)?
        } else {
            int(value)?
        };
        *option = value != 0;
        Ok(Some(()))
    }

    pub(super) fn get(mut self, level: i32, name: i32) -> Option<OptionValue> {
        let on = *self.option_mut(level, name)?;
        Some(if level == IPPROTO_IP {
            OptionValue::Small(on.into())
        } else {
            on.into()
        })
    }

    pub(super) const fn is_recverr_enabled(self) -> bool {
        self.v4.errors || self.v6.errors
    }

    /// Writes the control messages of a received datagram, in Linux's order.
    pub(super) fn put_control_messages(
        self,
        host: &Host,
        datagram: &UdpDatagram,
        domain: i32,
        out: &mut CmsgWriter<'_>,
    ) {
        let index = datagram.iface.index().to_ne_bytes();
        let (ttl, tos) = (i32::from(datagram.ttl).to_ne_bytes(), datagram.tos);
        let to = datagram.to.ip();
        if domain != AF_INET && self.v6.pktinfo {
            let ip = match to {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let mut info = [0; 20];
            info[..16].copy_from_slice(&ip.octets());
            info[16..].copy_from_slice(&index);
            out.put(IPPROTO_IPV6, IPV6_PKTINFO, &info);
        }
        match to {
            IpAddr::V4(ip) => {
                if self.v4.pktinfo {
                    // The address to answer from, then the destination address in the header.
                    let own = reply_source(host, datagram).unwrap_or(ip);
                    let info = [index, own.octets(), ip.octets()].concat();
                    out.put(IPPROTO_IP, IP_PKTINFO, &info);
                }
                if self.v4.ttl {
                    out.put(IPPROTO_IP, IP_TTL, &ttl);
                }
                if self.v4.tos {
                    out.put(IPPROTO_IP, IP_TOS, &[tos]);
                }
            }
            IpAddr::V6(_) => {
                if self.v6.ttl {
                    out.put(IPPROTO_IPV6, IPV6_HOPLIMIT, &ttl);
                }
                if self.v6.tos {
                    out.put(IPPROTO_IPV6, IPV6_TCLASS, &i32::from(tos).to_ne_bytes());
                }
            }
        }
    }
}

/// Returns the source address for an answer: the destination of the datagram or, if that was a
/// multicast or broadcast address, the host's address on the route to the sender.
fn reply_source(host: &Host, datagram: &UdpDatagram) -> Option<Ipv4Addr> {
    let to = datagram.to.ip();
    let own = if host.is_own_address(to) {
        to
    } else {
        host.source_address(datagram.from.ip()).ok()?
    };
    match own {
        IpAddr::V4(own) => Some(own),
        IpAddr::V6(_) => None,
    }
}

/// The settings that control messages request for one datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendSettings {
    pub(super) ip: IpSettings,
    pub(super) source: Option<IpAddr>,
}

impl Datagram {
    /// Parses `control`. Returns EINVAL for unsupported messages.
    pub(super) fn parse_control(&self, control: &[u8]) -> Result<SendSettings> {
        let mut settings = SendSettings {
            ip: self.ip,
            source: None,
        };
        for message in messages(control) {
            let message = message?;
            let data = message.data;
            match (message.level, message.kind) {
                (IPPROTO_IP, IP_PKTINFO) => {
                    let info: &[u8; 12] = data.try_into().map_err(|_| Errno::EINVAL)?;
                    let [_, _, _, _, a, b, c, d, ..] = *info;
                    settings.source = Some(IpAddr::from([a, b, c, d]));
                }
                (IPPROTO_IPV6, IPV6_PKTINFO) => {
                    let (ip, index) = data.split_first_chunk::<16>().ok_or(Errno::EINVAL)?;
                    if index.len() < 4 {
                        return Err(Errno::EINVAL);
                    }
                    settings.source = Some(IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical());
                }
                (IPPROTO_IP, IP_TTL) | (IPPROTO_IPV6, IPV6_HOPLIMIT) => {
                    settings.ip.ttl = byte_or_default(int(data)?, 1)?;
                }
                (IPPROTO_IP, IP_TOS) => settings.ip.tos = int_or_byte(data)? as u8,
                (IPPROTO_IPV6, IPV6_TCLASS) => {
                    settings.ip.tos = byte_or_default(int(data)?, 0)?.unwrap_or(0);
                }
                (IPPROTO_IP | IPPROTO_IPV6, _) => return Err(Errno::EINVAL),
                // Messages of other levels have no effect here.
                _ => {}
            }
        }
        let is_specified = |ip: &IpAddr| !ip.is_unspecified();
        settings.source = settings.source.filter(is_specified);
        Ok(settings)
    }

    /// Returns an entry of the error queue (`MSG_ERRQUEUE`): the quoted part of the datagram, its
    /// destination and the error.
    pub(super) fn receive_error(
        &self,
        host: &mut Host,
        data: &mut [&mut [u8]],
        control: &mut [u8],
    ) -> Result<Received> {
        let entry = match self.udp {
            Some(id) => host.udp(id).take_kept_error()?,
            None => None,
        };
        let udp_error = entry.ok_or(Errno::EAGAIN)?;
        let mut rest = udp_error.payload.as_slice();
        let mut len = 0;
        for part in data {
            let n = part.len().min(rest.len());
            part[..n].copy_from_slice(&rest[..n]);
            (rest, len) = (&rest[n..], len + n);
        }
        let mut out = CmsgWriter::new(control);
        let mut error = [0; EXTENDED_ERR_LEN + SOCKADDR_IN6_LEN];
        error[..EXTENDED_ERR_LEN].copy_from_slice(&extended_err(&udp_error));
        // An error of this host has no offender address.
        if !udp_error.is_local {
            let offender =
                SockAddr::for_domain(self.domain, SocketAddr::new(udp_error.offender, 0));
            let (addr, addr_len) = offender.to_bytes();
            let end = EXTENDED_ERR_LEN + addr_len;
            error[EXTENDED_ERR_LEN..end].copy_from_slice(&addr[..addr_len]);
        }
        if self.domain == AF_INET {
            let len = EXTENDED_ERR_LEN + SOCKADDR_IN_LEN;
            out.put(IPPROTO_IP, IP_RECVERR, &error[..len]);
        } else {
            out.put(IPPROTO_IPV6, IPV6_RECVERR, &error);
        }
        let truncated = if rest.is_empty() { 0 } else { MSG_TRUNC };
        let mut to = udp_error.to;
        // As on Linux, an error of this host over IPv4 has the port of the socket's peer.
        if udp_error.is_local && to.is_ipv4() {
            to.set_port(self.peer.map_or(0, |peer| peer.port()));
        }
        Ok(Received {
            len,
            from: Some(SockAddr::for_domain(self.domain, to)),
            flags: MSG_ERRQUEUE | truncated | out.flags,
            control_len: out.used(),
        })
    }
}

/// Encodes `struct sock_extended_err`.
fn extended_err(udp_error: &UdpError) -> [u8; EXTENDED_ERR_LEN] {
    let mut out = [0; EXTENDED_ERR_LEN];
    out[..4].copy_from_slice(&Errno::from(udp_error.error).0.to_ne_bytes());
    out[4] = match udp_error.to {
        _ if udp_error.is_local => SO_EE_ORIGIN_LOCAL,
        SocketAddr::V4(_) => SO_EE_ORIGIN_ICMP,
        SocketAddr::V6(_) => SO_EE_ORIGIN_ICMP6,
    };
    (out[5], out[6]) = udp_error.kind;
    out[8..12].copy_from_slice(&udp_error.mtu.to_ne_bytes());
    out
}
