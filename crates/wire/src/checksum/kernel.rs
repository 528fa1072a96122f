//! The loops that sum bytes, one for each vector width.
//!
//! Each loop keeps, per 64-bit lane, `raw`, the wrapping sum of the words, and `high`, the sum of
//! their upper halves. The sum of the lower halves is then `raw - (high << 32)`, so that a vector
//! costs a load, a shift and two additions. The result is exact for up to 2^31 words (16 GiB).

use super::add;

/// Bytes from which the vector loop is faster than one word at a time.
const VECTOR_MIN_LEN: usize = 128;

#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    if bytes.len() < VECTOR_MIN_LEN {
        sum_words(bytes)
    } else {
        sum_vectors(bytes)
    }
}

/// Sums one 64-bit word at a time; for headers.
#[inline]
pub(super) fn sum_words(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut total = 0;
    for word in words {
        total = add(total, u64::from_ne_bytes(*word));
    }
    if tail.is_empty() {
        total
    } else {
        add(total, tail_word(tail))
    }
}

/// Returns up to seven bytes as a word, padded with zeros at the end (RFC 1071 4.1).
#[inline]
fn tail_word(tail: &[u8]) -> u64 {
    let mut word = 0u64;
    let mut at = 0;
    if tail.len() & 4 != 0 {
        word = u64::from(u32::from_ne_bytes([tail[0], tail[1], tail[2], tail[3]]));
        at = 4;
    }
    // A one's-complement sum does not depend on which 16 of the 64 bits a word occupies.
    if tail.len() & 2 != 0 {
        word += u64::from(u16::from_ne_bytes([tail[at], tail[at + 1]]));
        at += 2;
    }
    if tail.len() & 1 != 0 {
        word += u64::from(u16::from_ne_bytes([tail[at], 0]));
    }
    word
}

/// Returns the total from the sums of the lanes; the difference above holds for totals as well.
#[inline]
fn total_of_lanes(raw: &[u64], high: &[u64]) -> u64 {
    let raw = raw.iter().copied().fold(0, u64::wrapping_add);
    let high = high.iter().copied().fold(0, u64::wrapping_add);
    raw.wrapping_sub(high << 32).wrapping_add(high)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
pub(super) fn sum_portable(bytes: &[u8]) -> u64 {
    let (blocks, tail) = bytes.as_chunks::<32>();
    let (mut raw, mut high) = ([0u64; 4], [0u64; 4]);
    for block in blocks {
        for (lane, word) in block.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_ne_bytes(*word);
            raw[lane] = raw[lane].wrapping_add(word);
            high[lane] = high[lane].wrapping_add(word >> 32);
        }
    }
    add(total_of_lanes(&raw, &high), sum_words(tail))
}

#[cfg(not(target_arch = "x86_64"))]
use sum_portable as sum_vectors;
#[cfg(target_arch = "x86_64")]
use x86::sum_vectors;

#[cfg(target_arch = "x86_64")]
#[allow(
    unsafe_code,
    reason = "vector loads, and calls that need a CPU feature, after detection"
)]
pub(super) mod x86 {
    use core::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_add_epi64, _mm_loadu_si128, _mm_setzero_si128,
        _mm_srli_epi64, _mm_storeu_si128, _mm256_add_epi64, _mm256_loadu_si256,
        _mm256_setzero_si256, _mm256_srli_epi64, _mm256_storeu_si256, _mm512_add_epi64,
        _mm512_loadu_si512, _mm512_setzero_si512, _mm512_srli_epi64, _mm512_storeu_si512,
    };

    use super::{add, sum_words, total_of_lanes};

    cpufeatures::new!(has_avx2, "avx2");
    cpufeatures::new!(has_avx512, "avx512f");

    #[inline]
    pub(super) fn sum_vectors(bytes: &[u8]) -> u64 {
        if has_avx512::get() {
            // SAFETY: the processor has AVX-512F.
            unsafe { avx512(bytes) }
        } else if has_avx2::get() {
            // SAFETY: the processor has AVX2.
            unsafe { avx2(bytes) }
        } else {
            // SAFETY: SSE2 is part of x86-64.
            unsafe { sse2(bytes) }
        }
    }

    /// Defines a loop over `$vector`s: four per round, then one per round.
    macro_rules! kernel {
        ($name:ident, $feature:literal, $vector:ty,
         $zero:ident, $load:ident, $add:ident, $shift:ident, $store:ident) => {
            #[target_feature(enable = $feature)]
            fn $name(bytes: &[u8]) -> u64 {
                const LEN: usize = size_of::<$vector>();
                let (blocks, tail) = bytes.as_chunks::<{ 4 * LEN }>();
                let (singles, tail) = tail.as_chunks::<LEN>();
                let mut raw = [$zero(); 4];
                let mut high = [$zero(); 4];
                let mut accumulate = |lane: usize, bytes: &[u8; LEN]| {
                    // SAFETY: `bytes` is as long as the vector, and the load needs no alignment.
                    let vector = unsafe { $load(bytes.as_ptr().cast()) };
                    raw[lane] = $add(raw[lane], vector);
                    high[lane] = $add(high[lane], $shift::<32>(vector));
                };
                for block in blocks {
                    let [a, b, c, d] = block.as_chunks::<LEN>().0 else {
                        continue;
                    };
                    accumulate(0, a);
                    accumulate(1, b);
                    accumulate(2, c);
                    accumulate(3, d);
                }
                for single in singles {
                    accumulate(0, single);
                }
                let sum = |v: [$vector; 4]| {
                    let mut lanes = [0u64; LEN / 8];
                    let all = $add($add(v[0], v[1]), $add(v[2], v[3]));
                    // SAFETY: `lanes` is as long as the vector, and the store needs no alignment.
                    unsafe { $store(lanes.as_mut_ptr().cast(), all) };
                    lanes
                };
                add(total_of_lanes(&sum(raw), &sum(high)), sum_words(tail))
            }
        };
    }

    kernel!(
        avx512,
        "avx512f",
        __m512i,
        _mm512_setzero_si512,
        _mm512_loadu_si512,
        _mm512_add_epi64,
        _mm512_srli_epi64,
        _mm512_storeu_si512
    );
    kernel!(
        avx2,
        "avx2",
        __m256i,
        _mm256_setzero_si256,
        _mm256_loadu_si256,
        _mm256_add_epi64,
        _mm256_srli_epi64,
        _mm256_storeu_si256
    );
    kernel!(
        sse2,
        "sse2",
        __m128i,
        _mm_setzero_si128,
        _mm_loadu_si128,
        _mm_add_epi64,
        _mm_srli_epi64,
        _mm_storeu_si128
    );

    /// Returns the result of every loop that this processor can run, for comparison.
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
        // SAFETY: SSE2 is part of x86-64.
        let always = unsafe { sse2(bytes) };
        [Some(always), wide, wider].into_iter().flatten()
    }
}
