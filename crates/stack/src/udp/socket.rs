//! A UDP socket: what it is bound and connected to, its settings, and its receive queue.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use fullsend_tcp::{IpSettings, MtuDiscover, TcpError};

use super::multicast::{Membership, MulticastSettings};
use crate::waiters::WaitList;
use crate::{UdpDatagram, UdpError, UdpSharing};

/// Default limit of the memory that datagrams in one receive queue hold, bytes
/// (`net.core.rmem_default`).
pub(super) const RCVBUF: usize = 212_992;

/// A UDP socket: its addresses, its settings and its receive queue.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) queue: VecDeque<UdpDatagram>,
    /// Memory that `queue` holds, bytes.
    pub(super) bytes: usize,
    pub(super) readers: WaitList,
    /// The connected peer, if any: only its datagrams and errors about it are accepted.
    pub(super) remote: Option<SocketAddr>,
    /// The local address of a connected socket, to which alone it receives datagrams.
    pub(super) source: Option<IpAddr>,
    /// Whether the socket has sent `remote` a datagram that can be too big for the path.
    pub(super) sent_long: bool,
    /// The pending error (`SO_ERROR`), from an ICMP message.
    pub(super) error: Option<TcpError>,
    /// Errors about datagrams to any peer, if they are kept (`IP_RECVERR`).
    pub(super) errors: Option<VecDeque<UdpError>>,
    pub(super) sharing: UdpSharing,
    /// Whether datagrams to broadcast addresses may be sent (`SO_BROADCAST`).
    pub(super) broadcast: bool,
    /// Whether datagrams that arrived in one packet are queued as one (`UDP_GRO`).
    pub(super) gro: bool,
    pub(super) rcvbuf: usize,
    pub(super) multicast: MulticastSettings,
    /// The groups that the socket has joined, at most `multicast::MAX_MEMBERSHIPS`.
    pub(super) memberships: Vec<Membership>,
    /// Fields of the IP headers. `mtu_discover` applies to IPv4 only.
    pub(super) ip: IpSettings,
    pub(super) v6_mtu_discover: MtuDiscover,
}

impl Socket {
    /// Returns a socket bound to `local`, with the default settings.
    pub(super) fn new(local: SocketAddr, sharing: UdpSharing) -> Self {
        Self {
            local,
            queue: VecDeque::new(),
            bytes: 0,
            readers: WaitList::default(),
            remote: None,
            source: None,
            sent_long: false,
            error: None,
            errors: None,
            sharing,
            broadcast: false,
            gro: false,
            rcvbuf: RCVBUF,
            multicast: MulticastSettings::default(),
            memberships: Vec::new(),
            ip: IpSettings::default(),
            v6_mtu_discover: MtuDiscover::default(),
        }
    }

    /// Returns the fields of the IP headers of datagrams to `to`.
    pub(crate) fn ip_settings(&self, to: IpAddr) -> IpSettings {
        let mut settings = self.ip;
        if to.is_ipv6() {
            settings.mtu_discover = self.v6_mtu_discover;
        }
        if to.is_multicast() {
            settings.ttl = Some(self.multicast.ttl(to));
        }
        settings
    }

    pub(crate) const fn ip(&self) -> IpSettings {
        self.ip
    }

    pub(crate) const fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    pub(crate) const fn set_ip(&mut self, settings: IpSettings) {
        self.ip = settings;
    }

    pub(crate) const fn set_v6_mtu_discover(&mut self, mtu_discover: MtuDiscover) {
        self.v6_mtu_discover = mtu_discover;
    }

    /// Accepts datagrams from `remote` only, or from all peers. As on Linux, queued datagrams and
    /// errors stay.
    /// `source` is the local address of a connected socket.
    pub(crate) fn connect(&mut self, peer: Option<(IpAddr, SocketAddr)>) {
        self.source = peer.map(|(source, _)| source);
        self.remote = peer.map(|(_, remote)| remote);
        self.sent_long = false;
    }

    pub(crate) const fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }

    /// Returns the local address: the bound one, or that of a connected socket.
    pub(crate) fn local(&self) -> SocketAddr {
        let ip = self.source.unwrap_or_else(|| self.local.ip());
        SocketAddr::new(ip, self.local.port())
    }

    /// Returns the bound address, whether the socket is connected or not.
    pub(crate) const fn bound(&self) -> SocketAddr {
        self.local
    }

    /// Returns whether datagrams to `to` are for this socket, whatever their sender. The caller has
    /// compared the port.
    pub(super) fn has_address(&self, to: IpAddr) -> bool {
        covers(self.local.ip(), to) && self.source.is_none_or(|source| source == to)
    }

    pub(crate) fn peek(&self) -> Option<UdpDatagram> {
        self.queue.front().cloned()
    }

    pub(crate) const fn may_broadcast(&self) -> bool {
        self.broadcast
    }

    pub(crate) const fn set_broadcast(&mut self, on: bool) {
        self.broadcast = on;
    }

    pub(crate) const fn set_gro(&mut self, on: bool) {
        self.gro = on;
    }

    pub(crate) fn set_sharing(&mut self, sharing: UdpSharing) {
        self.sharing = sharing;
    }

    pub(crate) fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    pub(crate) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Sets the limit of the memory that queued datagrams hold, bytes.
    pub(crate) fn set_rcvbuf(&mut self, bytes: usize) {
        self.rcvbuf = bytes;
    }

    /// Returns the payload length of the first queued datagram, bytes.
    pub(crate) fn first_len(&self) -> Option<usize> {
        self.queue.front().map(|datagram| datagram.payload.len())
    }

    /// Returns the tasks that wait for a datagram or an error.
    pub(crate) const fn readers(&mut self) -> &mut WaitList {
        &mut self.readers
    }
}

/// Returns whether a socket bound to `own` covers `ip`. An unspecified IPv6 address covers both
/// families.
pub(super) fn covers(own: IpAddr, ip: IpAddr) -> bool {
    own == ip
        || own == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
        || own.is_unspecified() && own.is_ipv4() == ip.is_ipv4()
}
