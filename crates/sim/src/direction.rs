//! One direction of a link: the fate of each packet, and its time.

use std::collections::VecDeque;

use fullsend_offload::{Packet, Slice, segment};
use fullsend_wire::numbers::ethertype;
use fullsend_wire::{Instant, Nanos, Rng, Seed, checksum};

use crate::{Netem, RandomLoss, router};

#[cfg(test)]
mod tests;

/// The reason why a packet did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// Random loss.
    Random,
    /// The bottleneck's queue was full.
    QueueFull,
    /// The packet was larger than the link's MTU.
    TooBig,
    /// The link was down.
    LinkDown,
}

/// The fate of a packet, of a duplicate, or of a piece of it.
#[derive(Debug)]
pub(crate) enum Fate {
    /// The packet arrives at this time.
    Arrives(Instant, Packet),
    Lost(Loss, Packet),
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct LinkDirection {
    netem: Netem,
    rng: Rng,
    /// Time at which the bottleneck will have sent all queued packets, and the queued packets: when
    /// each is sent, and the number of its segments.
    busy_until: Instant,
    queue: VecDeque<(Instant, u32)>,
    queued_packets: u32,
    /// The state of bursty loss.
    bad: bool,
    /// Packets since the last reordered one.
    since_reorder: u32,
}

impl LinkDirection {
    pub(crate) fn new(netem: Netem, seed: Seed) -> Self {
        Self {
            netem,
            rng: Rng::new(seed),
            busy_until: Instant::ZERO,
            queue: VecDeque::new(),
            queued_packets: 0,
            bad: false,
            since_reorder: 0,
        }
    }

    pub(crate) fn set_netem(&mut self, netem: Netem) {
        self.netem = netem;
    }

    /// Returns the MTU if senders of larger packets are notified.
    pub(crate) fn reports_mtu(&self) -> Option<u32> {
        self.netem.reports_mtu.then_some(self.netem.mtu)
    }

    /// Sends a packet; appends its fates to `out`.
    pub(crate) fn send(&mut self, now: Instant, packet: Packet, out: &mut Vec<Fate>) {
        if self.netem.mtu == u32::MAX {
            return self.send_one(now, packet, out);
        }
        for piece in router::split_for_mtu(packet, self.netem.mtu) {
            if router::is_too_big(&piece, self.netem.mtu) {
                out.push(Fate::Lost(Loss::TooBig, piece));
            } else {
                self.send_one(now, piece, out);
            }
        }
    }

    fn send_one(&mut self, now: Instant, mut packet: Packet, out: &mut Vec<Fate>) {
        if self.draws_loss() && !(self.netem.ecn && mark_ce(&mut packet)) {
            out.push(Fate::Lost(Loss::Random, packet));
            return;
        }
        if self.rng.chance(self.netem.duplicate) {
            let copy = packet.clone();
            self.maybe_corrupt(now, copy, out);
        }
        self.maybe_corrupt(now, packet, out);
    }

    fn draws_loss(&mut self) -> bool {
        match self.netem.loss {
            RandomLoss::Even(p) => self.rng.chance(p),
            RandomLoss::Bursty { p, r, bad, good } => {
                let transition = if self.bad { r } else { p };
                self.bad ^= self.rng.chance(transition);
                self.rng.chance(if self.bad { bad } else { good })
            }
        }
    }

    /// Flips a bit of one packet with some probability; a super-segment is segmented for it.
    fn maybe_corrupt(&mut self, now: Instant, packet: Packet, out: &mut Vec<Fate>) {
        if !self.rng.chance(self.netem.corrupt) {
            return self.enqueue(now, packet, out);
        }
        let mut pieces = Vec::new();
        segment(packet, &mut pieces);
        let hit = self.rng.below(pieces.len().max(1) as u64) as usize;
        for (i, piece) in pieces.into_iter().enumerate() {
            let piece = if i == hit {
                self.flip_bit(&piece)
            } else {
                piece
            };
            self.enqueue(now, piece, out);
        }
    }

    fn flip_bit(&mut self, packet: &Packet) -> Packet {
        let mut bytes = packet.to_bytes();
        let bit = self.rng.below(bytes.len().max(1) as u64 * 8) as usize;
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        Packet::from_frame(Slice::copied_from(&bytes))
    }

    /// Queues a packet at the bottleneck, and delays it.
    fn enqueue(&mut self, now: Instant, mut packet: Packet, out: &mut Vec<Fate>) {
        while let Some((sent, packets)) = self.queue.front().copied()
            && sent <= now
        {
            self.queue.pop_front();
            self.queued_packets -= packets;
        }
        let packets = packet.segments();
        if self.queued_packets + packets > self.netem.limit && !self.queue.is_empty() {
            out.push(Fate::Lost(Loss::QueueFull, packet));
            return;
        }
        let wire = packet.wire_len() as u64 + u64::from(self.netem.overhead * packets);
        let start = self.busy_until.max(now);
        if start.since(now) > self.netem.ce_threshold {
            mark_ce(&mut packet);
        }
        let sent = start + self.netem.rate.time_for(wire);
        if sent > now {
            self.busy_until = sent;
            self.queue.push_back((sent, packets));
            self.queued_packets += packets;
        }
        let arrival = sent + self.delay();
        out.push(Fate::Arrives(arrival, packet));
    }

    fn delay(&mut self) -> Nanos {
        self.since_reorder += 1;
        if self.since_reorder >= self.netem.gap && self.rng.chance(self.netem.reorder) {
            self.since_reorder = 0;
            return Nanos::ZERO;
        }
        let jitter = self.netem.jitter.as_nanos();
        if jitter == 0 {
            return self.netem.delay;
        }
        let early = self.netem.delay.saturating_sub(self.netem.jitter);
        early + Nanos::from_nanos(self.rng.below(2 * jitter + 1))
    }
}

/// Sets Congestion Experienced (RFC 3168 5) if the packet is ECN-capable.
fn mark_ce(packet: &mut Packet) -> bool {
    let at = usize::from(packet.layers.network[0]);
    let ethertype = packet.layers.ethertype;
    let Some(ip) = packet.header.get_mut(at..).filter(|ip| ip.len() >= 20) else {
        return false;
    };
    // The two bits are the last of IPv4's second byte, and in the middle of IPv6's.
    let shift = match ethertype {
        ethertype::IPV4 => 0,
        ethertype::IPV6 => 4,
        _ => return false,
    };
    let ecn = 0b11 << shift;
    if ip[1] & ecn == 0 {
        return false;
    }
    let old = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] |= ecn;
    if shift == 0 {
        let sum = u16::from_be_bytes([ip[10], ip[11]]);
        let new = checksum::update(sum, old, u16::from_be_bytes([ip[0], ip[1]]));
        ip[10..12].copy_from_slice(&new.to_be_bytes());
    }
    true
}
