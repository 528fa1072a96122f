//! The CPU cost of sending, so that virtual time shows which rule saves it.
//!
//! Each flow has its own CPU. Every write, every super-segment, every completion and every ACK
//! keeps it busy for some time, and the next write waits until it is free. `docs/lab.md` derives
//! the numbers.

use fullsend_sim::TracePoint;
use fullsend_wire::{Instant, Nanos};

use crate::net::{CLIENT, FlowPacket};

/// The CPU time of each event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// A write call: system call and socket lock.
    pub(crate) write: Nanos,
    /// The copy of each 1,000 bytes of a write.
    pub(crate) kilobyte: Nanos,
    /// The path of a super-segment through TCP, IP, the queueing discipline and the driver.
    pub(crate) super_segment: Nanos,
    /// A completion: freeing the super-segment's memory and notifying the socket.
    pub(crate) completion: Nanos,
    /// The receive path of an ACK.
    pub(crate) ack: Nanos,
    /// The context switch to a writer that blocked.
    pub(crate) switch: Nanos,
}

/// The machine of the reference, derived from its figures in `docs/lab.md`.
pub(crate) const SERVER_OF_2013: Costs = Costs {
    write: Nanos::from_nanos(300),
    kilobyte: Nanos::from_nanos(100),
    super_segment: Nanos::from_nanos(2340),
    completion: Nanos::from_nanos(500),
    ack: Nanos::from_nanos(1100),
    switch: Nanos::from_nanos(1500),
};

/// One CPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    free_at: Instant,
    busy: Nanos,
}

impl Cpu {
    /// Adds work of `cost`, from `now` or when the CPU is free.
    pub(crate) fn work(&mut self, now: Instant, cost: Nanos) {
        self.free_at = self.free_at.max(now) + cost;
        self.busy += cost;
    }

    /// Returns the time at which all work will be done.
    pub(crate) const fn free_at(&self) -> Instant {
        self.free_at
    }

    /// Returns the CPU time used.
    pub(crate) const fn busy(&self) -> Nanos {
        self.busy
    }
}

impl Costs {
    /// Returns the client's CPU time for a packet at its card.
    pub(crate) fn of_packet(&self, packet: &FlowPacket) -> Nanos {
        match packet.point {
            TracePoint::Queued if packet.side == CLIENT => self.super_segment,
            TracePoint::Sent if packet.side == CLIENT => self.completion,
            TracePoint::Arrived if packet.side == CLIENT => self.ack,
            _ => Nanos::ZERO,
        }
    }

    /// Returns the CPU time of a write of `bytes`.
    pub(crate) fn of_write(&self, bytes: u64) -> Nanos {
        self.write + Nanos::from_nanos(self.kilobyte.as_nanos() * bytes / 1000)
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::{Cpu, SERVER_OF_2013};

    #[test]
    fn cpu_work_is_queued() {
        let at = Instant::from_nanos;
        let mut cpu = Cpu::default();
        cpu.work(at(1000), Nanos::from_nanos(500));
        cpu.work(at(1200), Nanos::from_nanos(500));
        assert_eq!(cpu.free_at(), at(2000));
        cpu.work(at(5000), SERVER_OF_2013.of_write(128));
        assert_eq!(cpu.free_at(), at(5312));
        assert_eq!(cpu.busy(), Nanos::from_nanos(1312));
    }
}
