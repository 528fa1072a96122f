//! The network: its links and the network cards of its hosts. It changes only when an event is due or a
//! stack transmits.

use std::collections::VecDeque;
use std::task::Waker;

use fullsend_offload::{Checksum, Packet, TxToken};
use fullsend_sim::{HostId, Loss, Netem, TraceEvent, TraceHash, TracePoint};
use fullsend_wire::{Instant, Nanos, Rng, Seed};

use crate::agenda::{Agenda, Source};
use crate::scheduler::MAX_LOOKAHEAD;
use crate::topology::{NodeId, Topology};
use crate::wire::{Direction, Wire};

/// A callback that receives each packet with the name of the node.
pub(crate) type Observer = Box<dyn FnMut(&str, &TraceEvent<'_>) + Send>;

/// The network card of a host.
#[derive(Default)]
pub(crate) struct CardState {
    /// Packets that the host's driver has not received yet. It receives them at the instant of their
    /// arrival, so they all arrived at one instant.
    pub(crate) received: VecDeque<Packet>,
    /// The waker of the driver's task.
    pub(crate) driver: Option<Waker>,
    /// The number of starts of the host; the cards of earlier starts are disconnected.
    pub(crate) incarnation: u64,
    /// Whether the host is running.
    pub(crate) is_connected: bool,
}

/// The state of a network.
pub(crate) struct Kernel {
    pub(crate) topology: Topology,
    pub(crate) agenda: Agenda,
    /// The card of each node; the cards of switches are unused.
    pub(crate) cards: Vec<CardState>,
    pub(crate) wires: Vec<Wire>,
    pub(crate) rng: Rng,
    pub(crate) hash: TraceHash,
    pub(crate) observer: Option<Observer>,
    /// The number of packets to an address that no host has, or to which no path leads.
    pub(crate) unroutable: u64,
    /// The least delay of all links; `None` after a change.
    lookahead: Option<Nanos>,
    /// Whether the simulation was dropped, after which its stacks' last packets are ignored.
    pub(crate) closed: bool,
    /// Hosts that have received packets, whose drivers must be woken.
    ready: Vec<NodeId>,
    links: Vec<usize>,
    packets: Vec<Packet>,
}

impl Kernel {
    pub(crate) fn new(seed: Seed) -> Self {
        Self {
            topology: Topology::default(),
            agenda: Agenda::default(),
            cards: Vec::new(),
            wires: Vec::new(),
            rng: Rng::new(seed),
            hash: TraceHash::new(),
            observer: None,
            unroutable: 0,
            lookahead: None,
            closed: false,
            ready: Vec::new(),
            links: Vec::new(),
            packets: Vec::new(),
        }
    }

    /// Sends a packet from a host.
    pub(crate) fn transmit(&mut self, now: Instant, node: NodeId, packet: Packet) {
        if !self.closed {
            self.forward(now, node, packet);
        }
    }

    /// Forwards a packet from a node over one or several links.
    fn forward(&mut self, now: Instant, node: NodeId, mut packet: Packet) {
        // Fields that only the sender's host uses do not cross the link.
        packet.tx = TxToken::default();
        packet.offload.checksum = Checksum::Unverified;
        let mut links = std::mem::take(&mut self.links);
        self.topology.next_links(node, &packet, &mut links);
        self.unroutable += u64::from(links.is_empty());
        if let Some((last, others)) = links.split_last() {
            for link in others {
                self.send(now, node, *link, packet.clone());
            }
            self.send(now, node, *last, packet);
        }
        links.clear();
        self.links = links;
    }

    /// Sends a packet into a link.
    fn send(&mut self, now: Instant, node: NodeId, link: usize, packet: Packet) {
        let wire = &mut self.wires[link];
        let Some(end) = wire.end_at(node) else {
            return;
        };
        let is_up = wire.is_up;
        let stats = &mut wire.directions[end].stats;
        stats.sent += 1;
        stats.sent_bytes += packet.len() as u64;
        wire.record(end, true, now, &packet);
        self.observe(now, node, TracePoint::Sent, &packet);
        if !is_up {
            return self.lose(now, (link, end), &packet, Loss::LinkDown);
        }
        let mut lost = Vec::new();
        let direction = &mut self.wires[link].directions[end];
        direction.send(now, packet, |packet| lost.push(packet));
        let next = direction.next_arrival();
        self.agenda.set(Source::Link { link, from: end }, next);
        for lost in lost {
            self.lose(now, (link, end), &lost.packet, lost.why);
            // The router before the link reports the link's MTU to the sender.
            if let Some(report) = lost.report {
                self.receive_or_forward(now, node, report);
            }
        }
    }

    /// Counts a packet that a link has lost.
    fn lose(&mut self, now: Instant, (link, end): (usize, usize), packet: &Packet, why: Loss) {
        let wire = &mut self.wires[link];
        let stats = &mut wire.directions[end].stats;
        match why {
            Loss::Random => stats.lost += 1,
            Loss::QueueFull => stats.queue_full += 1,
            Loss::TooBig => stats.too_big += 1,
            Loss::LinkDown => stats.cut += 1,
        }
        let sender = wire.ends[end];
        self.observe(now, sender, TracePoint::Lost(why), packet);
    }

    /// Processes the due events, and appends the wakers of the affected tasks to `wakers`.
    pub(crate) fn run_due(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        while let Some(source) = self.agenda.pop_due(now) {
            match source {
                Source::Link { link, from } => self.arrive(now, link, from),
                Source::Stack(node) => wakers.extend(self.cards[node.0].driver.take()),
                // The scheduler's loop ends the run.
                Source::End => {}
            }
        }
        for node in self.ready.drain(..) {
            wakers.extend(self.cards[node.0].driver.take());
        }
    }

    /// Adds a link.
    pub(crate) fn add_wire(&mut self, wire: Wire) {
        self.wires.push(wire);
        self.lookahead = None;
    }

    /// Changes the properties of a link in the direction from the end with index `from`.
    pub(crate) fn set_netem(&mut self, link: usize, from: usize, netem: Netem) {
        self.wires[link].directions[from].set_netem(netem);
        self.lookahead = None;
    }

    /// Returns the least delay of all links.
    pub(crate) fn lookahead(&mut self) -> Nanos {
        let wires = &self.wires;
        *self.lookahead.get_or_insert_with(|| {
            let directions = wires.iter().flat_map(|wire| &wire.directions);
            let delays = directions.map(Direction::min_delay);
            delays.fold(MAX_LOOKAHEAD, Nanos::min)
        })
    }

    /// Receives the packets that have arrived at the far end of a link.
    fn arrive(&mut self, now: Instant, link: usize, from: usize) {
        let mut packets = std::mem::take(&mut self.packets);
        let wire = &mut self.wires[link];
        let to = wire.ends[1 - from];
        let is_up = wire.is_up;
        let direction = &mut wire.directions[from];
        direction.take_arrived(now, &mut packets);
        let next = direction.next_arrival();
        self.agenda.set(Source::Link { link, from }, next);
        for packet in packets.drain(..) {
            if !is_up {
                self.lose(now, (link, from), &packet, Loss::LinkDown);
                continue;
            }
            let wire = &mut self.wires[link];
            let stats = &mut wire.directions[from].stats;
            stats.arrived += 1;
            stats.arrived_bytes += packet.len() as u64;
            wire.record(1 - from, false, now, &packet);
            self.observe(now, to, TracePoint::Arrived, &packet);
            self.receive_or_forward(now, to, packet);
        }
        self.packets = packets;
    }

    /// Receives a packet at a host, or forwards it at a switch.
    fn receive_or_forward(&mut self, now: Instant, node: NodeId, packet: Packet) {
        if !self.topology.is_host(node) {
            return self.forward(now, node, packet);
        }
        let card = &mut self.cards[node.0];
        if card.is_connected {
            card.received.push_back(packet);
            self.ready.push(node);
        }
    }

    fn observe(&mut self, now: Instant, node: NodeId, point: TracePoint, packet: &Packet) {
        let event = TraceEvent {
            at: now,
            host: HostId(node.0),
            point,
            packet,
        };
        self.hash.update(&event);
        if let Some(observer) = &mut self.observer {
            observer(self.topology.name(node), &event);
        }
    }
}
