//! The buffers of a receive call from C.

use fullsend_posix::{Errno, Result};
use libc::iovec;

use super::ptr;

/// Memory of a caller: its start and its length in bytes.
type MemoryRange = (*mut u8, usize);

/// Disjoint buffers for a call that fills several pieces of the caller's memory.
///
/// Two pieces may overlap: Linux fills them in order, so that the bytes of the later one remain. As two
/// `&mut` to one byte are undefined behaviour, such pieces are filled through separate buffers.
pub(super) struct ScatterBuffers {
    pieces: Vec<MemoryRange>,
    /// A separate buffer for each piece, if any two overlap.
    separate: Option<Vec<Vec<u8>>>,
}

impl ScatterBuffers {
    /// Returns buffers for the `count` pieces at `start`, and for the memory at `last`, which
    /// follows them.
    ///
    /// # Errors
    /// EFAULT for a null pointer with a length, EINVAL for a length that no object has, and ENOMEM
    /// if pieces overlap and the separate buffers cannot be allocated.
    ///
    /// # Safety
    /// `start` is null or points to `count` entries. Each piece, and `last`, is null or points to
    /// memory of its length that no other code accesses while this value lives.
    pub(super) unsafe fn new(start: *const iovec, count: usize, last: MemoryRange) -> Result<Self> {
        // SAFETY: the caller guarantees it.
        let given = unsafe { ptr::iovecs(start, count) }?;
        let given = given.iter();
        let mut pieces = Vec::with_capacity(given.len() + 1);
        for piece in given {
            pieces.push((piece.iov_base.cast::<u8>(), piece.iov_len));
        }
        pieces.push(last);
        for &(start, len) in &pieces {
            if isize::try_from(len).is_err() {
                return Err(Errno::EINVAL);
            }
            if len > 0 && start.is_null() {
                return Err(Errno::EFAULT);
            }
        }
        let separate = has_overlap(&pieces)
            .then(|| copy_pieces(&pieces))
            .transpose()?;
        Ok(Self { pieces, separate })
    }

    /// Calls `fill` with a slice for each piece, and one for `last`. `filled` returns from its
    /// result how many bytes of the pieces and of `last` it has written.
    pub(super) fn with<R>(
        &mut self,
        fill: impl FnOnce(&mut [&mut [u8]], &mut [u8]) -> Result<R>,
        filled: impl FnOnce(&R) -> (usize, usize),
    ) -> Result<R> {
        let mut slices: Vec<&mut [u8]> = match &mut self.separate {
            Some(separate) => separate.iter_mut().map(Vec::as_mut_slice).collect(),
            None => self.pieces.iter().map(|&piece| slice_of(piece)).collect(),
        };
        let Some((last, slices)) = slices.split_last_mut() else {
            return Err(Errno::EINVAL);
        };
        let result = fill(slices, last)?;
        if let Some(separate) = &self.separate {
            let (mut remaining, in_last) = filled(&result);
            let last = separate.len() - 1;
            for (at, (&(start, len), from)) in self.pieces.iter().zip(separate).enumerate() {
                let filled = if at == last { in_last } else { remaining }.min(len);
                remaining = remaining.saturating_sub(filled);
                if filled > 0 {
                    // SAFETY: `new` requires `len` bytes there, and `from` is a separate buffer.
                    unsafe { start.copy_from_nonoverlapping(from.as_ptr(), filled) };
                }
            }
        }
        Ok(result)
    }
}

fn slice_of<'a>((start, len): MemoryRange) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: not null and of a valid size. `ScatterBuffers::new` requires the bytes for as long as
    // it lives, and `has_overlap` has shown that no other slice contains any of them.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// Returns whether two pieces share a byte.
fn has_overlap(pieces: &[MemoryRange]) -> bool {
    let mut ranges: Vec<(usize, usize)> = pieces
        .iter()
        .filter(|(_, len)| *len > 0)
        .map(|(start, len)| (start.addr(), *len))
        .collect();
    ranges.sort_unstable();
    ranges
        .windows(2)
        .any(|pair| pair[0].0.saturating_add(pair[0].1) > pair[1].0)
}

/// Copies the bytes of the pieces, so that those which a call does not fill keep their values.
fn copy_pieces(pieces: &[MemoryRange]) -> Result<Vec<Vec<u8>>> {
    let copy = |&(start, len): &MemoryRange| {
        let mut copy = Vec::new();
        copy.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
        if len > 0 {
            // SAFETY: `ScatterBuffers::new` has checked the range, and the slice is dropped here.
            copy.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
        }
        Ok(copy)
    };
    pieces.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use libc::iovec;

    use super::ScatterBuffers;

    fn piece(base: *mut u8, from: usize, len: usize) -> iovec {
        iovec {
            iov_base: base.wrapping_add(from).cast::<c_void>(),
            iov_len: len,
        }
    }

    /// Fills up to `room` bytes of the pieces with 1, 2, 3, ... and returns the memory.
    fn filled(ranges: &[(usize, usize)], room: usize) -> [u8; 8] {
        let mut memory = [0; 8];
        let base = memory.as_mut_ptr();
        let pieces: Vec<iovec> = ranges
            .iter()
            .map(|&(at, len)| piece(base, at, len))
            .collect();
        // SAFETY: the pieces are within `memory`, which is not used before the last use of
        // `buffers`.
        let buffers = unsafe { ScatterBuffers::new(pieces.as_ptr(), pieces.len(), (base, 0)) };
        let fill = |slices: &mut [&mut [u8]], _: &mut [u8]| {
            let bytes = slices.iter_mut().flat_map(|slice| slice.iter_mut());
            let mut n = 0;
            for byte in bytes.take(room) {
                n += 1;
                *byte = n;
            }
            Ok(usize::from(n))
        };
        buffers.unwrap().with(fill, |&n| (n, 0)).unwrap();
        memory
    }

    #[test]
    fn overlapping_pieces_are_filled_in_order() {
        assert_eq!(
            filled(&[(0, 4), (6, 2), (4, 2)], 9),
            [1, 2, 3, 4, 7, 8, 5, 6]
        );
        assert_eq!(
            filled(&[(0, 4), (2, 4), (1, 2)], 99),
            [1, 9, 10, 6, 7, 8, 0, 0]
        );
        assert_eq!(
            filled(&[(3, 2), (3, 2), (3, 0)], 99),
            [0, 0, 0, 3, 4, 0, 0, 0]
        );
        // A piece without received bytes does not restore the old ones.
        assert_eq!(filled(&[(0, 4), (2, 4)], 4), [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(filled(&[(0, 4), (2, 4)], 5), [1, 2, 5, 4, 0, 0, 0, 0]);
    }
}
