//! The links of a network, and the packets on them.

use fullsend_device::CaptureInterface;
use fullsend_offload::Packet;
use fullsend_sim::{LostPacket, Netem, Pipe};
use fullsend_wire::{Instant, Nanos, Seed};

use crate::topology::NodeId;

/// Counters of one direction of a link, since the start of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkStats {
    /// Packets sent into the link.
    pub sent: u64,
    /// Bytes of these packets, with their IP headers.
    pub sent_bytes: u64,
    /// Packets that arrived at the other end, including duplicates.
    pub arrived: u64,
    /// Bytes of these packets, with their IP headers.
    pub arrived_bytes: u64,
    /// Packets lost at random (`loss`).
    pub lost: u64,
    /// Packets dropped because the queue at the bottleneck was full (`limit`).
    pub queue_full: u64,
    /// Packets larger than the link's MTU (`mtu`).
    pub too_big: u64,
    /// Packets that were sent or would have arrived while the link was down.
    pub cut: u64,
}

/// One direction of a link.
pub(crate) struct Direction {
    pipe: Pipe,
    pub(crate) netem: Netem,
    pub(crate) stats: LinkStats,
}

impl Direction {
    fn new(netem: Netem, seed: Seed) -> Self {
        Self {
            pipe: Pipe::new(netem, seed),
            netem,
            stats: LinkStats::default(),
        }
    }

    /// Returns the least time that a packet takes on the link.
    pub(crate) fn min_delay(&self) -> Nanos {
        if self.netem.reorder > 0.0 {
            // Some packets are sent without delay.
            return Nanos::ZERO;
        }
        self.netem.delay.saturating_sub(self.netem.jitter)
    }

    pub(crate) fn set_netem(&mut self, netem: Netem) {
        self.netem = netem;
        self.pipe.set_netem(netem);
    }

    /// Sends a packet, and passes packets that the link loses to `on_loss`.
    pub(crate) fn send(&mut self, now: Instant, packet: Packet, on_loss: impl FnMut(LostPacket)) {
        self.pipe.send_with(now, packet, on_loss);
    }

    /// Appends the packets that have arrived by `now`.
    pub(crate) fn take_arrived(&mut self, now: Instant, out: &mut Vec<Packet>) {
        self.pipe.take_arrived(now, out);
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.pipe.next_arrival()
    }
}

/// A link between two nodes.
pub(crate) struct Wire {
    pub(crate) ends: [NodeId; 2],
    /// The directions, indexed by the end from which they lead.
    pub(crate) directions: [Direction; 2],
    pub(crate) is_up: bool,
    /// The capture at each end.
    captures: Option<[CaptureInterface; 2]>,
}

impl Wire {
    /// Returns a link with the same properties in both directions.
    pub(crate) fn new(ends: [NodeId; 2], netem: Netem, seeds: [Seed; 2]) -> Self {
        Self {
            ends,
            directions: seeds.map(|seed| Direction::new(netem, seed)),
            is_up: true,
            captures: None,
        }
    }

    /// Returns the index of the end at `node`.
    pub(crate) fn end_at(&self, node: NodeId) -> Option<usize> {
        self.ends.iter().position(|end| *end == node)
    }

    /// Records packets at both ends from now on.
    pub(crate) fn set_captures(&mut self, captures: [CaptureInterface; 2]) {
        self.captures = Some(captures);
    }

    /// Records a packet that enters or leaves the link at an end.
    pub(crate) fn record(&mut self, end: usize, enters: bool, now: Instant, packet: &Packet) {
        let Some(captures) = &self.captures else {
            return;
        };
        let packets = std::slice::from_ref(packet);
        let recorded = if enters {
            captures[end].outbound(now.as_nanos(), packets)
        } else {
            captures[end].inbound(now.as_nanos(), packets)
        };
        if let Err(error) = recorded {
            tracing::warn!("packet recording stopped: cannot write the capture: {error}");
            self.captures = None;
        }
    }
}
