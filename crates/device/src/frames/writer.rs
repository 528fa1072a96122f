//! The transmit path of a stream, which sends many frames in one `writev`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};

use fullsend_offload::{Chain, GsoKind, Packet, Slice, segment};
use smallvec::SmallVec;

use super::FrameStats;
use super::length::LengthField;

/// Number of prepared frames at which no further packet is prepared before they are written.
const PREPARED: usize = 128;
/// Most pieces of one `writev`; the kernel accepts 1024.
const MAX_PIECES: usize = 512;
/// Number of pieces from which on a frame is copied.
const FRAME_PIECES: usize = 128;

/// A frame in its written form.
struct Frame {
    field: [u8; 4],
    packet: Packet,
    /// Whether the frame is the last of its packet in the batch.
    is_last: bool,
}

/// The sending half of a stream.
pub(super) struct StreamWriter {
    field: LengthField,
    /// The frames of the first packets in the batch.
    frames: VecDeque<Frame>,
    /// The number of packets at the front of the batch whose frames are prepared. They stay in the batch
    /// until they are written, so that the driver waits for room.
    prepared: usize,
    /// Bytes of the first frame, including its length field, that are written.
    written: usize,
    segments: Vec<Packet>,
}

impl StreamWriter {
    pub(super) fn new(field: LengthField) -> Self {
        Self {
            field,
            frames: VecDeque::new(),
            prepared: 0,
            written: 0,
            segments: Vec::new(),
        }
    }

    /// Implements [`Device::transmit`](crate::Device::transmit). With `whole`, super-segments are not
    /// segmented. Packets that a call leaves must come first in the next call.
    ///
    /// # Errors
    /// An error means that the connection has failed.
    pub(super) fn transmit(
        &mut self,
        file: &File,
        batch: &mut VecDeque<Packet>,
        whole: bool,
        stats: &mut FrameStats,
    ) -> io::Result<()> {
        loop {
            self.prepare(batch, whole, stats);
            if self.frames.is_empty() {
                return Ok(());
            }
            stats.tx_calls += 1;
            let written = (&mut &*file).write_vectored(&self.pieces());
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.on_written(len, batch, stats),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The kernel has no memory now; the data is sent together with the next packets.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Prepares the frames of packets in the batch.
    fn prepare(&mut self, batch: &mut VecDeque<Packet>, whole: bool, stats: &mut FrameStats) {
        while self.frames.len() < PREPARED
            && let Some(packet) = batch.get(self.prepared)
        {
            let mut packet = packet.clone();
            if whole {
                packet.offload.kind = GsoKind::None;
                packet.offload.gso_segs = 0;
            }
            segment(packet, &mut self.segments);
            let before = self.frames.len();
            for packet in self.segments.drain(..) {
                let packet = with_few_pieces(packet);
                if let Some(field) = self.field.emit(packet.len()) {
                    self.frames.push_back(Frame {
                        field,
                        packet,
                        is_last: false,
                    });
                }
            }
            if self.frames.len() == before {
                // The packet is malformed, or longer than the length field can express.
                stats.tx_dropped += 1;
                batch.remove(self.prepared);
                continue;
            }
            if let Some(last) = self.frames.back_mut() {
                last.is_last = true;
            }
            self.prepared += 1;
        }
    }

    /// Returns the pieces of memory to write next.
    fn pieces(&self) -> SmallVec<[IoSlice<'_>; 256]> {
        let size = self.field.size();
        let mut pieces = SmallVec::new();
        let mut skip = self.written;
        for frame in &self.frames {
            let slices = std::iter::once(&frame.field[..size]).chain(frame.packet.slices());
            for slice in slices {
                let skipped = skip.min(slice.len());
                skip -= skipped;
                if skipped < slice.len() {
                    pieces.push(IoSlice::new(&slice[skipped..]));
                }
            }
            if pieces.len() + FRAME_PIECES + 2 > MAX_PIECES {
                break;
            }
        }
        pieces
    }

    /// Removes the written frames, and the packets whose last frame is written.
    fn on_written(&mut self, len: usize, batch: &mut VecDeque<Packet>, stats: &mut FrameStats) {
        self.written += len;
        while let Some(frame) = self.frames.front() {
            let frame_len = self.field.size() + frame.packet.len();
            if self.written < frame_len {
                return;
            }
            self.written -= frame_len;
            stats.tx_frames += 1;
            if frame.is_last {
                batch.pop_front();
                self.prepared -= 1;
            }
            self.frames.pop_front();
        }
    }
}

/// Returns the packet, with its payload copied into one piece if it has many.
fn with_few_pieces(mut packet: Packet) -> Packet {
    if packet.payload.slices().len() >= FRAME_PIECES {
        let mut bytes = vec![0; packet.payload.len()];
        packet.payload.copy_to(&mut bytes);
        packet.payload = Chain::from(Slice::copied_from(&bytes));
    }
    packet
}
