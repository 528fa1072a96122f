//! The port of one guest: its device, and the packets that wait for it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::time::{Duration, Instant};

use fullsend_offload::{Checksum, GsoKind, Packet, segment};
use fullsend_wire::numbers::{ethertype, protocol};

use super::PortId;
use super::handle::Shared;
use crate::frames::{Events, RoomEvents};
use crate::{Caps, Device};

/// Most packets and bytes that wait for a guest that does not read.
const QUEUE_PACKETS: usize = 2048;
pub(super) const QUEUE_BYTES: usize = 8 << 20;
/// Memory of a waiting packet besides its data, bytes.
const OVERHEAD: usize = 512;
/// Multiple of a packet's length that it may pin while it waits; a packet that pins more is copied.
const MAX_PINNED: usize = 2;

/// Number of times that the first frames of a port wait until others are served: a device that has ended
/// may have received more than one call returns.
const DEFERRALS: u8 = 32;

/// Time during which a device that has left packets is not used unless it reports an event. Devices
/// report room, but not that the kernel has memory again.
const RETRY: Duration = Duration::from_millis(5);

/// A waker that wakes the switch for a device without a file.
pub(super) struct PortWaker {
    pub(super) is_woken: AtomicBool,
    pub(super) shared: Arc<Shared>,
}

impl Wake for PortWaker {
    fn wake(self: Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.shared.wake();
        }
    }
}

/// A port and its guest's device.
pub(super) struct Port {
    pub(super) id: PortId,
    pub(super) device: Box<dyn Device>,
    caps: Caps,
    /// The waker of the device; `None` if the device has a file.
    pub(super) waker: Option<Arc<PortWaker>>,
    /// Whether the device may have received frames.
    pub(super) is_ready: bool,
    /// Whether its file has reported the peer's end, which the device reports after the last frames.
    pub(super) has_ended: bool,
    /// Whether a frame has been received from the guest.
    pub(super) is_connected: bool,
    /// The first frames of the guest, which wait until the guest that has their addresses is served: it
    /// may be the same guest, whose earlier connection has ended.
    deferred: Vec<Packet>,
    /// Number of times that they may still wait.
    deferrals: u8,
    queue: VecDeque<Packet>,
    queued_bytes: usize,
    /// Most bytes of the queue, but for a single packet.
    max_bytes: usize,
    /// Whether the device has left packets in the queue.
    is_blocked: bool,
    /// The room events of the device's file.
    room: RoomEvents,
    /// The time at which the device left packets, if it has reported no event since.
    blocked_since: Option<Instant>,
}

impl Port {
    pub(super) fn new(id: PortId, device: Box<dyn Device>, waker: Option<Arc<PortWaker>>) -> Self {
        Self {
            id,
            caps: device.caps(),
            device,
            waker,
            is_ready: true,
            has_ended: false,
            is_connected: false,
            deferred: Vec::new(),
            deferrals: DEFERRALS,
            queue: VecDeque::new(),
            queued_bytes: 0,
            max_bytes: QUEUE_BYTES,
            is_blocked: false,
            room: RoomEvents::default(),
            blocked_since: None,
        }
    }

    /// Records an event of the device: it may have received frames, or have room.
    pub(super) const fn on_event(&mut self) {
        self.is_ready = true;
        self.blocked_since = None;
    }

