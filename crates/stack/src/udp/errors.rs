//! Errors about sent datagrams, reported by ICMP or, for datagrams that it refuses to send, by this
//! host.

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::task::Waker;

use fullsend_tcp::{MtuDiscover, TcpError};

use super::{Socket, Udp, headers_len};
use crate::demux::FlowKey;
use crate::ip::min_path_mtu;
use crate::{StackError, UdpError, UdpId};

/// Maximum number of errors kept for one socket; further errors are discarded.
const MAX_ERRORS: usize = 64;

impl Socket {
    /// Keeps an ICMP error about a datagram of this socket and makes it the pending error. Returns
    /// whether the socket reports it.
    fn on_icmp(&mut self, error: &UdpError) -> bool {
        let connected = self.remote == Some(error.to);
        // As on Linux: without path MTU discovery, only an IPv6 socket that keeps errors reports that
        // a datagram was too big.
        let is_ignored_too_big = error.error == TcpError::MessageTooLong
            && self.ip_settings(error.to.ip()).mtu_discover == MtuDiscover::Dont;
        if is_ignored_too_big && error.to.is_ipv4() {
            return false;
        }
        if self.errors.is_some() && (connected || self.remote.is_none()) {
            self.queue_error(error);
        } else if !connected || is_ignored_too_big {
            return false;
        }
        self.error = Some(error.error);
        true
    }

    fn queue_error(&mut self, error: &UdpError) {
        if let Some(kept) = &mut self.errors
            && kept.len() < MAX_ERRORS
        {
            kept.push_back(error.clone());
        }
    }

    /// Sets whether errors are kept. Switching it off drops the kept errors.
    pub(crate) fn keep_errors(&mut self, on: bool) {
        self.errors = on.then(|| self.errors.take().unwrap_or_default());
    }

    pub(crate) fn has_kept_errors(&self) -> bool {
        self.errors.as_ref().is_some_and(|kept| !kept.is_empty())
    }

    /// Takes the oldest kept error. If the next one was reported by ICMP, it becomes the pending
    /// error; otherwise the pending error is cleared if the taken one was reported by ICMP.
    pub(crate) fn take_kept_error(&mut self) -> Option<UdpError> {
        let kept = self.errors.as_mut()?;
        let first = kept.pop_front()?;
        let next = kept.front().filter(|next| !next.is_local);
        if next.is_some() || !first.is_local {
            self.error = next.map(|next| next.error);
        }
        Some(first)
    }
}

impl Udp {
    /// Reports an ICMP error about a datagram from `local` to the socket that is connected to its
    /// destination (RFC 1122 4.1.3.3), and to unconnected sockets that keep errors. Ignores "too
    /// big" unless [`has_sent_long`](Self::has_sent_long) is true for the flow. Returns whether the
    /// error was processed.
    pub(crate) fn icmp(
        &mut self,
        local: SocketAddr,
        error: &UdpError,
        wakers: &mut Vec<Waker>,
    ) -> bool {
        if error.error == TcpError::MessageTooLong && !self.has_sent_long(local, error.to) {
            return false;
        }
        let bound = self.ports.get(&local.port()).into_iter().flatten();
        for &index in bound {
            let Some(socket) = self.sockets.get_mut(index) else {
                continue;
            };
            if socket.has_address(local.ip()) && socket.on_icmp(error) {
                socket.readers.wake(wakers);
            }
        }
        true
    }

    /// Returns whether a datagram that can be too big for a path was sent from `local` to `to`:
    /// recently, or at any time by a socket that is still connected to `to` (RFC 5927 4).
    fn has_sent_long(&self, local: SocketAddr, to: SocketAddr) -> bool {
        if self.sent.contains(FlowKey::new(local, to).hash(self.key)) {
            return true;
        }
        let bound = self.ports.get(&local.port()).into_iter().flatten();
        bound
            .filter_map(|&index| self.sockets.get(index))
            .filter(|socket| socket.has_address(local.ip()))
            .any(|socket| socket.remote == Some(to) && socket.sent_long)
    }

    /// Records an echo request with `len` bytes of data that a ping socket has sent, if it can be too
    /// big for a path. Requests share the record of sent flows with datagrams: the identifier stands
    /// for the local port, and 0 for the remote port.
    pub(crate) fn record_ping(&mut self, (local, ident): (IpAddr, u16), to: IpAddr, len: usize) {
        if headers_len(to) + len > min_path_mtu(to) as usize {
            let flow = FlowKey::new((local, ident).into(), (to, 0).into());
            self.sent.record(flow.hash(self.key));
        }
    }

    /// Returns whether an echo request that can be too big for a path was sent recently.
    pub(crate) fn has_sent_long_ping(&self, (local, ident): (IpAddr, u16), to: IpAddr) -> bool {
        let flow = FlowKey::new((local, ident).into(), (to, 0).into());
        self.sent.contains(flow.hash(self.key))
    }

    /// Keeps the error that a datagram to `to` does not fit an MTU, if the socket keeps errors.
    pub(crate) fn on_message_too_long(
        &mut self,
        id: UdpId,
        (to, mtu): (SocketAddr, u32),
        wakers: &mut Vec<Waker>,
    ) -> Result<(), StackError> {
        let socket = self.socket_mut(id)?;
        if socket.errors.is_some() {
            socket.queue_error(&UdpError {
                error: TcpError::MessageTooLong,
                kind: (0, 0),
                mtu,
                offender: socket.local.ip(),
                to,
                payload: Vec::new(),
                is_local: true,
            });
            socket.readers.wake(wakers);
        }
        Ok(())
    }
}
