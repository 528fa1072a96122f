//! Passing packets, and messages of the neighbour tables, between the shards of a stack.

use fullsend_driver::Handover;
use fullsend_stack::Host;

use super::Engine;

impl Engine {
    /// Passes the messages of other shards to the host.
    #[inline]
    pub(super) fn receive_messages(&self, host: &mut Host) {
        if let Some(handover) = &self.handover {
            for message in handover.take_messages(self.index) {
                host.on_neighbour_message(self.clock.now(), message);
            }
        }
    }

    /// Passes segments that the host has reassembled to the shards of their flows, and the messages of
    /// its neighbour tables to those of other shards.
    #[inline]
    pub(super) fn pass_on(&self, host: &mut Host) {
        if let Some(handover) = &self.handover {
            pass_on(host, handover);
        }
    }

    /// Wakes the drivers of shards to which this one has handed packets over. Called without the
    /// lock.
    #[inline]
    pub(super) fn wake_after_handover(&self) {
        if let Some(handover) = &self.handover {
            self.wake_drivers(handover);
        }
    }

    #[inline(never)]
    fn wake_drivers(&self, handover: &Handover) {
        for index in handover.take_woken() {
            self.group.wake_driver(index);
        }
    }
}

#[inline(never)]
fn pass_on(host: &mut Host, handover: &Handover) {
    if host.has_misdirected() {
        for (index, packet) in host.take_misdirected() {
            handover.push(index, &mut vec![packet]);
        }
    }
    if host.has_neighbour_messages() {
        for (index, message) in host.take_neighbour_messages() {
            handover.push_message(index, message);
        }
    }
}
