//! The device of a shard: the queue of a device, and the packets that other shards hand over.

use std::collections::VecDeque;
use std::io;
use std::mem;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use fullsend_device::{Caps, Device, DeviceCounters, Notifier};
use fullsend_offload::{Link, Packet, Pool};
use fullsend_stack::{NeighbourMessage, Steering};
use parking_lot::Mutex;

#[cfg(test)]
mod tests;

/// Largest number of packets, and of their bytes, that wait for a shard; others are dropped, as by
/// a device whose queue is full. The queue of a TUN has as many packets.
const BACKLOG_PACKETS: usize = 4096;
const BACKLOG_BYTES: usize = 8 << 20;
/// Largest number of messages between neighbour tables that wait for a shard; others are dropped.
const BACKLOG_MESSAGES: usize = 1024;
/// A packet that keeps more than this multiple of its length allocated is copied before it waits,
/// so that the memory of a backlog is at most this multiple of its bytes.
const MAX_PINNED: usize = 8;
/// Largest number of shards of a stack: the bits of the set of shards that [`Handover`] wakes.
pub const MAX_SHARDS: usize = 64;

/// The packets that other shards have received for one shard. It has cache lines of its own, which
/// only its shard uses as long as no packet is handed over.
#[derive(Default)]
#[repr(align(128))]
struct Backlog {
    packets: Mutex<BacklogQueue>,
    /// Number of packets in the queue.
    len: AtomicUsize,
    messages: Mutex<VecDeque<NeighbourMessage>>,
    has_messages: AtomicBool,
    received: AtomicU64,
    dropped: AtomicU64,
}

struct BacklogQueue {
    packets: VecDeque<Packet>,
    bytes: usize,
    max_bytes: usize,
}

impl Default for BacklogQueue {
    fn default() -> Self {
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            max_bytes: BACKLOG_BYTES,
        }
    }
}

impl Backlog {
    /// Moves `packets` to the queue, and drops those that exceed its limits. Returns whether the
    /// queue was empty, so that its shard must be woken.
    fn push(&self, packets: &mut Vec<Packet>) -> bool {
        for packet in &mut *packets {
            packet.payload.limit_pinned(MAX_PINNED);
        }
        let mut queue = self.packets.lock();
        let was_empty = queue.packets.is_empty();
        let mut dropped = 0;
        let count = packets.len() as u64;
        for packet in packets.drain(..) {
            let bytes = queue.bytes + packet.len();
            if queue.packets.len() < BACKLOG_PACKETS && bytes <= queue.max_bytes {
                queue.bytes = bytes;
                queue.packets.push_back(packet);
            } else {
                dropped += 1;
            }
        }
        self.len.store(queue.packets.len(), Ordering::Release);
        drop(queue);
        self.received.fetch_add(count - dropped, Ordering::Relaxed);
        self.dropped.fetch_add(dropped, Ordering::Relaxed);
        was_empty
    }

    /// Moves a message to the queue, or drops it if there are too many and it may be lost.
    fn push_message(&self, message: NeighbourMessage) {
        let mut messages = self.messages.lock();
        if messages.len() < BACKLOG_MESSAGES || !message.may_be_lost() {
            messages.push_back(message);
            self.has_messages.store(true, Ordering::Release);
        }
    }

    fn take_messages(&self) -> VecDeque<NeighbourMessage> {
        if !self.has_messages.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut messages = self.messages.lock();
        self.has_messages.store(false, Ordering::Release);
        mem::take(&mut messages)
    }

    /// Appends up to `max` packets to `batch`. Returns whether more are left.
    fn pop(&self, batch: &mut Vec<Packet>, max: usize) -> bool {
        if self.len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut queue = self.packets.lock();
        let count = queue.packets.len().min(max);
        let before = batch.len();
        batch.extend(queue.packets.drain(..count));
        queue.bytes -= batch[before..].iter().map(Packet::len).sum::<usize>();
        self.len.store(queue.packets.len(), Ordering::Release);
        !queue.packets.is_empty()
    }
}

/// The device of one shard: one queue of a device with a queue for each shard.
///
/// It passes on the packets of its own shard ([`Steering`]), and hands over the packets of other shards.
/// A kernel that steers by flow, such as a TUN's, soon delivers the packets of a flow to the queue that
/// the flow's own packets left by, so that few are handed over.
pub struct SteeredDevice<D> {
    device: D,
    steering: Steering,
    link: Link,
    index: usize,
    handover: Handover,
    /// Scratch buffers for packets of other shards, by shard.
    staged: Vec<Vec<Packet>>,
}

/// One shard's access to the backlogs of all shards of its stack.
#[derive(Clone)]
pub struct Handover {
    backlogs: Arc<[Backlog]>,
    /// The shards to wake, a bit for each.
    woken: Arc<AtomicU64>,
}

impl Handover {
    /// Moves `packets` to the backlog of a shard. Call [`take_woken`](Self::take_woken) afterwards.
    pub fn push(&self, shard: usize, packets: &mut Vec<Packet>) {
        if self.backlogs[shard].push(packets) {
            self.woken.fetch_or(1 << shard, Ordering::Release);
        }
    }

