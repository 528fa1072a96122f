//! `struct tcp_info` in the layout of Linux 7.

use fullsend_tcp::TcpInfo;

/// Length of the struct, in bytes.
pub(crate) const LEN: usize = 280;

/// The position of a field. Some fields share a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FieldLayout {
    At(usize, usize),
    /// Bits of the byte at an offset, from a first bit on.
    Bits(usize, u32),
}

use FieldLayout::{At, Bits};

/// Linux's fields in order. Bytes of other fields stay zero.
const FIELDS: &[(&str, FieldLayout)] = &[
    ("tcpi_state", At(0, 1)),
    ("tcpi_ca_state", At(1, 1)),
    ("tcpi_retransmits", At(2, 1)),
    ("tcpi_probes", At(3, 1)),
    ("tcpi_backoff", At(4, 1)),
    ("tcpi_options", At(5, 1)),
    ("tcpi_snd_wscale", Bits(6, 0)),
    ("tcpi_rcv_wscale", Bits(6, 4)),
    ("tcpi_delivery_rate_app_limited", Bits(7, 0)),
    ("tcpi_fastopen_client_fail", Bits(7, 1)),
    ("tcpi_rto", At(8, 4)),
    ("tcpi_ato", At(12, 4)),
    ("tcpi_snd_mss", At(16, 4)),
    ("tcpi_rcv_mss", At(20, 4)),
    ("tcpi_unacked", At(24, 4)),
    ("tcpi_sacked", At(28, 4)),
    ("tcpi_lost", At(32, 4)),
    ("tcpi_retrans", At(36, 4)),
    ("tcpi_fackets", At(40, 4)),
    ("tcpi_last_data_sent", At(44, 4)),
    ("tcpi_last_ack_sent", At(48, 4)),
    ("tcpi_last_data_recv", At(52, 4)),
    ("tcpi_last_ack_recv", At(56, 4)),
    ("tcpi_pmtu", At(60, 4)),
    ("tcpi_rcv_ssthresh", At(64, 4)),
    ("tcpi_rtt", At(68, 4)),
    ("tcpi_rttvar", At(72, 4)),
    ("tcpi_snd_ssthresh", At(76, 4)),
    ("tcpi_snd_cwnd", At(80, 4)),
    ("tcpi_advmss", At(84, 4)),
    ("tcpi_reordering", At(88, 4)),
    ("tcpi_rcv_rtt", At(92, 4)),
    ("tcpi_rcv_space", At(96, 4)),
    ("tcpi_total_retrans", At(100, 4)),
    ("tcpi_pacing_rate", At(104, 8)),
    ("tcpi_max_pacing_rate", At(112, 8)),
    ("tcpi_bytes_acked", At(120, 8)),
    ("tcpi_bytes_received", At(128, 8)),
    ("tcpi_segs_out", At(136, 4)),
    ("tcpi_segs_in", At(140, 4)),
    ("tcpi_notsent_bytes", At(144, 4)),
    ("tcpi_min_rtt", At(148, 4)),
    ("tcpi_data_segs_in", At(152, 4)),
    ("tcpi_data_segs_out", At(156, 4)),
    ("tcpi_delivery_rate", At(160, 8)),
    ("tcpi_busy_time", At(168, 8)),
    ("tcpi_rwnd_limited", At(176, 8)),
    ("tcpi_sndbuf_limited", At(184, 8)),
    ("tcpi_delivered", At(192, 4)),
    ("tcpi_delivered_ce", At(196, 4)),
    ("tcpi_bytes_sent", At(200, 8)),
    ("tcpi_bytes_retrans", At(208, 8)),
    ("tcpi_dsack_dups", At(216, 4)),
    ("tcpi_reord_seen", At(220, 4)),
    ("tcpi_rcv_ooopack", At(224, 4)),
    ("tcpi_snd_wnd", At(228, 4)),
    ("tcpi_rcv_wnd", At(232, 4)),
    ("tcpi_rehash", At(236, 4)),
    ("tcpi_total_rto", At(240, 2)),
    ("tcpi_total_rto_recoveries", At(242, 2)),
    ("tcpi_total_rto_time", At(244, 4)),
    ("tcpi_received_ce", At(248, 4)),
    ("tcpi_delivered_e1_bytes", At(252, 4)),
    ("tcpi_delivered_e0_bytes", At(256, 4)),
    ("tcpi_delivered_ce_bytes", At(260, 4)),
    ("tcpi_received_e1_bytes", At(264, 4)),
    ("tcpi_received_e0_bytes", At(268, 4)),
    ("tcpi_received_ce_bytes", At(272, 4)),
    ("tcpi_ecn_mode", Bits(276, 0)),
    ("tcpi_accecn_opt_seen", Bits(276, 2)),
    ("tcpi_accecn_fail_mode", Bits(276, 4)),
];

