//! The memory of all connections of a host, and its limits (`tcp_mem`).

use fullsend_wire::{Instant, cold_path};

use crate::sysctl::PAGE_BYTES;
use crate::{Sysctl, TcpMib};

/// Unit that memory is charged in, bytes: the smallest block.
pub(crate) const UNIT_BYTES: usize = 512;
const UNITS_PER_PAGE: u64 = (PAGE_BYTES / UNIT_BYTES) as u64;
/// Added to the charge while the allocator refuses memory. It exceeds every limit, so that a
/// comparison of the charge with a limit covers this case too.
const REFUSED: u64 = 1 << 48;
/// Least minimum of each direction of a connection, bytes.
const LEAST_MINIMUM: usize = 256;
/// Blocks that the minimum of a connection may take, in sizes of the minimum: two directions, each in a
/// block of up to twice the size.
const BLOCKS_OF_MINIMUM: usize = 4;
/// The share of the free memory that one window may offer.
const WINDOW_SHARE: u64 = 8;

/// The effect of the host's memory pressure on windows.
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
/// Each connection is charged in units of 512 bytes, whenever their number changes. Above `tcp_mem[1]` the
/// host is under pressure until the charge falls below `tcp_mem[0]`: buffers do not grow, and writes get
/// only their minimum. Above `tcp_mem[2]`, or while the pool's allocator refuses, memory is exhausted: a
/// connection gets only its minimum in both directions.
///
/// The windows that connections with data have offered are counted, too, as their peers may use them at
/// any time. Those of idle connections are not, so that many of them do not take the window of a busy one.
/// Above `tcp_mem[0]` a window is at most a share of what the others leave, or a segment, so that data need
/// not be dropped that was asked for.
#[derive(Debug, Default)]
pub struct TcpMemory {
    /// Units charged, plus [`REFUSED`] while the allocator refuses.
    units: u64,
    /// Bytes of the windows that connections with data have offered.
    windows: u64,
    /// Number of connections of the host.
    connections: usize,
    pressure_since: Option<Instant>,
}

/// Returns the units of a limit in pages.
const fn units(pages: u32) -> u64 {
    pages as u64 * UNITS_PER_PAGE
}

/// Returns the bytes of a limit in pages.
const fn bytes(pages: u32) -> u64 {
    pages as u64 * PAGE_BYTES as u64
}

impl TcpMemory {
    /// Returns the pages charged (`mem` of `sockstat`).
    pub fn pages(&self) -> u64 {
        (self.units & !REFUSED).div_ceil(UNITS_PER_PAGE)
    }

