//! The receive path, which copies packets from the guest's descriptor chains into pool memory.

use std::ops::Range;

use fullsend_device::vnet;
use fullsend_offload::{Offload, Packet, Pool, Slice, WriteBuf};
use fullsend_wire::vnet::{VNET_HDR_LEN, VnetHdr};
use vm_memory::GuestMemoryMmap;

use crate::cursor::Cursor;
use crate::features::HEADER_MAX;
use crate::pair::Queues;
use crate::ring::{BrokenRing, Buffer, Chain};
use crate::stats::VhostUserStats;

/// The longest frame, bytes: a full IPv6 payload, and IPv6, Ethernet and VLAN headers.
const FRAME_MAX: usize = 65_535 + 40 + 18;

/// The shortest frame, bytes: an Ethernet header.
const FRAME_MIN: usize = 14;

/// Bytes of memory that consecutive frames share: the largest block of a pool.
const GROUP_LEN: usize = 256 << 10;

/// Most segments of a super-segment, more than the 1366 that Linux sends for 64 KiB at its smallest MSS.
const MAX_SEGMENTS: usize = 2048;

/// A chain that was removed from the ring.
struct Frame {
    head: u16,
    /// The chain's buffers in [`Receiver::buffers`].
    buffers: Range<usize>,
    /// The length without the header, bytes; 0 if the chain is malformed.
    len: usize,
}

impl Frame {
    fn new(chain: Chain, buffers: Range<usize>, header_len: usize) -> Self {
        let len = (chain.len as usize).saturating_sub(header_len);
        let valid = !chain.malformed && (FRAME_MIN..=FRAME_MAX).contains(&len);
        Self {
            head: chain.head,
            buffers,
            len: if valid { len } else { 0 },
        }
    }
}

/// The receiving half of a device.
pub(crate) struct Receiver {
    pool: Pool,
    /// Most bytes of frames that one call receives, because all of its packets are in memory at the same
    /// time.
    max_bytes: usize,
    buffers: Vec<Buffer>,
    frames: Vec<Frame>,
    /// The offloads and lengths of the copied frames.
    copied: Vec<(Offload, usize)>,
}

impl Receiver {
    pub(crate) fn new(pool: Pool) -> Self {
        Self {
            pool,
            max_bytes: usize::MAX,
            buffers: Vec::new(),
            frames: Vec::new(),
            copied: Vec::new(),
        }
    }

