//! Receive path: reads into pool memory, and the offload header of each packet.

use std::fs::File;
use std::io::{self, Read};

use fullsend_offload::{Offload, Packet, Pool, Slice, WriteBuf};
use fullsend_wire::vnet::{VNET_HDR_LEN, VnetHdr};

use super::TunStats;
use crate::vnet;

/// The longest frame that the kernel can return: a full IPv6 payload, IPv6, Ethernet and VLAN
/// headers, and the offload header. A shorter read would truncate it silently.
const FRAME_MAX: usize = 65_535 + 40 + 18 + VNET_HDR_LEN;

/// Bytes of memory that consecutive reads fill: four super-segments of the usual 45 × 1448 bytes.
const READ_BUFFER_LEN: usize = 256 << 10;

/// Most bytes of one poll that are copied to memory of their size, so that a few small packets that
/// a slow reader keeps do not pin a whole [`READ_BUFFER_LEN`]. The copy costs little beside the
/// system calls.
const COPY_BREAK: usize = 16 << 10;

/// Bytes read of a frame that there is no memory for: any read makes the kernel drop the frame.
const DISCARD_LEN: usize = 64;

/// The receiving half of a queue.
pub(crate) struct FrameReader {
    pool: Pool,
    vnet_hdr: bool,
    /// An empty read is the end of the file.
    empty_is_end: bool,
    /// Empty memory left over from the last poll.
    buffer: Option<WriteBuf>,
    /// Lengths of the frames in the buffer being filled.
    frames: Vec<u32>,
}

impl FrameReader {
    pub(crate) fn new(pool: Pool, vnet_hdr: bool) -> Self {
        Self {
            pool,
            vnet_hdr,
            empty_is_end: false,
            buffer: None,
            frames: Vec::new(),
        }
    }

    /// Returns a reader for a socket, on which an empty read means that the peer has closed it.
    pub(crate) fn ends_with_empty_frame(mut self) -> Self {
        self.empty_is_end = true;
        self
    }

    /// Implements [`Device::receive`](crate::Device::receive).
    pub(crate) fn receive(
        &mut self,
        file: &File,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut TunStats,
    ) -> io::Result<usize> {
        let mut read = 0;
        loop {
            // Dropped frames count as well: otherwise a flood would hold the caller, which has the
            // stack's lock, for as long as there is no memory.
            let (frames, more) = self.read_frames(file, max - read, stats)?;
            read += frames;
            self.deliver_frames(batch, stats);
            if !more || read >= max {
                return Ok(read);
            }
        }
    }

    /// Reads until the buffer is full, `max_frames` frames are read or the file has no more.
    /// Returns the number of frames read, and whether there may be more.
    fn read_frames(
        &mut self,
        file: &File,
        max_frames: usize,
        stats: &mut TunStats,
    ) -> io::Result<(usize, bool)> {
        if self.buffer.is_none() {
            let buffer = self.pool.try_alloc_from_reserve(READ_BUFFER_LEN);
            self.buffer = buffer.filter(|buffer| buffer.capacity() >= READ_BUFFER_LEN);
        }
        let Some(buffer) = &mut self.buffer else {
            return discard(file, max_frames, stats);
        };
        while self.frames.len() < max_frames {
            if buffer.remaining() < FRAME_MAX {
                return Ok((self.frames.len(), true));
            }
            stats.rx_calls += 1;
            match (&mut &*file).read(buffer.spare_mut()) {
                // Frames read before it are delivered first; the next read is empty again.
                Ok(0) if self.empty_is_end && !self.frames.is_empty() => {
                    return Ok((self.frames.len(), false));
                }
                Ok(0) if self.empty_is_end => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    buffer.advance(len);
                    self.frames.push(len as u32);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Ok((self.frames.len(), false));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Frames read before it are delivered first; the next read returns the error again.
                Err(e) if self.frames.is_empty() => return Err(e),
                Err(_) => return Ok((self.frames.len(), false)),
            }
        }
        Ok((self.frames.len(), true))
    }

    /// Splits the filled memory into packets.
    fn deliver_frames(&mut self, batch: &mut Vec<Packet>, stats: &mut TunStats) {
        let Some(mut buffer) = self.buffer.take_if(|_| !self.frames.is_empty()) else {
            return;
        };
        if self.pool.is_under_pressure() {
            self.copy_frames(&buffer, batch, stats);
            buffer.clear();
            self.buffer = Some(buffer);
            return;
        }
        let small = match buffer.len() {
            len @ ..=COPY_BREAK => self.pool.try_alloc(len),
            _ => None,
        };
        let mut filled = match small {
            Some(mut small) => {
                small.write(buffer.filled());
                buffer.clear();
                self.buffer = Some(buffer);
                small.freeze()
            }
            None => buffer.freeze(),
        };
        for len in self.frames.drain(..) {
            let frame = filled.split_to(len as usize);
            deliver(Some(frame), self.vnet_hdr, batch, stats);
        }
    }

    /// Copies each frame into memory of its own: under memory pressure the buffer must stay here,
    /// since no other can be allocated. A frame for which the reserve has no block is dropped.
    fn copy_frames(&mut self, buffer: &WriteBuf, batch: &mut Vec<Packet>, stats: &mut TunStats) {
        let mut rest = buffer.filled();
        for len in self.frames.drain(..) {
            let (frame, behind) = rest.split_at(len as usize);
            rest = behind;
            let copy = self.pool.try_alloc_from_reserve(frame.len());
            let copy = copy.filter(|copy| copy.capacity() >= frame.len());
            let copy = copy.map(|mut copy| {
                copy.write(frame);
                copy.freeze()
            });
            deliver(copy, self.vnet_hdr, batch, stats);
        }
    }
}

/// Appends a frame to the batch, or counts it as dropped.
fn deliver(frame: Option<Slice>, vnet_hdr: bool, batch: &mut Vec<Packet>, stats: &mut TunStats) {
    stats.rx_packets += 1;
    match frame.and_then(|frame| packet(frame, vnet_hdr)) {
        Some(packet) => batch.push(packet),
        None => stats.rx_dropped += 1,
    }
}

/// Reads up to `max_frames` frames and drops them. Returns their number, and whether there may be
/// more.
fn discard(file: &File, max_frames: usize, stats: &mut TunStats) -> io::Result<(usize, bool)> {
    let mut read = 0;
    while read < max_frames {
        stats.rx_calls += 1;
        match (&mut &*file).read(&mut [0; DISCARD_LEN]) {
            Ok(_) => {
                stats.rx_packets += 1;
                stats.rx_dropped += 1;
                read += 1;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((read, false)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if read == 0 => return Err(e),
            // The next read returns the error again.
            Err(_) => return Ok((read, false)),
        }
    }
    Ok((read, true))
}

/// Returns a frame as an unparsed packet; `None` if its offload header is invalid.
fn packet(mut frame: Slice, vnet_hdr: bool) -> Option<Packet> {
    let mut offload = Offload::default();
    if vnet_hdr {
        offload = vnet::offload_of(&VnetHdr::parse(frame.first_chunk()?))?;
        frame.advance(VNET_HDR_LEN);
    }
    let mut packet = Packet::from_frame(frame);
    packet.offload = offload;
    Some(packet)
}
