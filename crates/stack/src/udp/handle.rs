//! The calls of applications on a UDP socket.

use core::net::SocketAddr;
use core::task::Waker;

use fullsend_offload::{Chain, Slice};
use fullsend_tcp::{IpSettings, MtuDiscover, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::numbers::protocol;

use super::{Socket, headers_len, max_payload};
use crate::ip::canonical;
use crate::waiters::Waiter;
use crate::{Host, Interest, StackError, UdpDatagram, UdpError, UdpId, UdpSharing};

/// One UDP socket of a [`Host`], for the calls of its application.
///
/// A handle borrows the host; create one for each call, or for several calls in a row. It holds
/// only the ID, which every call looks up. All calls fail with
/// [`NoSuchSocket`](StackError::NoSuchSocket) after [`close`](Self::close).
///
/// Calls never block: see [`poll_ready`](Self::poll_ready). Datagrams leave with the next
/// [`Host::transmit`].
///
/// # Examples
/// A host that sends itself a datagram:
/// ```
/// use fullsend_offload::Slice;
/// use fullsend_stack::{Host, HostConfig, StackError};
/// use fullsend_tcp::Sysctl;
/// use fullsend_wire::{Instant, Seed};
///
/// let mut host = Host::new(HostConfig {
///     seed: Seed::from_u64(1),
///     sysctl: Sysctl::default(),
///     pool_bytes: 1 << 20,
/// });
/// let now = Instant::ZERO;
/// let server = host.udp_bind("127.0.0.1:53".parse().unwrap())?;
/// let client = host.udp_bind("127.0.0.1:0".parse().unwrap())?;
/// let to = host.udp(server).addr()?;
/// let query = Slice::copied_from(b"query");
/// host.udp(client).send_to(now, query, to, None)?;
/// host.poll(now); // delivers the datagram
///
/// let (payload, from, _) = host.udp(server).recv()?.expect("a datagram");
/// assert_eq!(payload.len(), 5);
/// assert_eq!(from, host.udp(client).addr()?);
/// # Ok::<(), StackError>(())
/// ```
#[derive(Debug)]
pub struct UdpHandle<'a> {
    pub(super) host: &'a mut Host,
    pub(super) id: UdpId,
}

impl Host {
    /// Returns a handle for calls on UDP socket `id`, which is looked up by each call.
    #[inline]
    pub const fn udp(&mut self, id: UdpId) -> UdpHandle<'_> {
        UdpHandle { host: self, id }
    }
}

