//! The memory of all connections of a host, and its limits (`tcp_mem`).

use fullsend_wire::Instant;

use crate::sysctl::PAGE_BYTES;
use crate::{Sysctl, TcpMib};

/// Added to the page count while the allocator refuses memory. It exceeds every limit, so that a
/// comparison of the count with a limit covers this case too.
const REFUSED: u64 = 1 << 48;

/// How the host's memory pressure limits windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryPressure {
    /// No limit.
    None,
    /// Limits the windows of connections whose applications read too slowly.
    SlowReaders,
    /// Limits all windows.
    All,
}

/// The memory held by the data of a host's connections: queued to be sent, in flight, or received
/// and not read.
///
/// Each connection is charged in whole pages, whenever their number changes. Above `tcp_mem[1]` the
/// host is under pressure until the count falls below `tcp_mem[0]`: buffers do not grow. Above
/// `tcp_mem[2]`, or while the pool's allocator refuses, memory is exhausted: a connection gets only
/// its minimum.
#[derive(Debug, Default)]
pub struct TcpMemory {
    /// Pages charged, plus [`REFUSED`] while the allocator refuses.
    pages: u64,
    pressure_since: Option<Instant>,
}

impl TcpMemory {
    /// Returns the pages charged (`mem` of `sockstat`).
    pub fn pages(&self) -> u64 {
        self.pages & !REFUSED
    }

    /// Returns whether the allocator refuses memory, as reported by
    /// [`set_refused`](Self::set_refused).
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.pages & REFUSED != 0
    }

    /// Records whether the pool's allocator refuses memory. If it does, memory counts as exhausted
    /// whatever `tcp_mem` allows.
    pub fn set_refused(&mut self, now: Instant, sysctl: &Sysctl, mib: &mut TcpMib, refused: bool) {
        self.pages = self.pages() | if refused { REFUSED } else { 0 };
        self.update_pressure(now, sysctl, mib);
    }

    /// Returns whether the host is under memory pressure: buffers must not grow, nor windows open.
    #[inline]
    pub fn is_under_pressure(&self) -> bool {
        self.pressure_since.is_some()
    }

    /// Returns whether the charge is below `tcp_mem[0]`.
    #[inline]
    pub(crate) fn is_below_low_limit(&self, sysctl: &Sysctl) -> bool {
        self.pages < u64::from(sysctl.tcp_mem[0])
    }

    /// Returns whether the charge is above `tcp_mem[2]`, or the allocator refuses memory.
    #[inline]
    pub fn is_exhausted(&self, sysctl: &Sysctl) -> bool {
        self.pages > u64::from(sysctl.tcp_mem[2])
    }

    /// Returns how strictly receive windows are limited.
    #[inline]
    pub(crate) fn pressure(&self, sysctl: &Sysctl) -> MemoryPressure {
        if !self.is_under_pressure() {
            MemoryPressure::None
        } else if self.is_exhausted(sysctl) {
            MemoryPressure::All
        } else {
            MemoryPressure::SlowReaders
        }
    }

    /// Returns the bytes charged above `tcp_mem[2]`.
    pub(crate) fn excess_bytes(&self, sysctl: &Sysctl) -> usize {
        let pages = self.pages.saturating_sub(sysctl.tcp_mem[2].into());
        usize::try_from(pages).map_or(usize::MAX, |n| n.saturating_mul(PAGE_BYTES))
    }

    /// Changes a connection's charge from `from` to `to` pages.
    #[inline]
    pub(crate) fn change(
        &mut self,
        now: Instant,
        sysctl: &Sysctl,
        mib: &mut TcpMib,
        from: u32,
        to: u32,
    ) {
        debug_assert!(self.pages() >= from.into());
        self.pages = self.pages.saturating_sub(from.into()) + u64::from(to);
        if self.is_under_pressure() || self.pages > u64::from(sysctl.tcp_mem[1]) {
            self.update_pressure(now, sysctl, mib);
        }
    }

    /// Begins or ends memory pressure.
    #[cold]
    fn update_pressure(&mut self, now: Instant, sysctl: &Sysctl, mib: &mut TcpMib) {
        match self.pressure_since {
            None if self.pages > u64::from(sysctl.tcp_mem[1]) => {
                mib.memory_pressures += 1;
                self.pressure_since = Some(now);
            }
            Some(since) if self.is_below_low_limit(sysctl) => {
                mib.memory_pressures_chrono += now.since(since).as_millis();
                self.pressure_since = None;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::TcpMemory;
    use crate::{Sysctl, TcpMib};

    #[test]
    fn pressure_begins_above_the_second_and_ends_below_the_first_limit() {
        let sysctl = Sysctl {
            tcp_mem: [10, 20, 30],
            ..Sysctl::default()
        };
        let (mut mem, mut mib) = (TcpMemory::default(), TcpMib::default());
        let mut held = 0;
        let mut at = |ms: u64, pages: u32| {
            let now = Instant::ZERO + Nanos::from_millis(ms);
            mem.change(now, &sysctl, &mut mib, held, pages);
            held = pages;
            (mem.is_under_pressure(), mem.is_exhausted(&sysctl))
        };
        assert_eq!(at(0, 20), (false, false));
        assert_eq!(at(1, 21), (true, false));
        assert_eq!(at(2, 30), (true, false));
        assert_eq!(at(3, 31), (true, true));
        assert_eq!(at(4, 10), (true, false));
        assert_eq!(at(9, 9), (false, false));
        assert_eq!(at(11, 20), (false, false));
        assert_eq!(at(12, 40), (true, true));
        assert_eq!(mem.excess_bytes(&sysctl), 40_960);
        assert_eq!(mem.pages(), 40);
        assert_eq!(mib.memory_pressures, 2);
        assert_eq!(mib.memory_pressures_chrono, 8);
    }
}
