//! What the lock guards: the calls with their host, the device, and who waits.

use std::io;
use std::mem;

use fullsend_device::{Device, Outbox};
use fullsend_offload::Packet;
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::{Host, IfaceId};
use fullsend_units::Instant;

use crate::wait::Waiting;

/// Super-segments asked from the host at once.
const TX_BATCH: usize = 8;
/// Packets sent before somebody looks at what came in, where the device gives anything by itself:
/// answers that nobody reads overflow its queue.
const TX_BUDGET: usize = 256;
/// Frames taken from the device under one hold of the lock.
pub(crate) const RX_BATCH: usize = 64;

pub(crate) struct Shard {
    pub(crate) posix: Posix,
    pub(crate) iface: IfaceId,
    device: Box<dyn Device>,
    /// A thread of ours reads the device and runs the timers.
    driven: bool,
    outbox: Outbox,
    rx: Vec<Packet>,
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
    pub(crate) fn new(host: Host, iface: IfaceId, device: Box<dyn Device>) -> Self {
        Self {
            posix: Posix::new(host),
            iface,
            driven: device.fd().is_some(),
            device,
            outbox: Outbox::default(),
            rx: Vec::new(),
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

    /// Takes one batch from the device; how many there were.
    pub(crate) fn receive(&mut self, now: Instant) -> io::Result<usize> {
        let received = self.device.receive(&mut self.rx, RX_BATCH)?;
        // A device that has no end must not silence us: what it gave allows as much.
        self.unanswered = if received < RX_BATCH {
            0
        } else {
            self.unanswered.saturating_sub(received)
        };
        if received > 0 {
            let host = self.posix.host_mut();
            host.receive(now, self.iface, &mut self.rx);
        }
        Ok(received)
    }

    /// Takes packets that somebody carried here.
    pub(crate) fn input(&mut self, now: Instant, packets: &mut Vec<Packet>) {
        self.posix.host_mut().receive(now, self.iface, packets);
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        let due = |host: &Host| host.poll_deadline().is_some_and(|at| at <= now);
        if due(self.posix.host()) {
            self.posix.host_mut().poll(now);
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
    fn push(&mut self, now: Instant) -> bool {
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
