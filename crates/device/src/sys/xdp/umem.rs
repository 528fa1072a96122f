//! The memory of an `AF_XDP` socket's frames (UMEM).

use std::io;

use libc::xdp_desc;

use super::Mapping;

/// The size of a frame in memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameLen {
    Half = 2048,
    Page = 4096,
}

/// Bytes that the kernel leaves free before a received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

impl FrameLen {
    /// Returns the smallest size that holds a received frame of `len` bytes, or `None` if none does.
    pub(crate) fn holding(len: usize) -> Option<Self> {
        let fits = |frame: &Self| len + HEADROOM <= *frame as usize;
        [Self::Half, Self::Page].into_iter().find(fits)
    }
}

/// Memory of frames of one size, each of which belongs either to the kernel or to this process. The first
/// half is for received frames, the second for sent ones.
pub(crate) struct Umem {
    mapping: Mapping,
    frame_len: usize,
    /// The number of frames in each half.
    half: u32,
    /// The frames to send that belong to this process.
    free: Vec<u32>,
}

impl Umem {
    pub(crate) fn new(frame_len: FrameLen, half: u32) -> io::Result<Self> {
        let frame_len = frame_len as usize;
        let mapping = Mapping::new(None, 2 * half as usize * frame_len)?;
        Ok(Self {
            mapping,
            frame_len,
            half,
            free: (half..2 * half).collect(),
        })
    }

    /// Returns the length of the memory, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping.len
    }

    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        libc::xdp_umem_reg {
            addr: self.mapping.start as u64,
            len: self.mapping.len as u64,
            chunk_size: self.frame_len as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        }
    }

    /// Returns the addresses of all frames for reception.
    pub(crate) fn receive_frames(&self) -> impl Iterator<Item = u64> + use<> {
        let len = self.frame_len as u64;
        (0..u64::from(self.half)).map(move |frame| frame * len)
    }

    /// Copies a received frame, or the part that fits, to `to`. Returns the frame's address for the next
    /// reception and the number of bytes, or `None` if the descriptor does not name a frame for
    /// reception.
    pub(crate) fn read(&self, desc: xdp_desc, to: &mut [u8]) -> Option<(u64, usize)> {
        let at = usize::try_from(desc.addr).ok()?;
        let (frame, offset) = (at / self.frame_len, at % self.frame_len);
        let len = desc.len as usize;
        if frame >= self.half as usize || len > self.frame_len - offset {
            return None;
        }
        let copied = len.min(to.len());
        // SAFETY: the bytes lie within one frame of the mapping, which belongs to this process since
        // the kernel has returned it, and not to `to`, which is exclusive.
        unsafe {
            let from = self.mapping.start.add(at);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), copied);
        }
        Some(((frame * self.frame_len) as u64, copied))
    }

    /// Copies the pieces to a free frame, and returns its descriptor, or `None` if no frame is free.
    ///
    /// # Panics
    /// If the pieces are longer than a frame.
    pub(crate) fn write<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Option<xdp_desc> {
        let at = self.free.pop()? as usize * self.frame_len;
        let mut len = 0;
        for piece in pieces {
            assert!(piece.len() <= self.frame_len - len, "the frame is too long");
            // SAFETY: the bytes lie within one frame of the mapping, which belongs to this process since
            // it was free; the piece is other memory.
            unsafe {
                let to = self.mapping.start.add(at + len);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len());
            }
            len += piece.len();
        }
        Some(xdp_desc {
            addr: at as u64,
            len: len as u32,
            options: 0,
        })
    }

    /// Makes a frame free again that the kernel has sent, or that was not sent. Ignores an address that
    /// does not name a frame for sending.
    pub(crate) fn free(&mut self, addr: u64) {
        let frame = addr / self.frame_len as u64;
        let range = u64::from(self.half)..2 * u64::from(self.half);
        if range.contains(&frame) && self.free.len() < self.half as usize {
            self.free.push(frame as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use libc::xdp_desc;

    use super::{FrameLen, Umem};

    fn desc(addr: u64, len: u32) -> xdp_desc {
        xdp_desc {
            addr,
            len,
            options: 0,
        }
    }

    #[test]
    fn descriptors_that_do_not_name_a_frame_are_refused() {
        let umem = Umem::new(FrameLen::Half, 4).unwrap();
        let mut to = [0; 100];
        assert_eq!(umem.read(desc(256, 1792), &mut to), Some((0, 100)));
        assert_eq!(umem.read(desc(2048 + 256, 60), &mut to), Some((2048, 60)));
        for bad in [
            desc(256, 1793),
            desc(3 * 2048, 2049),
            // A frame for sending, and beyond the memory.
            desc(4 * 2048, 60),
            desc(8 * 2048, 60),
            desc(u64::MAX, u32::MAX),
        ] {
            assert_eq!(umem.read(bad, &mut to), None, "{} {}", bad.addr, bad.len);
        }
    }

    #[test]
    fn frames_to_send_are_lent_and_taken_back() {
        let mut umem = Umem::new(FrameLen::Half, 2).unwrap();
        let write = |umem: &mut Umem| umem.write([&b"ab"[..], b"cd"].into_iter());
        let first = write(&mut umem).unwrap();
        let second = write(&mut umem).unwrap();
        assert_eq!((first.len, second.len), (4, 4));
        assert!(write(&mut umem).is_none());
        // Frames for reception, and beyond the memory.
        for bad in [0, 2048, 4 * 2048, u64::MAX] {
            umem.free(bad);
            assert!(write(&mut umem).is_none());
        }
        umem.free(second.addr);
        umem.free(first.addr);
        // One too many.
        umem.free(first.addr);
        assert_eq!(write(&mut umem).unwrap().addr, first.addr);
        assert_eq!(write(&mut umem).unwrap().addr, second.addr);
        assert!(write(&mut umem).is_none());
    }

    #[test]
    fn a_frame_holds_the_headroom_of_xdp() {
        assert_eq!(FrameLen::holding(1792), Some(FrameLen::Half));
        assert_eq!(FrameLen::holding(1793), Some(FrameLen::Page));
        assert_eq!(FrameLen::holding(3841), None);
    }
}
