//! The host's TCP tunables, under Linux's names.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::ops::RangeInclusive;

use crate::congestion::CongestionSet;
use crate::{FastopenKeys, PAGE_BYTES, congestion, limits};

/// Declares the tunables: prefix, name, type, default, what is allowed.
macro_rules! sysctls {
    ($($(#[$doc:meta])* $prefix:literal $field:ident: $ty:ty = $default:expr, $allowed:expr;)*) => {
        /// `net.ipv4.tcp_*` and `net.core.*`, readable and settable live by name. Values are in
        /// the units Linux has for them.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct Sysctl { $($(#[$doc])* pub $field: $ty,)* }

        impl Default for Sysctl {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        /// Every tunable's full name.
        const NAMES: &[&str] = &[$(concat!($prefix, stringify!($field)),)*];

        impl Sysctl {
            /// Sets `key` (with or without `net.ipv4.` or `net.core.`) from Linux's text form.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), SysctlError> {
                match short_name(key) {
                    $(stringify!($field) => {
                        self.$field = Tunable::parse(value, &$allowed).map_err(|want| {
                            SysctlError::BadValue {
                                key: key.to_owned(),
                                value: value.to_owned(),
                                want,
                            }
                        })?;
                    })*
                    _ => return Err(SysctlError::unknown(key)),
                }
                Ok(())
            }

            /// The value of `key` (with or without prefix) in Linux's text form.
            pub fn get(&self, key: &str) -> Result<String, SysctlError> {
                match short_name(key) {
                    $(stringify!($field) => Ok(Tunable::show(&self.$field)),)*
                    _ => Err(SysctlError::unknown(key)),
                }
            }

            /// Every tunable: full name and value.
            pub fn list(&self) -> impl Iterator<Item = (&'static str, String)> {
                [$((concat!($prefix, stringify!($field)), Tunable::show(&self.$field)),)*]
                    .into_iter()
            }
        }
    };
}

/// Bytes of one buffer: a whole TU at least, and sums of two stay within 32 bits.
const BUFFER: RangeInclusive<u32> = 4096..=0x3fff_ffff;

/// What `tcp_rto_max_ms` and `TCP_RTO_MAX_MS` allow.
const RTO_MAX_MS: RangeInclusive<u32> = 1000..=120_000;

sysctls! {
    /// Receive buffer: least, initial, most bytes.
    "net.ipv4." tcp_rmem: [u32; 3] = [4096, 131_072, 6_291_456], BUFFER;
    /// Send buffer: least, initial, most bytes.
    "net.ipv4." tcp_wmem: [u32; 3] = [4096, 16_384, 4_194_304], BUFFER;
    /// A window may be taken back where the reader leaves no room for what was offered.
    "net.ipv4." tcp_shrink_window: bool = false, ();
    /// Most bytes `SO_RCVBUF` can ask for.
    "net.core." rmem_max: u32 = 4_194_304, BUFFER;
    /// Most bytes `SO_SNDBUF` can ask for.
    "net.core." wmem_max: u32 = 4_194_304, BUFFER;
    /// Pieces of a user's memory that one transmit unit takes (`MSG_ZEROCOPY`).
    "net.core." max_skb_frags: u32 = 17, 1..=17;
    /// Explicit congestion notification: 0 never; RFC 3168's 1 asked for and granted, 2 granted to
    /// peers that ask. Accurate ECN (RFC 9768) granted to peers that ask, and 3 asked for, 4
    /// RFC 3168's asked for, 5 nothing asked for.
    "net.ipv4." tcp_ecn: u32 = 2, 0..=5;
    /// A SYN that is sent again asks for ECN no longer (RFC 3168 6.1.1.1).
    "net.ipv4." tcp_ecn_fallback: bool = true, ();
    /// Accurate ECN's option: 0 never, 1 when it tells something new or was not sent for long, 2
    /// with each segment that has room, 3 also where it seems to be lost on the way.
    "net.ipv4." tcp_ecn_option: u32 = 2, 0..=3;
    /// How often a round trip the option goes at least while `tcp_ecn_option` is 1.
    "net.ipv4." tcp_ecn_option_beacon: u32 = 3, 0..=63;
    /// Congestion control of new connections.
    "net.ipv4." tcp_congestion_control: &'static str = "cubic", congestion::AVAILABLE;
    /// The congestion controls that there are; read only.
    "net.ipv4." tcp_available_congestion_control: CongestionSet = CongestionSet::ALL, ReadOnly(true);
    /// Those that `TCP_CONGESTION` may choose.
    "net.ipv4." tcp_allowed_congestion_control: CongestionSet = CongestionSet::ALL, ReadOnly(false);
    /// The receive buffer grows with what the reader takes per round trip.
    "net.ipv4." tcp_moderate_rcvbuf: bool = true, ();
    /// Offer window scaling (RFC 7323 2).
    "net.ipv4." tcp_window_scaling: bool = true, ();
    /// Offer timestamps (RFC 7323 3).
    "net.ipv4." tcp_timestamps: bool = true, ();
    /// Offer selective acknowledgement (RFC 2018).
    "net.ipv4." tcp_sack: bool = true, ();
    /// Report duplicates (RFC 2883).
    "net.ipv4." tcp_dsack: bool = true, ();
    /// Duplicate acknowledgements (or segments SACKed above) that mean loss (RFC 6675 DupThresh).
    "net.ipv4." tcp_reordering: u32 = 3, 1..=300;
    /// More reordering than this is not believed, in segments.
    "net.ipv4." tcp_max_reordering: u32 = 300, 1..=300;
    /// Loss detection by time (RFC 8985), in bits: 1 is on, 2 keeps the reordering window at a
    /// quarter of the least round trip, 4 ignores the number of duplicates. Without bit 1 the
    /// number alone tells (RFC 6675).
    "net.ipv4." tcp_recovery: u32 = 1, 0..=7;
    /// Tail loss probes (RFC 8985 7): 3 and 4 are on.
    "net.ipv4." tcp_early_retrans: u32 = 3, 0..=4;
    /// Detect spurious timeouts by what new text draws (RFC 5682): not 0 is on.
    "net.ipv4." tcp_frto: u32 = 2, 0..=2;
    /// Microseconds that a retransmission timeout grants beyond the round trip, at least; of new
    /// connections.
    "net.ipv4." tcp_rto_min_us: u32 = 200_000, 1..=2_000_000;
    /// Milliseconds that a retransmission timeout takes at most; of new connections, their SYN-ACKs
    /// too.
    "net.ipv4." tcp_rto_max_ms: u32 = 120_000, RTO_MAX_MS;
    /// Connections with less than four segments in flight do not back off at once.
    "net.ipv4." tcp_thin_linear_timeouts: bool = false, ();
    /// Restart slowly after an idle time (RFC 2861).
    "net.ipv4." tcp_slow_start_after_idle: bool = true, ();
    /// Unsent bytes above which a socket is not writable.
    "net.ipv4." tcp_notsent_lowat: u32 = u32::MAX, 1..=u32::MAX;
    /// Small writes wait while the device still has something of the connection to send.
    "net.ipv4." tcp_autocorking: bool = true, ();
    /// Bytes of one unpaced connection that may stand in the host's queues (TCP Small Queues).
    "net.ipv4." tcp_limit_output_bytes: u32 = 4_194_304, 4096..=0x3fff_ffff;
    /// Least segments in a super-segment, whatever the pacing rate says.
    "net.ipv4." tcp_min_tso_segs: u32 = 2, 1..=65_535;
    /// Each such power of two microseconds of `min_rtt` halves the burst a super-segment may be.
    "net.ipv4." tcp_tso_rtt_log: u32 = 9, 0..=31;
    /// A super-segment waits for more until it is this part of the window.
    "net.ipv4." tcp_tso_win_divisor: u32 = 3, 0..=65_535;
    /// Pacing rate in slow start, percent of cwnd per srtt.
    "net.ipv4." tcp_pacing_ss_ratio: u32 = 200, 1..=1000;
    /// Pacing rate in congestion avoidance, percent of cwnd per srtt.
    "net.ipv4." tcp_pacing_ca_ratio: u32 = 120, 1..=1000;
    /// TCP Fast Open, bits: 1 clients, 2 servers, 4 clients without cookie, 0x200 servers without
    /// cookie, 0x400 all listeners without asking.
    "net.ipv4." tcp_fastopen: u32 = 1, 0..=0x7fff_ffff;
    /// The keys of Fast Open's cookies, four groups of eight hexadecimal digits for each of one or
    /// two (primary, backup); empty: the host's own.
    "net.ipv4." tcp_fastopen_key: Option<FastopenKeys> = None, ();
    /// Seconds that clients do without Fast Open once the path swallowed what it sent, doubled
    /// each time; 0: such paths are not looked for.
    "net.ipv4." tcp_fastopen_blackhole_timeout_sec: u32 = 0, 0..=0x7fff_ffff;
    /// Probe for the path's MTU with segments of text (RFC 4821): 0 never, 1 where a black hole is
    /// suspected, 2 always.
    "net.ipv4." tcp_mtu_probing: u32 = 0, 0..=2;
    /// MSS in bytes that such a search begins with.
    "net.ipv4." tcp_base_mss: u32 = 1024, 48..=65_535;
    /// Least MSS in bytes that a black hole makes us use. Linux has 48; a path that merely loses
    /// much would end there, and our least path MTU over IPv4 (552) takes this.
    "net.ipv4." tcp_mtu_probe_floor: u32 = 512, 48..=65_535;
    /// Seconds after which a search that ended begins anew.
    "net.ipv4." tcp_probe_interval: u32 = 600, 0..=0x7fff_ffff;
    /// Bytes of the range at which a search ends.
    "net.ipv4." tcp_probe_threshold: u32 = 8, 0..=65_535;
    /// Retransmission timeouts in a row before the path is suspected.
    "net.ipv4." tcp_retries1: u32 = 3, 1..=255;
    /// SYNs sent again a second after each other, before their timeouts double; in addition to
    /// `tcp_syn_retries`.
    "net.ipv4." tcp_syn_linear_timeouts: u32 = 4, 0..=127;
    /// SYNs sent again before a connect fails.
    "net.ipv4." tcp_syn_retries: u32 = 6, 1..=127;
    /// SYN-ACKs sent again before a passive open is dropped.
    "net.ipv4." tcp_synack_retries: u32 = 5, 0..=127;
    /// SYN cookies: 0 never, 1 when a listener's queue of half-open connections is full, 2 always.
    "net.ipv4." tcp_syncookies: u32 = 1, 0..=2;
    /// SYN-ACKs a second that may bring no connection, to all sources, about; twice as many at once,
    /// half as many to one source; 0: no limit (ours; Linux has no limit).
    "net.ipv4." tcp_syn_limit: u32 = 8192, 0..=1_000_000;
    /// Most half-open connections of a listener where there are no SYN cookies.
    "net.ipv4." tcp_max_syn_backlog: u32 = 4096, 1..=0xff_ffff;
    /// Most connections that wait to be accepted, whatever backlog a listener asks for; as many
    /// may be half open.
    "net.core." somaxconn: u32 = 4096, 1..=0xff_ffff;
    /// Connections that find the accept queue full are reset, and do not wait.
    "net.ipv4." tcp_abort_on_overflow: bool = false, ();
    /// Retransmission timeouts in a row before a connection fails.
    "net.ipv4." tcp_retries2: u32 = 15, 1..=127;
    /// The same for a connection its user has let go of.
    "net.ipv4." tcp_orphan_retries: u32 = 8, 1..=127;
    /// Seconds an orphan stays in FIN-WAIT-2.
    "net.ipv4." tcp_fin_timeout: u32 = 60, 1..=86_400;
    /// Idle seconds before the first keepalive probe.
    "net.ipv4." tcp_keepalive_time: u32 = 7200, 1..=32_767;
    /// Seconds between keepalive probes.
    "net.ipv4." tcp_keepalive_intvl: u32 = 75, 1..=32_767;
    /// Keepalive probes without answer before the connection fails.
    "net.ipv4." tcp_keepalive_probes: u32 = 9, 1..=127;
    /// Least path MSS in bytes that a peer or an ICMP message can make us use.
    "net.ipv4." tcp_min_snd_mss: u32 = 48, 48..=65_535;
    /// Milliseconds between answers to out-of-window segments of one connection (RFC 5961 10).
    "net.ipv4." tcp_invalid_ratelimit: u32 = 500, 0..=2_147_483;
    /// Challenge ACKs that the host sends in a second, about (RFC 5961 7); the largest value is no
    /// limit.
    "net.ipv4." tcp_challenge_ack_limit: u32 = limits::UNLIMITED, 0..=limits::UNLIMITED;
    /// RSTs a second, about, that answer segments of no connection, a tenth of it at once (ours;
    /// Linux has no limit).
    "net.ipv4." tcp_rst_msgs_per_sec: u32 = 10_000, 0..=1_000_000;
    /// Milliseconds between ICMP errors to one host (IPv6: one /64), six at once; 0: no limit.
    "net.ipv4." icmp_ratelimit: u32 = 1000, 0..=2_147_483;
    /// ICMP errors a second, about, that the host sends in all.
    "net.ipv4." icmp_msgs_per_sec: u32 = 1000, 0..=1_000_000;
    /// As many at once.
    "net.ipv4." icmp_msgs_burst: u32 = 50, 0..=1_000_000;
    /// Ports that we choose for connections, first and last (RFC 6056).
    "net.ipv4." ip_local_port_range: [u16; 2] = [32_768, 60_999], 1..=65_535;
    /// Connections in TIME-WAIT ignore RST (RFC 1337).
    "net.ipv4." tcp_rfc1337: bool = false, ();
    /// Memory of all connections, in pages of 4096 bytes: below the first there is plenty, above
    /// the second buffers no longer grow, above the third nobody gets more. By default the last
    /// is 1 GiB, the others half and two thirds of it.
    "net.ipv4." tcp_mem: [u32; 3] = tcp_mem(1 << 30), 0..=0x7fff_ffff;
    /// Memory of all datagrams that wait at UDP sockets, in pages of 4096 bytes. Above the third
    /// value a socket gets no more than `udp_rmem_min`; the others have no effect.
    "net.ipv4." udp_mem: [u32; 3] = udp_mem(tcp_mem(1 << 30)), 0..=0x7fff_ffff;
    /// Bytes of waiting datagrams that each UDP socket gets even when `udp_mem` is used up.
    "net.ipv4." udp_rmem_min: u32 = 4096, 0..=0x7fff_ffff;
    /// Connections that may live on without a user; beyond, they are reset.
    "net.ipv4." tcp_max_orphans: u32 = 65_536, 0..=0xff_ffff;
    /// Connections in TIME-WAIT that are remembered; each takes some 150 bytes.
    "net.ipv4." tcp_max_tw_buckets: u32 = 65_536, 0..=0xff_ffff;
    /// Connections of ours may take the place of one in TIME-WAIT that used timestamps, a second
    /// after its last segment (RFC 6191): 0 never, 1 always, 2 from and to loopback only.
    "net.ipv4." tcp_tw_reuse: u32 = 1, 0..=2;
}

/// A connection is counted on for each such part of a host's memory, as Linux sizes its tables.
const BYTES_PER_CONNECTION: u64 = 128 << 10;

impl Sysctl {
    /// The limits of a host that has `bytes` of memory, or the defaults where that is not known.
    #[must_use]
    pub fn for_memory_of(bytes: Option<u64>) -> Self {
        bytes.map_or_else(Self::default, |bytes| Self {
            // A half-open connection takes so little that a burst need not be refused for it.
            tcp_max_syn_backlog: Self::default().tcp_max_syn_backlog,
            ..Self::for_memory(bytes)
        })
    }

    /// The limits of a host that has this much memory in all: queued text takes 3/32 of it at most
    /// (`tcp_mem`), and the bounds on connections that nobody owns follow. The shares are Linux's.
    #[must_use]
    pub fn for_memory(bytes: u64) -> Self {
        let connections = (bytes / BYTES_PER_CONNECTION).clamp(64, 512 << 10) as u32;
        // One connection's buffer is a 128th at most.
        let share = (bytes / 128).min(u32::MAX.into()) as u32;
        let buffer = |initial: u32, most: u32| most.min(share.max(initial));
        let Self {
            tcp_rmem: [rmem_least, rmem, rmem_most],
            tcp_wmem: [wmem_least, wmem, wmem_most],
            ..
        } = Self::default();
        Self {
            tcp_mem: tcp_mem(bytes / 32 * 3),
            udp_mem: udp_mem(tcp_mem(bytes / 32 * 3)),
            tcp_max_orphans: connections,
            tcp_max_tw_buckets: connections,
            tcp_max_syn_backlog: (connections / 128).max(128),
            tcp_rmem: [rmem_least, rmem, buffer(rmem, rmem_most)],
            tcp_wmem: [wmem_least, wmem, buffer(wmem, wmem_most)],
            ..Self::default()
        }
    }
}

/// `tcp_mem` for a stack whose connections may hold this many bytes in all. The shares are
/// Linux's.
///
/// Above the third value a connection gets no more than its least: `tcp_wmem[0]` bytes to send and
/// `tcp_rmem[0]` received in order, each in a block of at most twice that, so that each makes
/// progress. A host with `n` connections holds at most `bytes`, one super-segment, and `n` times
/// twice the sum of both.
pub const fn tcp_mem(bytes: u64) -> [u32; 3] {
    let pages = bytes / PAGE_BYTES as u64;
    let pages = if pages > 0x7fff_ffff {
        0x7fff_ffff
    } else {
        pages as u32
    };
    [pages / 2, pages - pages / 3, pages]
}

/// `udp_mem` beside this `tcp_mem`: twice as much, as on Linux.
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

/// `key` without its prefix.
fn short_name(key: &str) -> &str {
    let key = key.trim();
    key.strip_prefix("net.ipv4.")
        .or_else(|| key.strip_prefix("net.core."))
        .unwrap_or(key)
}

/// A type a tunable can have.
trait Tunable: Sized {
    /// What is allowed.
    type Allowed;
    /// From text; else what would have been right.
    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String>;
    /// To text.
    fn show(&self) -> String;
}

impl Tunable for u32 {
    type Allowed = RangeInclusive<Self>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let text = text.trim();
        let value = match text.strip_prefix("0x") {
            Some(digits) => Self::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        value
            .filter(|v| allowed.contains(v))
            .ok_or_else(|| format!("a number from {} to {}", allowed.start(), allowed.end()))
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Tunable for Option<FastopenKeys> {
    type Allowed = ();

    fn parse(text: &str, (): &()) -> Result<Self, String> {
        let mut keys = text.trim().split(',').map(str::trim);
        let found = match (keys.next(), keys.next(), keys.next()) {
            (Some(""), None, None) => Some(None),
            (Some(primary), None, None) => fastopen_key(primary).map(|primary| {
                let backup = None;
                Some(FastopenKeys { primary, backup })
            }),
            (Some(primary), Some(backup), None) => fastopen_key(primary).and_then(|primary| {
                let backup = Some(fastopen_key(backup)?);
                Some(Some(FastopenKeys { primary, backup }))
            }),
            _ => None,
        };
        found.ok_or_else(|| {
            "nothing, or one or two keys like 00112233-44556677-8899aabb-ccddeeff with a comma \
             between them"
                .to_owned()
        })
    }

    fn show(&self) -> String {
        let Some(keys) = self else {
            return String::new();
        };
        let words = |key: &[u8; 16]| {
            let (words, _) = key.as_chunks::<4>();
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| u32::from_le_bytes(words[i]));
            format!("{a:08x}-{b:08x}-{c:08x}-{d:08x}")
        };
        let backup = keys.backup.as_ref();
        let backup = backup.map_or_else(String::new, |key| format!(",{}", words(key)));
        words(&keys.primary) + &backup
    }
}

/// A Fast Open key in Linux's text form: the groups are little-endian.
fn fastopen_key(text: &str) -> Option<[u8; 16]> {
    let mut key = [0; 16];
    let mut groups = text.split('-');
    for word in key.as_chunks_mut::<4>().0 {
        let group = groups.next().filter(|g| matches!(g.len(), 1..=8))?;
        *word = u32::from_str_radix(group, 16).ok()?.to_le_bytes();
    }
    groups.next().is_none().then_some(key)
}

impl Tunable for [u16; 2] {
    type Allowed = RangeInclusive<u16>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let mut words = text.split_whitespace().map(str::parse);
        match (words.next(), words.next(), words.next()) {
            (Some(Ok(first)), Some(Ok(last)), None)
                if first <= last && allowed.contains(&first) && allowed.contains(&last) =>
            {
                Ok([first, last])
            }
            _ => Err(format!(
                "two rising ports (first, last), each from {} to {}",
                allowed.start(),
                allowed.end()
            )),
        }
    }

    fn show(&self) -> String {
        let [first, last] = self;
        format!("{first}\t{last}")
    }
}

impl Tunable for bool {
    type Allowed = ();

    fn parse(text: &str, (): &()) -> Result<Self, String> {
        match text.trim() {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err("0 (off) or 1 (on)".to_owned()),
        }
    }

    fn show(&self) -> String {
        u8::from(*self).to_string()
    }
}

/// Only what it is already.
struct ReadOnly(bool);

impl Tunable for CongestionSet {
    type Allowed = ReadOnly;

    fn parse(text: &str, ReadOnly(read_only): &ReadOnly) -> Result<Self, String> {
        let set = Self::parse(text).filter(|set| !read_only || *set == Self::ALL);
        set.ok_or_else(|| match read_only {
            true => "nothing: it is read only".to_owned(),
            false => format!("some of: {}", Self::ALL),
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Tunable for &'static str {
    type Allowed = [&'static str; congestion::AVAILABLE.len()];

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let known = allowed.iter().find(|&&name| name == text.trim());
        known
            .copied()
            .ok_or_else(|| format!("one of: {}", allowed.join(", ")))
    }

    fn show(&self) -> String {
        (*self).to_owned()
    }
}

impl Tunable for [u32; 3] {
    type Allowed = RangeInclusive<u32>;

    fn parse(text: &str, allowed: &Self::Allowed) -> Result<Self, String> {
        let mut values = [0; 3];
        let mut words = text.split(|c: char| c.is_whitespace() || c == ',');
        let mut words = words.by_ref().filter(|w| !w.is_empty());
        let all_parsed = values.iter_mut().all(|slot| {
            let value = words.next().and_then(|w| w.parse().ok());
            value
                .filter(|v| allowed.contains(v))
                .map(|v| *slot = v)
                .is_some()
        });
        let ordered = values.is_sorted();
        if !all_parsed || !ordered || words.next().is_some() {
            return Err(format!(
                "three rising numbers (least, initial, most), each from {} to {}",
                allowed.start(),
                allowed.end()
            ));
        }
        Ok(values)
    }

    fn show(&self) -> String {
        let [least, initial, most] = self;
        format!("{least}\t{initial}\t{most}")
    }
}

/// Why a tunable could not be read or set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SysctlError {
    /// There is no tunable of that name.
    Unknown {
        /// The name given.
        key: String,
        /// The one most like it.
        nearest: &'static str,
    },
    /// The value does not fit.
    BadValue {
        /// The name given.
        key: String,
        /// The value given.
        value: String,
        /// What would fit.
        want: String,
    },
}

impl SysctlError {
    fn unknown(key: &str) -> Self {
        let given = short_name(key);
        let likeness = |name: &&&str| {
            let known = short_name(name);
            let same = known.bytes().zip(given.bytes());
            same.take_while(|(a, b)| a == b).count()
        };
        Self::Unknown {
            key: key.to_owned(),
            nearest: NAMES.iter().max_by_key(likeness).unwrap_or(&""),
        }
    }
}

impl fmt::Display for SysctlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { key, nearest } => {
                write!(f, "there is no tunable {key:?}; the nearest is {nearest}")
            }
            Self::BadValue { key, value, want } => {
                write!(f, "{key} cannot be {value:?}: give {want}")
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
        assert_eq!(small.tcp_rmem, [4096, 131_072, 524_288]);
        assert_eq!(small.tcp_wmem, [4096, 16_384, 524_288]);
        let large = Sysctl::for_memory(16 << 30);
        assert_eq!(large.tcp_mem, [196_608, 262_144, 393_216]);
        assert_eq!(large.tcp_max_orphans, 131_072);
        let usual = Sysctl::default();
        assert_eq!(large.tcp_rmem, usual.tcp_rmem);
        assert_eq!(large.tcp_wmem, usual.tcp_wmem);
    }

    #[test]
    fn errors_name_the_value_and_the_mend() {
        let mut sysctl = Sysctl::default();
        let mut error = |key, value| sysctl.set(key, value).unwrap_err().to_string();
        assert_eq!(
            error("tcp_sack", "yes"),
            "tcp_sack cannot be \"yes\": give 0 (off) or 1 (on)"
        );
        assert_eq!(
            error("net.ipv4.tcp_rmem", "8192 4096 9000"),
            "net.ipv4.tcp_rmem cannot be \"8192 4096 9000\": give three rising numbers (least, \
             initial, most), each from 4096 to 1073741823"
        );
        assert_eq!(
            error("tcp_reordering", "-1"),
            "tcp_reordering cannot be \"-1\": give a number from 1 to 300"
        );
        assert_eq!(
            error("tcp_keepalive_tim", "1"),
            "there is no tunable \"tcp_keepalive_tim\"; the nearest is net.ipv4.tcp_keepalive_time"
        );
        assert_eq!(
            error("tcp_available_congestion_control", "cubic"),
            "tcp_available_congestion_control cannot be \"cubic\": give nothing: it is read only"
        );
        assert_eq!(
            error("tcp_allowed_congestion_control", "vegas"),
            "tcp_allowed_congestion_control cannot be \"vegas\": give some of: cubic reno bbr dctcp"
        );
        assert_eq!(sysctl, Sysctl::default());
    }
}
