//! The fields of a socket that code blocks can read: `struct tcp_info` in Linux's layout, and
//! `SO_MEMINFO`.

use crate::code::NameLookup;
use crate::constants::constant;

/// The state of the socket under test.
pub(crate) struct SocketState<'a> {
    /// The bytes of `TCP_INFO`.
    pub(crate) info: &'a [u8],
    /// The bytes of `SO_MEMINFO`.
    pub(crate) memory: &'a [u8],
}

impl NameLookup for SocketState<'_> {
    fn value(&self, name: &str) -> Option<i128> {
        if let Some(field) = name.strip_prefix("SK_MEMINFO_") {
            let index = MEMORY.iter().position(|known| *known == field)?;
            return number(self.memory, 4 * index, 4);
        }
        let Some(field) = name.strip_prefix("tcpi_") else {
            return constant(name).map(i128::from);
        };
        self.bits(field).or_else(|| {
            let (_, offset, len) = *FIELDS.iter().find(|(known, _, _)| *known == field)?;
            number(self.info, offset, len)
        })
    }
}

impl SocketState<'_> {
    /// Returns a field that shares a byte with others.
    fn bits(&self, field: &str) -> Option<i128> {
        let (byte, shift, mask) = match field {
            "snd_wscale" => (6, 0, 0xf),
            "rcv_wscale" => (6, 4, 0xf),
            "delivery_rate_app_limited" => (7, 0, 1),
            "fastopen_client_fail" => (7, 1, 3),
            "ecn_mode" => (276, 0, 3),
            "accecn_opt_seen" => (276, 2, 3),
            "accecn_fail_mode" => (276, 4, 0xf),
            _ => return None,
        };
        Some(i128::from(self.info.get(byte)? >> shift & mask))
    }
}

fn number(bytes: &[u8], offset: usize, len: usize) -> Option<i128> {
    let bytes = bytes.get(offset..offset + len)?;
    let value = bytes
        .iter()
        .rev()
        .fold(0, |sum: u64, b| sum << 8 | u64::from(*b));
    Some(value.into())
}

/// The fields of `SO_MEMINFO`, four bytes each, in order.
const MEMORY: [&str; 9] = [
    "RMEM_ALLOC",
    "RCVBUF",
    "WMEM_ALLOC",
    "SNDBUF",
    "FWD_ALLOC",
    "WMEM_QUEUED",
    "OPTMEM",
    "BACKLOG",
    "DROPS",
];

/// Name, offset and length in bytes; little-endian, as the posix layer writes it on every machine.
const FIELDS: &[(&str, usize, usize)] = &[
    ("state", 0, 1),
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("probes", 3, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("ato", 12, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("fackets", 40, 4),
    ("last_data_sent", 44, 4),
    ("last_ack_sent", 48, 4),
    ("last_data_recv", 52, 4),
    ("last_ack_recv", 56, 4),
    ("pmtu", 60, 4),
    ("rcv_ssthresh", 64, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("rcv_rtt", 92, 4),
    ("rcv_space", 96, 4),
    ("total_retrans", 100, 4),
    ("pacing_rate", 104, 8),
    ("max_pacing_rate", 112, 8),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivery_rate", 160, 8),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("delivered_ce", 196, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("dsack_dups", 216, 4),
    ("reord_seen", 220, 4),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
    ("rehash", 236, 4),
    ("total_rto", 240, 2),
    ("total_rto_recoveries", 242, 2),
    ("total_rto_time", 244, 4),
    ("received_ce", 248, 4),
    ("delivered_e1_bytes", 252, 4),
    ("delivered_e0_bytes", 256, 4),
    ("delivered_ce_bytes", 260, 4),
    ("received_e1_bytes", 264, 4),
    ("received_e0_bytes", 268, 4),
    ("received_ce_bytes", 272, 4),
];
