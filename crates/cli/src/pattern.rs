//! The data of streams: bytes that depend on their offset, so that the reader detects a lost, repeated or
//! moved byte.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Period of the pattern in bytes: a prime, so that it does not divide a power of two or a common MSS,
/// and data displaced by a message or a segment does not match.
pub(crate) const PERIOD: usize = 65_521;

/// The pattern of a stream, available from any offset.
#[derive(Clone)]
pub(crate) struct Pattern {
    /// One period and the beginning of the next, so that a piece of the largest size starts at any
    /// offset.
    table: Bytes,
}

/// Returns one period and `largest` bytes of the next.
fn table(largest: usize) -> Bytes {
    // The generator is xorshift64 (Marsaglia 2003) with an arbitrary seed, which both ends use.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut table = Vec::with_capacity(PERIOD + largest);
    while table.len() < PERIOD {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        table.push((state >> 32) as u8);
    }
    for i in 0..largest {
        table.push(table[i]);
    }
    table.into()
}

/// The longest table requested so far, which all flows share, so that a test of ten thousand flows
/// measures the stack's memory and not the test's.
static LONGEST: Mutex<Bytes> = Mutex::new(Bytes::new());

impl Pattern {
    /// Returns a pattern for pieces of at most `largest` bytes.
    pub(crate) fn new(largest: usize) -> Self {
        let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
        if longest.len() < PERIOD + largest {
            *longest = table(largest);
        }
        Self {
            table: longest.slice(..PERIOD + largest),
        }
    }

    /// Returns `len` bytes of the stream from `offset`.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.table[start..start + len]
    }

    /// Returns `len` bytes of the stream from `offset`, as memory to lend.
    #[inline]
    pub(crate) fn bytes_at(&self, offset: u64, len: usize) -> Bytes {
        let start = (offset % PERIOD as u64) as usize;
        self.table.slice(start..start + len)
    }

    /// Returns the offset at which `data`, received at `offset`, first differs from the pattern.
    pub(crate) fn mismatch(&self, offset: u64, data: &[u8]) -> Option<u64> {
        let piece = (self.table.len() - PERIOD).max(1);
        let mut at = offset;
        for part in data.chunks(piece) {
            let want = self.at(at, part.len());
            if part != want {
                let bad = part.iter().zip(want).position(|(a, b)| a != b);
                return bad.map(|i| at + i as u64);
            }
            at += part.len() as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn finds_the_first_wrong_byte() {
        let pattern = Pattern::new(1000);
        let mut data: Vec<u8> = Vec::new();
        for offset in (0..200_000).step_by(1000) {
            data.extend(pattern.at(offset, 1000));
        }
        assert_eq!(pattern.mismatch(0, &data), None);
        assert_eq!(pattern.mismatch(123, &data[123..]), None);
        data[150_000] ^= 1;
        assert_eq!(pattern.mismatch(0, &data), Some(150_000));
        assert_eq!(pattern.mismatch(50_000, &data[50_000..]), Some(150_000));
    }

    #[test]
    fn a_shifted_stream_is_detected() {
        let pattern = Pattern::new(1448);
        for slip in [1, 1448, 4096, 65_536] {
            assert!(pattern.mismatch(slip, pattern.at(0, 1448)).is_some());
        }
    }
}
