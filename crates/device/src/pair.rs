//! An in-process link: two devices, packets cross without a copy.
//!
//! A queue belongs to each direction. Both sides exchange whole containers under its lock where
//! they can (sender's batch for the empty queue, full queue for the receiver's empty batch), so
//! that the lock's cost and the queue's are per batch, not per packet.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fullsend_offload::{Checksum, Link, Packet};
use parking_lot::Mutex;

use crate::{Caps, Device};

#[cfg(test)]
mod tests;

/// What the link does for its hosts, as a network card would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicMode {
    /// Super-segments cross whole, checksums are neither computed nor verified.
    Tso,
    /// Only packets of the MTU cross, with checksums that the sender computed and the receiver
    /// verifies.
    Mtu,
}

/// How to build a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PairConfig {
    /// What it does for its hosts.
    pub nic: NicMode,
    /// What frames begin with.
    pub link: Link,
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Packets (or super-segments) that one direction holds. More stay with the sender.
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

/// One direction of the link.
#[derive(Default)]
struct Lane {
    queue: Mutex<VecDeque<Packet>>,
    /// How many that is: a packet is completed when the receiver takes it.
    held: AtomicUsize,
    /// The sender has packets left over, and wants to hear when there is room.
    sender_waits: AtomicBool,
    on_ready: [Mutex<Option<Notify>>; 2],
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;

impl Lane {
    fn notify(&self, whom: usize) {
        if let Some(notify) = &*self.on_ready[whom].lock() {
            notify();
        }
    }
}

/// One end of an in-process link.
pub struct PairEnd {
    config: PairConfig,
    tx: Arc<Lane>,
    rx: Arc<Lane>,
    /// Taken from the queue and not yet given out.
    stash: VecDeque<Packet>,
}

/// Both ends of a new link.
pub fn pair(config: PairConfig) -> (PairEnd, PairEnd) {
    let lanes = [Arc::<Lane>::default(), Arc::<Lane>::default()];
    let end = |tx: usize| PairEnd {
        config,
        tx: lanes[tx].clone(),
        rx: lanes[1 - tx].clone(),
        stash: VecDeque::new(),
    };
    (end(0), end(1))
}

impl PairEnd {
    /// Has `notify` called, on the other end's thread, whenever there is something to receive
    /// after there was nothing, and whenever there is room after `transmit` left packets over.
    /// It must be short and must not call back into the link.
    pub fn on_ready(&self, notify: impl Fn() + Send + Sync + 'static) {
        let notify: Notify = Arc::new(notify);
        *self.rx.on_ready[RECEIVER].lock() = Some(notify.clone());
        *self.tx.on_ready[SENDER].lock() = Some(notify);
    }

    /// Refills the stash from the queue, and lets a waiting sender know.
    fn take_queue(&mut self) {
        let mut queue = self.rx.queue.lock();
        mem::swap(&mut self.stash, &mut *queue);
        self.rx.held.store(0, Ordering::Release);
        drop(queue);
        if self.rx.sender_waits.swap(false, Ordering::AcqRel) {
            self.rx.notify(SENDER);
        }
    }

    /// A checksum that the sender vouched for is still to be verified here.
    fn as_received(&self, packets: &mut [Packet]) {
        if self.config.nic == NicMode::Mtu {
            for packet in packets {
                packet.offload.checksum = Checksum::Unverified;
            }
        }
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
            let room = self.config.queue.saturating_sub(queue.len());
            queue.extend(batch.drain(..room.min(batch.len())));
            if !batch.is_empty() {
                // Under the lock, so that the receiver that makes room next sees it.
                self.tx.sender_waits.store(true, Ordering::Release);
            }
        }
        self.tx.held.store(queue.len(), Ordering::Release);
        drop(queue);
        if was_empty {
            self.tx.notify(RECEIVER);
        }
        Ok(())
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        let left_over = !self.stash.is_empty();
        if !left_over {
            self.take_queue();
        }
        let before = batch.len();
        if before == 0 && self.stash.len() <= max {
            // Both conversions keep the memory and move nothing.
            let spent = VecDeque::from(mem::take(batch));
            *batch = Vec::from(mem::replace(&mut self.stash, spent));
        } else {
            batch.extend(self.stash.drain(..max.min(self.stash.len())));
        }
        let taken = batch.len() - before;
        if left_over && taken < max {
            // Fewer than `max` would say that the queue is empty, and only a packet for an empty
            // queue notifies.
            self.take_queue();
            let room = max - taken;
            batch.extend(self.stash.drain(..room.min(self.stash.len())));
        }
        self.as_received(&mut batch[before..]);
        Ok(batch.len() - before)
    }

    fn in_flight(&self) -> usize {
        self.tx.held.load(Ordering::Acquire)
    }

    fn notify_completion(&mut self) -> bool {
        let queue = self.tx.queue.lock();
        if queue.is_empty() {
            return false;
        }
        self.tx.sender_waits.store(true, Ordering::Release);
        true
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
