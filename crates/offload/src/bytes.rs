//! Reads and writes header fields at offsets that the parser has found.

#[inline(always)]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Reads a field that is only compared for equality, in native byte order.
#[inline(always)]
pub(crate) fn ne32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(crate) fn ne64<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let (low, high) = (ne32(bytes, at), ne32(bytes, at + 4));
    u64::from(low) | u64::from(high) << 32
}

#[inline(always)]
pub(crate) fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
