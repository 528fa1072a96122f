//! What the lock guards: the calls with their host, the device, and who waits.

use std::io;
use std::mem;

use fullsend_device::{Device, Outbox};
use fullsend_offload::Packet;
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::{Host, IfaceId};
use fullsend_units::Instant;

use crate::Clock;
use crate::wait::Waiting;

/// Super-segments asked from the host at once.
const TX_BATCH: usize = 8;
/// Packets sent before somebody looks at what came in, where the device gives anything by itself:
/// answers that nobody reads overflow its queue.
const TX_BUDGET: usize = 256;
/// Frames taken from the device under one hold of the lock.
const RX_BATCH: usize = 64;
/// Frames that a device may have queued, at most: the length that a TUN's queue is raised to. After
/// this many, all that was queued at the first has been received.
const RX_QUEUE: usize = 4096;

pub(crate) struct Shard {
    pub(crate) posix: Posix,
    pub(crate) iface: IfaceId,
    device: Box<dyn Device>,
    /// A thread of ours reads the device and runs the timers.
    driven: bool,
    clock: Clock,
    outbox: Outbox,
    rx: Vec<Packet>,
    /// Frames received since the device was found empty.
    unread: usize,
    /// Packets sent since the device had nothing to receive.
    unanswered: usize,
    /// The device was full, and the driver knows.
    pub(crate) blocked: bool,
    /// The host has more than one hold of the lock should send.
    pub(crate) more: bool,
    /// When the driver comes back by itself at the latest.
    pub(crate) armed: Instant,
    pub(crate) waiting: Waiting,
    /// What became ready when it was settled last.
    pub(crate) ready: Vec<Handle>,
    /// Why nothing works any more.
    pub(crate) dead: Option<Errno>,
}

impl Shard {
    pub(crate) fn new(host: Host, iface: IfaceId, device: Box<dyn Device>, clock: Clock) -> Self {
        Self {
            posix: Posix::new(host),
            iface,
            driven: device.fd().is_some(),
            device,
            clock,
            outbox: Outbox::default(),
            rx: Vec::new(),
            unread: 0,
            unanswered: 0,
            blocked: false,
            more: false,
            armed: Instant::FAR_FUTURE,
            waiting: Waiting::default(),
            ready: Vec::new(),
            dead: None,
        }
    }

    pub(crate) fn alive(&self) -> Result<(), Errno> {
        self.dead.map_or(Ok(()), Err)
    }

    /// Receives one batch from the device, then runs the timers that were due at `begin`, before
    /// the device was read. Returns whether the device may have more, and the time.
    ///
    /// Timers run after everything that arrived by their deadline was received: after a pause of
    /// this process, the ACK that stops a retransmission timer may be waiting in the device.
    pub(crate) fn receive(&mut self, begin: Instant) -> io::Result<(bool, Instant)> {
        let received = self.device.receive(&mut self.rx, RX_BATCH)?;
        let full = received >= RX_BATCH;
        // A device that has no end must not silence us: what it gave allows as much.
        (self.unanswered, self.unread) = if full {
            let unanswered = self.unanswered.saturating_sub(received);
            (unanswered, self.unread + received)
        } else {
            (0, 0)
        };
        let mut now = begin;
        if received > 0 {
            now = self.clock.now();
            let host = self.posix.host_mut();
            host.receive(now, self.iface, &mut self.rx);
        }
        if !full || self.unread >= RX_QUEUE {
            self.unread = 0;
            self.run_timers_until(now, begin);
        }
        Ok((full, now))
    }

    /// Takes packets that somebody carried here.
    pub(crate) fn input(&mut self, now: Instant, packets: &mut Vec<Packet>) {
        self.posix.host_mut().receive(now, self.iface, packets);
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        self.run_timers_until(now, now);
    }

    fn run_timers_until(&mut self, now: Instant, until: Instant) {
        let due = |host: &Host| host.poll_deadline().is_some_and(|at| at <= until);
        if due(self.posix.host()) {
            self.posix.host_mut().poll_until(now, until);
        }
        self.waiting.time_out(now);
    }

    /// When `run_timers` has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let host = self.posix.host().poll_deadline();
        let waiting = self.waiting.deadline();
        [host, waiting].into_iter().flatten().min()
    }

    /// What follows every call: what may go goes, and who can go on is woken. True if the driver
    /// must run.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        let was_blocked = self.blocked;
        self.send(now);
        self.ready.clear();
        self.posix.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            self.waiting.wake(&self.ready);
        }
        let earlier = |at: Instant| at < self.armed;
        let deadline = self.posix.host().poll_deadline();
        self.driven && (self.more || self.blocked && !was_blocked || deadline.is_some_and(earlier))
    }

    fn wants_transmit(&self) -> bool {
        let host = self.posix.host();
        // At time zero: loopback has packets.
        host.wants_transmit(self.iface) || host.poll_deadline() == Some(Instant::ZERO)
    }

    fn send(&mut self, now: Instant) {
        if self.outbox.has_uncompleted() {
            self.complete(now);
        }
        self.more = false;
        if !self.outbox.is_empty() || self.wants_transmit() {
            self.more = self.push(now);
        }
        self.blocked = !self.outbox.is_empty();
    }

    /// True if the host may have more to give and the device would take it.
    ///
    /// The clock is read anew for each batch: over a TUN the kernel's TCP runs in our write, and
    /// segments that leave milliseconds after the time that they are stamped with are probed for,
    /// and sent again, that much too early.
    fn push(&mut self, mut now: Instant) -> bool {
        let mut empty = false;
        while !self.driven || self.unanswered < TX_BUDGET {
            if self.outbox.has_room() {
                let host = self.posix.host_mut();
                self.unanswered += self
                    .outbox
                    .gather(|out| host.transmit(now, self.iface, out, TX_BATCH));
            }
            if self.outbox.is_empty() {
                // What was given may have been for a neighbour who is asked for first: the question
                // comes with the next round.
                if mem::replace(&mut empty, true) || !self.wants_transmit() {
                    return false;
                }
                continue;
            }
            empty = false;
            self.outbox.flush(&mut self.device);
            self.complete(now);
            if !self.outbox.is_empty() || !self.wants_transmit() {
                return false;
            }
            now = self.clock.now();
        }
        true
    }

    /// Tells the host of each packet that the device has finished with.
    fn complete(&mut self, now: Instant) {
        let in_flight = self.device.in_flight();
        while let Some(token) = self.outbox.next_completed(in_flight) {
            self.posix.host_mut().complete(now, token);
        }
    }
}
