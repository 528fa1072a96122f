//! One direction of a user-driven device: a queue with limits of packets and bytes.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use fullsend_offload::{Packet, Slice};
use parking_lot::{Mutex, MutexGuard};

use super::port::PACKET_MAX;

/// Multiple of a packet's length that it may pin while it waits. A packet that pins more is copied: each
/// incoming one, and outgoing ones in a queue with a memory limit.
pub(super) const MAX_PINNED: usize = 4;

/// A queue of packets from one end to the other.
pub(super) struct PacketQueue {
    state: Mutex<QueueState>,
    /// Number of packets in the queue.
    len: AtomicUsize,
    /// Whether a task of the program waits. It is set under the lock that also protects the awaited
    /// condition.
    user_waits: AtomicBool,
    dropped: AtomicU64,
}

struct QueueState {
    packets: VecDeque<Packet>,
    /// The memory of the packets: their bytes, and the size of [`Packet`] for each.
    bytes: usize,
    max_packets: usize,
    max_bytes: usize,
    /// Whether the memory is limited, so that packets of the stack are copied as well.
    is_limited: bool,
    /// Whether one end was dropped.
    closed: bool,
    /// The waker of the stack's driver.
    driver: Option<Waker>,
    /// Whether the driver has packets left over and is woken when half of the queue is free.
    driver_wants_room: bool,
    /// Whether the driver is woken when the queue is empty.
    driver_wants_empty: bool,
    /// The program's task that waits for a packet or for room, and whether it was woken.
    user: Option<Waker>,
    user_is_ready: bool,
}

/// Returns the memory for which a queued packet counts, bytes.
fn cost(packet: &Packet) -> usize {
    packet.len() + size_of::<Packet>()
}

impl QueueState {
    fn accepts(&self, bytes: usize) -> bool {
        self.packets.is_empty()
            || self.packets.len() < self.max_packets && self.bytes + bytes <= self.max_bytes
    }

    fn push(&mut self, packet: Packet) {
        self.bytes += cost(&packet);
        self.packets.push_back(packet);
    }

    fn pop(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= cost(&packet);
        if self.packets.is_empty() && self.packets.capacity() > 64 {
            // The memory of a burst is released.
            self.packets.shrink_to(64);
        }
        Some(packet)
    }

    /// Returns the driver's waker if the event that it waits for has occurred.
    fn driver_to_wake(&mut self) -> Option<Waker> {
        let has_room =
            self.packets.len() <= self.max_packets / 2 && self.bytes <= self.max_bytes / 2;
        let wake = self.driver_wants_room && has_room
            || self.driver_wants_empty && self.packets.is_empty();
        if !wake {
            return None;
        }
        self.driver_wants_room = false;
        self.driver_wants_empty = false;
        self.driver.clone()
    }
}

