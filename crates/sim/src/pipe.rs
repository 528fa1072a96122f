//! One direction of a link by itself, for a driver with its own clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use fullsend_offload::Packet;
use fullsend_wire::{Instant, Seed};

use crate::direction::{Fate, LinkDirection};
use crate::{Loss, Netem, router};

/// The counters of a [`Pipe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PipeStats {
    /// Packets sent into the pipe.
    pub sent: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped because the bottleneck's queue was full, or larger than the link's MTU.
    pub dropped: u64,
}

/// A packet that a [`Pipe`] lost.
#[derive(Debug)]
pub struct LostPacket {
    /// The packet.
    pub packet: Packet,
    /// The reason.
    pub why: Loss,
    /// The ICMP message to its sender, if the link reports its MTU and the packet was larger.
    pub report: Option<Packet>,
}

/// One direction of a link: packets enter when they are sent, and leave when they arrive.
///
/// With the same seed, the same packets at the same times have the same fates. Loss is by packet:
/// segment super-segments before they are sent.
///
/// ```
/// use fullsend_offload::{Packet, Slice};
/// use fullsend_sim::Pipe;
/// use fullsend_wire::{Instant, Nanos, Seed};
///
/// let mut pipe = Pipe::new("delay 20ms".parse().unwrap(), Seed::from_u64(1));
/// pipe.send(Instant::ZERO, Packet::from_frame(Slice::copied_from(&[0x45; 40])));
/// let due = Instant::ZERO + Nanos::from_millis(20);
/// assert_eq!(pipe.next_arrival(), Some(due));
/// let mut out = Vec::new();
/// pipe.take_arrived(due, &mut out);
/// assert_eq!(out.len(), 1);
/// ```
#[derive(Debug)]
pub struct Pipe {
    direction: LinkDirection,
    in_flight: BinaryHeap<InFlightPacket>,
    fates: Vec<Fate>,
    stats: PipeStats,
}

impl Pipe {
    /// Returns an empty pipe.
    pub fn new(netem: Netem, seed: Seed) -> Self {
        Self {
            direction: LinkDirection::new(netem, seed),
            in_flight: BinaryHeap::new(),
            fates: Vec::new(),
            stats: PipeStats::default(),
        }
    }

    /// Changes the properties of the link for packets that are sent from now on.
    pub fn set_netem(&mut self, netem: Netem) {
        self.direction.set_netem(netem);
    }

    /// Sends a packet.
    pub fn send(&mut self, now: Instant, packet: Packet) {
        self.send_with(now, packet, drop);
    }

    /// Sends a packet, and passes what the pipe loses to `on_loss`: the packet, or pieces of it.
    pub fn send_with(&mut self, now: Instant, packet: Packet, mut on_loss: impl FnMut(LostPacket)) {
        self.stats.sent += 1;
        let reported_mtu = self.direction.reports_mtu();
        self.direction.send(now, packet, &mut self.fates);
        for fate in self.fates.drain(..) {
            match fate {
                Fate::Arrives(at, packet) => self.in_flight.push(InFlightPacket {
                    at,
                    number: self.stats.sent,
                    packet,
                }),
                Fate::Lost(why, packet) => {
                    match why {
                        Loss::Random => self.stats.lost += 1,
                        _ => self.stats.dropped += 1,
                    }
                    let mtu = reported_mtu.filter(|_| why == Loss::TooBig);
                    let report = mtu.and_then(|mtu| router::too_big(&packet, mtu));
                    on_loss(LostPacket {
                        packet,
                        why,
                        report,
                    });
                }
            }
        }
    }

    /// Appends the packets that have arrived by `now` to `out`, in order of arrival.
    pub fn take_arrived(&mut self, now: Instant, out: &mut Vec<Packet>) {
        while let Some(first) = self.in_flight.peek()
            && first.at <= now
        {
            out.extend(self.in_flight.pop().map(|first| first.packet));
        }
    }

    /// Returns the time at which the next packet arrives; `None` if no packet is in flight.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|first| first.at)
    }

    /// Returns the counters.
    pub const fn stats(&self) -> PipeStats {
        self.stats
    }
}

/// A packet in flight; the one that arrives first compares greatest.
#[derive(Debug)]
struct InFlightPacket {
    at: Instant,
    number: u64,
    packet: Packet,
}

impl InFlightPacket {
    const fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for InFlightPacket {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for InFlightPacket {}

impl PartialOrd for InFlightPacket {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InFlightPacket {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use fullsend_offload::{Packet, Slice};
    use fullsend_wire::{Instant, Nanos, Seed};

    use super::Pipe;

    fn packet(number: u16) -> Packet {
        let mut bytes = vec![0x45; 1000];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Packet::from_frame(Slice::copied_from(&bytes))
    }

    fn arrivals(netem: &str, seed: u64) -> (Vec<(u64, u16)>, super::PipeStats) {
        let mut pipe = Pipe::new(netem.parse().unwrap(), Seed::from_u64(seed));
        for number in 0..1000 {
            let now = Instant::ZERO + Nanos::from_micros(u64::from(number) * 10);
            pipe.send(now, packet(number));
        }
        let mut out = Vec::new();
        let mut got = Vec::new();
        while let Some(at) = pipe.next_arrival() {
            pipe.take_arrived(at, &mut out);
            for packet in out.drain(..) {
                let bytes = packet.to_bytes();
                got.push((at.as_nanos(), u16::from_be_bytes([bytes[0], bytes[1]])));
            }
        }
        (got, pipe.stats())
    }

    #[test]
    fn packets_arrive_in_order_at_the_rate_of_the_bottleneck() {
        // 8 us per packet, one sent every 10 us.
        let (got, stats) = arrivals("delay 5ms rate 1gbit", 1);
        assert_eq!((stats.sent, stats.lost, stats.dropped), (1000, 0, 0));
        let want = (0..1000).map(|n| (5_008_000 + u64::from(n) * 10_000, n));
        assert!(got.iter().copied().eq(want));
    }

    #[test]
    fn the_same_seed_loses_the_same_packets() {
        let lossy = "delay 5ms 1ms loss 10% rate 600mbit limit 20";
        let (one, stats) = arrivals(lossy, 7);
        assert_eq!((one.clone(), stats), arrivals(lossy, 7));
        assert_ne!(one, arrivals(lossy, 8).0);
        assert_eq!(stats.sent, one.len() as u64 + stats.lost + stats.dropped);
        assert!(
            (50..200).contains(&stats.lost) && stats.dropped > 50,
            "{stats:?}"
        );
        // Jitter reorders packets, but arrival times never decrease.
        assert!(one.is_sorted_by_key(|(at, _)| *at));
        assert!(!one.is_sorted_by_key(|(_, number)| *number));
    }
}
