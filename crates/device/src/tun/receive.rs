//! The receive path, which reads into pool memory and parses the offload header of each packet.

use std::io;
#[cfg(unix)]
use std::io::Read;

use fullsend_offload::{Packet, Pool, Slice, WriteBuf};
use fullsend_wire::vnet::{VNET_HDR_LEN, VnetHdr};

use super::{FAMILY_LEN, FrameHeader, TunStats};
use crate::vnet;

/// Length of the longest frame that the kernel can return: a full IPv6 payload, IPv6, Ethernet and VLAN
/// headers, and the offload header. A shorter read would truncate it silently.
const FRAME_MAX: usize = 65_535 + 40 + 18 + VNET_HDR_LEN;

/// Bytes of memory that consecutive reads fill: four super-segments of the usual 45 × 1448 bytes.
const READ_BUFFER_LEN: usize = 256 << 10;

/// Most bytes of one poll that are copied to memory of their size, so that a few small packets of a slow
/// reader do not pin a whole [`READ_BUFFER_LEN`]. The copy costs little compared with the system calls.
const COPY_BREAK: usize = 16 << 10;

/// Bytes read of a frame for which there is no memory: a read of any size makes the kernel drop the
/// frame.
const DISCARD_LEN: usize = 64;

/// The receiving half of a queue.
pub(crate) struct FrameReader {
    pool: Pool,
    header: FrameHeader,
    /// Most bytes that one poll reads, because all of its packets are in memory at the same time.
    max_bytes: usize,
    /// Whether an empty read is the end of the file.
    empty_is_end: bool,
    /// Empty memory left over from the last poll.
    buffer: Option<WriteBuf>,
    /// The lengths of the frames in the buffer.
    frames: Vec<u32>,
}

impl FrameReader {
    pub(crate) fn new(pool: Pool, header: FrameHeader) -> Self {
        Self {
            pool,
            header,
            max_bytes: usize::MAX,
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

    /// Implements [`Device::limit_memory`](crate::Device::limit_memory). Each poll still reads at least
    /// one buffer.
    pub(crate) fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.pool = pool.clone();
        self.buffer = None;
        self.max_bytes = max_bytes;
    }

    /// Implements [`Device::receive`](crate::Device::receive).
    #[cfg(unix)]
    pub(crate) fn receive(
        &mut self,
        mut file: impl Read,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut TunStats,
    ) -> io::Result<usize> {
        self.receive_with(|buf| file.read(buf), batch, max, stats)
    }

    /// Receives like [`Device::receive`](crate::Device::receive) from `read`, each call of which returns
    /// one frame, or `WouldBlock` if there is none.
    pub(crate) fn receive_with(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut TunStats,
    ) -> io::Result<usize> {
        let (mut frames, mut buffers_bytes) = (0, 0);
        loop {
            // Dropped frames also count: otherwise a flood would keep the caller, which holds the stack's
            // lock, as long as there is no memory.
            let (added, more) = self.read_frames(&mut read, max - frames, stats)?;
            frames += added;
            buffers_bytes += READ_BUFFER_LEN;
            self.deliver_frames(batch, stats);
            if !more || frames >= max {
                return Ok(frames);
            }
            if buffers_bytes >= self.max_bytes {
                // A full result makes the caller poll again.
                return Ok(max);
            }
        }
    }

    /// Reads until the buffer is full, `max_frames` frames are read or the file has no more.
    /// Returns the number of frames read, and whether there may be more.
    fn read_frames(
        &mut self,
        read: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
        max_frames: usize,
        stats: &mut TunStats,
    ) -> io::Result<(usize, bool)> {
        if self.buffer.is_none() {
            let buffer = self.pool.try_alloc_from_reserve(READ_BUFFER_LEN);
            self.buffer = buffer.filter(|buffer| buffer.capacity() >= READ_BUFFER_LEN);
        }
        let Some(buffer) = &mut self.buffer else {
            return discard(read, max_frames, stats);
        };
        while self.frames.len() < max_frames {
            if buffer.remaining() < FRAME_MAX {
                return Ok((self.frames.len(), true));
            }
            stats.rx_calls += 1;
            match read(buffer.spare_mut()) {
                // Earlier frames are delivered first; the next read is empty again.
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
                // Earlier frames are delivered first; the next read returns the error again.
                Err(e) if self.frames.is_empty() => return Err(e),
                Err(_) => return Ok((self.frames.len(), false)),
            }
        }
        Ok((self.frames.len(), true))
    }

    /// Splits the filled memory into packets and delivers them.
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
            deliver(Some(frame), self.header, batch, stats);
        }
    }

    /// Copies each frame to its own memory: under memory pressure the buffer must be kept, as no other
    /// can be allocated. A frame for which the reserve has no block is dropped.
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
            deliver(copy, self.header, batch, stats);
        }
    }
}

/// Appends a frame to the batch, or counts it as dropped.
fn deliver(
    frame: Option<Slice>,
    header: FrameHeader,
    batch: &mut Vec<Packet>,
    stats: &mut TunStats,
) {
    stats.rx_packets += 1;
    match frame.and_then(|frame| packet(frame, header)) {
        Some(packet) => batch.push(packet),
        None => stats.rx_dropped += 1,
    }
}

/// Reads up to `max_frames` frames and drops them. Returns their number, and whether there may be
/// more.
fn discard(
    read: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
    max_frames: usize,
    stats: &mut TunStats,
) -> io::Result<(usize, bool)> {
    let mut frames = 0;
    while frames < max_frames {
        stats.rx_calls += 1;
        match read(&mut [0; DISCARD_LEN]) {
            Ok(_) => {
                stats.rx_packets += 1;
                stats.rx_dropped += 1;
                frames += 1;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok((frames, false)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if frames == 0 => return Err(e),
            // The next read returns the error again.
            Err(_) => return Ok((frames, false)),
        }
    }
    Ok((frames, true))
}

/// Returns a frame as an unparsed packet, or `None` if its header is invalid.
fn packet(mut frame: Slice, header: FrameHeader) -> Option<Packet> {
    match header {
        FrameHeader::None => Some(Packet::from_frame(frame)),
        FrameHeader::Vnet => vnet_packet(frame),
        FrameHeader::Family => {
            frame.first_chunk::<FAMILY_LEN>()?;
            frame.advance(FAMILY_LEN);
            Some(Packet::from_frame(frame))
        }
    }
}

/// Returns the packet of a frame that begins with a `virtio_net_hdr` of 10 bytes, unparsed and with the
/// offloads of the header. Returns `None` if the header is invalid or names an unsupported offload (UFO).
///
/// ```
/// use fullsend_device::{vnet_header, vnet_packet};
/// use fullsend_offload::{Checksum, Slice};
///
/// let mut frame = vec![0; 10];
/// frame[0] = 2; // VIRTIO_NET_HDR_F_DATA_VALID
/// frame.extend([0x45; 40]);
/// let packet = vnet_packet(Slice::copied_from(&frame)).unwrap();
/// assert_eq!((packet.len(), packet.offload.checksum), (40, Checksum::Valid));
/// assert_eq!(vnet_header(&packet)[0], 2);
/// ```
pub fn vnet_packet(mut frame: Slice) -> Option<Packet> {
    let offload = vnet::offload_of(&VnetHdr::parse(frame.first_chunk()?))?;
    frame.advance(VNET_HDR_LEN);
    let mut packet = Packet::from_frame(frame);
    packet.offload = offload;
    Some(packet)
}
