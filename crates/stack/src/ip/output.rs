//! IP output: the path of a destination, headers in front, and the queue or the loopback behind.

use core::net::IpAddr;

use fullsend_offload::Packet;
use fullsend_units::Instant;

use super::Path;
use crate::demux::Addr;
use crate::interface::LOOPBACK;
use crate::{Host, StackError};

impl Host {
    /// The path from `local` to `remote`.
    pub(crate) fn path(
        &mut self,
        now: Instant,
        (local, remote): (Addr, Addr),
        upper: (u8, u32),
    ) -> Result<Path, StackError> {
        let _ = now;
        let version = self.ip.version;
        if self.ip.addresses.is_local(remote) {
            let loopback = (LOOPBACK, self.loopback.caps, version);
            return Ok(Path::new(loopback, Some(&[]), (local, remote), upper));
        }
        let to = remote.to_ip();
        let Some(route) = self.ip.route(to) else {
            self.count_no_route(remote);
            return Err(StackError::NoRoute(to));
        };
        let caps = self.ifaces[usize::from(route.iface)].caps;
        Ok(Path::new(
            (route.iface, caps, version),
            Some(&[]),
            (local, remote),
            upper,
        ))
    }

    fn count_no_route(&mut self, remote: Addr) {
        if remote.is_v4() {
            self.mib.ip4.out_no_routes += 1;
        } else {
            self.mib.ip6.out_no_routes += 1;
        }
    }

    /// The address of ours to use towards `to`.
    pub(crate) fn source_for(&self, to: IpAddr) -> Result<IpAddr, StackError> {
        let to_us = self.ip.addresses.is_local(to.into());
        if to_us {
            return Ok(to);
        }
        let route = self.ip.route(to).ok_or(StackError::NoRoute(to))?;
        self.ip
            .addresses
            .source_for(to, route.iface)
            .ok_or(StackError::NoRoute(to))
    }

    /// Sends a packet outside connections: `packet` holds transport header and payload.
    pub(crate) fn ip_output(
        &mut self,
        now: Instant,
        (local, remote): (Addr, Addr),
        protocol: u8,
        mut packet: Packet,
    ) -> Result<(), StackError> {
        let path = self.path(now, (local, remote), (protocol, 0))?;
        let len = packet.len();
        self.ip.ident = self.ip.ident.wrapping_add(1);
        path.prepend(&mut packet.header, len, self.ip.ident, 0);
        packet.layers = path.layers(protocol);
        self.mib
            .count_output(path.is_v4(), len + usize::from(path.network_len()));
        self.queue_packet(path.iface, path.is_v4(), packet);
        Ok(())
    }

    /// Queues a packet with its headers on an interface.
    pub(crate) fn queue_packet(&mut self, iface: u16, is_v4: bool, packet: Packet) {
        if !self.iface_mut(iface).push(packet) {
            let discards = if is_v4 {
                &mut self.mib.ip4.out_discards
            } else {
                &mut self.mib.ip6.out_discards
            };
            *discards += 1;
        }
    }
}
