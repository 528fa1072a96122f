//! Opening of connections: active (RFC 9293 3.10.1) and passive.

use alloc::boxed::Box;
use core::net::SocketAddr;

use fullsend_tcp::{Connection, TcpError};
use fullsend_wire::tcp::TcpRepr;
use fullsend_wire::{EcnField, Instant, Mss, SeqNum};

use super::socket::{ConnectionOwner, Socket};
use super::{TcpId, addr_is_usable, headers_len};
use crate::demux::FlowKey;
use crate::ip::{Path, canonical};
use crate::waiters::Waiters;
use crate::{Host, StackError};

/// Returns the MSS to advertise: the path MTU less IP and TCP headers (RFC 6691 2). The loopback
/// MTU exceeds the length field of IPv4.
fn mss_of(path: &Path) -> Mss {
    let longest = if path.is_v4() { 0xffff } else { u32::MAX };
    let bytes = path.mtu.min(longest);
    let bytes = bytes.saturating_sub(headers_len(path.is_v4()));
    Mss::clamped(bytes.min(u16::MAX.into()) as u16)
}

impl Host {
    /// Connects to `remote`. A `local` port 0 or unspecified address is chosen by the host.
    ///
    /// # Errors
    /// [`NoRoute`](StackError::NoRoute) if `remote` is not a usable destination or there is no
    /// route to it; [`AddressInUse`](StackError::AddressInUse) if the 4-tuple is in use;
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable),
    /// [`TentativeAddress`](StackError::TentativeAddress) or
    /// [`DuplicateAddress`](StackError::DuplicateAddress) if the host cannot use `local`;
    /// [`NoPorts`](StackError::NoPorts) if no port is free or the socket table is full;
    /// [`TooManySockets`](StackError::TooManySockets) with `tcp_max_sockets` connections;
    /// [`OutOfMemory`](TcpError::OutOfMemory) while the allocator refuses memory.
    pub fn tcp_connect(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, StackError> {
        let remote = canonical(remote);
        self.check_connect(now, remote)?;
        let key = self.flow_for(now, local, remote)?;
        self.connect_flow(now, key)
    }

    /// Returns an error if no connection to `remote` can be opened now.
    fn check_connect(&mut self, now: Instant, remote: SocketAddr) -> Result<(), StackError> {
        if !addr_is_usable(remote) || remote.port() == 0 || self.is_broadcast(remote.ip()) {
            return Err(StackError::NoRoute(remote.ip()));
        }
        // A host without traffic has no deadline at which it would detect that memory is available
        // again.
        self.update_memory_state(now);
        if self.tcp.is_full(&self.env.sysctl) {
            return Err(self.too_many_sockets());
        }
        if self.env.mem.is_refused() {
            return Err(TcpError::OutOfMemory.into());
        }
        Ok(())
    }

    /// Counts a connection that `tcp_max_sockets` does not admit, and returns the error.
    pub(super) fn too_many_sockets(&mut self) -> StackError {
        self.mib.socket.sockets_limited += 1;
        let max = self.env.sysctl.tcp_max_sockets;
        StackError::TooManySockets { max }
    }

    fn connect_flow(&mut self, now: Instant, key: FlowKey) -> Result<TcpId, StackError> {
        if self.tcp.other_owner(&key).is_some() {
            return Err(StackError::OtherShard(key.local_addr()));
        }
        let path = self.tcp_path(now, &key)?;
        let ts_offset = self.tcp.timestamp_offset(&key);
        let iss = self.initial_sequence(now, &key);
        let mut cx = self.env.cx(now, &path, ts_offset);
        let conn = Connection::connect(
            &mut cx,
            key.local_port,
            key.remote_port,
            iss,
            mss_of(&path),
            path.network_len(),
        );
        let mut socket = Socket::new(conn, key, path, ConnectionOwner::User);
        self.set_custom_congestion(now, &mut socket);
        self.insert_connection(now, socket)
            .map(TcpId)
            .ok_or(StackError::NoPorts)
    }

    /// Connects to `remote` from `local`, whose address need not be one of the host's (transparent
    /// gateways). A `local` port 0 is chosen by the host.
    ///
    /// # Errors
    /// The errors of [`tcp_connect`](Self::tcp_connect);
    /// [`AddressNotAvailable`](StackError::AddressNotAvailable) if the families differ or `local`
    /// cannot be the address of a single host.
    pub fn tcp_connect_from(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<TcpId, StackError> {
        let remote = canonical(remote);
        let ip = local.ip().to_canonical();
        if ip.is_ipv4() != remote.is_ipv4() || !addr_is_usable(local) || ip.is_loopback() {
            return Err(StackError::AddressNotAvailable(local));
        }
        self.check_connect(now, remote)?;
        let mut key = FlowKey::new(SocketAddr::new(ip, local.port()), remote);
        if local.port() == 0 {
            let port = self.tcp.ephemeral_port(now, &key, &self.env.sysctl);
            key.local_port = port.ok_or(StackError::NoPorts)?;
        } else if !self.tcp.is_free(now, &key, self.env.sysctl.tcp_tw_reuse) {
            return Err(StackError::AddressInUse(local));
        }
        self.connect_flow(now, key)
    }

    /// Opens a connection whose SYN is deferred until the first write, whose data it carries (TCP
    /// Fast Open, `TCP_FASTOPEN_CONNECT`, `MSG_FASTOPEN`), or until
    /// [`TcpHandle::send_syn`](crate::TcpHandle::send_syn).
    ///
    /// # Errors
    /// The errors of [`tcp_connect`](Self::tcp_connect).
    pub fn tcp_connect_deferred(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<TcpId, StackError> {
        let id = self.tcp_connect(now, local, remote)?;
        let client = self.fastopen_client(now, remote.ip());
        let (_, socket, _) = self.tcp.user_conn(id)?;
        socket.conn.defer_syn(client);
        Ok(id)
    }

    fn is_broadcast(&self, ip: core::net::IpAddr) -> bool {
        self.ip.addresses.is_broadcast(ip)
    }

    /// Chooses the parts of the 4-tuple that the application left open.
    fn flow_for(
        &mut self,
        now: Instant,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<FlowKey, StackError> {
        let requested = local.unwrap_or_else(|| SocketAddr::new(remote.ip(), 0));
        let ip = match local {
            Some(addr) if !addr.ip().is_unspecified() => {
                let ip = addr.ip().to_canonical();
                let ours = self.ip.addresses.is_local(ip.into());
                if !ours || ip.is_ipv4() != remote.is_ipv4() {
                    return Err(self.not_available(addr));
                }
                ip
            }
            _ => self.source_for(remote.ip())?,
        };
        let port = local.map_or(0, |addr| addr.port());
        let mut key = FlowKey::new(SocketAddr::new(ip, port), remote);
        if port == 0 {
            key.local_port = self
                .tcp
                .ephemeral_port(now, &key, &self.env.sysctl)
                .ok_or(StackError::NoPorts)?;
        } else if !self.tcp.is_free(now, &key, self.env.sysctl.tcp_tw_reuse) {
            return Err(StackError::AddressInUse(SocketAddr::new(
                ip,
                requested.port(),
            )));
        }
        Ok(key)
    }

    /// Returns the ISN of a new connection. It is above the sequence numbers of an old incarnation
    /// in TIME-WAIT, which is removed.
    pub(super) fn initial_sequence(&mut self, now: Instant, key: &FlowKey) -> SeqNum {
        let iss = self.tcp.isn.generate(now, key);
        let min_isn = self.replace_time_wait(key);
        min_isn.map_or(iss, |min_isn| iss.latest(min_isn))
    }

    /// Builds the connection that answers a SYN, with `iss` as its initial sequence number.
    pub(super) fn create_child(
        &mut self,
        now: Instant,
        key: &FlowKey,
        syn: (&TcpRepr, EcnField),
        iss: SeqNum,
        owner: ConnectionOwner,
    ) -> Result<Box<Socket>, StackError> {
        let mut socket = self.create_child_for_syn_ack(now, key, syn, iss, owner)?;
        self.set_custom_congestion(now, &mut socket);
        Ok(socket)
    }

    /// Builds the connection that answers a SYN, as far as its SYN-ACK depends on it.
    pub(super) fn create_child_for_syn_ack(
        &mut self,
        now: Instant,
        key: &FlowKey,
        syn: (&TcpRepr, EcnField),
        iss: SeqNum,
        owner: ConnectionOwner,
    ) -> Result<Box<Socket>, StackError> {
        let (path, conn) = self.create_child_connection(now, key, syn, iss)?;
        let mut socket = Socket::new(conn, *key, path, owner);
        if let ConnectionOwner::Listener(listener) = owner {
            self.inherit(now, listener, &mut socket, syn);
        }
        Ok(socket)
    }

    /// Builds the connection that answers a SYN, without the options of its listener.
    pub(super) fn create_child_connection(
        &mut self,
        now: Instant,
        key: &FlowKey,
        (syn, syn_ecn): (&TcpRepr, EcnField),
        iss: SeqNum,
    ) -> Result<(Path, Connection), StackError> {
        let path = self.tcp_path(now, key)?;
        let ts_offset = self.tcp.timestamp_offset(key);
        let mut cx = self.env.cx(now, &path, ts_offset);
        let mss = mss_of(&path);
        let conn = Connection::accept(&mut cx, syn, syn_ecn, iss, mss, path.network_len());
        Ok((path, conn))
    }
}

impl Socket {
    pub(super) fn new(
        conn: Connection,
        key: FlowKey,
        path: Path,
        owner: ConnectionOwner,
    ) -> Box<Self> {
        Box::new(Self {
            ip_ident: conn.ts_offset() as u16 ^ key.remote_port,
            conn,
            key,
            path,
            queued: false,
            reachable: true,
            owner,
            waiters: Waiters::default(),
        })
    }
}
