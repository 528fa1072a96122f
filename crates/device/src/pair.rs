//! An in-process link: two devices between which packets pass without a copy.
//!
//! Each direction has a queue. If possible, both sides exchange whole containers under its lock (the
//! sender's batch for the empty queue, the full queue for the receiver's empty batch), so that the cost
//! of the lock and the queue is paid per batch, not per packet.

use std::collections::VecDeque;
use std::io;
use std::mem;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fullsend_offload::{Checksum, Link, Packet};
use parking_lot::Mutex;

use crate::{Caps, Device};

#[cfg(test)]
mod tests;

/// The offloads of the link, as of a network card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicMode {
    /// Super-segments pass whole; checksums are neither computed nor verified.
    Tso,
    /// Only packets of at most the MTU pass, with checksums that the sender computed and the
    /// receiver verifies.
    Mtu,
}

/// The configuration of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairConfig {
    /// The offloads.
    pub nic: NicMode,
    /// The link layer of the frames.
    pub link: Link,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// The most packets (or super-segments) queued in one direction; the rest stays with the sender.
    pub queue: usize,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            nic: NicMode::Tso,
            link: Link::Ip,
            mtu: 1500,
            queue: 1024,
        }
    }
}

type Notify = Arc<dyn Fn() + Send + Sync>;

/// One direction of the link, on its own cache lines: the links of several shards are allocated one after
/// the other and used by different processors.
#[derive(Default)]
#[repr(align(128))]
struct PairQueue {
    queue: Mutex<VecDeque<Packet>>,
    /// The length of `queue`; a packet is completed when the receiver removes it.
    queued: AtomicUsize,
    /// Whether the sender has packets left over, and must be notified when there is room.
    sender_is_waiting: AtomicBool,
    on_ready: [Mutex<Option<Notify>>; 2],
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl PairQueue {
    fn notify(&self, side: usize) {
        if let Some(notify) = &*self.on_ready[side].lock() {
            notify();
        }
    }
}

/// One end of an in-process link.
pub struct PairEnd {
    config: PairConfig,
    tx: Arc<PairQueue>,
    rx: Arc<PairQueue>,
    /// Packets taken from the queue and not yet returned to the caller.
    stash: VecDeque<Packet>,
}

/// Returns both ends of a new link.
///
/// ```
/// use fullsend_device::{Device, PairConfig, pair};
/// use fullsend_offload::{Packet, Slice};
///
/// let (mut here, mut there) = pair(PairConfig::default());
/// let frame = Slice::copied_from(&[0x45, 0, 0, 20]);
/// here.transmit(&mut [Packet::from_frame(frame)].into())?;
/// let mut received = Vec::new();
/// assert_eq!(there.receive(&mut received, 64)?, 1);
/// assert_eq!(received[0].len(), 4);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pair(config: PairConfig) -> (PairEnd, PairEnd) {
    let queues = [Arc::<PairQueue>::default(), Arc::<PairQueue>::default()];
    let end = |tx: usize| PairEnd {
        config,
        tx: queues[tx].clone(),
        rx: queues[1 - tx].clone(),
        stash: VecDeque::new(),
    };
    (end(0), end(1))
}

impl PairEnd {
    /// Sets the callback that reports readiness.
    ///
    /// The callback runs on the other end's thread when the receive queue is no longer empty, and when
    /// there is room after `transmit` left packets over. It must be short and must not call the link.
    pub fn on_ready(&self, notify: impl Fn() + Send + Sync + 'static) {
        let notify: Notify = Arc::new(notify);
        *self.rx.on_ready[RECEIVER].lock() = Some(notify.clone());
        *self.tx.on_ready[SENDER].lock() = Some(notify);
    }

    /// Refills the stash from the queue, and notifies a waiting sender.
    fn refill_stash(&mut self) {
        let mut queue = self.rx.queue.lock();
        mem::swap(&mut self.stash, &mut *queue);
        self.rx.queued.store(0, Ordering::Release);
        drop(queue);
        let sender_is_waiting = &self.rx.sender_is_waiting;
        // The sender sets the flag under the lock. It is rarely set, and a load costs less than an
        // exchange.
        if sender_is_waiting.load(Ordering::Acquire)
            && sender_is_waiting.swap(false, Ordering::AcqRel)
        {
            self.rx.notify(SENDER);
        }
    }

    /// Appends at most `max` packets of the stash to `batch`.
    #[inline(never)]
    fn take_stash(&mut self, batch: &mut Vec<Packet>, max: usize) {
        batch.extend(self.stash.drain(..max.min(self.stash.len())));
    }

    /// Appends packets from the front of `batch` to the queue, up to its limit.
    #[inline(never)]
    fn append(&self, queue: &mut VecDeque<Packet>, batch: &mut VecDeque<Packet>) {
        let room = self.config.queue.saturating_sub(queue.len());
        queue.extend(batch.drain(..room.min(batch.len())));
        if !batch.is_empty() {
            // The flag is set under the lock, so that the receiver that next makes room sees it.
            self.tx.sender_is_waiting.store(true, Ordering::Release);
        }
    }
}

/// Marks the checksums that the sender completed as not yet verified.
#[inline(never)]
fn mark_unverified(packets: &mut [Packet]) {
    for packet in packets {
        packet.offload.checksum = Checksum::Unverified;
    }
}

impl Device for PairEnd {
    fn caps(&self) -> Caps {
        let PairConfig { link, mtu, nic, .. } = self.config;
        match nic {
            NicMode::Tso => Caps::offloading(link, mtu),
            NicMode::Mtu => Caps::plain(link, mtu),
        }
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let mut queue = self.tx.queue.lock();
        let was_empty = queue.is_empty();
        if was_empty && batch.len() <= self.config.queue {
            mem::swap(&mut *queue, batch);
        } else {
            self.append(&mut queue, batch);
        }
        self.tx.queued.store(queue.len(), Ordering::Release);
        drop(queue);
        if was_empty {
            self.tx.notify(RECEIVER);
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let had_stash = !self.stash.is_empty();
        if !had_stash {
            self.refill_stash();
        }
        let before = batch.len();
        if before == 0 && self.stash.len() <= max {
            // Both conversions reuse the memory and copy no element.
            let emptied = VecDeque::from(mem::take(batch));
            let taken = Vec::from(mem::replace(&mut self.stash, emptied));
            // The replaced empty vector has no memory to free.
            mem::forget(mem::replace(batch, taken));
        } else {
            self.take_stash(batch, max);
        }
        let taken = batch.len() - before;
        if had_stash && taken < max {
            // A result below `max` would mean that the queue is empty; a packet causes a notification
            // only if it arrives in an empty queue.
            self.refill_stash();
            self.take_stash(batch, max - taken);
        }
        if self.config.nic == NicMode::Mtu {
            mark_unverified(&mut batch[before..]);
        }
        Ok(batch.len() - before)
    }

    fn in_flight(&self) -> usize {
        self.tx.queued.load(Ordering::Acquire)
    }

    fn notify_completion(&mut self) -> bool {
        let queue = self.tx.queue.lock();
        if queue.is_empty() {
            return false;
        }
        self.tx.sender_is_waiting.store(true, Ordering::Release);
        true
    }

    #[cfg(unix)]
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
