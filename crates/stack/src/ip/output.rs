//! IP output: finds the path of a destination, prepends the headers and queues the packet on the
//! interface, possibly until the neighbour is resolved.

use core::net::IpAddr;

use fullsend_offload::Packet;
use fullsend_tcp::{IpSettings, MtuDiscover};
use fullsend_wire::Instant;
use fullsend_wire::ethernet::Mac;
use fullsend_wire::numbers::protocol;

use super::Path;
use super::fragment::fragment;
use crate::demux::Addr;
use crate::interface::LOOPBACK;
use crate::{Host, StackError};

impl Host {
    /// Returns the path from `local` to `remote`. `via` is the interface that a socket has chosen for a
    /// group, `upper` the transport protocol and the flow label.
    pub(crate) fn path(
        &mut self,
        now: Instant,
        (local, remote): (Addr, Addr),
        via: Option<u16>,
        upper: (u8, u32),
    ) -> Result<Path, StackError> {
        let version = self.ip.version;
        if self.ip.addresses.is_local(remote) {
            let loopback = (LOOPBACK, self.loopback.config.caps.mtu, version);
            return Ok(Path::new(loopback, Some(&[]), (local, remote), upper));
        }
        let to = remote.to_ip();
        let Some(hop) = self.ip.next_hop(to, via) else {
            *self.mib.out_no_routes(remote.is_v4()) += 1;
            return Err(StackError::NoRoute(to));
        };
        let interface = &mut self.ifaces[usize::from(hop.iface)];
        let learned = self.ip.pmtu.of(upper.0).get(now, to);
        let mtu = learned.unwrap_or(u32::MAX);
        let mtu = mtu.min(interface.config.caps.mtu);
        let broadcast = self.ip.addresses.is_broadcast(to);
        let mac = match &mut interface.neighbours {
            None => None,
            Some(_) if broadcast => Some(Mac::BROADCAST),
            Some(neighbours) => neighbours.resolve(now, hop.neighbour),
        };
        let own = interface.config.mac;
        let link = mac.map(|mac| {
            let mut addrs = [0; 12];
            addrs[..6].copy_from_slice(&mac.0);
            addrs[6..].copy_from_slice(&own.0);
            addrs
        });
        let link: Option<&[u8]> = match &link {
            Some(link) => Some(link),
            None if interface.neighbours.is_none() => Some(&[]),
            None => None,
        };
        let from = (hop.iface, mtu, version);
        Ok(Path::new(from, link, (local, remote), upper))
    }

    /// Returns the MTU for datagrams to `to`, bytes: the path's as far as it is known, or the
    /// interface's if the application probes the path itself. `via` is the interface that a socket has
    /// chosen for a group.
    pub(crate) fn datagram_mtu(
        &self,
        now: Instant,
        (to, via): (IpAddr, Option<u16>),
        mtu_discover: MtuDiscover,
    ) -> Result<u32, StackError> {
        // IPv4's length field bounds a packet, whatever the interface.
        let most = if to.is_ipv4() { 65_535 } else { u32::MAX };
        if self.ip.addresses.is_local(to.into()) {
            return Ok(self.loopback.config.caps.mtu.min(most));
        }
        let hop = self.ip.next_hop(to, via).ok_or(StackError::NoRoute(to))?;
        let mtu = self.ifaces[usize::from(hop.iface)]
            .config
            .caps
            .mtu
            .min(most);
        let learned = self.ip.pmtu.of(protocol::UDP).get(now, to);
        let learned = learned.filter(|_| mtu_discover != MtuDiscover::Probe);
        Ok(learned.map_or(mtu, |learned| learned.min(mtu)))
    }

    /// Returns the local address to use towards `to`.
    pub(crate) fn source_for(&self, to: IpAddr) -> Result<IpAddr, StackError> {
        self.source_via(to, None)
    }

    /// Returns the local address to use towards `to`. `via` is the interface that a socket has chosen
    /// for a group.
    pub(crate) fn source_via(&self, to: IpAddr, via: Option<u16>) -> Result<IpAddr, StackError> {
        let to_us = self.ip.addresses.is_local(to.into());
        if to_us {
            return Ok(to);
        }
        let hop = self.ip.next_hop(to, via).ok_or(StackError::NoRoute(to))?;
        self.ip
            .addresses
            .source_for(to, hop.iface)
            .ok_or(StackError::NoRoute(to))
    }

    /// Returns whether the address is one of the host's, loopback included.
    pub fn is_own_address(&self, ip: IpAddr) -> bool {
        self.ip.addresses.is_local(ip.into())
    }

    /// Returns the local address that packets to `to` are sent from.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if there is no route or no address of that family.
    pub fn source_address(&self, to: IpAddr) -> Result<IpAddr, StackError> {
        self.source_for(to)
    }

    /// Sends a packet outside connections. `via` is the interface that a socket has chosen for a group.
    /// `packet` holds the transport header and the payload.
    pub(crate) fn ip_output(
        &mut self,
        now: Instant,
        (local, remote): (Addr, Addr),
        via: Option<u16>,
        (protocol, settings): (u8, IpSettings),
        mut packet: Packet,
    ) -> Result<(), StackError> {
        let mut path = self.path(now, (local, remote), via, (protocol, 0))?;
        if settings != IpSettings::default() {
            path.apply(settings);
            if settings.mtu_discover == MtuDiscover::Probe {
                let to = (remote.to_ip(), via);
                path.mtu = self.datagram_mtu(now, to, settings.mtu_discover)?;
            }
        }
        let len = packet.len();
        let longest = match packet.offload.gso_size {
            0 => len,
            size => packet.header.len() + usize::from(size),
        };
        let ident = self.ip.ident.wrapping_add(1);
        // Each segment has an identification of its own.
        let segments = packet.offload.gso_segs.max(1);
        self.ip.ident = self.ip.ident.wrapping_add(segments);
        path.prepend(&mut packet.header, len, ident, 0);
        packet.layers = path.layers(protocol);
        let octets = len + usize::from(path.network_len());
        self.mib.count_output(path.is_v4(), octets);
        if longest + usize::from(path.network_len()) <= path.mtu as usize {
            self.send_with_path(now, &path, (local, remote), packet);
            return Ok(());
        }
        let mut fragments = core::mem::take(&mut self.ip.fragments);
        // RFC 7739: the fragment ID must not be predictable.
        let ident = self.env.rng.next_u32();
        fragment(packet, path.mtu as usize, ident, &mut fragments);
        *self.mib.frag_oks(path.is_v4()) += 1;
        *self.mib.frag_creates(path.is_v4()) += fragments.len() as u64;
        for packet in fragments.drain(..) {
            self.send_with_path(now, &path, (local, remote), packet);
        }
        self.ip.fragments = fragments;
        Ok(())
    }

    /// Sends a packet that has the headers of `path`.
    pub(crate) fn send_with_path(
        &mut self,
        now: Instant,
        path: &Path,
        (local, remote): (Addr, Addr),
        packet: Packet,
    ) {
        if path.resolved {
            self.queue_packet(now, path.iface, path.is_v4(), packet);
        } else {
            let addrs = (local.to_ip(), remote.to_ip());
            self.send_unresolved(now, path.iface, addrs, packet);
        }
    }

    /// Queues a frame on an interface. A dropped frame is completed at once.
    pub(crate) fn queue_packet(&mut self, now: Instant, iface: u16, is_v4: bool, packet: Packet) {
        if let Err(dropped) = self.iface_mut(iface).push(now, packet) {
            *self.mib.out_discards(is_v4) += 1;
            self.tcp_dropped(now, &dropped);
        }
    }
}
