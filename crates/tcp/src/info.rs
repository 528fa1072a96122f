//! `TCP_INFO` under Linux's field names.

/// Declares the struct and an iterator over its fields.
macro_rules! tcp_info {
    ($(#[$meta:meta])* pub struct TcpInfo { $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        pub struct TcpInfo { $($(#[$field_meta])* pub $field: $ty,)* }

        impl TcpInfo {
            /// Returns the name and value of each field.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), u64::from(self.$field))),*].into_iter()
            }
        }
    };
}

tcp_info! {
    /// The fields of `tcp_info()`. Times are in microseconds (`tcpi_last_*`: milliseconds), rates
    /// in bytes per second, as on Linux.
    #[derive(Clone, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    #[allow(missing_docs, reason = "each is Linux's field of that name")]
    pub struct TcpInfo {
        pub tcpi_state: u8,
        pub tcpi_ca_state: u8,
        pub tcpi_retransmits: u8,
        pub tcpi_probes: u8,
        pub tcpi_backoff: u8,
        pub tcpi_options: u8,
        pub tcpi_snd_wscale: u8,
        pub tcpi_rcv_wscale: u8,
        pub tcpi_rto: u32,
        pub tcpi_ato: u32,
        pub tcpi_snd_mss: u32,
        pub tcpi_rcv_mss: u32,
        pub tcpi_unacked: u32,
        pub tcpi_sacked: u32,
        pub tcpi_lost: u32,
        pub tcpi_retrans: u32,
        /// Always 0, as on Linux.
        pub tcpi_fackets: u32,
        pub tcpi_last_data_sent: u32,
        /// Always 0, as on Linux.
        pub tcpi_last_ack_sent: u32,
        pub tcpi_last_data_recv: u32,
        pub tcpi_last_ack_recv: u32,
        pub tcpi_pmtu: u32,
        pub tcpi_rcv_ssthresh: u32,
        pub tcpi_rtt: u32,
        pub tcpi_rttvar: u32,
        pub tcpi_snd_ssthresh: u32,
        pub tcpi_snd_cwnd: u32,
        pub tcpi_advmss: u32,
        pub tcpi_reordering: u32,
        pub tcpi_rcv_rtt: u32,
        pub tcpi_rcv_space: u32,
        pub tcpi_total_retrans: u32,
        pub tcpi_pacing_rate: u64,
        pub tcpi_max_pacing_rate: u64,
        pub tcpi_bytes_acked: u64,
        pub tcpi_bytes_received: u64,
        pub tcpi_segs_out: u32,
        pub tcpi_segs_in: u32,
        pub tcpi_notsent_bytes: u32,
        pub tcpi_min_rtt: u32,
        pub tcpi_data_segs_in: u32,
        pub tcpi_data_segs_out: u32,
        /// Zero unless the congestion control takes rate samples (BBR does).
        pub tcpi_delivery_rate: u64,
        pub tcpi_delivery_rate_app_limited: bool,
        pub tcpi_delivered: u32,
        pub tcpi_delivered_ce: u32,
        /// Time during which data was in flight or waited to be sent.
        pub tcpi_busy_time: u64,
        /// Part of `tcpi_busy_time`: the application waited for room in the send buffer, and
        /// everything else was sent.
        pub tcpi_sndbuf_limited: u64,
        /// Part of `tcpi_busy_time`: the peer's window was the limit.
        /// [`Connection::flow_report`](crate::Connection::flow_report) has the other limits and
        /// their times.
        pub tcpi_rwnd_limited: u64,
        pub tcpi_bytes_sent: u64,
        pub tcpi_bytes_retrans: u64,
        pub tcpi_dsack_dups: u32,
        pub tcpi_reord_seen: u32,
        pub tcpi_rcv_ooopack: u32,
        pub tcpi_snd_wnd: u32,
        pub tcpi_rcv_wnd: u32,
        /// 1: no cookie; 2: the data in the SYN was not acknowledged; 3: nor was the first SYN.
        pub tcpi_fastopen_client_fail: u8,
        /// Always 0: no path is chosen by a hash of the flow here.
        pub tcpi_rehash: u32,
        pub tcpi_total_rto: u16,
        pub tcpi_total_rto_recoveries: u16,
        /// Milliseconds.
        pub tcpi_total_rto_time: u32,
        /// Packets received with a CE mark. This field and the six below are those of Accurate ECN.
        pub tcpi_received_ce: u32,
        /// Bytes sent that the peer's option reports as received with ECT(1), ECT(0) and CE.
        pub tcpi_delivered_e1_bytes: u32,
        pub tcpi_delivered_e0_bytes: u32,
        pub tcpi_delivered_ce_bytes: u32,
        /// Bytes received with each codepoint.
        pub tcpi_received_e1_bytes: u32,
        pub tcpi_received_e0_bytes: u32,
        pub tcpi_received_ce_bytes: u32,
        /// 0: none, 1: RFC 3168, 2: Accurate ECN, 3: requested.
        pub tcpi_ecn_mode: u8,
        /// The peer's AccECN option: 0: not seen, 1: empty, 2: with counters, 3: zeroed.
        pub tcpi_accecn_opt_seen: u8,
        /// Bits. 1: the peer may not understand the flags, 2: the flags are mangled, 4: the option
        /// is lost, 8: the option is mangled.
        pub tcpi_accecn_fail_mode: u8,
    }
}
