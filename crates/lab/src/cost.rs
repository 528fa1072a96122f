//! What sending costs a processor, so that virtual time can show which rule saves it.
//!
//! Each flow has a processor of its own. It is busy for a time with every write, every transmit
//! unit, every completion and every acknowledgement, and the next write waits until it is free.
//! `docs/lab.md` derives the numbers.

use fullsend_sim::Point;
use fullsend_units::{Instant, Nanos};

use crate::net::{CLIENT, Seen};

/// What one event costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// A write call: into the kernel, the socket's lock, and out again.
    pub(crate) write: Nanos,
    /// Each 1,000 bytes of a write: the copy.
    pub(crate) kilobyte: Nanos,
    /// A transmit unit's way through TCP, IP, the queueing discipline and the driver.
    pub(crate) unit: Nanos,
    /// A completion: the unit's memory is freed, and the socket told.
    pub(crate) completion: Nanos,
    /// An acknowledgement's way in.
    pub(crate) ack: Nanos,
    /// A writer that blocked runs again.
    pub(crate) switch: Nanos,
}

/// The machine of the reference, derived from its figures in `docs/lab.md`.
pub(crate) const SERVER_OF_2013: Costs = Costs {
    write: Nanos::from_nanos(300),
    kilobyte: Nanos::from_nanos(100),
    unit: Nanos::from_nanos(2340),
    completion: Nanos::from_nanos(500),
    ack: Nanos::from_nanos(1100),
    switch: Nanos::from_nanos(1500),
};

/// One processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    free_at: Instant,
    busy: Nanos,
}

impl Cpu {
    /// Works for `cost`, from `now` on or when it is free.
    pub(crate) fn work(&mut self, now: Instant, cost: Nanos) {
        self.free_at = self.free_at.max(now) + cost;
        self.busy += cost;
    }

    /// When it has done all its work.
    pub(crate) const fn free_at(&self) -> Instant {
        self.free_at
    }

    /// How long it has worked.
    pub(crate) const fn busy(&self) -> Nanos {
        self.busy
    }
}

impl Costs {
    /// What a packet at the client's card costs the client.
    pub(crate) fn of_packet(&self, seen: &Seen) -> Nanos {
        match seen.point {
            Point::Queued if seen.side == CLIENT => self.unit,
            Point::Sent if seen.side == CLIENT => self.completion,
            Point::Arrived if seen.side == CLIENT => self.ack,
            _ => Nanos::ZERO,
        }
    }

    /// What a write of `bytes` costs.
    pub(crate) fn of_write(&self, bytes: u64) -> Nanos {
        self.write + Nanos::from_nanos(self.kilobyte.as_nanos() * bytes / 1000)
    }
}

#[cfg(test)]
mod tests {
    use fullsend_units::{Instant, Nanos};

    use super::{Cpu, SERVER_OF_2013};

    #[test]
    fn work_waits_for_work() {
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
