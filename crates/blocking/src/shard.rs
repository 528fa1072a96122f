//! The state behind the lock: the sockets with their host, the device, and the waiting threads.

use std::io;

use fullsend_device::Device;
use fullsend_driver::{Pump, Turn};
use fullsend_offload::Packet;
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::{Host, IfaceId};
use fullsend_units::Instant;

use crate::Clock;
use crate::wait::Waiting;

pub(crate) struct Shard {
    pub(crate) posix: Posix,
    pump: Pump<Box<dyn Device>>,
    /// Whether a thread of the stack reads the device and runs the timers.
    driven: bool,
    clock: Clock,
    pub(crate) waiting: Waiting,
    /// Sockets that became ready at the last [`settle`](Self::settle).
    pub(crate) ready: Vec<Handle>,
    /// The error of all calls once the stack has ended.
    pub(crate) dead: Option<Errno>,
}

impl Shard {
    pub(crate) fn new(host: Host, iface: IfaceId, device: Box<dyn Device>, clock: Clock) -> Self {
        let driven = device.fd().is_some();
        Self {
            posix: Posix::new(host),
            pump: if driven {
                Pump::new(iface, device)
            } else {
                Pump::transmit_only(iface, device)
            },
            driven,
            clock,
            waiting: Waiting::default(),
            ready: Vec::new(),
            dead: None,
        }
    }

    pub(crate) fn alive(&self) -> Result<(), Errno> {
        self.dead.map_or(Ok(()), Err)
    }

    pub(crate) const fn iface(&self) -> IfaceId {
        self.pump.iface()
    }

    /// Polls for the driver's thread, which then sleeps until the returned deadline.
    pub(crate) fn turn(&mut self) -> io::Result<Turn> {
        let host = self.posix.host_mut();
        let turn = self.pump.turn(host, &self.clock, true)?;
        self.pump
            .arm(host, turn.deadline.unwrap_or(Instant::FAR_FUTURE));
        self.waiting.time_out(turn.now);
        self.wake_ready();
        Ok(turn)
    }

    /// Accepts packets that the program has received.
    pub(crate) fn input(&mut self, now: Instant, packets: &mut Vec<Packet>) {
        self.pump.input(self.posix.host_mut(), now, packets);
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self, now: Instant) {
        let host = self.posix.host_mut();
        if host.poll_deadline().is_some_and(|at| at <= now) {
            host.poll(now);
        }
        self.waiting.time_out(now);
    }

    /// Returns when [`run_timers`](Self::run_timers) must be called, if at all.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let host = self.posix.host().poll_deadline();
        let waiting = self.waiting.deadline();
        [host, waiting].into_iter().flatten().min()
    }

    /// Transmits pending packets and wakes the threads whose sockets became ready. Returns whether
    /// the driver must be woken.
    pub(crate) fn settle(&mut self, now: Instant) -> bool {
        let left = self.pump.transmit(self.posix.host_mut(), now, &self.clock);
        self.wake_ready();
        self.driven && left.wake
    }

    fn wake_ready(&mut self) {
        self.ready.clear();
        self.posix.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            self.waiting.wake(&self.ready);
        }
    }
}