    /// Receives frames. Clears the blocked state, as the events may also have been for room.
    pub(super) fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.blocked_since = None;
        if !self.deferred.is_empty() {
            batch.append(&mut self.deferred);
            return Ok(batch.len());
        }
        let received = self.device.receive(batch, max);
        let count = *received.as_ref().unwrap_or(&0);
        // A device without a file may have more frames than it has returned.
        let least = if self.waker.is_some() || self.has_ended {
            1
        } else {
            max
        };
        self.is_ready = count >= least || self.device.has_received();
        received
    }

    /// Returns whether the first frames of the guest may wait.
    pub(super) const fn may_defer(&self) -> bool {
        !self.is_connected && self.deferrals > 0
    }

    /// Keeps received frames for the next call of [`receive`](Self::receive).
    pub(super) fn defer(&mut self, packets: impl Iterator<Item = Packet>) {
        self.deferrals -= 1;
        self.deferred.extend(packets);
        self.is_ready = true;
    }

    /// Makes the next flush use the device regardless of its events.
    pub(super) const fn retry(&mut self) {
        self.blocked_since = None;
    }

    /// Returns whether packets wait that the device may accept now.
    pub(super) fn may_flush(&self, now: Instant) -> bool {
        let is_idle = |since: Instant| now.saturating_duration_since(since) >= RETRY;
        self.has_queued() && self.blocked_since.is_none_or(is_idle)
    }

    /// Returns whether packets wait for the device.
    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues a parsed packet, segmented if the device cannot do that. Returns whether there was room.
    pub(super) fn enqueue(&mut self, packet: Packet, segments: &mut Vec<Packet>) -> bool {
        let len = packet.len();
        if !self.has_room(len) {
            return false;
        }
        if self.needs_software(&packet) {
            segment(packet, segments);
        } else {
            segments.push(packet);
        }
        self.enqueue_segments(len, segments.drain(..))
    }

    /// Limits the queue. Packets that wait already stay.
    pub(super) const fn limit_queue(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// Returns whether a packet of `len` bytes may wait. One does always, so that a guest with a small share
    /// receives super-segments.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let fits = self.queued_bytes + len + OVERHEAD <= self.max_bytes;
        self.queue.is_empty() || self.queue.len() < QUEUE_PACKETS && fits
    }

    /// Returns the memory that a waiting packet takes, bytes.
    fn cost(packet: &Packet) -> usize {
        packet.len() + OVERHEAD
    }

    /// Queues the segments of a packet of `len` bytes. Returns whether there was room.
    pub(super) fn enqueue_segments(
        &mut self,
        len: usize,
        segments: impl Iterator<Item = Packet>,
    ) -> bool {
        if !self.has_room(len) {
            return false;
        }
        for mut packet in segments {
            if self.is_blocked {
                packet.payload.limit_pinned(MAX_PINNED);
            }
            self.queued_bytes += Self::cost(&packet);
            self.queue.push_back(packet);
        }
        true
    }

    /// Returns whether the device needs the packet segmented, or its checksum completed.
    pub(super) fn needs_software(&self, packet: &Packet) -> bool {
        let (offload, caps) = (&packet.offload, &self.caps);
        let is_supported = match offload.kind {
            GsoKind::None => true,
            GsoKind::TcpV4 => caps.tso4,
            GsoKind::TcpV6 => caps.tso6,
            GsoKind::Udp => caps.uso,
        };
        let is_partial = offload.checksum == Checksum::Partial;
        offload.repeats_cwr || !is_supported || is_partial && !caps.tx_checksum
    }

    /// Sends waiting packets until the device accepts no more. `events` has the device's file.
    pub(super) fn flush(&mut self, now: Instant, events: &Events) -> io::Result<()> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let was_blocked = self.is_blocked;
        let result = self.device.transmit(&mut self.queue);
        self.is_blocked = !self.queue.is_empty();
        if self.is_blocked && !was_blocked {
            for packet in &mut self.queue {
                packet.payload.limit_pinned(MAX_PINNED);
            }
        }
        self.blocked_since = self.is_blocked.then_some(now);
        if let Some(file) = self.device.fd() {
            self.room.update((events, file, self.id.0), self.is_blocked);
        }
        self.queued_bytes = self.queue.iter().map(Self::cost).sum();
        result
    }
}

/// Reduces the segments of a super-segment to `mtu` bytes: a frame without an offload header does not
/// contain their size. Returns whether the packet has the kind that its device declared, and fits.
pub(super) fn fit(packet: &mut Packet, mtu: usize) -> bool {
    let layers = &packet.layers;
    let network = usize::from(layers.network[0]);
    let is = |ethertype, protocol| {
        layers.ethertype == ethertype && layers.protocol == protocol && !layers.fragment
    };
    let is_as_declared = match packet.offload.kind {
        GsoKind::None => return packet.len() <= network + mtu,
        GsoKind::TcpV4 => is(ethertype::IPV4, protocol::TCP),
        GsoKind::TcpV6 => is(ethertype::IPV6, protocol::TCP),
        GsoKind::Udp => is(ethertype::IPV4, protocol::UDP) || is(ethertype::IPV6, protocol::UDP),
    };
    let room = (network + mtu).saturating_sub(packet.header.len());
    let fits = usize::from(packet.offload.gso_size) <= room;
    if !fits && packet.offload.kind != GsoKind::Udp {
        packet.offload.gso_size = room as u16;
        packet.offload.gso_segs = 0;
        return is_as_declared && room > 0;
    }
    is_as_declared && fits
}
