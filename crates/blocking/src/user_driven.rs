//! The device of a user-driven stack: sent packets wait in an outbox until the program takes them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fullsend_device::{Caps, Device};
use fullsend_offload::Packet;
use fullsend_wire::Instant;
use parking_lot::Mutex;

use crate::Clock;

/// Limit of packets in an outbox; the stack queues further ones.
const OUTBOX_PACKETS: usize = 1024;

/// A FIFO of the packets that a stack has sent, each with its time of departure.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: Arc<Mutex<VecDeque<(Instant, Packet)>>>,
    clock: Clock,
    /// Whether packets are completed when they enter the outbox instead of when they are taken.
    completes_on_output: bool,
}

impl Outbox {
    pub(crate) fn new(clock: Clock, completes_on_output: bool) -> Self {
        Self {
            queue: Arc::default(),
            clock,
            completes_on_output,
        }
    }

    /// Takes the next packet, with the time at which it was sent.
    ///
    /// A packet may refer to lent memory (`MSG_ZEROCOPY`). If it is dropped outside of the stack's
    /// calls, call [`Stack::run_timers`](crate::Stack::run_timers) afterwards to wake threads that
    /// wait for the completion.
    pub fn take(&self) -> Option<(Instant, Packet)> {
        self.queue.lock().pop_front()
    }

    /// Returns whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }
}

/// A device that puts sent packets into an outbox.
pub(crate) struct UserDrivenDevice {
    pub(crate) outbox: Outbox,
    pub(crate) caps: Caps,
}

impl Device for UserDrivenDevice {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let now = self.outbox.clock.now();
        let mut queue = self.outbox.queue.lock();
        let room = OUTBOX_PACKETS.saturating_sub(queue.len()).min(batch.len());
        queue.extend(batch.drain(..room).map(|packet| (now, packet)));
        Ok(())
    }

    fn receive(&mut self, _batch: &mut Vec<Packet>, _max: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn in_flight(&self) -> usize {
        if self.outbox.completes_on_output {
            return 0;
        }
        self.outbox.queue.lock().len()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
