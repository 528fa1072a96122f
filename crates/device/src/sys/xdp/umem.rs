//! The memory of an `AF_XDP` socket's frames (UMEM).

use std::io;

use libc::xdp_desc;

use super::Mapping;

/// The length of a frame in memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameLen {
    Half = 2048,
    Page = 4096,
}

/// Bytes that the kernel leaves free in front of a received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

impl FrameLen {
    /// Returns the shortest that a received frame of `len` bytes fits into, if there is one.
    pub(crate) fn holding(len: usize) -> Option<Self> {
        let fits = |frame: &Self| len + HEADROOM <= *frame as usize;
        [Self::Half, Self::Page].into_iter().find(fits)
    }
}

/// Memory of frames of the same length, each of which belongs either to the kernel or to this
/// process. The first half is for received frames, the second for sent ones.
pub(crate) struct Umem {
    mapping: Mapping,
    frame_len: usize,
    /// Frames in each half.
    half: u32,
    /// Frames to send that belong to this process.
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

    /// Copies a received frame, or as much of it as fits, to `to`. Returns the address of the frame
    /// to receive into again and the number of bytes; `None` if the descriptor does not name a frame
    /// for reception.
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

    /// Copies the pieces to a free frame, and returns its descriptor. `None` if no frame is free.
    ///
    /// # Panics
    /// If the pieces are longer than a frame.
    pub(crate) fn write<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Option<xdp_desc> {
        let at = self.free.pop()? as usize * self.frame_len;
        let mut len = 0;
        for piece in pieces {
            assert!(piece.len() <= self.frame_len - len, "the frame is too long");
            // SAFETY: the bytes lie within one frame of the mapping, which belongs to this process
            // since it was free; the piece is memory of somewhere else.
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

    /// Takes back a frame that the kernel has sent, or that was not sent. An address that does not
    /// name a frame for sending is ignored.
    pub(crate) fn free(&mut self, addr: u64) {
        let frame = addr / self.frame_len as u64;
        let range = u64::from(self.half)..2 * u64::from(self.half);
        if range.contains(&frame) && self.free.len() < self.half as usize {
            self.free.push(frame as u32);
        }
    }
}
