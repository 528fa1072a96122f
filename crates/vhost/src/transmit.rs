//! The transmit path, which copies packets from shared payload into the guest's receive buffers.

use std::collections::VecDeque;

use fullsend_device::vnet;
use fullsend_offload::{Packet, segment};
use fullsend_wire::vnet::VNET_HDR_LEN;

use crate::cursor::Cursor;
use crate::features::HEADER_MAX;
use crate::pair::Queues;
use crate::ring::{BrokenRing, Buffer};
use crate::stats::VhostUserStats;

/// Most buffers of one packet. Linux posts pages, of which a super-segment of 64 KiB needs 45. A guest
/// that posts smaller buffers gets segmented packets, or none.
const MAX_BUFFERS: usize = 1024;

/// Most attempts to send a packet while the driver adds buffers.
const ATTEMPTS: usize = 8;

/// Bytes after which the guest is notified although more packets follow: two super-segments.
const NOTIFY_BYTES: usize = 128 << 10;

/// The result of sending a packet.
enum Sent {
    /// The packet is in the guest's buffers.
    Written,
    /// The packet is not sent, because there are too few buffers now.
    Full,
    /// The packet is not sent, because no number of buffers suffices.
    TooLong,
}

/// The result of sending a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// All packets are sent.
    Done,
    /// Packets wait until the driver notifies the device of more buffers.
    Waiting,
    /// Packets wait, and the device must try again without a notification.
    Retry,
}

/// The sending half of a device.
#[derive(Default)]
pub(crate) struct Transmitter {
    /// The segments of at most one super-segment that the guest does not accept.
    pending: VecDeque<Packet>,
    segments: Vec<Packet>,
    buffers: Vec<Buffer>,
    /// The head and the length of each chain.
    chains: Vec<(u16, u32)>,
    /// Bytes written since the last notification.
    unnotified: usize,
}

/// Notifies the guest of written packets, if it has requested that.
fn notify(queues: &mut Queues<'_>, stats: &mut VhostUserStats) -> Result<(), BrokenRing> {
    let notified = queues.to_guest.notify(queues.memory)?;
    stats.notifications += u64::from(notified);
    Ok(())
}

