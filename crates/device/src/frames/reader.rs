//! The receive path of a stream, which reads into pool memory and splits the data into frames.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem;

use fullsend_offload::{Checksum, GsoKind, Offload, Packet, Pool, Slice, WriteBuf};
use fullsend_wire::numbers::ethertype;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};

use super::length::{LengthField, whole_frames};
use super::{FRAME_MAX, FrameStats, LINK_HEADER_MAX};

/// Most bytes that one call reads: four super-segments.
const READ_LEN: usize = 256 << 10;
/// Most bytes that are copied to memory of their size, so that a few small packets of a slow reader do
/// not pin a whole [`READ_LEN`].
const COPY_BREAK: usize = 16 << 10;
/// The shortest IP and TCP headers of a super-segment with timestamps, IPv4 and IPv6.
const HEADERS: [u32; 2] = [52, 72];

/// The receiving half of a stream.
pub(super) struct StreamReader {
    field: LengthField,
    mtu: u32,
    pool: Pool,
    /// The bytes read of an incomplete frame; the buffer is never full.
    buffer: WriteBuf,
    /// Complete frames that are not delivered yet.
    frames: Option<Slice>,
    has_super_segments: bool,
    /// Whether the stream is a pipe or another file, and not a socket.
    is_file: bool,
}

impl StreamReader {
    pub(super) fn new(field: LengthField, mtu: u32, pool: Pool) -> Self {
        Self {
            field,
            mtu,
            buffer: pool.alloc(READ_LEN),
            pool,
            frames: None,
            has_super_segments: false,
            is_file: false,
        }
    }

    /// Replaces the pool for later allocations.
    pub(super) fn set_pool(&mut self, pool: &Pool) {
        self.pool = pool.clone();
    }

    /// Returns whether the peer has sent a super-segment.
    pub(super) const fn has_super_segments(&self) -> bool {
        self.has_super_segments
    }

    /// Appends at most `max` frames to `batch`. Returns their number, including dropped ones, and the
    /// reason if the connection has ended.
    pub(super) fn receive(
        &mut self,
        file: &File,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut FrameStats,
    ) -> (usize, Option<io::Error>) {
        let mut count = 0;
        loop {
            // Without memory, a read may deliver more than `max` frames.
            count += self.deliver(batch, max.saturating_sub(count), stats);
            if count >= max {
                return (count, None);
            }
            let was_emptied = match self.read(file, stats) {
                Ok(Some(was_emptied)) => was_emptied,
                Ok(None) => return (count, None),
                Err(error) => return (count, Some(error)),
            };
            match whole_frames(self.field, self.buffer.filled()) {
                Ok(0) => {}
                Ok(whole) => count += self.take_frames(whole, batch, stats),
                Err(error) => return (count, Some(error)),
            }
            // No frame is incomplete. The stream's end may be next: a caller with an event for it calls again
            // while there are frames.
            if was_emptied && self.buffer.is_empty() {
                count += self.deliver(batch, max.saturating_sub(count), stats);
                return (count, None);
            }
        }
    }

