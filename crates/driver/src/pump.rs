//! A host's interface, its device, and the packets between them.

use std::io;
use std::mem;

use fullsend_device::Device;
use fullsend_offload::Packet;
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;

use crate::{Clock, Outbox};

/// Most frames received in one poll. If a poll receives this many, the device may have more.
pub const RX_BATCH: usize = 64;
/// Most super-segments requested from the host at once.
const TX_BATCH: usize = 8;
/// Number of packets sent, up to the end of a batch, before the device is read again. If software
/// segments super-segments, every second packet causes an ACK; if these are not read, the kernel's queue
/// overflows and drops them.
const TX_BUDGET: usize = 256;
/// Most frames that a device may have queued: the length that a TUN's queue is set to. After this many
/// frames, all that were queued when the first was read have been received.
const RX_QUEUE: usize = 4096;
/// Number of requests to the host in one [`Pump::transmit`] that returned only packets for the host
/// itself. Each request moves up to 256 of them.
const LOCAL_ROUNDS: usize = 2;

/// The work that a transmission leaves to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransmitOutcome {
    /// The host has more to send than one call should send: call [`Pump::poll`] soon.
    pub more: bool,
    /// The driver must call [`Pump::poll`] although its timer has not fired: there is more to send,
    /// the device did not accept all packets, a write waits for a completion, or there is an
    /// earlier deadline than the driver has [armed](Pump::arm).
    pub wake: bool,
    /// A completion that a write waits for has already happened, too late for this call.
    completed: bool,
}

/// The result of [`Pump::poll`], and the events to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollOutcome {
    /// Number of frames received. With [`RX_BATCH`] or more, the device may have more; with fewer,
    /// it is empty.
    pub received: usize,
    /// The host has more to send: call [`Pump::poll`] again without waiting.
    pub more: bool,
    /// Packets wait for the device to become writable.
    pub blocked: bool,
    /// The time of the next [`Pump::poll`] if nothing is received, or `None` if no timer is set.
    pub deadline: Option<Instant>,
    /// The earliest departure time of a queued packet: a deadline that should be met exactly.
    pub departure: Option<Instant>,
    /// The time after the reception.
    pub now: Instant,
}

/// The pump that moves packets between one interface of a host and its device.
///
/// ```
/// use fullsend_device::{PairConfig, pair};
/// use fullsend_driver::Pump;
/// use fullsend_stack::{Host, HostConfig, IfaceConfig, Mac};
/// use fullsend_tcp::Sysctl;
/// use fullsend_wire::{Instant, Seed};
///
/// let (end, _other) = pair(PairConfig::default());
/// let (seed, sysctl) = (Seed::from_u64(1), Sysctl::default());
/// let mut host = Host::new(HostConfig { seed, sysctl, pool_bytes: 1 << 20 });
/// let caps = fullsend_device::Device::caps(&end);
/// let iface = host.add_interface(IfaceConfig::new(caps, Mac([2, 0, 0, 0, 0, 1])));
/// let mut pump = Pump::new(iface, end);
/// let poll = pump.poll(&mut host, &Instant::ZERO, true)?;
/// assert_eq!((poll.received, poll.more), (0, false));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Pump<D> {
    iface: IfaceId,
    device: D,
    /// Whether [`poll`](Self::poll) reads the device.
    reads_device: bool,
    outbox: Outbox,
    rx: Vec<Packet>,
    /// Frames received since the device was last empty.
    received_since_empty: usize,
    /// Packets sent since the device was last empty.
    sent_since_empty: usize,
    /// The host's count of writes that began to wait for a completion, at the last call.
    throttle_count: u64,
    /// Whether the device was full, and the driver has been notified.
    blocked: bool,
    /// The latest time at which the driver's timer fires.
    armed: Instant,
    /// The time of the last call that sent or received.
    now: Instant,
}

impl<D: Device> Pump<D> {
    /// Returns a pump between interface `iface` of a host and `device`.
    pub fn new(iface: IfaceId, device: D) -> Self {
        Self {
            iface,
            device,
            reads_device: true,
            outbox: Outbox::default(),
            rx: Vec::new(),
            received_since_empty: 0,
            sent_since_empty: 0,
            throttle_count: 0,
            blocked: false,
            armed: Instant::FAR_FUTURE,
            now: Instant::ZERO,
        }
    }

    /// Returns a pump for a device that only sends: received packets are passed to
    /// [`input`](Self::input), so sending does not wait for the device to be read.
    pub fn transmit_only(iface: IfaceId, device: D) -> Self {
        Self {
            reads_device: false,
            ..Self::new(iface, device)
        }
    }

    /// Returns the number of the host's interface.
    #[inline]
    pub const fn iface(&self) -> IfaceId {
        self.iface
    }

    /// Returns the device.
    #[inline]
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the device for changes of its settings.
    #[inline]
    pub const fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the time of the last call that sent or received.
    #[inline]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns whether the device has accepted every packet that the host sent.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns whether [`transmit`](Self::transmit) has packets to send.
    #[inline]
    pub fn needs_transmit(&self, host: &Host) -> bool {
        !self.outbox.is_empty() || host.needs_transmit(self.iface)
    }

