//! Options of UDP sockets, under their names in tokio.

use std::io;

use fullsend_stack::UdpHandle;
use fullsend_tcp::IpSettings;
use fullsend_wire::numbers::DEFAULT_TTL;

use super::UdpSocket;
use crate::error::{io_error, octet};

/// Linux's smallest receive buffer, bytes.
const MIN_RCVBUF: u32 = 2304;

impl UdpSocket {
    /// Returns `SO_BROADCAST`: whether datagrams to broadcast addresses may be sent.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn broadcast(&self) -> io::Result<bool> {
        self.op(|udp| udp.may_broadcast().map_err(io_error))
    }

    /// Sets `SO_BROADCAST`: whether datagrams to broadcast addresses may be sent. It is off at first.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.op(|udp| udp.set_broadcast(on).map_err(io_error))
    }

    /// Returns `IP_TTL`: the TTL or hop limit of unicast datagrams.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn ttl(&self) -> io::Result<u32> {
        let ip = self.op(ip_of)?;
        Ok(ip.ttl.unwrap_or(DEFAULT_TTL).into())
    }

    /// Sets `IP_TTL` (IPv4) and `IPV6_UNICAST_HOPS`: the TTL or hop limit of unicast datagrams, 1 to
    /// 255. It is 64 at first.
    ///
    /// # Errors
    /// `InvalidInput` for another value; the stack's error if it has stopped.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        let ttl = octet("TTL", ttl, 1)?;
        self.set_ip(|ip| ip.ttl = Some(ttl))
    }

    /// Returns `IP_TOS`: the type of service of datagrams, with the ECN field.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn tos_v4(&self) -> io::Result<u32> {
        Ok(self.op(ip_of)?.tos.into())
    }

    /// Sets `IP_TOS`: the type of service of datagrams, with the ECN field in the lower two bits, 0 to
    /// 255. A socket has one value for both families: this is [`set_tclass_v6`](Self::set_tclass_v6).
    ///
    /// # Errors
    /// `InvalidInput` for a larger value; the stack's error if it has stopped.
    pub fn set_tos_v4(&self, tos: u32) -> io::Result<()> {
        let tos = octet("TOS", tos, 0)?;
        self.set_ip(|ip| ip.tos = tos)
    }

    /// Returns `IPV6_TCLASS`: the traffic class of datagrams, with the ECN field.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn tclass_v6(&self) -> io::Result<u32> {
        self.tos_v4()
    }

    /// Sets `IPV6_TCLASS`: the traffic class of datagrams, with the ECN field in the lower two bits, 0
    /// to 255. A socket has one value for both families: this is [`set_tos_v4`](Self::set_tos_v4).
    ///
    /// # Errors
    /// The errors of [`set_tos_v4`](Self::set_tos_v4).
    pub fn set_tclass_v6(&self, tclass: u32) -> io::Result<()> {
        self.set_tos_v4(tclass)
    }

    /// Returns `SO_RCVBUF`: the most memory that received datagrams may hold while they wait for the
    /// application, in bytes.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.op(|udp| udp.rcvbuf().map_err(io_error))
    }

    /// Sets `SO_RCVBUF`: the most memory that received datagrams may hold while they wait for the
    /// application, in bytes, at most `rmem_max`. As on Linux, the value is doubled for bookkeeping.
    /// Datagrams that exceed it are dropped and counted by `UdpRcvbufErrors`.
    ///
    /// There is no send buffer: a datagram moves to the device's queue at once.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_recv_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.engine.op(|host, _| {
            let bytes = bytes.min(host.sysctl().rmem_max);
            let doubled = bytes.saturating_mul(2).max(MIN_RCVBUF);
            host.udp(self.id)
                .set_rcvbuf(doubled as usize)
                .map_err(io_error)
        })
    }

    /// Sets whether datagrams of one flow and one size that arrived in one packet are received
    /// together (Linux's `UDP_GRO`). [`recv_many`](Self::recv_many) then returns them with their
    /// size; the other calls return them as one long datagram. It is off at first.
    ///
    /// # Errors
    /// The stack's error if it has stopped ([`Stack::closed`](crate::Stack::closed)).
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        self.op(|udp| udp.set_gro(on).map_err(io_error))
    }

    fn set_ip(&self, change: impl FnOnce(&mut IpSettings)) -> io::Result<()> {
        self.op(|udp| {
            let mut ip = ip_of(udp)?;
            change(&mut ip);
            udp.set_ip(ip).map_err(io_error)
        })
    }
}

fn ip_of(udp: &mut UdpHandle<'_>) -> io::Result<IpSettings> {
    udp.ip().map_err(io_error)
}
