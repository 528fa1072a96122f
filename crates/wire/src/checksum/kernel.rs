//! The summing loop, compiled for each width of vector the processor may have.
//!
//! One safe loop serves all: per 64-bit lane it keeps `raw`, the wrapping sum of the words, and
//! `high`, the sum of their upper halves. The sum of the lower halves is then
//! `raw - (high << 32)`, exact for up to 2^32 words, so that a vector costs a load, a shift and
//! two additions. The compiler vectorises the fixed-size lane arrays.

use super::add;

/// Below this, a word at a time beats going to the wide loop.
const WIDE_FROM: usize = 128;

#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    if bytes.len() < WIDE_FROM {
        small(bytes)
    } else {
        wide(bytes)
    }
}

/// A word at a time; for headers.
#[inline]
pub(super) fn small(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut total = 0;
    for word in words {
        total = add(total, u64::from_ne_bytes(*word));
    }
    if tail.is_empty() {
        total
    } else {
        add(total, last(tail))
    }
}

/// Up to seven bytes, as a word padded with zeros behind (RFC 1071 4.1).
#[inline]
fn last(tail: &[u8]) -> u64 {
    let mut word = 0u64;
    let mut at = 0;
    if tail.len() & 4 != 0 {
        word = u64::from(u32::from_ne_bytes([tail[0], tail[1], tail[2], tail[3]]));
        at = 4;
    }
    // One's-complement sums do not care where in the 64 bits a 16-bit word stands.
    if tail.len() & 2 != 0 {
        word += u64::from(u16::from_ne_bytes([tail[at], tail[at + 1]]));
        at += 2;
    }
    if tail.len() & 1 != 0 {
        word += u64::from(u16::from_ne_bytes([tail[at], 0]));
    }
    word
}

/// The loop over blocks of `BYTES` = 8 * `LANES` bytes.
#[inline(always)]
fn blocks<const LANES: usize, const BYTES: usize>(bytes: &[u8]) -> u64 {
    const { assert!(LANES * 8 == BYTES) }
    let (blocks, tail) = bytes.as_chunks::<BYTES>();
    let mut raw = [0u64; LANES];
    let mut high = [0u64; LANES];
    for block in blocks {
        let words = block.as_chunks::<8>().0;
        for lane in 0..LANES {
            let word = u64::from_ne_bytes(words[lane]);
            raw[lane] = raw[lane].wrapping_add(word);
            high[lane] = high[lane].wrapping_add(word >> 32);
        }
    }
    let mut total = 0;
    for lane in 0..LANES {
        total = add(total, raw[lane].wrapping_sub(high[lane] << 32));
        total = add(total, high[lane]);
    }
    add(total, small(tail))
}

#[cfg(not(target_arch = "x86_64"))]
fn wide(bytes: &[u8]) -> u64 {
    blocks::<8, 64>(bytes)
}

#[cfg(target_arch = "x86_64")]
use x86::wide;

#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_code,
    reason = "a call of a function that needs a CPU feature, after detection"
)]
pub(super) mod x86 {
    use super::blocks;

    cpufeatures::new!(has_avx2, "avx2");
    cpufeatures::new!(has_avx512, "avx512f", "avx512vl", "avx512bw");

    #[inline]
    pub(super) fn wide(bytes: &[u8]) -> u64 {
        if has_avx512::get() {
            // SAFETY: the processor has what `avx512` is compiled for.
            unsafe { avx512(bytes) }
        } else if has_avx2::get() {
            // SAFETY: the processor has what `avx2` is compiled for.
            unsafe { avx2(bytes) }
        } else {
            sse2(bytes)
        }
    }

    #[target_feature(enable = "avx512f,avx512vl,avx512bw")]
    fn avx512(bytes: &[u8]) -> u64 {
        blocks::<32, 256>(bytes)
    }

    #[target_feature(enable = "avx2")]
    fn avx2(bytes: &[u8]) -> u64 {
        blocks::<16, 128>(bytes)
    }

    fn sse2(bytes: &[u8]) -> u64 {
        blocks::<8, 64>(bytes)
    }

    /// Every path this processor has, for comparison.
    #[cfg(test)]
    pub(in super::super) fn every_path(bytes: &[u8]) -> impl Iterator<Item = u64> {
        let wide = has_avx2::get().then(|| {
            // SAFETY: just detected.
            unsafe { avx2(bytes) }
        });
        let wider = has_avx512::get().then(|| {
            // SAFETY: just detected.
            unsafe { avx512(bytes) }
        });
        [Some(sse2(bytes)), wide, wider].into_iter().flatten()
    }
}