    /// Receives one batch, runs the timers that are due, and transmits.
    ///
    /// The device is read if `receive` (it may be readable), if a timer is due, or if many packets
    /// were sent since it was read. Timers run after everything that arrived by their deadline was
    /// received: after a pause of this process, the ACK that stops a retransmission timer may be
    /// waiting in the device. Frames that arrive while the device is read have the time after the
    /// read.
    ///
    /// # Errors
    /// The errors of [`Device::receive`]: the device has failed for good.
    pub fn poll(
        &mut self,
        host: &mut Host,
        clock: &impl Clock,
        receive: bool,
    ) -> io::Result<PollOutcome> {
        let begin = clock.now();
        let due = |host: &Host| host.poll_deadline().is_some_and(|at| at <= begin);
        let (mut now, mut received) = (begin, 0);
        if receive || due(host) || self.sent_since_empty >= TX_BUDGET {
            received = self.read_device()?;
            // Another shard's device may have handed frames over.
            if !self.rx.is_empty() {
                now = clock.now();
                self.deliver(host, now);
            }
        }
        if (received < RX_BATCH || self.received_since_empty >= RX_QUEUE) && due(host) {
            self.received_since_empty = 0;
            host.poll_until(now, begin);
        }
        let outcome = self.transmit(host, now, clock);
        // A completion that came before the notification was requested is processed by the next
        // call.
        let more = outcome.more || outcome.completed;
        Ok(PollOutcome {
            received,
            more,
            blocked: self.blocked,
            deadline: host.poll_deadline(),
            departure: host.next_departure(),
            now,
        })
    }

    /// Receives one batch at `now` and transmits the answers in place of the driver, for a device
    /// whose other end is in this process. Returns the work that is left.
    ///
    /// # Errors
    /// The errors of [`Device::receive`].
    pub fn receive_at(
        &mut self,
        host: &mut Host,
        now: Instant,
        clock: &impl Clock,
    ) -> io::Result<TransmitOutcome> {
        let received = self.read_device()?;
        self.deliver(host, now);
        let mut outcome = self.transmit(host, now, clock);
        outcome.wake |= received >= RX_BATCH;
        Ok(outcome)
    }

    /// Passes the host packets that the caller has received, unparsed.
    pub fn input(&mut self, host: &mut Host, now: Instant, packets: &mut Vec<Packet>) {
        host.receive(now, self.iface, packets);
    }

    /// Transmits packets of the host until it has no more, the device is full, or the budget is
    /// used up. Returns the work that is left.
    #[inline]
    pub fn transmit(
        &mut self,
        host: &mut Host,
        now: Instant,
        clock: &impl Clock,
    ) -> TransmitOutcome {
        let mut outcome = TransmitOutcome::default();
        self.now = now;
        if self.outbox.has_uncompleted() {
            self.complete(host, now);
        }
        if self.needs_transmit(host) {
            outcome.more = self.transmit_batches(host, now, clock);
            let blocked = !self.outbox.is_empty();
            outcome.wake = outcome.more || (blocked && !self.blocked);
            self.blocked = blocked;
        }
        outcome.wake |= host.poll_deadline().is_some_and(|at| at < self.armed);
        outcome.completed = self.arm_completion_notification(host);
        outcome.wake |= outcome.completed;
        outcome
    }

    /// Requests a notification of the device's next completion if a write began to wait for one.
    /// Returns whether it has already happened, so that [`poll`](Self::poll) must process it.
    #[inline]
    pub fn arm_completion_notification(&mut self, host: &Host) -> bool {
        let throttle_count = host.throttle_count();
        throttle_count != mem::replace(&mut self.throttle_count, throttle_count)
            && self.outbox.has_uncompleted()
            && !self.device.notify_completion()
    }

    /// Records that the driver's timer is about to be set for `at`. Returns false if an earlier
    /// deadline has been set since the last [`poll`](Self::poll): do not wait then.
    pub fn arm(&mut self, host: &Host, at: Instant) -> bool {
        self.armed = at;
        host.poll_deadline().is_none_or(|due| due >= at)
    }

    /// Reads frames from the device and returns their number.
    fn read_device(&mut self) -> io::Result<usize> {
        let received = self.device.receive(&mut self.rx, RX_BATCH)?;
        (self.sent_since_empty, self.received_since_empty) = if received < RX_BATCH {
            (0, 0)
        } else {
            // A device that is never empty must not stop us from sending: each frame received
            // allows one packet.
            let sent_since_empty = self.sent_since_empty.saturating_sub(received);
            (sent_since_empty, self.received_since_empty + received)
        };
        Ok(received)
    }

    /// Passes the received frames to the host.
    fn deliver(&mut self, host: &mut Host, now: Instant) {
        self.now = now;
        if !self.rx.is_empty() {
            host.receive(now, self.iface, &mut self.rx);
        }
    }

    /// Transmits batches. Returns whether the host has more to send and the device would accept it.
    ///
    /// The clock is read for each batch: over a TUN the kernel's TCP runs within our write, and
    /// segments that are sent milliseconds after their timestamp would be probed for, and
    /// retransmitted, too early.
    fn transmit_batches(&mut self, host: &mut Host, mut now: Instant, clock: &impl Clock) -> bool {
        let mut local_rounds = 0;
        while !self.reads_device || self.sent_since_empty < TX_BUDGET {
            if self.outbox.has_room() {
                self.sent_since_empty += self
                    .outbox
                    .gather(|out| host.transmit(now, self.iface, out, TX_BATCH));
            }
            // An empty outbox means that all packets were for the host itself.
            let is_local = self.outbox.is_empty();
            if is_local {
                local_rounds += 1;
            } else {
                self.outbox.flush(&mut self.device);
                self.complete(host, now);
            }
            if !self.outbox.is_empty() || !host.needs_transmit(self.iface) {
                return false;
            }
            if local_rounds == LOCAL_ROUNDS {
                return true;
            }
            if !is_local {
                now = clock.now();
                self.now = now;
            }
        }
        true
    }

    /// Reports to the host each packet that the device has finished with.
    fn complete(&mut self, host: &mut Host, now: Instant) {
        let in_flight = self.device.in_flight();
        while let Some(token) = self.outbox.next_completed(in_flight) {
            host.complete(now, token);
        }
    }
}