impl PacketQueue {
    pub(super) fn new(max_packets: usize, max_bytes: usize) -> Self {
        Self {
            state: Mutex::new(QueueState {
                packets: VecDeque::new(),
                bytes: 0,
                max_packets: max_packets.max(1),
                max_bytes,
                is_limited: false,
                closed: false,
                driver: None,
                driver_wants_room: false,
                driver_wants_empty: false,
                user: None,
                user_is_ready: false,
            }),
            len: AtomicUsize::new(0),
            user_waits: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets that this queue dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn count_dropped(&self, packets: u64) {
        self.dropped.fetch_add(packets, Ordering::Relaxed);
    }

    pub(super) fn set_driver(&self, waker: &Waker) {
        self.state.lock().driver = Some(waker.clone());
    }

    pub(super) fn limit_bytes(&self, max_bytes: usize) {
        let mut state = self.state.lock();
        state.max_bytes = state.max_bytes.min(max_bytes);
        state.is_limited = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Registers the program's task, and unlocks. The replaced waker is dropped last, as it may be the
    /// last reference to a task.
    fn register(&self, cx: &Context<'_>, mut state: MutexGuard<'_, QueueState>) {
        state.user_is_ready = false;
        let replaced = state.user.replace(cx.waker().clone());
        self.user_waits.store(true, Ordering::Release);
        drop(state);
        drop(replaced);
    }

    fn unlock(&self, state: MutexGuard<'_, QueueState>) {
        self.len.store(state.packets.len(), Ordering::Release);
        drop(state);
    }

    // --- the device's calls, under the stack's lock: they wake no task ---

    /// Moves packets from the front of `batch` to the queue while it has room. If the program has dropped
    /// its end, drops and counts the packets.
    pub(super) fn push_all(&self, batch: &mut VecDeque<Packet>) {
        if batch.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        if state.closed {
            self.count_dropped(batch.len() as u64);
            return batch.clear();
        }
        while let Some(mut packet) = batch.pop_front() {
            if !state.accepts(cost(&packet)) {
                batch.push_front(packet);
                state.driver_wants_room = true;
                break;
            }
            if state.is_limited && !unpin(&mut packet) {
                self.count_dropped(1);
                continue;
            }
            state.push(packet);
            state.user_is_ready = true;
        }
        self.unlock(state);
    }

    /// Appends up to `max` packets to `batch`, and returns their number.
    pub(super) fn pop_all(&self, batch: &mut Vec<Packet>, max: usize) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut state = self.state.lock();
        let before = batch.len();
        while batch.len() - before < max
            && let Some(packet) = state.pop()
        {
            batch.push(packet);
        }
        state.user_is_ready = true;
        self.unlock(state);
        batch.len() - before
    }

    /// Requests that the driver is woken when the queue is empty. Returns `false` if it is empty now.
    pub(super) fn notify_when_empty(&self) -> bool {
        let mut state = self.state.lock();
        state.driver_wants_empty = !state.packets.is_empty();
        state.driver_wants_empty
    }

    // --- notifications of the program, without the stack's lock ---

    /// Wakes the program's task if there are packets, or the queue is closed.
    pub(super) fn wake_receiver(&self) {
        self.wake_user(|state| !state.packets.is_empty());
    }

    /// Wakes the program's task if half of the queue is free, or the queue is closed.
    pub(super) fn wake_sender(&self) {
        self.wake_user(|state| {
            state.packets.len() <= state.max_packets / 2 && state.bytes <= state.max_bytes / 2
        });
    }

    fn wake_user(&self, is_ready: impl FnOnce(&QueueState) -> bool) {
        if !self.user_waits.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        let wake =
            state.user.is_some() && (state.closed || state.user_is_ready && is_ready(&state));
        let user = if wake { state.user.take() } else { None };
        self.user_waits
            .store(state.user.is_some(), Ordering::Release);
        drop(state);
        if let Some(user) = user {
            user.wake();
        }
    }

    // --- the program's calls ---

    pub(super) fn pop(&self) -> Option<Packet> {
        let mut state = self.state.lock();
        let packet = state.pop()?;
        let driver = state.driver_to_wake();
        self.unlock(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        Some(packet)
    }

    /// Polls for a packet. Returns `None` if the queue is empty and closed.
    pub(super) fn poll_pop(&self, cx: &Context<'_>) -> Poll<Option<Packet>> {
        if let Some(packet) = self.pop() {
            return Poll::Ready(Some(packet));
        }
        let state = self.state.lock();
        if state.packets.is_empty() && !state.closed {
            self.register(cx, state);
            return Poll::Pending;
        }
        drop(state);
        Poll::Ready(self.pop())
    }

    /// Polls for room for a packet of `bytes`, or for the end of the queue. A packet that is too long is
    /// ready at once, as it fails.
    pub(super) fn poll_room(&self, cx: &Context<'_>, bytes: usize) -> Poll<()> {
        let state = self.state.lock();
        if state.closed || bytes > PACKET_MAX || state.accepts(bytes + size_of::<Packet>()) {
            return Poll::Ready(());
        }
        self.register(cx, state);
        Poll::Pending
    }

    /// Appends a packet and wakes the driver, or drops the packet if there is no room. Returns whether it
    /// was appended.
    pub(super) fn push(&self, packet: Packet) -> bool {
        let mut state = self.state.lock();
        if state.closed || !state.accepts(cost(&packet)) {
            return false;
        }
        let was_empty = state.packets.is_empty();
        state.push(packet);
        let driver = was_empty.then(|| state.driver.clone()).flatten();
        self.unlock(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        true
    }

    /// Closes the queue and drops its packets, which can no longer be received.
    pub(super) fn discard(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let packets = mem::take(&mut state.packets);
        state.bytes = 0;
        self.count_dropped(packets.len() as u64);
        let driver = state.driver.clone();
        self.unlock(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    /// Closes the queue; its packets can still be received.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let driver = state.driver.clone();
        self.unlock(state);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// Copies the payload of a packet that pins much more memory than its length. Returns `false` if the
/// allocator refused memory for the copy, which `Chain::limit_pinned` would not report.
pub(super) fn unpin(packet: &mut Packet) -> bool {
    if packet.payload.pinned() > MAX_PINNED * packet.payload.len() {
        let parts = packet.payload.slices().iter().map(Slice::as_slice);
        let Some(copy) = Slice::try_copied_from(parts) else {
            return false;
        };
        packet.payload = copy.into();
    }
    true
}
