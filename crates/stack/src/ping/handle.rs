//! The calls of applications on a ping socket.

use core::net::IpAddr;

use alloc::format;
use alloc::vec::Vec;

use fullsend_wire::Instant;
use fullsend_wire::icmpv4::HEADER_LEN;

use super::{PingId, PingReply};
use crate::udp::max_payload;
use crate::waiters::Waiter;
use crate::{Host, StackError};

/// The types of echo requests over IPv4 and IPv6.
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
/// Default TTL or hop limit of requests to groups, as on Linux: they stay in the local network.
const GROUP_TTL: u8 = 1;

/// One ping socket of a [`Host`], for the calls of its application.
///
/// A handle borrows the host and holds only the ID, which every call looks up. All calls fail with
/// [`NoSuchSocket`](StackError::NoSuchSocket) after [`close`](Self::close). Calls never block: see
/// [`poll_ready`](Self::poll_ready).
///
/// # Examples
/// A host that pings itself:
/// ```
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
/// let id = host.ping_open()?;
/// host.ping(id).send_to(now, "127.0.0.1".parse().unwrap(), 7, b"data")?;
/// host.poll(now); // delivers the request and the reply
///
/// let reply = host.ping(id).recv()?.expect("a reply");
/// assert_eq!((reply.seq, reply.data.len()), (7, 4));
/// # Ok::<(), StackError>(())
/// ```
#[derive(Debug)]
pub struct PingHandle<'a> {
    host: &'a mut Host,
    id: PingId,
}

impl Host {
    /// Opens a ping socket, for echo requests over IPv4 and IPv6. The host chooses its identifier.
    ///
    /// # Errors
    /// [`NoPorts`](StackError::NoPorts) if all 65,536 identifiers are in use.
    pub fn ping_open(&mut self) -> Result<PingId, StackError> {
        self.pings.open(&mut self.env.rng)
    }

    /// Returns a handle for calls on ping socket `id`, which is looked up by each call.
    pub const fn ping(&mut self, id: PingId) -> PingHandle<'_> {
        PingHandle { host: self, id }
    }
}

impl PingHandle<'_> {
    /// Returns the identifier that the host has chosen for the socket's requests.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn ident(&self) -> Result<u16, StackError> {
        Ok(self.host.pings.socket(self.id)?.ident)
    }

    /// Sends an echo request with sequence number `seq` to `to`, a host or a multicast group. An
    /// IPv4-mapped IPv6 address stands for the IPv4 address.
    ///
    /// # Errors
    /// [`MessageTooLong`](StackError::MessageTooLong) if the length field of IP cannot hold the
    /// request, [`NoRoute`](StackError::NoRoute) without a route or a source address,
    /// [`Config`](StackError::Config) for a broadcast or an unspecified address, and
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn send_to(
        &mut self,
        now: Instant,
        to: IpAddr,
        seq: u16,
        data: &[u8],
    ) -> Result<(), StackError> {
        let socket = self.host.pings.socket(self.id)?;
        let (ident, ttl) = (socket.ident, socket.ttl);
        let to = to.to_canonical();
        if to.is_unspecified() || self.host.ip.addresses.is_broadcast(to) {
            let text = format!("{to} is not the address of one host or of a group; ping a host");
            return Err(StackError::Config(text));
        }
        let (len, max) = (data.len(), max_payload(to));
        if len > max {
            return Err(StackError::MessageTooLong { len, max });
        }
        let from = self.host.source_address(to)?;
        let [i0, i1] = ident.to_be_bytes();
        let [s0, s1] = seq.to_be_bytes();
        let kind = if to.is_ipv6() {
            ECHO_REQUEST_V6
        } else {
            ECHO_REQUEST
        };
        let mut message = Vec::with_capacity(HEADER_LEN + len);
        message.extend([kind, 0, 0, 0, i0, i1, s0, s1]);
        message.extend(data);
        let ttl = ttl.or(to.is_multicast().then_some(GROUP_TTL));
        self.host.icmp_send(now, (from, to), message, ttl)?;
        self.host.udp.record_ping((from, ident), to, len);
        self.host.ip.icmp.count_echo_out(to.is_ipv6());
        Ok(())
    }

    /// Takes the next reply or error.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn recv(&mut self) -> Result<Option<PingReply>, StackError> {
        self.host.pings.recv(self.id)
    }

    /// Returns the next reply or error and leaves it in the queue.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn peek(&self) -> Result<Option<&PingReply>, StackError> {
        Ok(self.host.pings.socket(self.id)?.queue.front())
    }

    /// Returns whether there is a reply or an error to receive. If not, `waiter` is woken once when
    /// there is one.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn poll_ready<'a>(&mut self, waiter: impl Into<Waiter<'a>>) -> Result<bool, StackError> {
        let socket = self.host.pings.socket_mut(self.id)?;
        if socket.queue.is_empty() {
            let replaced = &mut self.host.replaced_wakers;
            socket.readers.register(waiter.into(), replaced);
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns the number of replies and errors that were dropped because the queue, of at most
    /// 208 KiB, was full, or because there was no memory.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn dropped(&self) -> Result<u64, StackError> {
        Ok(self.host.pings.socket(self.id)?.dropped)
    }

    /// Returns the TTL or hop limit of requests, or `None` for the defaults: 64, and 1 for requests to
    /// multicast groups.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn ttl(&self) -> Result<Option<u8>, StackError> {
        Ok(self.host.pings.socket(self.id)?.ttl)
    }

    /// Sets the TTL or hop limit of requests, also of those to multicast groups; `None` stands for the
    /// defaults.
    ///
    /// # Errors
    /// [`NoSuchSocket`](StackError::NoSuchSocket) if there is no such socket.
    pub fn set_ttl(&mut self, ttl: Option<u8>) -> Result<(), StackError> {
        self.host.pings.socket_mut(self.id)?.ttl = ttl;
        Ok(())
    }

    /// Closes the socket. Waiting tasks are woken. The ID is no longer valid.
    pub fn close(self) {
        self.host.pings.close(self.id, &mut self.host.wakers);
    }
}
