//! Replies to echo requests, and errors about them.

use fullsend_offload::{Chain, Slice};
use fullsend_tcp::{IcmpError, TcpError};
use fullsend_wire::Instant;
use fullsend_wire::icmpv4::HEADER_LEN;

use super::{PingError, PingReply};
use crate::ip::{IpMeta, TransportError};
use crate::{Host, IfaceId};

impl Host {
    /// Delivers an echo reply, whose checksum has been verified, to the socket with its identifier.
    pub(crate) fn ping_reply(
        &mut self,
        meta: &IpMeta,
        (ident, seq): (u16, u16),
        ttl: u8,
        message: &Chain,
    ) {
        // RFC 1122 3.2.2.6: replies are sent to the host that requested them.
        if !self.ip.addresses.is_local(meta.dst) {
            return;
        }
        let mut data = message.clone();
        data.advance(HEADER_LEN);
        let reply = PingReply {
            peer: meta.src.to_ip(),
            seq,
            data,
            ttl,
            iface: IfaceId(meta.iface),
            error: None,
        };
        self.queue_ping_reply(ident, reply);
    }

    /// Delivers an error about an echo request, if it quotes one of this host. Its `local` and `remote`
    /// ports are the identifier and the sequence number. A "too big" about a request that can have been
    /// too long reduces the path MTU.
    pub(crate) fn ping_error(
        &mut self,
        now: Instant,
        (iface, ttl): (u16, u8),
        report: &TransportError,
    ) {
        let (own, ident) = report.local;
        if !self.is_own_address(own) || !self.pings.has_ident(ident) {
            return;
        }
        let (error, mtu) = match report.error {
            IcmpError::Unreachable(error) => (error, 0),
            IcmpError::TooBig { mtu } => (TcpError::MessageTooLong, mtu),
        };
        let to = report.remote.0;
        // As for datagrams (RFC 5927 4): an error that quotes no sent request must not reduce the MTU.
        if error == TcpError::MessageTooLong && self.udp.has_sent_long_ping((own, ident), to) {
            self.reduce_path_mtu(now, report.protocol, (to, mtu));
        }
        let Some(data) = Slice::try_copied_from([report.payload.as_slice()]) else {
            return self.ip.icmp.count_ping_dropped(to.is_ipv6());
        };
        let reply = PingReply {
            peer: to,
            seq: report.remote.1,
            data: data.into(),
            ttl,
            iface: IfaceId(iface),
            error: Some(PingError {
                error,
                kind: report.kind,
                mtu,
                offender: report.offender,
            }),
        };
        self.queue_ping_reply(ident, reply);
    }

    fn queue_ping_reply(&mut self, ident: u16, reply: PingReply) {
        let v6 = reply.peer.is_ipv6();
        let free = self.udp_limits().all_bytes.saturating_sub(self.udp.bytes());
        if self.pings.enqueue(ident, reply, free, &mut self.wakers) {
            self.ip.icmp.count_ping_dropped(v6);
        }
    }
}
