//! Multicast on UDP sockets, under the names of tokio.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fullsend_stack::{Host, IfaceId, MulticastSettings};

use super::UdpSocket;
use crate::error::{io_error, octet};

impl UdpSocket {
    /// Joins an IPv4 multicast group: its datagrams to the socket's port are received. `interface` is
    /// the stack's address on the interface; the unspecified address stands for the interface of the
    /// route to the group.
    ///
    /// The stack reports the membership with IGMPv3, or the version of an older querier, so that
    /// routers and switches forward the group. A socket has at most 20 groups, a stack 256. They are
    /// left when the socket is dropped. As on Linux, the datagrams of a group that any socket of the
    /// stack has joined are received by all sockets that are bound to their port and to the unspecified
    /// address.
    ///
    /// # Errors
    /// `InvalidInput` if `multiaddr` is not a multicast address; `AddrNotAvailable` if `interface` is
    /// not an address of the stack; `AddrInUse` if the socket has joined the group already;
    /// `NetworkUnreachable` if the stack has no IPv4 address; `ENOBUFS` if there are too many
    /// groups; the stack's error if it has stopped.
    ///
    /// # Example
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// use std::net::Ipv4Addr;
    ///
    /// use fullsend::{Pair, Stack, UdpSocket};
    ///
    /// let (here, there) = Stack::pair(&Pair::default())?;
    /// let group = Ipv4Addr::new(239, 1, 2, 3);
    /// let member = UdpSocket::bind(&there, (Ipv4Addr::UNSPECIFIED, 5000))?;
    /// member.join_multicast_v4(group, Ipv4Addr::UNSPECIFIED)?;
    ///
    /// let sender = UdpSocket::bind(&here, "10.0.0.1:0")?;
    /// sender.send_to(b"to all", (group, 5000)).await?;
    /// let mut buf = [0; 16];
    /// assert_eq!(member.recv(&mut buf).await?, 6);
    /// # Ok(()) }
    /// ```
    pub fn join_multicast_v4(&self, multiaddr: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.engine.op(|host, now| {
            let iface = iface_v4(host, interface)?;
            host.udp(self.id)
                .join_group(now, multiaddr.into(), iface)
                .map_err(io_error)
        })
    }

    /// Leaves an IPv4 multicast group; `interface` is as for
    /// [`join_multicast_v4`](Self::join_multicast_v4).
    ///
    /// # Errors
    /// `AddrNotAvailable` if the socket has not joined the group, or if `interface` is not an address
    /// of the stack; the stack's error if it has stopped.
    pub fn leave_multicast_v4(&self, multiaddr: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.engine.op(|host, now| {
            let iface = iface_v4(host, interface)?;
            host.udp(self.id)
                .leave_group(now, multiaddr.into(), iface)
                .map_err(io_error)
        })
    }

