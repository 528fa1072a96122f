//! Events that an operator should read about: a driver takes them and writes them to its log.
//!
//! Each kind is reported at most once a minute, with how often it happened since.

use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv6Addr;

use fullsend_units::{Instant, Nanos};

use crate::Host;

/// How often the counters are compared.
const LOOK_EVERY: Nanos = Nanos::from_secs(1);
/// How long one kind of notice stays silent after it was given.
const SILENCE: Nanos = Nanos::from_secs(60);
/// Most addresses that wait to be reported.
const MAX_ADDRESSES: usize = 16;

/// An event for the log. Its text says what happened, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Notice {
    /// Duplicate address detection found this address of ours at another host (RFC 4862 5.4.5).
    DuplicateAddress(Ipv6Addr),
    /// The connections hold more memory than `tcp_mem[1]`.
    MemoryPressure {
        /// Pages of 4096 bytes in use now.
        pages: u64,
        /// `tcp_mem`: below the first there is no pressure, above the third memory is refused.
        limits: [u32; 3],
        /// Times that pressure began since the last notice.
        times: u64,
    },
    /// Listeners have more half-open connections than their backlog holds.
    SynFlood {
        /// SYNs answered with a cookie since the last notice.
        cookies: u64,
        /// SYNs dropped since, because cookies are off or for the limit of SYN-ACKs.
        dropped: u64,
    },
    /// Segments of the path's MTU vanish without an ICMP message (RFC 4821 7.7).
    PathMtuBlackHole {
        /// Times since the last notice that a connection went down to smaller segments.
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
                 since the last message; a larger backlog helps if they are genuine"
            ),
            Self::PathMtuBlackHole { times } => write!(
                f,
                "path MTU black hole suspected {times} times since the last message: large \
                 segments vanish without an ICMP message; a smaller MTU helps"
            ),
        }
    }
}

/// One counted kind of notice.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// The counter's value in the last notice.
    seen: u64,
    silent_until: Instant,
}

impl Kind {
    /// Returns the growth of `counter` since the last notice, if it is time for another one.
    fn grown(&mut self, now: Instant, counter: u64) -> Option<u64> {
        let grown = counter - self.seen;
        if grown == 0 || now < self.silent_until {
            return None;
        }
        self.seen = counter;
        self.silent_until = now + SILENCE;
        Some(grown)
    }
}

/// What was reported, and what waits to be.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    next_look: Instant,
    duplicates: Vec<Ipv6Addr>,
    pressure: Kind,
    flood: Kind,
    /// SYNs dropped up to the last notice of a flood.
    dropped: u64,
    black_holes: Kind,
}

impl Notices {
    pub(crate) fn on_duplicate_address(&mut self, address: Ipv6Addr) {
        if self.duplicates.len() < MAX_ADDRESSES {
            self.duplicates.push(address);
        }
    }
}

impl Host {
    /// Returns what an operator should read in the log; a driver calls this now and then, as often
    /// as it likes.
    #[inline]
    pub fn take_notices(&mut self, now: Instant) -> Vec<Notice> {
        if now < self.notices.next_look {
            return Vec::new();
        }
        self.collect_notices(now)
    }

    #[cold]
    fn collect_notices(&mut self, now: Instant) -> Vec<Notice> {
        let notices = &mut self.notices;
        notices.next_look = now + LOOK_EVERY;
        let mut out: Vec<Notice> = notices
            .duplicates
            .drain(..)
            .map(Notice::DuplicateAddress)
            .collect();
        if let Some(times) = notices.pressure.grown(now, self.env.mib.memory_pressures) {
            out.push(Notice::MemoryPressure {
                pages: self.env.mem.pages(),
                limits: self.env.sysctl.tcp_mem,
                times,
            });
        }
        let mib = &self.mib.socket;
        let dropped = mib.req_q_full_drop + mib.syns_limited;
        let syns = mib.req_q_full_do_cookies + dropped;
        if let Some(syns) = notices.flood.grown(now, syns) {
            let before = core::mem::replace(&mut notices.dropped, dropped);
            let dropped = dropped - before;
            out.push(Notice::SynFlood {
                cookies: syns - dropped,
                dropped,
            });
        }
        if let Some(times) = notices.black_holes.grown(now, self.env.mib.black_holes) {
            out.push(Notice::PathMtuBlackHole { times });
        }
        out
    }
}
