//! Events that an operator should read about. A driver polls them and writes them to its log.
//!
//! Each kind is reported at most once a minute, with the number of times it happened since the last
//! report.

use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;

use fullsend_wire::{Instant, Nanos};

use crate::Host;

/// Interval at which the counters are compared.
const CHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// Minimum time between two notices of one kind.
const MIN_NOTICE_INTERVAL: Nanos = Nanos::from_secs(60);
/// Maximum number of duplicate addresses waiting to be reported.
const MAX_ADDRESSES: usize = 16;

/// An event for the log. Its `Display` text names the event and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Duplicate address detection found a local address at another host (RFC 4862 5.4.5).
    DuplicateAddress(Ipv6Addr),
    /// Connections hold more memory than `tcp_mem[1]`.
    MemoryPressure {
        /// Pages of 4096 bytes in use now.
        pages: u64,
        /// `tcp_mem`, in pages: below the first there is no pressure, above the third memory is
        /// refused.
        limits: [u32; 3],
        /// Number of times that memory pressure began since the last notice.
        times: u64,
    },
    /// Listeners have more half-open connections than their backlog holds.
    SynFlood {
        /// SYNs answered with a cookie since the last notice.
        cookies: u64,
        /// SYNs dropped since the last notice, because cookies are off or by the SYN-ACK rate
        /// limit.
        dropped: u64,
    },
    /// The host has `tcp_max_sockets` connections, and refused further ones.
    TooManySockets {
        /// Maximum number of connections.
        max: u32,
        /// Connections refused since the last notice.
        times: u64,
    },
    /// Segments of the path's MTU vanish without an ICMP message (RFC 4821 7.7).
    PathMtuBlackHole {
        /// Number of times since the last notice that a connection reduced its segment size.
        times: u64,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateAddress(address) => write!(
                f,
                "{address} is not used: another host on the link has it; give this stack another \
                 address"
            ),
            Self::MemoryPressure {
                pages,
                limits: [low, high, max],
                times,
            } => write!(
                f,
                "memory pressure: connections hold {pages} pages, and tcp_mem is {low} {high} \
                 {max} ({times} times since the last message); close connections or raise tcp_mem"
            ),
            Self::SynFlood { cookies, dropped } => write!(
                f,
                "possible SYN flood: {cookies} SYNs answered with cookies and {dropped} dropped \
                 since the last message; if they are genuine, use a larger backlog"
            ),
            Self::TooManySockets { max, times } => write!(
                f,
                "{times} connections were refused since the last message: there are {max}, the most \
                 that tcp_max_sockets allows; raise tcp_max_sockets or the stack's memory"
            ),
            Self::PathMtuBlackHole { times } => write!(
                f,
                "path MTU black hole suspected {times} times since the last message: large \
                 segments are lost without an ICMP message; use a smaller MTU"
            ),
        }
    }
}

/// One kind of notice that is derived from a counter.
#[derive(Clone, Copy, Debug, Default)]
struct NoticeCounter {
    /// The counter's value at the last notice.
    reported: u64,
    silent_until: Instant,
}

impl NoticeCounter {
    /// Returns the growth of `counter` since the last notice, if another notice may be given now.
    fn take_increase(&mut self, now: Instant, counter: u64) -> Option<u64> {
        let increase = counter - self.reported;
        if increase == 0 || now < self.silent_until {
            return None;
        }
        self.reported = counter;
        self.silent_until = now + MIN_NOTICE_INTERVAL;
        Some(increase)
    }
}

/// The notices already given and those still to be reported.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    next_check: Instant,
    duplicates: Vec<Ipv6Addr>,
    pressure: NoticeCounter,
    flood: NoticeCounter,
    /// SYNs dropped up to the last SYN flood notice.
    dropped: u64,
    black_holes: NoticeCounter,
    sockets: NoticeCounter,
}

impl Notices {
    pub(crate) fn on_duplicate_address(&mut self, address: Ipv6Addr) {
        if self.duplicates.len() < MAX_ADDRESSES {
            self.duplicates.push(address);
        }
    }
}

impl Host {
    /// Returns the new notices for the log. A driver may call this as often as it likes; the
    /// counters are compared once a second.
    #[inline]
    pub fn take_notices(&mut self, now: Instant) -> Vec<Notice> {
        if now < self.notices.next_check {
            return Vec::new();
        }
        self.collect_notices(now)
    }

    #[cold]
    fn collect_notices(&mut self, now: Instant) -> Vec<Notice> {
        let notices = &mut self.notices;
        notices.next_check = now + CHECK_INTERVAL;
        let mut out: Vec<Notice> = notices
            .duplicates
            .drain(..)
            .map(Notice::DuplicateAddress)
            .collect();
        if let Some(times) = notices
            .pressure
            .take_increase(now, self.env.mib.memory_pressures)
        {
            out.push(Notice::MemoryPressure {
                pages: self.env.mem.pages(),
                limits: self.env.sysctl.tcp_mem,
                times,
            });
        }
        let mib = &self.mib.socket;
        let dropped = mib.req_q_full_drop + mib.syns_limited;
        let syns = mib.req_q_full_do_cookies + dropped;
        if let Some(syns) = notices.flood.take_increase(now, syns) {
            let before = core::mem::replace(&mut notices.dropped, dropped);
            let dropped = dropped - before;
            out.push(Notice::SynFlood {
                cookies: syns - dropped,
                dropped,
            });
        }
        if let Some(times) = notices.sockets.take_increase(now, mib.sockets_limited) {
            let max = self.env.sysctl.tcp_max_sockets;
            out.push(Notice::TooManySockets { max, times });
        }
        if let Some(times) = notices
            .black_holes
            .take_increase(now, self.env.mib.black_holes)
        {
            out.push(Notice::PathMtuBlackHole { times });
        }
        out
    }
}
