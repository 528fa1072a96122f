//! The state behind the lock: the sockets with their host, the device, and the waiting threads.

use std::io;

use fullsend_device::Device;
use fullsend_driver::{PollOutcome, Pump};
use fullsend_offload::Packet;
use fullsend_posix::{Errno, Handle, Posix};
use fullsend_stack::{Host, IfaceId};
use fullsend_wire::Instant;

use crate::Clock;
use crate::wait::Sleepers;

pub(crate) struct Shard {
    pub(crate) posix: Posix,
    pump: Pump<Box<dyn Device>>,
    /// Whether a thread of the stack reads the device and runs the timers.
    has_driver: bool,
    clock: Clock,
    pub(crate) sleepers: Sleepers,
    /// Sockets that became ready at the last [`transmit_and_wake`](Self::transmit_and_wake).
    pub(crate) ready: Vec<Handle>,
    /// The error of all calls once the stack has ended.
    pub(crate) end_error: Option<Errno>,
}

impl Shard {
    pub(crate) fn new(host: Host, iface: IfaceId, device: Box<dyn Device>, clock: Clock) -> Self {
        let has_driver = device.fd().is_some();
        Self {
            posix: Posix::new(host),
            pump: if has_driver {
                Pump::new(iface, device)
            } else {
                Pump::transmit_only(iface, device)
            },
            has_driver,
            clock,
            sleepers: Sleepers::default(),
            ready: Vec::new(),
            end_error: None,
        }
    }

    pub(crate) fn check_alive(&self) -> Result<(), Errno> {
        self.end_error.map_or(Ok(()), Err)
    }

    /// Returns the counters of the device.
    #[cfg(feature = "control")]
    pub(crate) fn device_counters(&mut self) -> fullsend_device::DeviceCounters {
        self.pump.device_mut().counters()
    }

    pub(crate) const fn iface(&self) -> IfaceId {
        self.pump.iface()
    }

    /// Polls for the driver's thread, which then sleeps until the returned deadline.
    pub(crate) fn poll_device(&mut self) -> io::Result<PollOutcome> {
        let host = self.posix.host_mut();
        let polled = self.pump.poll(host, &self.clock, true)?;
        self.pump
            .arm(host, polled.deadline.unwrap_or(Instant::FAR_FUTURE));
        self.sleepers.wake_expired(polled.now);
        self.wake_ready();
        Ok(polled)
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
        self.sleepers.wake_expired(now);
    }

    /// Returns when [`run_timers`](Self::run_timers) must be called, if at all.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let host = self.posix.host().poll_deadline();
        let sleepers = self.sleepers.deadline();
        [host, sleepers].into_iter().flatten().min()
    }

    /// Transmits pending packets and wakes the threads whose sockets became ready. Returns whether
    /// the driver must be woken.
    pub(crate) fn transmit_and_wake(&mut self, now: Instant) -> bool {
        let transmitted = self.pump.transmit(self.posix.host_mut(), now, &self.clock);
        self.wake_ready();
        self.has_driver && transmitted.wake
    }

    /// Returns whether all written data and FINs of every connection are acknowledged.
    pub(crate) fn is_flushed(&mut self) -> bool {
        self.pump.is_drained() && self.posix.host_mut().tcp_is_flushed()
    }

    fn wake_ready(&mut self) {
        self.ready.clear();
        self.posix.take_ready(&mut self.ready);
        if !self.ready.is_empty() {
            self.sleepers.wake(&self.ready);
        }
        if self.sleepers.awaits_flush() && self.is_flushed() {
            self.sleepers.wake_flushed();
        }
    }
}
