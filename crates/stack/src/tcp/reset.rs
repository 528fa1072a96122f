//! RST for segments that belong to no connection (RFC 9293 3.10.7.1).

use fullsend_wire::Instant;
use fullsend_wire::tcp::{TcpFlags, TcpRepr};

use super::handshake::empty_segment;
use crate::Host;
use crate::demux::FlowKey;
use crate::rate::RateLimit;

/// Returns the RST that answers a segment with `len` bytes of payload. A RST is not answered.
pub(super) fn reset_for(repr: &TcpRepr, len: u32) -> Option<TcpRepr> {
    if repr.flags.contains(TcpFlags::RST) {
        return None;
    }
    let reply = TcpRepr {
        src_port: repr.dst_port,
        dst_port: repr.src_port,
        ..TcpRepr::default()
    };
    if repr.flags.contains(TcpFlags::ACK) {
        return Some(TcpRepr {
            seq: repr.ack,
            flags: TcpFlags::RST,
            ..reply
        });
    }
    let syn = u32::from(repr.flags.contains(TcpFlags::SYN));
    let fin = u32::from(repr.flags.contains(TcpFlags::FIN));
    Some(TcpRepr {
        ack: repr.seq + len + syn + fin,
        flags: TcpFlags::RST.union(TcpFlags::ACK),
        ..reply
    })
}

impl Host {
    /// Answers a segment of `len` payload bytes to `key` with a RST, subject to the rate limit.
    pub(super) fn send_reset(&mut self, now: Instant, key: &FlowKey, repr: &TcpRepr, len: u32) {
        let Some(repr) = reset_for(repr, len) else {
            return;
        };
        let per_second = self.env.sysctl.tcp_rst_msgs_per_sec;
        let rate = RateLimit {
            per_second,
            burst: per_second.div_ceil(10),
        };
        if !self.tcp.resets.take(now, rate, &mut self.env.rng) {
            self.mib.socket.out_rsts_limited += 1;
            return;
        }
        self.env.mib.out_rsts += 1;
        self.env.mib.out_segs += 1;
        self.send_stateless(now, key, empty_segment(repr));
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::SeqNum;
    use fullsend_wire::tcp::{TcpFlags, TcpRepr};

    use super::reset_for;

    #[test]
    fn sequence_numbers_are_those_of_rfc_9293() {
        let segment = |flags| TcpRepr {
            src_port: 9,
            dst_port: 80,
            seq: SeqNum::new(100),
            ack: SeqNum::new(700),
            flags,
            ..TcpRepr::default()
        };
        let reset = |flags, len| {
            let r = reset_for(&segment(flags), len)?;
            assert_eq!((r.src_port, r.dst_port), (80, 9));
            Some((r.flags, r.seq.raw(), r.ack.raw()))
        };
        let rst_ack = TcpFlags::RST.union(TcpFlags::ACK);
        assert_eq!(reset(TcpFlags::SYN, 0), Some((rst_ack, 0, 101)));
        assert_eq!(reset(TcpFlags::FIN, 50), Some((rst_ack, 0, 151)));
        assert_eq!(reset(TcpFlags::ACK, 50), Some((TcpFlags::RST, 700, 0)));
        let syn_ack = TcpFlags::SYN.union(TcpFlags::ACK);
        assert_eq!(reset(syn_ack, 0), Some((TcpFlags::RST, 700, 0)));
        assert_eq!(reset(rst_ack, 0), None);
    }
}