    /// Moves a message to the backlog of a shard. Call [`take_woken`](Self::take_woken) afterwards.
    pub fn push_message(&self, shard: usize, message: NeighbourMessage) {
        self.backlogs[shard].push_message(message);
        self.woken.fetch_or(1 << shard, Ordering::Release);
    }

    /// Removes and returns the messages of other shards to the host of shard `index`, the caller's.
    #[inline]
    pub fn take_messages(&self, index: usize) -> VecDeque<NeighbourMessage> {
        self.backlogs[index].take_messages()
    }

    /// Removes and returns the indices of the shards to whose backlogs this shard has moved packets or
    /// messages, and whose drivers must be woken.
    #[inline]
    pub fn take_woken(&self) -> impl Iterator<Item = usize> + use<> {
        let mut bits = match self.woken.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.woken.swap(0, Ordering::Acquire),
        };
        std::iter::from_fn(move || {
            let shard = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(shard)
        })
    }

    /// Returns the number of packets that were handed over between all shards.
    pub fn received(&self) -> u64 {
        let received = |backlog: &Backlog| backlog.received.load(Ordering::Relaxed);
        self.backlogs.iter().map(received).sum()
    }

    /// Returns the number of packets that were dropped because their shard did not receive them in
    /// time.
    pub fn dropped(&self) -> u64 {
        let dropped = |backlog: &Backlog| backlog.dropped.load(Ordering::Relaxed);
        self.backlogs.iter().map(dropped).sum()
    }
}

impl<D: Device> SteeredDevice<D> {
    /// Returns the devices of the shards. `queues` has a device for each shard of `steering`, in
    /// their order.
    ///
    /// # Errors
    /// `InvalidInput` if there are more or fewer devices, more than 64, or devices with different link
    /// layers.
    pub fn for_shards(steering: Steering, queues: Vec<D>) -> io::Result<Vec<Self>> {
        let invalid = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let shards = steering.shards();
        if queues.len() != shards {
            let given = queues.len();
            return invalid(format!(
                "the number of shards is {shards}, that of device queues {given}; pass one queue for \
                 each shard"
            ));
        }
        if shards > MAX_SHARDS {
            return invalid(format!(
                "{shards} shards are too many; use at most {MAX_SHARDS}"
            ));
        }
        let link = queues.first().map_or(Link::Ip, |queue| queue.caps().link);
        if queues.iter().any(|queue| queue.caps().link != link) {
            return invalid(
                "some of the device queues have Ethernet frames and others IP packets; pass queues of \
                 one device"
                    .to_owned(),
            );
        }
        let backlogs: Arc<[Backlog]> = (0..shards).map(|_| Backlog::default()).collect();
        let steered = queues.into_iter().enumerate().map(|(index, device)| Self {
            device,
            steering,
            link,
            index,
            handover: Handover {
                backlogs: backlogs.clone(),
                woken: Arc::default(),
            },
            staged: (0..shards).map(|_| Vec::new()).collect(),
        });
        Ok(steered.collect())
    }

    /// Returns this shard's access to the backlogs. After each [`Device::receive`], without the
    /// shard's lock, the drivers that [`Handover::take_woken`] names must be woken.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }

    /// Hands over the packets of `batch`, from index `from` on, that belong to other shards.
    fn hand_over(&mut self, batch: &mut Vec<Packet>, from: usize) {
        let mut kept = from;
        for at in from..batch.len() {
            let shard = self.steering.target(self.link, &batch[at]);
            if shard != self.index {
                self.staged[shard].push(mem::take(&mut batch[at]));
                continue;
            }
            if kept != at {
                batch.swap(kept, at);
            }
            kept += 1;
        }
        if kept == batch.len() {
            return;
        }
        batch.truncate(kept);
        for (shard, staged) in self.staged.iter_mut().enumerate() {
            if !staged.is_empty() {
                self.handover.push(shard, staged);
            }
        }
    }
}

impl<D: Device> Device for SteeredDevice<D> {
    fn caps(&self) -> Caps {
        self.device.caps()
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        self.device.transmit(batch)
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        // The packets of the backlog are usually older than those of the queue.
        let more = self.handover.backlogs[self.index].pop(batch, max);
        let before = batch.len();
        let received = self.device.receive(batch, max)?;
        self.hand_over(batch, before);
        Ok(if more { received.max(max) } else { received })
    }

    fn has_received(&self) -> bool {
        self.handover.backlogs[self.index]
            .len
            .load(Ordering::Acquire)
            > 0
            || self.device.has_received()
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight()
    }

    fn notify_completion(&mut self) -> bool {
        self.device.notify_completion()
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.fd()
    }

    fn set_waker(&mut self, waker: &Waker) -> bool {
        self.device.set_waker(waker)
    }

    fn take_notifier(&mut self) -> Option<Notifier> {
        self.device.take_notifier()
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.device.limit_memory(pool, max_bytes / 2);
        let backlog = &self.handover.backlogs[self.index];
        backlog.packets.lock().max_bytes = (max_bytes / 2 / MAX_PINNED).min(BACKLOG_BYTES);
    }

    fn counters(&mut self) -> DeviceCounters {
        self.device.counters()
    }

    fn close(&mut self) {
        self.device.close();
    }
}
