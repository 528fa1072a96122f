//! The host's TCP tunables, under Linux's names.

mod tunable;

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;
use core::ops::RangeInclusive;

use self::tunable::{ReadOnly, Tunable};
use crate::congestion_set::{AVAILABLE, CongestionSet};
use crate::{FastopenKeys, limits};

/// Size in bytes of the page that memory is charged in and that `tcp_mem` counts.
pub const PAGE_BYTES: usize = 4096;

/// Declares the tunables: prefix, name, type, default, allowed values.
macro_rules! sysctls {
    ($($(#[$doc:meta])* $prefix:literal $field:ident: $ty:ty = $default:expr, $allowed:expr;)*) => {
        /// The host's tunables (`net.ipv4.tcp_*`, `net.core.*`), readable and settable by name at
        /// any time. Values have Linux's units.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Sysctl { $($(#[$doc])* pub $field: $ty,)* }

        impl Default for Sysctl {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// The full names of all tunables.
        const NAMES: &[&str] = &[$(concat!($prefix, stringify!($field)),)*];

        impl Sysctl {
            /// Sets `key` (with or without `net.ipv4.` or `net.core.`) from Linux's text form.
            ///
            /// # Errors
            ///
            /// [`SysctlError::Unknown`] if there is no tunable `key`, and [`SysctlError::BadValue`]
            /// if it does not accept `value`.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), SysctlError> {
                match short_name(key) {
                    $(stringify!($field) => {
                        self.$field = Tunable::parse(value, &$allowed).map_err(|allowed| {
                            SysctlError::BadValue {
                                key: key.to_owned(),
                                value: value.to_owned(),
                                allowed,
                            }
                        })?;
                    })*
                    _ => return Err(SysctlError::unknown(key)),
                }
                Ok(())
            }

            /// Returns the value of `key` (with or without prefix) in Linux's text form.
            ///
            /// # Errors
            ///
            /// [`SysctlError::Unknown`] if there is no tunable `key`.
            pub fn get(&self, key: &str) -> Result<String, SysctlError> {
                match short_name(key) {
                    $(stringify!($field) => Ok(Tunable::show(&self.$field)),)*
                    _ => Err(SysctlError::unknown(key)),
                }
            }

            /// Returns the full name and value of every tunable.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, String)> {
                [$((concat!($prefix, stringify!($field)), Tunable::show(&self.$field)),)*]
                    .into_iter()
            }
        }
    };
}

/// Range of a buffer size in bytes: at least one super-segment, and the sum of two fits in 32 bits.
const BUFFER: RangeInclusive<u32> = 4096..=0x3fff_ffff;

/// Range of `tcp_rto_max_ms` and `TCP_RTO_MAX_MS`.
const RTO_MAX_MS: RangeInclusive<u32> = 1000..=120_000;

sysctls! {
    /// Receive buffer in bytes: minimum, initial, maximum.
    "net.ipv4." tcp_rmem: [u32; 3] = [4096, 131_072, 6_291_456], BUFFER;
    /// Send buffer in bytes: minimum, initial, maximum.
    "net.ipv4." tcp_wmem: [u32; 3] = [4096, 16_384, 4_194_304], BUFFER;
    /// Allow the receive window to shrink when the reader leaves no room for what was offered.
    "net.ipv4." tcp_shrink_window: bool = false, ();
    /// Most bytes that `SO_RCVBUF` can request.
    "net.core." rmem_max: u32 = 4_194_304, BUFFER;
    /// Most bytes that `SO_SNDBUF` can request.
    "net.core." wmem_max: u32 = 4_194_304, BUFFER;
    /// Most pieces of an application's memory in one super-segment (`MSG_ZEROCOPY`).
    "net.core." max_skb_frags: u32 = 17, 1..=17;
    /// Explicit congestion notification. RFC 3168: 0 off, 1 request and accept, 2 accept. Accurate
    /// ECN (RFC 9768): 3 request it, 4 request RFC 3168, 5 request neither; all three accept
    /// Accurate ECN.
    "net.ipv4." tcp_ecn: u32 = 2, 0..=5;
    /// Retransmit the SYN without an ECN request (RFC 3168 6.1.1.1).
    "net.ipv4." tcp_ecn_fallback: bool = true, ();
    /// AccECN option: 0 never sent, 1 when a counter changed or the option was not sent for long, 2
    /// on each segment with room for it, 3 also where it seems to be lost on the path.
    "net.ipv4." tcp_ecn_option: u32 = 2, 0..=3;
    /// Least number of AccECN options per round trip while `tcp_ecn_option` is 1.
    "net.ipv4." tcp_ecn_option_beacon: u32 = 3, 0..=63;
    /// Congestion control of new connections.
    "net.ipv4." tcp_congestion_control: &'static str = "cubic", AVAILABLE;
    /// The available congestion controls; read only.
    "net.ipv4." tcp_available_congestion_control: CongestionSet = CongestionSet::ALL, ReadOnly(true);
    /// The congestion controls that `TCP_CONGESTION` may select.
    "net.ipv4." tcp_allowed_congestion_control: CongestionSet = CongestionSet::ALL, ReadOnly(false);
    /// Grow the receive buffer with the amount that the application reads per round trip.
    "net.ipv4." tcp_moderate_rcvbuf: bool = true, ();
    /// Offer window scaling (RFC 7323 2).
    "net.ipv4." tcp_window_scaling: bool = true, ();
    /// Offer timestamps (RFC 7323 3).
    "net.ipv4." tcp_timestamps: bool = true, ();
    /// Offer selective acknowledgement (RFC 2018).
    "net.ipv4." tcp_sack: bool = true, ();
    /// Report duplicate segments (DSACK, RFC 2883).
    "net.ipv4." tcp_dsack: bool = true, ();
    /// Duplicate acknowledgements, or SACKed segments above a hole, that indicate loss (RFC 6675
    /// DupThresh).
    "net.ipv4." tcp_reordering: u32 = 3, 1..=300;
    /// Largest degree of reordering that is assumed, in segments.
    "net.ipv4." tcp_max_reordering: u32 = 300, 1..=300;
    /// Loss detection by time (RFC 8985), in bits: 1 enables it, 2 keeps the reordering window at a
    /// quarter of the minimum round trip, 4 ignores the number of duplicates. Without bit 1 only
    /// the number of duplicates counts (RFC 6675).
    "net.ipv4." tcp_recovery: u32 = 1, 0..=7;
    /// Tail loss probes (RFC 8985 7): 3 and 4 enable them.
    "net.ipv4." tcp_early_retrans: u32 = 3, 0..=4;
    /// Detection of spurious timeouts by the ACKs that new data elicits (F-RTO, RFC 5682): nonzero
    /// enables it.
    "net.ipv4." tcp_frto: u32 = 2, 0..=2;
    /// Least time in microseconds that a retransmission timeout adds to the round trip; for new
    /// connections.
    "net.ipv4." tcp_rto_min_us: u32 = 200_000, 1..=2_000_000;
    /// Longest retransmission timeout in milliseconds; for new connections and their SYN-ACKs.
    "net.ipv4." tcp_rto_max_ms: u32 = 120_000, RTO_MAX_MS;
    /// No exponential backoff at first for connections with less than four segments in flight.
    "net.ipv4." tcp_thin_linear_timeouts: bool = false, ();
    /// Slow start after an idle period (RFC 2861).
    "net.ipv4." tcp_slow_start_after_idle: bool = true, ();
    /// Number of unsent bytes from which on a socket is not writable.
    "net.ipv4." tcp_notsent_lowat: u32 = u32::MAX, 1..=u32::MAX;
    /// Hold small writes while the device has not completed the connection's previous packets.
    "net.ipv4." tcp_autocorking: bool = true, ();
    /// Bytes of one unpaced connection that the host's queues may hold (TCP Small Queues).
    "net.ipv4." tcp_limit_output_bytes: u32 = 4_194_304, 4096..=0x3fff_ffff;
    /// Least segments in a super-segment, whatever the pacing rate.
    "net.ipv4." tcp_min_tso_segs: u32 = 2, 1..=65_535;
    /// Each `2^n` microseconds of minimum RTT halve the part of a super-segment's size that does
    /// not depend on the pacing rate.
    "net.ipv4." tcp_tso_rtt_log: u32 = 9, 0..=31;
    /// A super-segment is deferred until it fills this fraction (1/n) of the window.
    "net.ipv4." tcp_tso_win_divisor: u32 = 3, 0..=65_535;
    /// Pacing rate in slow start, in percent of cwnd per srtt.
    "net.ipv4." tcp_pacing_ss_ratio: u32 = 200, 1..=1000;
    /// Pacing rate in congestion avoidance, in percent of cwnd per srtt.
    "net.ipv4." tcp_pacing_ca_ratio: u32 = 120, 1..=1000;
    /// TCP Fast Open, in bits: 1 clients, 2 servers, 4 clients without cookie, 0x200 servers
    /// without cookie, 0x400 all listeners without `TCP_FASTOPEN`.
    "net.ipv4." tcp_fastopen: u32 = 1, 0..=0x7fff_ffff;
    /// The keys of Fast Open cookies: one or two (primary, backup), each four groups of eight
    /// hexadecimal digits; empty: the host generates its own.
    "net.ipv4." tcp_fastopen_key: Option<FastopenKeys> = None, ();
    /// Seconds without Fast Open for clients after the path dropped its packets, doubled each time;
    /// 0 disables the detection of such paths.
    "net.ipv4." tcp_fastopen_blackhole_timeout_sec: u32 = 0, 0..=0x7fff_ffff;
    /// Path MTU probing with data segments (RFC 4821): 0 never, 1 after a suspected black hole, 2
    /// always.
    "net.ipv4." tcp_mtu_probing: u32 = 0, 0..=2;
    /// MSS in bytes with which path MTU probing begins.
    "net.ipv4." tcp_base_mss: u32 = 1024, 48..=65_535;
    /// Least MSS in bytes after a black hole was detected. Linux has 48, at which a path that
    /// merely loses many packets would end; this value fits our least path MTU over IPv4 (552).
    "net.ipv4." tcp_mtu_probe_floor: u32 = 512, 48..=65_535;
    /// Seconds until path MTU probing starts again after it has ended.
    "net.ipv4." tcp_probe_interval: u32 = 600, 0..=0x7fff_ffff;
    /// Width in bytes of the remaining range at which path MTU probing ends.
    "net.ipv4." tcp_probe_threshold: u32 = 8, 0..=65_535;
    /// Consecutive retransmission timeouts after which the path is suspected.
    "net.ipv4." tcp_retries1: u32 = 3, 1..=255;
    /// SYN retransmissions at intervals of one second before the interval doubles; in addition to
    /// `tcp_syn_retries`.
    "net.ipv4." tcp_syn_linear_timeouts: u32 = 4, 0..=127;
    /// SYN retransmissions before a connect fails.
    "net.ipv4." tcp_syn_retries: u32 = 6, 1..=127;
    /// SYN-ACK retransmissions before a passive open is dropped.
    "net.ipv4." tcp_synack_retries: u32 = 5, 0..=127;
    /// SYN cookies: 0 never, 1 when a listener's queue of half-open connections is full, 2 always.
    "net.ipv4." tcp_syncookies: u32 = 1, 0..=2;
    /// SYN-ACKs per second, approximately, that lead to no connection, to all sources; the burst is
    /// twice that, and one source gets half of it. 0: no limit (Linux has none).
    "net.ipv4." tcp_syn_limit: u32 = 8192, 0..=1_000_000;
    /// Most half-open connections of a listener without SYN cookies.
    "net.ipv4." tcp_max_syn_backlog: u32 = 4096, 1..=0xff_ffff;
    /// Upper bound of a listener's backlog, which limits the connections that wait to be accepted
    /// and the half-open ones.
    "net.core." somaxconn: u32 = 4096, 1..=0xff_ffff;
    /// Reset connections that find the accept queue full, instead of dropping their last ACK.
    "net.ipv4." tcp_abort_on_overflow: bool = false, ();
    /// Consecutive retransmission timeouts before a connection fails.
    "net.ipv4." tcp_retries2: u32 = 15, 1..=127;
    /// Consecutive retransmission timeouts before an orphaned connection fails.
    "net.ipv4." tcp_orphan_retries: u32 = 8, 1..=127;
    /// Seconds an orphan stays in FIN-WAIT-2.
    "net.ipv4." tcp_fin_timeout: u32 = 60, 1..=86_400;
    /// Idle seconds before the first keepalive probe.
    "net.ipv4." tcp_keepalive_time: u32 = 7200, 1..=32_767;
    /// Seconds between keepalive probes.
    "net.ipv4." tcp_keepalive_intvl: u32 = 75, 1..=32_767;
    /// Unanswered keepalive probes before the connection fails.
    "net.ipv4." tcp_keepalive_probes: u32 = 9, 1..=127;
    /// Least MSS in bytes that a peer or an ICMP message can impose.
    "net.ipv4." tcp_min_snd_mss: u32 = 48, 48..=65_535;
    /// Least milliseconds between answers to out-of-window segments of one connection (RFC 5961
    /// 10).
    "net.ipv4." tcp_invalid_ratelimit: u32 = 500, 0..=2_147_483;
    /// Challenge ACKs per second, approximately, of the host (RFC 5961 7); the largest value means
    /// no limit.
    "net.ipv4." tcp_challenge_ack_limit: u32 = limits::UNLIMITED, 0..=limits::UNLIMITED;
    /// RSTs per second, approximately, for segments without a connection; the burst is a tenth of
    /// it (Linux has no limit).
    "net.ipv4." tcp_rst_msgs_per_sec: u32 = 10_000, 0..=1_000_000;
    /// Milliseconds between ICMP errors to one host (IPv6: one /64), with bursts of six; 0: no
    /// limit.
    "net.ipv4." icmp_ratelimit: u32 = 1000, 0..=2_147_483;
    /// ICMP errors per second, approximately, of the host.
    "net.ipv4." icmp_msgs_per_sec: u32 = 1000, 0..=1_000_000;
    /// Largest burst of ICMP errors of the host.
    "net.ipv4." icmp_msgs_burst: u32 = 50, 0..=1_000_000;
    /// Range of ephemeral ports, first and last (RFC 6056).
    "net.ipv4." ip_local_port_range: [u16; 2] = [32_768, 60_999], 1..=65_535;
    /// Connections in TIME-WAIT ignore RST (RFC 1337).
    "net.ipv4." tcp_rfc1337: bool = false, ();
    /// Memory of all connections, in pages of 4096 bytes: memory pressure ends below the first
    /// value and begins above the second; above the third, connections get only their minimum. By
    /// default the last is 1 GiB, the others half and two thirds of it.
    "net.ipv4." tcp_mem: [u32; 3] = tcp_mem(1 << 30), 0..=0x7fff_ffff;
    /// Memory beyond the third value of `tcp_mem`, in pages of 4096 bytes, from which connections get their
    /// minimum (`tcp_rmem[0]`, `tcp_wmem[0]`); if there are so many that it does not suffice, each gets an
    /// equal part, but at least 256 bytes. 0: no bound (Linux has none).
    "net.ipv4." tcp_minimum_mem: u32 = 0, 0..=0x7fff_ffff;
    /// Memory of all datagrams queued at UDP sockets, in pages of 4096 bytes. Above the third value
    /// a socket gets no more than `udp_rmem_min`; the others have no effect.
    "net.ipv4." udp_mem: [u32; 3] = udp_mem(tcp_mem(1 << 30)), 0..=0x7fff_ffff;
    /// Bytes of queued datagrams that each UDP socket gets even when `udp_mem` is used up.
    "net.ipv4." udp_rmem_min: u32 = 4096, 0..=0x7fff_ffff;
    /// Most orphaned connections; further ones are reset.
    "net.ipv4." tcp_max_orphans: u32 = 65_536, 0..=0xff_ffff;
    /// Most connections; further ones are refused, and their SYNs answered with RST. TIME-WAIT entries and
    /// half-open connections do not count. 0: no limit (Linux has none).
    "net.ipv4." tcp_max_sockets: u32 = 0, 0..=0xff_ffff;
    /// Most TIME-WAIT entries; each takes about 150 bytes.
    "net.ipv4." tcp_max_tw_buckets: u32 = 65_536, 0..=0xff_ffff;
    /// Reuse of TIME-WAIT entries with timestamps for new connections of this host, one second
    /// after their last segment (RFC 6191): 0 never, 1 always, 2 from and to loopback only.
    "net.ipv4." tcp_tw_reuse: u32 = 1, 0..=2;
}

/// Bytes of a host's memory per expected connection, from which Linux sizes its tables.
const BYTES_PER_CONNECTION: u64 = 128 << 10;
/// Bytes of a limited memory per connection. When all of them hold the least minimum of their buffers (1
/// KiB in blocks) beside their state, they take less than half of the memory.
const BYTES_PER_SOCKET: u64 = 7 << 10;
/// Part of a limited memory from which connections get the minimum of their buffers.
const MINIMUM_PART: u64 = 16;
/// Part of a limited memory that the initial receive buffer of a connection takes at most.
const INITIAL_PART: u64 = 1024;

impl Sysctl {
    /// Returns the limits of a host with `bytes` of memory, or the defaults if the size is unknown.
    #[must_use]
    pub fn for_memory_or_default(bytes: Option<u64>) -> Self {
        bytes.map_or_else(Self::default, |bytes| Self {
            tcp_max_sockets: Self::default().tcp_max_sockets,
            tcp_minimum_mem: Self::default().tcp_minimum_mem,
            // A half-open connection is so small that a burst need not be refused for it.
            tcp_max_syn_backlog: Self::default().tcp_max_syn_backlog,
            ..Self::for_memory(bytes)
        })
    }

    /// Returns the limits of a host with `bytes` of memory in total: queued data takes at most 3/32
    /// of it (`tcp_mem`), and the bounds on orphans and TIME-WAIT entries follow. The shares match
    /// Linux. The number of connections is limited, too (`tcp_max_sockets`): one for 7 KiB.
    /// So is what they get beyond `tcp_mem` (`tcp_minimum_mem`): a 16th.
    #[must_use]
    pub fn for_memory(bytes: u64) -> Self {
        let connections = (bytes / BYTES_PER_CONNECTION).clamp(64, 512 << 10) as u32;
        // The buffer of one connection takes at most a 128th.
        let share = (bytes / 128).min(u32::MAX.into()) as u32;
        let buffer = |initial: u32, most: u32| most.min(share.max(initial));
        let first = (bytes / INITIAL_PART).min(u32::MAX.into()) as u32;
        let first_buffer = |least: u32, initial: u32| initial.min(first.max(2 * least));
        let Self {
            tcp_rmem: [rmem_least, rmem, rmem_most],
            tcp_wmem: [wmem_least, wmem, wmem_most],
            ..
        } = Self::default();
        Self {
            tcp_mem: tcp_mem(bytes / 32 * 3),
            tcp_minimum_mem: tcp_mem(bytes / MINIMUM_PART)[2],
            udp_mem: udp_mem(tcp_mem(bytes / 32 * 3)),
            tcp_max_orphans: connections,
            tcp_max_sockets: (bytes / BYTES_PER_SOCKET).clamp(16, 0xff_ffff) as u32,
            tcp_max_tw_buckets: connections,
            tcp_max_syn_backlog: (connections / 128).max(128),
            tcp_rmem: [
                rmem_least,
                first_buffer(rmem_least, rmem),
                buffer(rmem, rmem_most),
            ],
            tcp_wmem: [wmem_least, wmem, buffer(wmem, wmem_most)],
            ..Self::default()
        }
    }
}

impl Sysctl {
    /// Returns the tunables of one of `shards` hosts that are one host for their users: limits of
    /// the whole host are divided and rounded up.
    #[must_use]
    pub fn share(&self, shards: u32) -> Self {
        let share = |limit: u32| limit.div_ceil(shards.max(1));
        Self {
            tcp_mem: self.tcp_mem.map(share),
            tcp_minimum_mem: share(self.tcp_minimum_mem),
            tcp_max_orphans: share(self.tcp_max_orphans),
            tcp_max_sockets: share(self.tcp_max_sockets),
            tcp_max_tw_buckets: share(self.tcp_max_tw_buckets),
            tcp_max_syn_backlog: share(self.tcp_max_syn_backlog),
            tcp_rst_msgs_per_sec: share(self.tcp_rst_msgs_per_sec),
            tcp_syn_limit: share(self.tcp_syn_limit),
            tcp_challenge_ack_limit: match self.tcp_challenge_ack_limit {
                limits::UNLIMITED => limits::UNLIMITED,
                limit => share(limit),
            },
            ..self.clone()
        }
    }
}

/// Returns `tcp_mem` for a stack whose connections may hold `bytes` bytes in total. The shares
/// match Linux.
///
/// Above the third value a connection gets no more than its minimum: `tcp_wmem[0]` bytes to send
/// and `tcp_rmem[0]` bytes received in order, each in a block of at most twice that, so that each
/// connection makes progress. A host with `n` connections holds at most `bytes`, one super-segment,
/// and `n` times twice the sum of both.
pub const fn tcp_mem(bytes: u64) -> [u32; 3] {
    let pages = bytes / PAGE_BYTES as u64;
    let pages = if pages > 0x7fff_ffff {
        0x7fff_ffff
    } else {
        pages as u32
    };
    [pages / 2, pages - pages / 3, pages]
}

/// Returns the `udp_mem` that belongs to a `tcp_mem`: twice as much, as on Linux.
const fn udp_mem([low, pressure, most]: [u32; 3]) -> [u32; 3] {
    const fn twice(pages: u32) -> u32 {
        if pages > 0x3fff_ffff {
            0x7fff_ffff
        } else {
            2 * pages
        }
    }
    [twice(low), twice(pressure), twice(most)]
}

/// Returns `key` without its prefix.
fn short_name(key: &str) -> &str {
    let key = key.trim();
    key.strip_prefix("net.ipv4.")
        .or_else(|| key.strip_prefix("net.core."))
        .unwrap_or(key)
}

/// The error of reading or setting a tunable.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SysctlError {
    /// There is no tunable of that name.
    Unknown {
        /// The given name.
        key: String,
        /// The most similar name.
        nearest: &'static str,
    },
    /// The tunable does not accept the value.
    BadValue {
        /// The given name.
        key: String,
        /// The given value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}

impl SysctlError {
    fn unknown(key: &str) -> Self {
        let given = short_name(key);
        let common_prefix = |name: &&&str| {
            let known = short_name(name);
            let same = known.bytes().zip(given.bytes());
            same.take_while(|(a, b)| a == b).count()
        };
        Self::Unknown {
            key: key.to_owned(),
            nearest: NAMES.iter().max_by_key(common_prefix).unwrap_or(&""),
        }
    }
}

impl fmt::Display for SysctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key, nearest } => {
                write!(
                    f,
                    "{key:?} is not a tunable; the most similar name is {nearest}"
                )
            }
            Self::BadValue {
                key,
                value,
                allowed,
            } => {
                write!(f, "{key} does not accept {value:?}; write {allowed}")
            }
        }
    }
}