impl Transmitter {
    /// Discards the waiting packets. Returns their number.
    pub(crate) fn clear(&mut self) -> usize {
        let dropped = self.pending.len();
        self.pending.clear();
        dropped
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sends packets from the front of `batch` and removes them. Notifies the guest once for all of them,
    /// and each time that [`NOTIFY_BYTES`] are written, so that it starts earlier: its interrupt costs
    /// more than a small packet.
    pub(crate) fn transmit(
        &mut self,
        queues: &mut Queues<'_>,
        batch: &mut VecDeque<Packet>,
        stats: &mut VhostUserStats,
    ) -> Result<Progress, BrokenRing> {
        self.unnotified = 0;
        let progress = self.transmit_all(queues, batch, stats)?;
        if self.unnotified > 0 {
            notify(queues, stats)?;
        }
        Ok(progress)
    }

    fn transmit_all(
        &mut self,
        queues: &mut Queues<'_>,
        batch: &mut VecDeque<Packet>,
        stats: &mut VhostUserStats,
    ) -> Result<Progress, BrokenRing> {
        loop {
            let progress = self.send_pending(queues, stats)?;
            if progress != Progress::Done {
                return Ok(progress);
            }
            let Some(packet) = batch.front() else {
                return Ok(Progress::Done);
            };
            if !queues.features.accepts(packet) {
                self.segment_front(batch, stats);
                continue;
            }
            match self.send_or_wait(queues, packet, stats)? {
                (Sent::Written, _) => drop(batch.pop_front()),
                (Sent::Full, progress) => return Ok(progress),
                (Sent::TooLong, _) if packet.segments() > 1 => self.segment_front(batch, stats),
                (Sent::TooLong, _) => {
                    stats.tx_too_long += 1;
                    batch.pop_front();
                }
            }
        }
    }

    /// Segments the first packet, or completes its checksum, as the guest does not accept it.
    fn segment_front(&mut self, batch: &mut VecDeque<Packet>, stats: &mut VhostUserStats) {
        if let Some(packet) = batch.pop_front() {
            stats.tx_software += 1;
            segment(packet, &mut self.segments);
            self.pending.extend(self.segments.drain(..));
        }
    }

    fn send_pending(
        &mut self,
        queues: &mut Queues<'_>,
        stats: &mut VhostUserStats,
    ) -> Result<Progress, BrokenRing> {
        while let Some(packet) = self.pending.pop_front() {
            match self.send_or_wait(queues, &packet, stats)? {
                (Sent::Written, _) => {}
                (Sent::TooLong, _) => stats.tx_too_long += 1,
                (Sent::Full, progress) => {
                    self.pending.push_front(packet);
                    return Ok(progress);
                }
            }
        }
        Ok(Progress::Done)
    }

    /// Sends a packet, or requests a notification of more buffers.
    fn send_or_wait(
        &mut self,
        queues: &mut Queues<'_>,
        packet: &Packet,
        stats: &mut VhostUserStats,
    ) -> Result<(Sent, Progress), BrokenRing> {
        for _ in 0..ATTEMPTS {
            let sent = self.send(queues, packet)?;
            match sent {
                Sent::Written => {
                    stats.tx_packets += 1;
                    self.unnotified += packet.len();
                    if self.unnotified >= NOTIFY_BYTES {
                        self.unnotified = 0;
                        notify(queues, stats)?;
                    }
                    return Ok((sent, Progress::Done));
                }
                Sent::TooLong => return Ok((sent, Progress::Done)),
                Sent::Full if !queues.to_guest.request_kick_for_more(queues.memory)? => {
                    stats.tx_full += 1;
                    return Ok((sent, Progress::Waiting));
                }
                Sent::Full => {}
            }
        }
        Ok((Sent::Full, Progress::Retry))
    }

    /// Writes a packet to the necessary number of buffers, and makes all of them visible at once.
    fn send(&mut self, queues: &mut Queues<'_>, packet: &Packet) -> Result<Sent, BrokenRing> {
        let Queues {
            memory, features, ..
        } = *queues;
        let ring = &mut *queues.to_guest;
        let header_len = features.header_len();
        let len = header_len + packet.len();
        let start = ring.position();
        self.buffers.clear();
        self.chains.clear();
        let mut room = 0;
        while room < len {
            let limit = if features.mergeable() { ring.size() } else { 1 };
            if self.chains.len() == usize::from(limit) {
                ring.rewind(start);
                return Ok(Sent::TooLong);
            }
            let Some(chain) = ring.pop(memory, &mut self.buffers)? else {
                ring.rewind(start);
                return Ok(Sent::Full);
            };
            if chain.malformed || chain.len == 0 {
                return Err(BrokenRing);
            }
            room += chain.len as usize;
            if self.buffers.len() > MAX_BUFFERS {
                ring.rewind(start);
                return Ok(Sent::TooLong);
            }
            self.chains.push((chain.head, chain.len));
        }
        let mut header = [0; HEADER_MAX];
        let mut offloads = vnet::header_of(packet);
        // Without GUEST_CSUM no flag may be set (virtio 1.2, 5.1.6.4.1).
        offloads.data_valid &= features.guest_csum();
        header[..VNET_HDR_LEN].copy_from_slice(&offloads.emit());
        let count = self.chains.len() as u16;
        header[VNET_HDR_LEN..].copy_from_slice(&count.to_le_bytes());
        let mut cursor = Cursor::new(memory, &self.buffers);
        cursor.write(&header[..header_len])?;
        for slice in packet.slices() {
            cursor.write(slice)?;
        }
        let mut left = len as u32;
        for &(head, len) in &self.chains {
            let written = left.min(len);
            left -= written;
            ring.push_used(memory, head, written)?;
        }
        ring.publish(memory)?;
        Ok(Sent::Written)
    }
}