    /// Joins an IPv6 multicast group, as [`join_multicast_v4`](Self::join_multicast_v4) does for IPv4;
    /// the reports are those of `MLDv2`, or `MLDv1`. `interface` is the index of the interface, 2 for
    /// the device of a stack; 0 stands for the interface of the route to the group.
    ///
    /// # Errors
    /// The errors of [`join_multicast_v4`](Self::join_multicast_v4), for IPv6.
    pub fn join_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.engine.op(|host, now| {
            let iface = iface_v6(host, interface)?;
            host.udp(self.id)
                .join_group(now, (*multiaddr).into(), iface)
                .map_err(io_error)
        })
    }

    /// Leaves an IPv6 multicast group; `interface` is as for
    /// [`join_multicast_v6`](Self::join_multicast_v6).
    ///
    /// # Errors
    /// The errors of [`leave_multicast_v4`](Self::leave_multicast_v4), for IPv6.
    pub fn leave_multicast_v6(&self, multiaddr: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.engine.op(|host, now| {
            let iface = iface_v6(host, interface)?;
            host.udp(self.id)
                .leave_group(now, (*multiaddr).into(), iface)
                .map_err(io_error)
        })
    }

    /// Returns `IP_MULTICAST_LOOP`: whether datagrams to IPv4 groups are received by the stack's own
    /// sockets, too.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(self.multicast()?.loop_v4)
    }

    /// Sets `IP_MULTICAST_LOOP`: whether datagrams to IPv4 groups are received by the stack's own
    /// sockets, too. It is on at first.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_multicast_loop_v4(&self, on: bool) -> io::Result<()> {
        self.set_multicast(|settings| settings.loop_v4 = on)
    }

    /// Returns `IP_MULTICAST_TTL`: the TTL of datagrams to IPv4 groups.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        Ok(self.multicast()?.ttl_v4.into())
    }

    /// Sets `IP_MULTICAST_TTL`: the TTL of datagrams to IPv4 groups, 0 to 255. It is 1 at first, so
    /// that no router forwards them; with 0, they do not leave the stack.
    ///
    /// # Errors
    /// `InvalidInput` for a larger value; the stack's error if it has stopped.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        let ttl = octet("multicast TTL", ttl, 0)?;
        self.set_multicast(|settings| settings.ttl_v4 = ttl)
    }

    /// Returns `IPV6_MULTICAST_LOOP`: whether datagrams to IPv6 groups are received by the stack's own
    /// sockets, too.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        Ok(self.multicast()?.loop_v6)
    }

    /// Sets `IPV6_MULTICAST_LOOP`: whether datagrams to IPv6 groups are received by the stack's own
    /// sockets, too. It is on at first.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_multicast_loop_v6(&self, on: bool) -> io::Result<()> {
        self.set_multicast(|settings| settings.loop_v6 = on)
    }

    /// Returns `IPV6_MULTICAST_HOPS`: the hop limit of datagrams to IPv6 groups.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn multicast_hops_v6(&self) -> io::Result<u32> {
        Ok(self.multicast()?.hops_v6.into())
    }

    /// Sets `IPV6_MULTICAST_HOPS`: the hop limit of datagrams to IPv6 groups, 0 to 255. It is 1 at
    /// first, so that no router forwards them; with 0, they do not leave the stack.
    ///
    /// # Errors
    /// `InvalidInput` for a larger value; the stack's error if it has stopped.
    pub fn set_multicast_hops_v6(&self, hops: u32) -> io::Result<()> {
        let hops = octet("multicast hop limit", hops, 0)?;
        self.set_multicast(|settings| settings.hops_v6 = hops)
    }

    fn multicast(&self) -> io::Result<MulticastSettings> {
        self.op(|udp| udp.multicast().map_err(io_error))
    }

    fn set_multicast(&self, change: impl FnOnce(&mut MulticastSettings)) -> io::Result<()> {
        self.op(|udp| {
            let mut settings = udp.multicast().map_err(io_error)?;
            change(&mut settings);
            udp.set_multicast(settings).map_err(io_error)
        })
    }
}

/// Returns the interface with an address, or `None` for the unspecified address. The loopback
/// interface has no groups. Datagrams to a group leave on the interface of the route to it.
fn iface_v4(host: &Host, interface: Ipv4Addr) -> io::Result<Option<IfaceId>> {
    if interface.is_unspecified() {
        return Ok(None);
    }
    let iface = host.iface_of(IpAddr::V4(interface));
    iface
        .map(Some)
        .ok_or_else(|| no_interface(&interface.to_string()))
}

/// Returns the interface with an index, or `None` for index 0.
fn iface_v6(host: &Host, index: u32) -> io::Result<Option<IfaceId>> {
    if index == 0 {
        return Ok(None);
    }
    let iface = host.iface_with_index(index);
    iface
        .map(Some)
        .ok_or_else(|| no_interface(&format!("index {index}")))
}

fn no_interface(what: &str) -> io::Error {
    let text = format!(
        "the stack has no interface with {what}; pass 0.0.0.0 or index 0 for the interface of the \
         route to the group"
    );
    io::Error::new(io::ErrorKind::AddrNotAvailable, text)
}
