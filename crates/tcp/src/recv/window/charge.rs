//! The memory charged for received data, about as Linux counts it, so that a buffer of a given size
//! gives the window that its users expect.

/// Bytes of data in 256 bytes of memory, before the first observation.
const FIRST_DENSITY: u8 = 128;
/// Smallest piece that is not copied together with its neighbours.
const MIN_PIECE_BYTES: u32 = 640;
/// Overhead of a piece within its block, and outside of it.
const BLOCK_OVERHEAD: u32 = 424;
const OUTSIDE_OVERHEAD: u32 = 256;
/// Size of a page; larger pieces take whole pages.
const PAGE_BYTES: u32 = 4096;

/// Returns the memory charged for a piece of `len` bytes.
#[inline]
pub(super) fn truesize_of(len: u32) -> u32 {
    if len < MIN_PIECE_BYTES {
        2 * len
    } else if len <= PAGE_BYTES {
        (len + BLOCK_OVERHEAD).next_power_of_two() + OUTSIDE_OVERHEAD
    } else {
        len.next_multiple_of(PAGE_BYTES) + 2 * OUTSIDE_OVERHEAD
    }
}

/// Returns what remains of the charge `held` after `bytes` of data were read and `left` stayed.
#[inline]
pub(super) fn remaining_charge(held: u32, bytes: usize, left: usize) -> u32 {
    if left == 0 {
        return 0;
    }
    let (bytes, left) = (bytes as u64, left as u64);
    (u64::from(held) * left / (bytes + left)) as u32
}

/// Bytes of data in 256 bytes of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Density(u8);

impl Density {
    pub(super) const FIRST: Self = Self(FIRST_DENSITY);

    /// Returns the density of data that arrives in pieces of `len` bytes.
    pub(super) fn of(len: u32) -> Self {
        let density = u64::from(len) * 256 / u64::from(truesize_of(len).max(1));
        Self(density.clamp(1, 255) as u8)
    }

    /// Returns whether the density is that of long GRO packets.
    #[inline]
    pub(super) fn is_high(self) -> bool {
        self.0 >= 224
    }

    /// Returns the bytes of data that `memory` bytes hold.
    #[inline]
    pub(super) fn window_of(self, memory: u32) -> u32 {
        ((u64::from(memory) * u64::from(self.0)) >> 8) as u32
    }

    /// Returns the bytes of memory that `data_len` bytes of data take.
    pub(super) fn memory_for(self, data_len: u64) -> u32 {
        let memory = data_len.saturating_mul(256) / u64::from(self.0);
        u32::try_from(memory).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Density, remaining_charge, truesize_of};

    #[test]
    fn pieces_cost_blocks_or_pages() {
        let costs = [1, 100, 639, 640, 1023, 1448, 4000, 4097, 65_160].map(truesize_of);
        assert_eq!(costs, [2, 200, 1278, 2304, 2304, 2304, 8448, 8704, 66_048]);
    }

    #[test]
    fn reading_uncharges_in_proportion() {
        assert_eq!(remaining_charge(15_000, 5500, 5500), 7500);
        assert_eq!(remaining_charge(15_000, 5500, 0), 0);
        assert_eq!(remaining_charge(15_000, 0, 100), 15_000);
    }

    #[test]
    fn dense_data_gets_a_larger_window() {
        assert_eq!(Density::FIRST.window_of(131_072), 65_536);
        assert!(Density::of(65_160).window_of(131_072) > 120_000);
        assert!(Density::of(65_160).is_high() && !Density::FIRST.is_high());
        assert!(Density(224).is_high() && !Density(223).is_high());
        let single = Density::of(1448);
        assert_eq!(single.window_of(131_072), 81_920);
        assert_eq!(single.memory_for(81_920), 131_072);
    }
}
