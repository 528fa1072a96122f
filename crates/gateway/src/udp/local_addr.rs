//! The host's own addresses of datagrams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::libc;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, SockaddrStorage, setsockopt, sockopt};
use socket2::Socket;

/// The peer of an unconnected socket's datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    pub(super) to: SocketAddr,
    /// The host's address that the peer has sent to, from which answers are sent.
    pub(super) from: Option<LocalAddr>,
}

/// An address of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LocalAddr {
    pub(super) ip: IpAddr,
    /// The interface index of a link-local address, otherwise 0.
    interface: u32,
}

impl LocalAddr {
    /// Returns an address that is not link-local.
    pub(super) const fn new(ip: IpAddr) -> Self {
        Self { ip, interface: 0 }
    }

    /// Returns the address to which a datagram was sent, if `message` reports it.
    pub(super) fn of(message: &ControlMessageOwned) -> Option<Self> {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => local_v4(info),
            ControlMessageOwned::Ipv6PacketInfo(info) => local_v6(info),
            _ => None,
        }
    }
}

/// Makes the kernel report the local addresses of datagrams that a socket receives. Must be called before
/// the socket is bound: it applies to later datagrams only.
///
/// # Errors
/// The error of the operating system.
pub(crate) fn report_local_address(socket: &Socket, v6: bool) -> io::Result<()> {
    if v6 {
        setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    } else {
        setsockopt(socket, sockopt::Ipv4PacketInfo, &true)?;
    }
    Ok(())
}

/// The source address of a datagram in the kernel's format.
pub(super) enum PacketInfo {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl PacketInfo {
    pub(super) fn new(local: LocalAddr) -> Self {
        match local.ip {
            IpAddr::V4(ip) => Self::V4(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            }),
            IpAddr::V6(ip) => Self::V6(libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                ipi6_ifindex: local.interface,
            }),
        }
    }

    pub(super) const fn message(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(info) => ControlMessage::Ipv4PacketInfo(info),
            Self::V6(info) => ControlMessage::Ipv6PacketInfo(info),
        }
    }
}

/// Returns the host's address to which a datagram was sent. For a broadcast, that is the interface's
/// address.
fn local_v4(info: &libc::in_pktinfo) -> Option<LocalAddr> {
    let ip = Ipv4Addr::from(info.ipi_spec_dst.s_addr.to_ne_bytes());
    (!ip.is_unspecified()).then_some(LocalAddr {
        ip: ip.into(),
        interface: 0,
    })
}

/// Returns the host's address to which a datagram was sent, or `None` for a group.
fn local_v6(info: &libc::in6_pktinfo) -> Option<LocalAddr> {
    let ip = Ipv6Addr::from(info.ipi6_addr.s6_addr);
    (!ip.is_multicast()).then_some(LocalAddr {
        ip: ip.into(),
        interface: if ip.is_unicast_link_local() {
            info.ipi6_ifindex
        } else {
            0
        },
    })
}

/// Converts an address of the kernel.
pub(super) fn socket_addr(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::from((v4.ip(), v4.port())));
    }
    let v6 = address.as_sockaddr_in6()?;
    // The scope belongs to a link-local address.
    Some(SocketAddrV6::new(v6.ip(), v6.port(), 0, v6.scope_id()).into())
}
