//! Packets between a host and its device, and their completion (TSQ).

use std::collections::VecDeque;
use std::io;
use std::mem;

use fullsend_offload::{Packet, TxToken};

use fullsend_device::Device;

/// Most packets that wait for a full device; at this number the host is not polled for more.
const MAX_PENDING: usize = 64;

/// The packets between a host and its device, in order.
///
/// A driver fills it from the host with [`gather`](Self::gather) while it
/// [has room](Self::has_room), passes the packets to the device with [`flush`](Self::flush), and
/// reports each [completed](Self::next_completed) token to the host.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Packets that the device has not accepted yet.
    packets: VecDeque<Packet>,
    /// Tokens of the packets in `packets` and of those in flight at the device.
    tokens: VecDeque<TxToken>,
    /// Spare vector for packets that the host adds to `packets`.
    staged: Vec<Packet>,
    /// Whether the device has failed, which is logged once.
    failed: bool,
}

impl Outbox {
    /// Returns whether the device has accepted every packet.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether the host may send more packets: the number that waits for a full device is
    /// bounded.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.packets.len() < MAX_PENDING
    }

    /// Returns whether the device may have finished packets whose completion has not been reported.
    #[inline]
    pub(crate) fn has_uncompleted(&self) -> bool {
        self.tokens.len() > self.packets.len()
    }

    /// Appends the packets that `fill` adds, and returns their number.
    #[inline]
    pub(crate) fn gather(&mut self, fill: impl FnOnce(&mut Vec<Packet>)) -> usize {
        let mut waiting = mem::take(&mut self.packets);
        if !waiting.is_empty() {
            self.packets = waiting;
            return self.gather_behind(fill);
        }
        // The vector has the deque's buffer; no packet is moved. An empty deque that is cleared begins
        // at the start of its buffer, so that the conversion does nothing.
        waiting.clear();
        let mut packets = Vec::from(waiting);
        fill(&mut packets);
        let added = packets.len();
        for packet in &packets {
            self.tokens.push_back(packet.tx);
        }
        // The empty deque that is replaced has no memory to free.
        mem::forget(mem::replace(&mut self.packets, VecDeque::from(packets)));
        added
    }

    /// Appends the packets that `fill` adds to those that the device has not accepted.
    #[inline(never)]
    fn gather_behind(&mut self, fill: impl FnOnce(&mut Vec<Packet>)) -> usize {
        fill(&mut self.staged);
        let added = self.staged.len();
        self.tokens.extend(self.staged.iter().map(|p| p.tx));
        self.packets.extend(self.staged.drain(..));
        added
    }

    /// Passes the device as many packets as it accepts. If the device fails, all are dropped, as by
    /// a network card without a carrier: TCP retransmits.
    #[inline]
    pub(crate) fn flush(&mut self, device: &mut (impl Device + ?Sized)) {
        if let Err(error) = device.transmit(&mut self.packets) {
            self.drop_packets(&error);
        }
    }

    #[cold]
    fn drop_packets(&mut self, error: &io::Error) {
        if !mem::replace(&mut self.failed, true) {
            tracing::warn!(%error, "the device failed, and its packets are dropped");
        }
        self.packets.clear();
    }

    /// Returns the token of the next packet that the device has finished with and that belongs to a
    /// socket. `in_flight` is the number of accepted packets that the device has not finished with.
    #[inline]
    pub(crate) fn next_completed(&mut self, in_flight: usize) -> Option<TxToken> {
        let unfinished = self.packets.len() + in_flight;
        while self.tokens.len() > unfinished {
            let token = self.tokens.pop_front()?;
            if token.socket != 0 {
                return Some(token);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use fullsend_offload::{Caps, Slice};

    use super::*;

    /// A device that accepts a number of packets in each call, or fails.
    struct LimitedDevice(io::Result<usize>);

    impl Device for LimitedDevice {
        fn caps(&self) -> Caps {
            unreachable!("not called")
        }

        fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
            match &self.0 {
                Ok(n) => batch.drain(..*n.min(&batch.len())),
                Err(error) => return Err(error.kind().into()),
            };
            Ok(())
        }

        fn receive(&mut self, _: &mut Vec<Packet>, _: usize) -> io::Result<usize> {
            Ok(0)
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    fn packet(socket: u64) -> Packet {
        let mut packet = Packet::from_frame(Slice::copied_from(&[0x45; 20]));
        packet.tx.socket = socket;
        packet
    }

    fn completed(outbox: &mut Outbox, in_flight: usize) -> Vec<u64> {
        std::iter::from_fn(|| outbox.next_completed(in_flight))
            .map(|token| token.socket)
            .collect()
    }

    #[test]
    fn completions_come_in_order_and_once() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.gather(|out| out.extend([1, 0, 2].map(packet))), 3);
        assert_eq!(completed(&mut outbox, 0), []);
        outbox.flush(&mut LimitedDevice(Ok(2)));
        assert!(!outbox.is_empty() && outbox.has_uncompleted());
        assert_eq!(completed(&mut outbox, 2), [], "on their way");
        assert_eq!(outbox.gather(|out| out.push(packet(3))), 1, "behind 2");
        assert_eq!(completed(&mut outbox, 0), [1]);
        assert!(!outbox.has_uncompleted());
        outbox.flush(&mut LimitedDevice(Ok(9)));
        assert!(outbox.is_empty());
        assert_eq!(completed(&mut outbox, 0), [2, 3]);
        assert_eq!(completed(&mut outbox, 0), []);
    }

    #[test]
    fn packets_for_a_failed_device_are_dropped_and_completed() {
        let mut outbox = Outbox::default();
        outbox.gather(|out| out.extend((0..64).map(|_| packet(5))));
        assert!(!outbox.has_room());
        outbox.flush(&mut LimitedDevice(Err(io::ErrorKind::BrokenPipe.into())));
        assert!(outbox.is_empty() && outbox.has_room());
        assert_eq!(completed(&mut outbox, 0), [5; 64]);
    }
}