/// Returns the struct in Linux's layout.
pub(crate) fn encode(info: &TcpInfo) -> [u8; LEN] {
    let mut out = [0; LEN];
    let mut fields = FIELDS.iter();
    for (name, value) in info.fields() {
        // Both lists are almost in the same order, so the search continues at the last match.
        let layout = fields
            .clone()
            .position(|field| field.0 == name)
            .and_then(|n| fields.nth(n))
            .or_else(|| FIELDS.iter().find(|field| field.0 == name));
        match layout {
            Some(&(_, At(at, len))) => {
                let most = u64::MAX >> (64 - 8 * len);
                let value = value.min(most);
                out[at..at + len].copy_from_slice(&ne_bytes(value, len)[..len]);
            }
            Some(&(_, Bits(at, shift))) => out[at] |= (value << shift) as u8,
            None => {}
        }
    }
    out
}

/// Returns the bytes of `value`, of which the first `n` are its representation in `n` bytes.
const fn ne_bytes(value: u64, n: usize) -> [u8; 8] {
    if cfg!(target_endian = "big") {
        (value << (64 - 8 * n)).to_be_bytes()
    } else {
        value.to_le_bytes()
    }
}

/// Returns the values of a socket in TCP_CLOSE.
pub(crate) fn closed() -> TcpInfo {
    let mut info = TcpInfo::default();
    info.tcpi_state = 7;
    info
}

/// Returns the values of a listener: the number of connections waiting to be accepted, and its
/// backlog.
pub(crate) fn listening(waiting: u32, backlog: u32) -> TcpInfo {
    let mut info = TcpInfo::default();
    info.tcpi_state = 10;
    info.tcpi_unacked = waiting;
    info.tcpi_sacked = backlog;
    info
}

#[cfg(test)]
mod tests {
    use fullsend_tcp::TcpInfo;

    use super::{FIELDS, FieldLayout, LEN, encode};

    #[test]
    fn every_field_has_a_layout() {
        for (name, _) in TcpInfo::default().fields() {
            assert!(FIELDS.iter().any(|field| field.0 == name), "{name}");
        }
    }

    #[test]
    fn the_struct_has_no_holes() {
        let mut next = 0;
        for &(name, layout) in FIELDS {
            match layout {
                FieldLayout::At(at, len) => {
                    assert_eq!(at, next, "{name}");
                    assert_eq!(at % len, 0, "{name}");
                    next = at + len;
                }
                FieldLayout::Bits(at, 0) => {
                    assert_eq!(at, next, "{name}");
                    next = at + 1;
                }
                FieldLayout::Bits(at, _) => assert_eq!(at + 1, next, "{name}"),
            }
        }
        // The last field is a 32-bit word.
        assert_eq!(next + 3, LEN);
    }

    #[test]
    fn values_are_encoded_at_their_offsets() {
        let mut info = TcpInfo::default();
        info.tcpi_state = 1;
        info.tcpi_snd_wscale = 7;
        info.tcpi_rcv_wscale = 9;
        info.tcpi_delivery_rate_app_limited = true;
        info.tcpi_rto = 204_000;
        info.tcpi_pacing_rate = 1 << 40;
        info.tcpi_rcv_wnd = 65_483;
        let bytes = encode(&info);
        assert_eq!((bytes[0], bytes[6], bytes[7]), (1, 0x97, 1));
        assert_eq!(bytes[8..12], 204_000_u32.to_ne_bytes());
        assert_eq!(bytes[104..112], (1_u64 << 40).to_ne_bytes());
        assert_eq!(bytes[232..236], 65_483_u32.to_ne_bytes());
    }
}