    /// Sets the pool, and the number of bytes after which a call ends. A call receives at least one
    /// frame.
    pub(crate) fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.pool = pool.clone();
        self.max_bytes = max_bytes.max(1);
    }

    /// Appends up to `max` packets to `batch`. Returns `max` if any chain was removed, so that the caller
    /// polls again as after a full batch, or else 0: only then does the driver notify the device of the
    /// next chain. As long as the driver adds chains while the host processes the last ones, neither side
    /// makes a system call.
    pub(crate) fn receive(
        &mut self,
        queues: &mut Queues<'_>,
        batch: &mut Vec<Packet>,
        max: usize,
        stats: &mut VhostUserStats,
    ) -> Result<usize, BrokenRing> {
        let (mut received, mut bytes) = (0, 0);
        let mut announced = false;
        while received < max && bytes < self.max_bytes {
            let max_bytes = self.max_bytes - bytes;
            let (frames, len) =
                self.receive_group(queues, batch, max - received, max_bytes, stats)?;
            received += frames;
            bytes += len;
            if frames > 0 {
                continue;
            }
            if received > 0 {
                break;
            }
            if announced {
                // The driver has withdrawn a chain.
                return Err(BrokenRing);
            }
            announced = queues.from_guest.request_kick(queues.memory)?;
            if !announced {
                return Ok(0);
            }
        }
        Ok(max)
    }

    /// Receives frames that share a block of memory, up to `max_bytes`. Returns the number of removed
    /// chains, and the bytes of their frames.
    fn receive_group(
        &mut self,
        queues: &mut Queues<'_>,
        batch: &mut Vec<Packet>,
        max: usize,
        max_bytes: usize,
        stats: &mut VhostUserStats,
    ) -> Result<(usize, usize), BrokenRing> {
        let Queues {
            memory, features, ..
        } = *queues;
        let ring = &mut *queues.from_guest;
        let header_len = features.header_len();
        self.frames.clear();
        self.buffers.clear();
        let mut total = 0;
        while self.frames.len() < max && total < max_bytes {
            let (position, start) = (ring.position(), self.buffers.len());
            let Some(chain) = ring.pop(memory, &mut self.buffers)? else {
                break;
            };
            let frame = Frame::new(chain, start..self.buffers.len(), header_len);
            if total + frame.len > GROUP_LEN {
                ring.rewind(position);
                break;
            }
            total += frame.len;
            self.frames.push(frame);
        }
        if ring.is_active() {
            self.copy_frames(memory, header_len, total, batch, stats);
        } else {
            stats.rx_disabled += self.frames.len() as u64;
        }
        for frame in &self.frames {
            ring.push_used(memory, frame.head, 0)?;
        }
        ring.publish(memory)?;
        stats.notifications += u64::from(ring.notify(memory)?);
        Ok((self.frames.len(), total))
    }

    /// Copies the frames to one block of `total` bytes, or without one each frame to its own block.
    fn copy_frames(
        &mut self,
        memory: &GuestMemoryMmap<()>,
        header_len: usize,
        total: usize,
        batch: &mut Vec<Packet>,
        stats: &mut VhostUserStats,
    ) {
        let mut block = alloc(&self.pool, total);
        self.copied.clear();
        for frame in &self.frames {
            let mut own = None;
            let target = if let Some(block) = &mut block {
                block
            } else {
                let Some(memory) = alloc(&self.pool, frame.len) else {
                    stats.rx_no_memory += 1;
                    continue;
                };
                own.insert(memory)
            };
            let buffers = &self.buffers[frame.buffers.clone()];
            let Some(offload) = copy(memory, buffers, header_len, frame.len, target) else {
                stats.rx_malformed += 1;
                continue;
            };
            stats.rx_packets += 1;
            match own {
                Some(own) => batch.push(packet(own.freeze(), offload)),
                None => self.copied.push((offload, frame.len)),
            }
        }
        let Some(block) = block.filter(|block| !block.is_empty()) else {
            return;
        };
        let mut filled = block.freeze();
        for (offload, len) in self.copied.drain(..) {
            batch.push(packet(filled.split_to(len), offload));
        }
    }
}

/// Returns memory for `len` bytes, also from the reserve under memory pressure.
fn alloc(pool: &Pool, len: usize) -> Option<WriteBuf> {
    let block = pool.try_alloc_from_reserve(len);
    block.filter(|block| block.capacity() >= len)
}

/// Appends a frame to `target` and returns its offloads. Returns `None`, and appends nothing, if the
/// frame is malformed.
fn copy(
    memory: &GuestMemoryMmap<()>,
    buffers: &[Buffer],
    header_len: usize,
    len: usize,
    target: &mut WriteBuf,
) -> Option<Offload> {
    if len == 0 {
        return None;
    }
    let mut cursor = Cursor::new(memory, buffers);
    let mut header = [0; HEADER_MAX];
    cursor.read(&mut header[..header_len]).ok()?;
    let header = header.first_chunk::<VNET_HDR_LEN>()?;
    let offload = vnet::offload_of(&VnetHdr::parse(header))?;
    let size = usize::from(offload.gso_size);
    if size != 0 && len.div_ceil(size) > MAX_SEGMENTS {
        return None;
    }
    cursor.read(&mut target.spare_mut()[..len]).ok()?;
    target.advance(len);
    Some(offload)
}

fn packet(frame: Slice, offload: Offload) -> Packet {
    let mut packet = Packet::from_frame(frame);
    packet.offload = offload;
    packet
}