impl UdpHandle<'_> {
    /// Returns the socket's ID.
    #[inline]
    pub const fn id(&self) -> UdpId {
        self.id
    }

    /// Returns the local address: the bound one, with the source address of datagrams to the peer
    /// in place of the unspecified address if the socket is connected.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn addr(&self) -> Result<SocketAddr, StackError> {
        Ok(self.host.udp.socket(self.id)?.local())
    }

    /// Returns the peer that [`connect`](Self::connect) set.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn peer(&self) -> Result<Option<SocketAddr>, StackError> {
        Ok(self.host.udp.socket(self.id)?.remote())
    }

    /// Connects the socket to `remote`: from now on it accepts only the datagrams that `remote`
    /// sends to the local address of the route to it, and ICMP errors about datagrams to `remote`.
    /// With `None`, it accepts datagrams of all peers. Datagrams in the queue stay there, as on
    /// Linux. An IPv4-mapped IPv6 address stands for the IPv4 address.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if there is no route to `remote` or no source address,
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if the socket is bound to an address
    /// of the other family, [`BroadcastDisabled`](StackError::BroadcastDisabled) as for
    /// [`send_to`](Self::send_to), and [`NoSuchSocket`](StackError::NoSuchSocket) if there is no
    /// such socket.
    pub fn connect(&mut self, remote: Option<SocketAddr>) -> Result<(), StackError> {
        let bound = self.socket()?.bound();
        let remote = remote.map(canonical);
        if let Some(remote) = remote {
            self.check_broadcast(remote)?;
        }
        let peer = match remote {
            None => None,
            Some(remote) if bound.ip().is_unspecified() => {
                if bound.is_ipv4() && remote.is_ipv6() {
                    return Err(StackError::AddressNotAvailable(bound));
                }
                Some((self.source_to(remote.ip())?, remote))
            }
            Some(remote) if bound.is_ipv4() == remote.is_ipv4() => {
                // Fails without a route.
                self.source_to(remote.ip())?;
                Some((bound.ip(), remote))
            }
            Some(_) => return Err(StackError::AddressNotAvailable(bound)),
        };
        self.socket()?.connect(peer);
        Ok(())
    }

    /// Sends `data` as one datagram to `to`; `source` overrides the source address and port
    /// (gateways).
    ///
    /// # Errors
    /// [`MessageTooLong`](StackError::MessageTooLong) if the length field of IP cannot hold the
    /// datagram, or if it must not be fragmented ([`MtuDiscover::Do`], [`MtuDiscover::Probe`]) and
    /// does not fit the MTU. A socket that keeps errors keeps that one, too.
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if source and destination are of
    /// different families, [`NoRoute`](StackError::NoRoute) if there is no route or no source
    /// address, [`BroadcastDisabled`](StackError::BroadcastDisabled) for a broadcast address without
    /// [`set_broadcast`](Self::set_broadcast), and [`NoSuchSocket`](StackError::NoSuchSocket) if
    /// there is no such socket.
    pub fn send_to(
        &mut self,
        now: Instant,
        data: Slice,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        let size = data.len();
        self.send(now, (data.into(), size), to, source)
    }

    /// Sends `data` as datagrams of `size` bytes (at least 1) to `to`, the last one possibly shorter, in one
    /// packet that the device segments if it can (Linux's `UDP_SEGMENT`). Datagrams that are longer
    /// than the MTU are sent one by one, in fragments. `source` is as in [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// The errors of [`send_to`](Self::send_to), and [`MessageTooLong`](StackError::MessageTooLong) if
    /// the length field of IP cannot hold all datagrams together.
    pub fn send_segments(
        &mut self,
        now: Instant,
        data: Chain,
        size: usize,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        let (to, size) = (canonical(to), size.max(1));
        let settings = self.socket()?.ip_settings(to.ip());
        let hop = (to.ip(), self.via(to.ip())?);
        let mtu = self.host.datagram_mtu(now, hop, settings.mtu_discover);
        // Without a route, IP reports and counts that.
        let fits = mtu.is_ok_and(|mtu| headers_len(to.ip()) + size <= mtu as usize);
        if fits || data.len() <= size {
            return self.send(now, (data, size), to, source);
        }
        for start in (0..data.len()).step_by(size) {
            let len = size.min(data.len() - start);
            self.send(now, (data.range(start, len), len), to, source)?;
        }
        Ok(())
    }

    /// Sends datagrams of `size` bytes, the last one possibly shorter, that fit the MTU, or a
    /// single one.
    fn send(
        &mut self,
        now: Instant,
        (data, size): (Chain, usize),
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<(), StackError> {
        let to = canonical(to);
        let from = self.source_address(to, source)?;
        self.check_broadcast(to)?;
        let settings = self.socket()?.ip_settings(to.ip());
        let len = size.min(data.len());
        self.check_len(now, (to, len), settings.mtu_discover)?;
        let packet = self.host.udp.output(self.id, from, to, (data, size))?;
        if to.ip().is_multicast() && self.loop_back(now, (from, to), settings, &packet) {
            return Ok(());
        }
        let addrs = (from.ip().into(), to.ip().into());
        let via = self.via(to.ip())?;
        self.host
            .ip_output(now, addrs, via, (protocol::UDP, settings), packet)
    }

    /// Returns an error for a broadcast address if the socket may not send there.
    fn check_broadcast(&self, to: SocketAddr) -> Result<(), StackError> {
        let is_allowed = self.host.udp.socket(self.id)?.may_broadcast();
        if !is_allowed && self.host.ip.addresses.is_broadcast(to.ip()) {
            return Err(StackError::BroadcastDisabled(to.ip()));
        }
        Ok(())
    }

    /// Returns the source address of a datagram to `to`; the caller may have chosen `source`.
    fn source_address(
        &self,
        to: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<SocketAddr, StackError> {
        let socket = self.host.udp.socket(self.id)?;
        let (bound, local) = (socket.bound(), socket.local());
        let from = match source.map(canonical) {
            Some(source) => source,
            None if !local.ip().is_unspecified() && local.is_ipv4() == to.is_ipv4() => local,
            None if bound.ip().is_unspecified() => {
                SocketAddr::new(self.source_to(to.ip())?, local.port())
            }
            None => bound,
        };
        if from.is_ipv4() != to.is_ipv4() {
            return Err(StackError::AddressNotAvailable(from));
        }
        Ok(from)
    }

    /// Takes the next datagram and returns its payload, its sender and its destination address.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn recv(&mut self) -> Result<Option<(Chain, SocketAddr, SocketAddr)>, StackError> {
        let received = self.host.udp.recv(self.id)?;
        Ok(received.map(|datagram| (datagram.payload, datagram.from, datagram.to)))
    }

    /// Takes the next datagram with its metadata.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn recv_datagram(&mut self) -> Result<Option<UdpDatagram>, StackError> {
        self.host.udp.recv(self.id)
    }

    /// Returns the next datagram and leaves it in the queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn peek_datagram(&mut self) -> Result<Option<UdpDatagram>, StackError> {
        Ok(self.socket()?.peek())
    }

    /// Returns the payload length of the first queued datagram, bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn first_len(&mut self) -> Result<Option<usize>, StackError> {
        Ok(self.socket()?.first_len())
    }

    /// Returns whether the socket is ready now. If not, `waiter` is woken once when it becomes
    /// ready. A UDP socket is always writable: a datagram for which a queue has no room is dropped.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn poll_ready<'a>(
        &mut self,
        interest: Interest,
        waiter: impl Into<Waiter<'a>>,
    ) -> Result<bool, StackError> {
        match interest {
            Interest::Read => {
                self.host
                    .udp
                    .readable(self.id, waiter.into(), &mut self.host.replaced_wakers)
            }
            Interest::Write => self.addr().map(|_| true),
        }
    }

    /// Wakes `waker` once, at the next datagram or error, even if there are queued ones already.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn watch(&mut self, waker: &Waker) -> Result<(), StackError> {
        let readers = self.host.udp.socket_mut(self.id)?.readers();
        readers.register(waker.into(), &mut self.host.replaced_wakers);
        Ok(())
    }

    /// Takes the pending error that ICMP reported (`SO_ERROR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn take_error(&mut self) -> Result<Option<TcpError>, StackError> {
        Ok(self.socket()?.take_error())
    }

    /// Returns whether [`take_error`](Self::take_error) would return an error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn has_error(&mut self) -> Result<bool, StackError> {
        Ok(self.socket()?.has_error())
    }

    /// Sets whether errors about the socket's datagrams, to any peer, are kept (`IP_RECVERR`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn keep_errors(&mut self, on: bool) -> Result<(), StackError> {
        self.socket()?.keep_errors(on);
        Ok(())
    }

    /// Takes the oldest kept error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn take_kept_error(&mut self) -> Result<Option<UdpError>, StackError> {
        Ok(self.socket()?.take_kept_error())
    }

    /// Returns whether [`take_kept_error`](Self::take_kept_error) would return an error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn has_kept_errors(&mut self) -> Result<bool, StackError> {
        Ok(self.socket()?.has_kept_errors())
    }

    /// Returns the fields of the IP headers that [`set_ip`](Self::set_ip) has set.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn ip(&self) -> Result<IpSettings, StackError> {
        Ok(self.host.udp.socket(self.id)?.ip())
    }

    /// Returns the limit of the memory that queued datagrams hold, bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn rcvbuf(&self) -> Result<usize, StackError> {
        Ok(self.host.udp.socket(self.id)?.rcvbuf())
    }

    /// Returns whether datagrams to broadcast addresses may be sent.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn may_broadcast(&self) -> Result<bool, StackError> {
        Ok(self.host.udp.socket(self.id)?.may_broadcast())
    }

    /// Sets whether datagrams to broadcast addresses may be sent (`SO_BROADCAST`); off at first.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_broadcast(&mut self, on: bool) -> Result<(), StackError> {
        self.socket()?.set_broadcast(on);
        Ok(())
    }

    /// Sets whether datagrams of one flow and one size that arrived in one packet are received as
    /// one [`UdpDatagram`] (`UDP_GRO`); off at first.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_gro(&mut self, on: bool) -> Result<(), StackError> {
        self.socket()?.set_gro(on);
        Ok(())
    }

    /// Sets how the socket shares its address from now on.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_sharing(&mut self, sharing: UdpSharing) -> Result<(), StackError> {
        self.socket()?.set_sharing(sharing);
        Ok(())
    }

    /// Sets the limit of the memory that queued datagrams hold, bytes.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_rcvbuf(&mut self, bytes: usize) -> Result<(), StackError> {
        self.socket()?.set_rcvbuf(bytes);
        Ok(())
    }

    /// Sets fields of the IP headers of the socket's datagrams. `mtu_discover` applies to IPv4
    /// only.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_ip(&mut self, settings: IpSettings) -> Result<(), StackError> {
        self.socket()?.set_ip(settings);
        Ok(())
    }

    /// Sets the path MTU discovery mode of IPv6 datagrams (`IPV6_MTU_DISCOVER`).
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_v6_mtu_discover(&mut self, mtu_discover: MtuDiscover) -> Result<(), StackError> {
        self.socket()?.set_v6_mtu_discover(mtu_discover);
        Ok(())
    }

    /// Closes the socket. Waiting tasks are woken, and multicast groups are left. The ID is no longer
    /// valid.
    pub fn close(self, now: Instant) {
        let memberships = self.host.udp.close(self.id, &mut self.host.wakers);
        for (iface, group) in memberships {
            self.host.leave_group(now, iface, group);
        }
    }

    /// Returns an error if a datagram of `len` bytes is too long for IP, or if it is too long for
    /// the MTU and must not be fragmented.
    fn check_len(
        &mut self,
        now: Instant,
        (to, len): (SocketAddr, usize),
        mtu_discover: MtuDiscover,
    ) -> Result<(), StackError> {
        let mut max = max_payload(to.ip());
        let unfragmented = matches!(mtu_discover, MtuDiscover::Do | MtuDiscover::Probe);
        if !unfragmented && len <= max {
            return Ok(());
        }
        let hop = (to.ip(), self.via(to.ip())?);
        let Ok(mtu) = self.host.datagram_mtu(now, hop, mtu_discover) else {
            // IP reports and counts that there is no route.
            return Ok(());
        };
        if unfragmented {
            max = max.min((mtu as usize).saturating_sub(headers_len(to.ip())));
        }
        if len <= max {
            return Ok(());
        }
        // As on Linux: no IPv4 socket can send more than 65,535 bytes, whatever the path MTU.
        if to.is_ipv6() || u16::try_from(len).is_ok() {
            self.host
                .udp
                .on_message_too_long(self.id, (to, mtu), &mut self.host.wakers)?;
        }
        Err(StackError::MessageTooLong { len, max })
    }

    pub(super) fn socket(&mut self) -> Result<&mut Socket, StackError> {
        self.host.udp.socket_mut(self.id)
    }
}