    /// Reads once. Returns whether the stream was empty after that, as far as the read shows, or `None` if
    /// there was nothing to read.
    fn read(&mut self, file: &File, stats: &mut FrameStats) -> io::Result<Option<bool>> {
        loop {
            stats.rx_calls += 1;
            let mut was_cut = false;
            let read = if self.is_file {
                (&mut &*file).read(self.buffer.spare_mut())
            } else {
                let read = receive(file, self.buffer.spare_mut());
                read.map(|(len, cut)| {
                    was_cut = cut;
                    len
                })
            };
            match read {
                Ok(0) if self.buffer.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(0) => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the stream ended within a frame",
                    ));
                }
                Ok(len) => {
                    self.buffer.advance(len);
                    // After a short read a stream is empty (epoll(7)), unless the read has ended at a
                    // message with descriptors.
                    return Ok(Some(self.buffer.remaining() > 0 && !was_cut));
                }
                Err(e) if e.raw_os_error() == Some(Errno::NOTSOCK.raw_os_error()) => {
                    self.is_file = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Removes `whole` bytes of complete frames from the buffer. Returns the number of frames that were
    /// delivered at once for lack of memory to keep them.
    fn take_frames(
        &mut self,
        whole: usize,
        batch: &mut Vec<Packet>,
        stats: &mut FrameStats,
    ) -> usize {
        if whole <= COPY_BREAK
            && let Some(mut copy) = self.allocate(whole)
        {
            copy.write(&self.buffer.filled()[..whole]);
            self.frames = Some(copy.freeze());
            self.discard(whole);
            return 0;
        }
        if let Some(mut next) = self.allocate(READ_LEN) {
            next.write(&self.buffer.filled()[whole..]);
            let mut filled = mem::replace(&mut self.buffer, next).freeze();
            filled.truncate(whole);
            self.frames = Some(filled);
            return 0;
        }
        let count = self.copy_frames(whole, batch, stats);
        self.discard(whole);
        count
    }

    /// Returns an empty buffer for `len` bytes, or `None` if the pool is short of memory.
    fn allocate(&self, len: usize) -> Option<WriteBuf> {
        let buffer = self.pool.try_alloc(len)?;
        (buffer.capacity() >= len && !self.pool.is_under_pressure()).then_some(buffer)
    }

    /// Removes the first `len` bytes of the buffer, which leaves less than a frame.
    fn discard(&mut self, len: usize) {
        let rest = self.buffer.filled()[len..].to_vec();
        self.buffer.clear();
        self.buffer.write(&rest);
    }

    /// Copies each frame to its own memory: the buffer must be kept, as no other can be allocated. A
    /// frame for which the pool's reserve has no block is dropped.
    fn copy_frames(
        &mut self,
        whole: usize,
        batch: &mut Vec<Packet>,
        stats: &mut FrameStats,
    ) -> usize {
        let mut count = 0;
        let mut rest = &self.buffer.filled()[..whole];
        while let Ok(Some(len)) = self.field.parse(rest) {
            let (frame, behind) = rest[self.field.size()..].split_at(len);
            rest = behind;
            count += 1;
            stats.rx_frames += 1;
            self.has_super_segments |= is_super_segment(frame, self.mtu);
            let copy = self.pool.try_alloc_from_reserve(len);
            match copy.filter(|copy| copy.capacity() >= len) {
                Some(mut copy) => {
                    copy.write(frame);
                    batch.push(packet(copy.freeze(), self.mtu));
                }
                None => stats.rx_dropped += 1,
            }
        }
        count
    }

    /// Appends at most `max` of the kept frames. Returns their number.
    fn deliver(&mut self, batch: &mut Vec<Packet>, max: usize, stats: &mut FrameStats) -> usize {
        let Some(frames) = &mut self.frames else {
            return 0;
        };
        let mut count = 0;
        while count < max {
            let Ok(Some(len)) = self.field.parse(frames.as_slice()) else {
                self.frames = None;
                break;
            };
            frames.advance(self.field.size());
            let frame = frames.split_to(len);
            self.has_super_segments |= is_super_segment(frame.as_slice(), self.mtu);
            batch.push(packet(frame, self.mtu));
            count += 1;
        }
        stats.rx_frames += count as u64;
        count
    }
}

/// Receives from a stream socket. Returns the number of bytes, and whether the peer has sent descriptors
/// with them: the kernel discards these, as there is no room for them, and the bytes after them wait for the
/// next call.
fn receive(file: &File, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
    let mut no_room = RecvAncillaryBuffer::default();
    let mut pieces = [IoSliceMut::new(buffer)];
    let received = recvmsg(file, &mut pieces, &mut no_room, RecvFlags::empty())?;
    let was_cut = received.flags.contains(ReturnFlags::CTRUNC);
    Ok((received.bytes, was_cut))
}

/// Returns whether a frame is longer than the link's MTU allows.
fn is_super_segment(frame: &[u8], mtu: u32) -> bool {
    frame.len() > mtu as usize + LINK_HEADER_MAX
}

/// Returns a frame as an unparsed packet. The frame does not contain the size of a super-segment's
/// segments, which are assumed to have filled the MTU, so that it is acknowledged as that many.
fn packet(frame: Slice, mtu: u32) -> Packet {
    let kind = match frame.get(12..14) {
        _ if !is_super_segment(&frame, mtu) => GsoKind::None,
        Some(&[a, b]) if u16::from_be_bytes([a, b]) == ethertype::IPV4 => GsoKind::TcpV4,
        Some(&[a, b]) if u16::from_be_bytes([a, b]) == ethertype::IPV6 => GsoKind::TcpV6,
        _ => GsoKind::None,
    };
    let gso_size = match kind {
        GsoKind::TcpV4 => mtu.saturating_sub(HEADERS[0]),
        GsoKind::TcpV6 => mtu.saturating_sub(HEADERS[1]),
        GsoKind::None | GsoKind::Udp => 0,
    };
    let kind = if gso_size == 0 { GsoKind::None } else { kind };
    let mut packet = Packet::from_frame(frame);
    packet.offload = Offload {
        gso_size: gso_size as u16,
        kind,
        checksum: Checksum::Valid,
        ..Offload::default()
    };
    packet
}

// A read always finds room after an incomplete frame.
const _: () = assert!(READ_LEN > FRAME_MAX + 4);