    /// Returns whether the allocator refuses memory, as reported by
    /// [`set_refused`](Self::set_refused).
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.units & REFUSED != 0
    }

    /// Records whether the pool's allocator refuses memory. If it does, memory counts as exhausted
    /// whatever `tcp_mem` allows.
    pub fn set_refused(&mut self, now: Instant, sysctl: &Sysctl, mib: &mut TcpMib, refused: bool) {
        self.units = (self.units & !REFUSED) | if refused { REFUSED } else { 0 };
        self.update_pressure(now, sysctl, mib);
    }

    /// Sets the number of the host's connections, which share `tcp_minimum_mem`.
    pub fn set_connections(&mut self, connections: usize) {
        self.connections = connections;
    }

    /// Returns whether the host is under memory pressure: buffers must not grow, nor windows open.
    #[inline]
    pub fn is_under_pressure(&self) -> bool {
        self.pressure_since.is_some()
    }

    /// Returns whether the charge is below `tcp_mem[0]`.
    #[inline]
    pub(crate) fn is_below_low_limit(&self, sysctl: &Sysctl) -> bool {
        self.units < units(sysctl.tcp_mem[0])
    }

    /// Returns whether the charge is above `tcp_mem[1]`, or the allocator refuses memory. What is left is
    /// for data that peers may send already.
    #[inline]
    pub(crate) fn is_scarce_for_writes(&self, sysctl: &Sysctl) -> bool {
        self.units > units(sysctl.tcp_mem[1])
    }

    /// Returns whether the charge is above `tcp_mem[2]`, or the allocator refuses memory.
    #[inline]
    pub fn is_exhausted(&self, sysctl: &Sysctl) -> bool {
        self.units > units(sysctl.tcp_mem[2])
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
        let units = self.units.saturating_sub(units(sysctl.tcp_mem[2]));
        usize::try_from(units).map_or(usize::MAX, |n| n.saturating_mul(UNIT_BYTES))
    }

    /// Returns the minimum of a direction of a connection while memory is exhausted, in bytes: `least`
    /// (`tcp_rmem[0]`, `tcp_wmem[0]`), or the connection's share of `tcp_minimum_mem`, at least 256.
    #[cold]
    pub(crate) fn minimum(&self, sysctl: &Sysctl, least: u32) -> usize {
        let (least, reserve) = (least as usize, sysctl.tcp_minimum_mem);
        if reserve == 0 {
            return least;
        }
        let beyond = units(sysctl.tcp_mem[2]) + units(reserve);
        let share = if self.units & !REFUSED > beyond {
            0
        } else {
            let reserve = usize::try_from(bytes(reserve)).unwrap_or(usize::MAX);
            reserve / (BLOCKS_OF_MINIMUM * self.connections.max(1))
        };
        least.min(share.max(LEAST_MINIMUM))
    }

    /// Returns the largest window that a connection may offer, whose present one is of `own` bytes:
    /// `u32::MAX` while memory is plentiful.
    #[inline]
    pub(crate) fn window_room(&self, sysctl: &Sysctl, own: u32) -> u32 {
        let used = self.units.saturating_mul(UNIT_BYTES as u64);
        if used.saturating_add(self.windows) <= bytes(sysctl.tcp_mem[0]) {
            return u32::MAX;
        }
        cold_path();
        let [_, high, most] = sysctl.tcp_mem.map(bytes);
        let others = self.windows.saturating_sub(own.into());
        let free = (high / 2).min(most.saturating_sub(used));
        let share = free.saturating_sub(others) / WINDOW_SHARE;
        u32::try_from(share)
            .unwrap_or(u32::MAX)
            .max(sysctl.tcp_rmem[0])
    }

    /// Changes the counted window of a connection from `from` to `to` bytes.
    #[inline]
    pub(crate) fn change_window(&mut self, from: u32, to: u32) {
        debug_assert!(self.windows >= from.into());
        self.windows = self.windows.saturating_sub(from.into()) + u64::from(to);
    }

    /// Changes a connection's charge from `from` to `to` units.
    #[inline]
    pub(crate) fn change(
        &mut self,
        now: Instant,
        sysctl: &Sysctl,
        mib: &mut TcpMib,
        from: u32,
        to: u32,
    ) {
        debug_assert!(self.units & !REFUSED >= from.into());
        self.units = self.units.saturating_sub(from.into()) + u64::from(to);
        if self.is_under_pressure() || self.units > units(sysctl.tcp_mem[1]) {
            self.update_pressure(now, sysctl, mib);
        }
    }

    /// Begins or ends memory pressure.
    #[cold]
    fn update_pressure(&mut self, now: Instant, sysctl: &Sysctl, mib: &mut TcpMib) {
        match self.pressure_since {
            None if self.units > units(sysctl.tcp_mem[1]) => {
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
            let pages = 8 * pages;
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

    #[test]
    fn windows_are_shares_of_what_memory_and_other_windows_leave() {
        let sysctl = Sysctl {
            tcp_mem: [100, 200, 300],
            ..Sysctl::default()
        };
        let (mut mem, mut mib) = (TcpMemory::default(), TcpMib::default());
        assert_eq!(mem.window_room(&sysctl, 0), u32::MAX);
        // Each of many offers what it may: together they leave room for data that waits to be sent.
        let mut total = 0;
        for _ in 0..50 {
            let window = mem.window_room(&sysctl, 0).min(65_535);
            mem.change_window(0, window);
            total += u64::from(window);
        }
        assert!(total <= 100 * 4096 + 65_535 + 50 * 4096, "{total}");
        assert_eq!(mem.window_room(&sysctl, 0), 4096);
        // One that has offered much may offer as much as another.
        let own = u32::try_from(total).unwrap();
        assert_eq!(mem.window_room(&sysctl, own), 100 * 4096 / 8);
        mem.change_window(own, 0);
        assert_eq!(mem.window_room(&sysctl, 0), u32::MAX);
        mem.change(Instant::ZERO, &sysctl, &mut mib, 0, 290 * 8);
        assert_eq!(mem.window_room(&sysctl, 0), 10 * 4096 / 8);
    }

    #[test]
    fn connections_share_the_minimum() {
        let mut sysctl = Sysctl {
            tcp_mem: [10, 20, 30],
            ..Sysctl::default()
        };
        let (mut mem, mut mib) = (TcpMemory::default(), TcpMib::default());
        mem.set_connections(1000);
        assert_eq!(mem.minimum(&sysctl, 4096), 4096);
        sysctl.tcp_minimum_mem = 1000;
        assert_eq!(mem.minimum(&sysctl, 4096), 1024);
        mem.set_connections(10);
        assert_eq!(mem.minimum(&sysctl, 4096), 4096);
        mem.set_connections(1_000_000);
        assert_eq!(mem.minimum(&sysctl, 4096), 256);
        mem.set_connections(10);
        mem.change(Instant::ZERO, &sysctl, &mut mib, 0, 1031 * 8);
        assert_eq!(mem.minimum(&sysctl, 4096), 256);
    }
}