impl core::error::Error for SysctlError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::Sysctl;

    #[test]
    fn every_tunable_reads_back_what_was_set_by_either_name() {
        let mut sysctl = Sysctl::default();
        for (name, value) in Sysctl::default().list() {
            sysctl.set(name, &value).unwrap();
            assert_eq!(sysctl.get(super::short_name(name)).unwrap(), value);
        }
        assert_eq!(sysctl, Sysctl::default());
        sysctl.set("tcp_wmem", "4096 65536,1000000").unwrap();
        assert_eq!(sysctl.tcp_wmem, [4096, 65_536, 1_000_000]);
        sysctl.set("net.ipv4.tcp_sack", "0").unwrap();
        assert!(!sysctl.tcp_sack);
    }

    #[test]
    fn limits_follow_from_memory() {
        let small = Sysctl::for_memory(64 << 20);
        assert_eq!(small.tcp_mem, [768, 1024, 1536]);
        assert_eq!(small.udp_mem, [1536, 2048, 3072]);
        assert_eq!(
            (small.tcp_max_orphans, small.tcp_max_tw_buckets),
            (512, 512)
        );
        assert_eq!(small.tcp_rmem, [4096, 65_536, 524_288]);
        assert_eq!((small.tcp_max_sockets, small.tcp_minimum_mem), (9362, 1024));
        assert_eq!(small.tcp_wmem, [4096, 16_384, 524_288]);
        let large = Sysctl::for_memory(16 << 30);
        assert_eq!(large.tcp_mem, [196_608, 262_144, 393_216]);
        assert_eq!(large.tcp_max_orphans, 131_072);
        let usual = Sysctl::default();
        let of_machine = Sysctl::for_memory_or_default(Some(64 << 20));
        assert_eq!(
            (of_machine.tcp_max_sockets, of_machine.tcp_minimum_mem),
            (0, 0)
        );
        assert_eq!(large.tcp_rmem, usual.tcp_rmem);
        assert_eq!(large.tcp_wmem, usual.tcp_wmem);
    }

    #[test]
    fn limits_of_the_host_are_divided_among_shards() {
        let host = Sysctl::for_memory(64 << 20);
        let share = host.share(3);
        assert_eq!(share.tcp_mem, [256, 342, 512]);
        assert_eq!(
            (share.tcp_max_orphans, share.tcp_max_tw_buckets),
            (171, 171)
        );
        assert_eq!(share.tcp_minimum_mem, 342);
        assert_eq!(share.tcp_challenge_ack_limit, host.tcp_challenge_ack_limit);
        assert_eq!(share.tcp_rmem, host.tcp_rmem);
        assert_eq!(host.share(1), host);
        let limited = Sysctl {
            tcp_challenge_ack_limit: 100,
            ..host
        };
        assert_eq!(limited.share(4).tcp_challenge_ack_limit, 25);
    }

    #[test]
    fn errors_name_the_value_and_the_allowed_ones() {
        let mut sysctl = Sysctl::default();
        let mut error = |key, value| sysctl.set(key, value).unwrap_err().to_string();
        assert_eq!(
            error("tcp_sack", "yes"),
            "tcp_sack does not accept \"yes\"; write 0 (off) or 1 (on)"
        );
        assert_eq!(
            error("net.ipv4.tcp_rmem", "8192 4096 9000"),
            "net.ipv4.tcp_rmem does not accept \"8192 4096 9000\"; write three numbers in \
             ascending order (minimum, initial, maximum), each from 4096 to 1073741823"
        );
        assert_eq!(
            error("tcp_reordering", "-1"),
            "tcp_reordering does not accept \"-1\"; write a number from 1 to 300"
        );
        assert_eq!(
            error("tcp_keepalive_tim", "1"),
            "\"tcp_keepalive_tim\" is not a tunable; the most similar name is \
             net.ipv4.tcp_keepalive_time"
        );
        assert_eq!(
            error("tcp_available_congestion_control", "cubic"),
            "tcp_available_congestion_control does not accept \"cubic\"; write nothing, as the \
             tunable is read-only"
        );
        assert_eq!(
            error("tcp_allowed_congestion_control", "vegas"),
            "tcp_allowed_congestion_control does not accept \"vegas\"; write one or more of cubic \
             reno bbr dctcp, separated by spaces"
        );
        assert_eq!(sysctl, Sysctl::default());
    }
}
