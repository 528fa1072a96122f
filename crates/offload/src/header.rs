//! A buffer for headers, with headroom for the headers of the layers below.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::ops::{Deref, DerefMut};

use fullsend_wire::cold_path;

/// Bytes held without an allocation. Ethernet with two VLAN tags, IPv6, and TCP with all its
/// options need 122. With 140 the buffer takes 144 bytes; two more would take 152.
const INLINE: usize = 140;

/// Headroom in bytes after headers have moved to the heap.
const HEAP_HEADROOM: usize = 64;

/// The most bytes of headers: offsets are 16 bits wide.
const MAX: usize = u16::MAX as usize;

/// The headers are at the end of the memory, so that a lower layer prepends without moving them.
/// Both variants have a length of 16 bits, which the compiler can place and read alike.
#[derive(Clone)]
enum Storage {
    Inline { len: u16, bytes: [u8; INLINE] },
    Heap { len: u16, bytes: Box<[u8]> },
}

/// A packet's headers, built from the innermost to the outermost.
///
/// Each layer [`prepend`](Self::prepend)s its own header.
///
/// ```
/// let mut header = fullsend_offload::HeaderBuf::from_slice(b"tcp");
/// header.prepend(3).copy_from_slice(b"ip ");
/// assert_eq!(&*header, b"ip tcp");
/// ```
#[derive(Clone)]
pub struct HeaderBuf {
    storage: Storage,
}

impl HeaderBuf {
    /// Returns an empty buffer.
    #[inline]
    pub const fn new() -> Self {
        Self {
            storage: Storage::Inline {
                len: 0,
                bytes: [0; INLINE],
            },
        }
    }

    /// Returns a buffer with a copy of `header`.
    ///
    /// # Panics
    /// If `header` is longer than 65,535 bytes.
    #[inline]
    pub fn from_slice(header: &[u8]) -> Self {
        let mut out = Self::new();
        out.prepend(header.len()).copy_from_slice(header);
        out
    }

    /// Returns the length of the headers, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        let (Storage::Inline { len, .. } | Storage::Heap { len, .. }) = &self.storage;
        usize::from(*len)
    }

    /// Returns whether there are no headers.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the headers.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let memory = match &self.storage {
            Storage::Inline { bytes, .. } => &bytes[..],
            Storage::Heap { bytes, .. } => {
                cold_path();
                bytes
            }
        };
        &memory[memory.len() - self.len()..]
    }

    /// Returns the headers for modification.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len();
        let memory = self.memory();
        let start = memory.len() - len;
        &mut memory[start..]
    }

    /// Prepends `n` bytes of unspecified content and returns them for writing.
    ///
    /// # Panics
    /// If the headers would exceed 65,535 bytes.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> &mut [u8] {
        if self.headroom() < n {
            self.spill(n);
        }
        let len = self.len() + n;
        self.set_len(len);
        let memory = self.memory();
        let start = memory.len() - len;
        &mut memory[start..][..n]
    }

    /// Returns the bytes that can be prepended without moving the headers.
    #[inline]
    pub fn headroom(&self) -> usize {
        match &self.storage {
            Storage::Inline { len, bytes } => bytes.len() - usize::from(*len),
            Storage::Heap { len, bytes } => {
                cold_path();
                bytes.len() - usize::from(*len)
            }
        }
    }

    /// Removes the first `n` bytes, the header of a layer that was processed.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    #[inline]
    pub fn truncate_front(&mut self, n: usize) {
        assert!(
            n <= self.len(),
            "the header is shorter than the {n} bytes to drop"
        );
        self.set_len(self.len() - n);
    }

    /// Removes all headers.
    #[inline]
    pub fn clear(&mut self) {
        self.set_len(0);
    }

    /// Sets the length of the headers, which end where the memory ends.
    #[inline]
    fn set_len(&mut self, n: usize) {
        let (Storage::Inline { len, .. } | Storage::Heap { len, .. }) = &mut self.storage;
        *len = n as u16;
    }

    /// Returns the memory at whose end the headers are.
    #[inline]
    fn memory(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Inline { bytes, .. } => bytes,
            Storage::Heap { bytes, .. } => {
                cold_path();
                bytes
            }
        }
    }

    /// Moves the headers to heap memory with headroom for at least `n` bytes.
    #[cold]
    fn spill(&mut self, n: usize) {
        let len = self.len();
        let needed = len + n;
        assert!(needed <= MAX, "headers of {needed} bytes");
        let capacity = (needed + HEAP_HEADROOM).min(MAX);
        let mut bytes = vec![0; capacity].into_boxed_slice();
        bytes[capacity - len..].copy_from_slice(self.as_slice());
        self.storage = Storage::Heap {
            len: len as u16,
            bytes,
        };
    }
}

impl Default for HeaderBuf {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for HeaderBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for HeaderBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl PartialEq for HeaderBuf {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for HeaderBuf {}

impl fmt::Debug for HeaderBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderBuf(")?;
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::{HEAP_HEADROOM, HeaderBuf, INLINE};

    #[test]
    fn layers_are_prepended_and_removed() {
        let mut header = HeaderBuf::from_slice(b"transport");
        header.prepend(7).copy_from_slice(b"network");
        header.prepend(4).copy_from_slice(b"link");
        assert_eq!(&*header, b"linknetworktransport");
        header.truncate_front(4);
        assert_eq!(&*header, b"networktransport");
        header[0] = b'N';
        assert_eq!(&header.clone()[..7], b"Network");
        header.clear();
        assert!(header.is_empty() && header == HeaderBuf::new());
        assert!(header != HeaderBuf::from_slice(b"t"));
    }

    #[test]
    fn long_stacks_spill_to_the_heap() {
        let mut header = HeaderBuf::new();
        let mut model = Vec::new();
        for layer in 0..40u8 {
            header.prepend(20).fill(layer);
            model.splice(0..0, [layer; 20]);
            assert_eq!(&*header, &model[..]);
        }
        header.truncate_front(790);
        assert_eq!(&*header, &[0; 10]);
        assert_eq!(HeaderBuf::from_slice(&model).len(), 800);
        assert_eq!(HeaderBuf::from_slice(&vec![0; 65_535]).len(), 65_535);
        assert_eq!(HeaderBuf::new().headroom(), INLINE);
    }

    #[test]
    fn headers_that_fit_stay_inline() {
        let mut header = HeaderBuf::from_slice(&[7; INLINE]);
        assert_eq!((header.len(), header.headroom()), (INLINE, 0));
        // One byte more moves the headers to the heap, with headroom for the layers below.
        header.prepend(1).fill(8);
        assert_eq!(
            (header.len(), header.headroom()),
            (INLINE + 1, HEAP_HEADROOM)
        );
        assert_eq!((header[0], &header[1..]), (8, &[7; INLINE][..]));
        header.prepend(HEAP_HEADROOM).fill(9);
        assert_eq!((header.len(), header.headroom()), (INLINE + 65, 0));
        header.truncate_front(HEAP_HEADROOM);
        assert_eq!(
            (header.len(), header.headroom()),
            (INLINE + 1, HEAP_HEADROOM)
        );
        header.clear();
        assert_eq!((header.len(), header.headroom()), (0, INLINE + 65));
        assert!(header.is_empty() && header.as_slice().is_empty());
    }

    #[test]
    fn headers_up_to_64_kib_are_held() {
        let mut header = HeaderBuf::from_slice(&vec![7; 65_500]);
        assert_eq!(header.headroom(), 35);
        header.prepend(35).fill(8);
        assert_eq!((header.len(), header[34], header[35]), (65_535, 8, 7));
    }

    #[test]
    #[should_panic(expected = "headers of 65536 bytes")]
    fn headers_above_64_kib_panic() {
        HeaderBuf::from_slice(&vec![7; 65_536]);
    }

    #[test]
    #[should_panic(expected = "shorter than the 4 bytes to drop")]
    fn truncating_more_than_the_header_panics() {
        HeaderBuf::from_slice(b"tcp").truncate_front(4);
    }
}
