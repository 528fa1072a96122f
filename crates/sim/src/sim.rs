//! The simulator: hosts, links, and the clock that advances from event to event.

use std::collections::BTreeMap;
use std::fmt;

use fullsend_offload::{Checksum, Link, Packet, TxToken};
use fullsend_stack::{Host, HostConfig, IfaceId, Mac};
use fullsend_tcp::Sysctl;
use fullsend_wire::{Instant, Nanos, Rng, Seed};

use crate::direction::{Fate, LinkDirection};
use crate::events::{Event, Events, PortId};
use crate::nic::{Nic, NicConfig, NicMode};
use crate::trace::TraceHash;
use crate::{Loss, Netem, TraceEvent, TracePoint, router};

/// The number of a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostId(pub usize);

/// The number of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkId(pub usize);

/// Bytes of free payload memory that a host keeps for reuse.
const POOL_BYTES: usize = 4 << 20;

/// Most events at one instant: a host whose deadline stays in the past would otherwise hang the
/// run.
const MAX_EVENTS_PER_INSTANT: u32 = 1_000_000;

struct SimHost {
    host: Host,
    /// The ports, by interface.
    ports: Vec<PortId>,
}

/// One end of a link.
struct Port {
    host: HostId,
    iface: IfaceId,
    nic: Nic,
    /// The paths from the host, and from the switch to it.
    up: LinkDirection,
    down: Option<LinkDirection>,
    /// Received packets that the card has not yet passed to its host.
    gathered: Vec<Packet>,
    /// Sent packets that the card has not yet reported to its host.
    sent: Vec<TxToken>,
}

struct Wire {
    ports: Vec<Port>,
    /// Source addresses that a switch has learned, with their ports.
    learned: BTreeMap<Vec<u8>, usize>,
}

/// The callback that is passed each packet.
type Observer = Box<dyn FnMut(&TraceEvent<'_>)>;

/// Hosts and links in virtual time.
///
/// Calls to a host (through [`host`](Self::host), with [`now`](Self::now)) and
/// [`run_until`](Self::run_until) alternate: packets that result from the calls are sent when the
/// simulation continues.
pub struct Sim {
    now: Instant,
    rng: Rng,
    nodes: Vec<SimHost>,
    wires: Vec<Wire>,
    events: Events,
    hash: TraceHash,
    observer: Option<Observer>,
    fates: Vec<Fate>,
    packets: Vec<Packet>,
    events_at_now: u32,
}

impl Sim {
    /// Returns a simulation without hosts at time zero. All randomness derives from `seed`.
    pub fn new(seed: Seed) -> Self {
        Self {
            now: Instant::ZERO,
            rng: Rng::new(seed),
            nodes: Vec::new(),
            wires: Vec::new(),
            events: Events::default(),
            hash: TraceHash::new(),
            observer: None,
            fates: Vec::new(),
            packets: Vec::new(),
            events_at_now: 0,
        }
    }

    /// Adds a host with default tunables; change them with [`Host::sysctl_mut`].
    pub fn add_host(&mut self) -> HostId {
        let config = HostConfig {
            seed: self.rng.fork(),
            sysctl: Sysctl::default(),
            pool_bytes: POOL_BYTES,
        };
        self.nodes.push(SimHost {
            host: Host::new(config),
            ports: Vec::new(),
        });
        HostId(self.nodes.len() - 1)
    }

    /// Connects two hosts by a cable, with `netem` for the direction from each. Each host gets an
    /// interface with the next number.
    pub fn connect(&mut self, hosts: [HostId; 2], nic: NicConfig, netem: [Netem; 2]) -> LinkId {
        let ends = hosts.into_iter().zip(netem);
        let ports = ends.map(|(host, netem)| (host, netem, None)).collect();
        self.add_wire(nic, ports)
    }

    /// Connects hosts to a learning switch by a cable each: `up` is the direction to the switch,
    /// `down` the direction from it.
    pub fn switch(&mut self, hosts: &[HostId], nic: NicConfig, up: Netem, down: Netem) -> LinkId {
        let ports = hosts.iter().map(|host| (*host, up, Some(down))).collect();
        self.add_wire(nic, ports)
    }

    fn add_wire(&mut self, nic: NicConfig, ends: Vec<(HostId, Netem, Option<Netem>)>) -> LinkId {
        let link = self.wires.len();
        let mut ports = Vec::new();
        for (host, up, down) in ends {
            let up = LinkDirection::new(up, self.rng.fork());
            let down = down.map(|netem| LinkDirection::new(netem, self.rng.fork()));
            let node = &mut self.nodes[host.0];
            let mac = Mac([2, 0, 0, link as u8, (host.0 >> 8) as u8, host.0 as u8]);
            let iface = node.host.add_interface(nic.iface(mac));
            node.ports.push(PortId {
                link,
                port: ports.len(),
            });
            ports.push(Port {
                host,
                iface,
                nic: Nic::new(nic),
                up,
                down,
                gathered: Vec::new(),
                sent: Vec::new(),
            });
        }
        self.wires.push(Wire {
            ports,
            learned: BTreeMap::new(),
        });
        LinkId(link)
    }

    /// Changes the direction from one end of a link, to the other end or to the switch.
    pub fn set_netem(&mut self, link: LinkId, from: HostId, netem: Netem) {
        let ports = &mut self.wires[link.0].ports;
        for port in ports.iter_mut().filter(|port| port.host == from) {
            port.up.set_netem(netem);
        }
    }

    /// Returns the current time, which is the same on every host.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns a host, to make calls on.
    ///
    /// # Panics
    /// If the host is not of this simulation.
    pub fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.nodes[id.0].host
    }

    /// Sets a callback for every packet that is sent, arrives or is lost;
    /// [`format_packet`](crate::format_packet) formats it as text.
    pub fn set_observer(&mut self, observer: impl FnMut(&TraceEvent<'_>) + 'static) {
        self.observer = Some(Box::new(observer));
    }

    /// Excludes payload from the hash from now on, to save time in long runs.
    pub const fn set_hash_headers_only(&mut self) {
        self.hash.headers_only();
    }

    /// Returns a hash over every packet so far, with its point and time.
    pub const fn trace_hash(&self) -> u64 {
        self.hash.value()
    }

    /// Advances time until `done` returns `true`, and returns whether it did by `deadline`.
    ///
    /// `done` is called after every event, and may make calls on hosts.
    pub fn run_until(
        &mut self,
        deadline: Instant,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if !self.step(deadline) {
                return done(self);
            }
        }
    }

    /// Advances time to `deadline`.
    pub fn run_to(&mut self, deadline: Instant) {
        while self.step(deadline) {}
    }

    /// Runs the next event by `deadline`; if there is none, advances to `deadline` and returns
    /// `false`.
    pub fn step(&mut self, deadline: Instant) -> bool {
        for host in 0..self.nodes.len() {
            self.transmit(host);
        }
        let timer = self.next_timer();
        let event = self.events.next_at();
        let timer_first = timer.is_some_and(|(at, _)| event.is_none_or(|event| at <= event));
        let next = timer.map(|(at, _)| at).into_iter().chain(event).min();
        let Some(at) = next.filter(|at| *at <= deadline) else {
            self.now = self.now.max(deadline);
            return false;
        };
        self.advance(at);
        match (timer, timer_first) {
            (Some((_, host)), true) => self.nodes[host].host.poll(self.now),
            _ => self.handle_event(),
        }
        true
    }

    fn advance(&mut self, at: Instant) {
        if at > self.now {
            self.now = at;
            self.events_at_now = 0;
        }
        self.events_at_now += 1;
        assert!(
            self.events_at_now < MAX_EVENTS_PER_INSTANT,
            "the simulation makes no progress at {:?}: a host's deadline does not advance",
            self.now
        );
    }

    /// Returns the earliest deadline of a host, and the host.
    fn next_timer(&self) -> Option<(Instant, usize)> {
        let deadline = |(i, node): (usize, &SimHost)| node.host.poll_deadline().map(|at| (at, i));
        self.nodes.iter().enumerate().filter_map(deadline).min()
    }

    fn handle_event(&mut self) {
        match self.events.pop() {
            None => {}
            Some(Event::Sent(port, packet)) => {
                self.port(port).nic.on_sent();
                self.transmit_on_link(port, packet);
            }
            Some(Event::AtSwitch(from, packet)) => self.forward(from, &packet),
            Some(Event::Arrives(port, packet)) => self.on_arrival(port, packet),
            Some(Event::Receive(id)) => {
                let port = &mut self.wires[id.link].ports[id.port];
                let host = &mut self.nodes[port.host.0].host;
                host.receive(self.now, port.iface, &mut port.gathered);
                port.gathered.clear();
            }
            Some(Event::Complete(id)) => {
                let port = &mut self.wires[id.link].ports[id.port];
                let host = &mut self.nodes[port.host.0].host;
                for token in port.sent.drain(..) {
                    host.complete(self.now, token);
                }
            }
        }
    }

    fn port(&mut self, id: PortId) -> &mut Port {
        &mut self.wires[id.link].ports[id.port]
    }

    /// Moves the pending packets of a host into its cards, as far as they have room.
    fn transmit(&mut self, host: usize) {
        for iface in 0..self.nodes[host].ports.len() {
            let id = self.nodes[host].ports[iface];
            let iface = IfaceId(iface as u16);
            let mut packets = std::mem::take(&mut self.packets);
            if !self.port(id).nic.has_room() {
                // A full ring does not keep sockets from queueing in the qdisc.
                let host = &mut self.nodes[host].host;
                host.transmit(self.now, iface, &mut packets, 0);
            }
            while self.port(id).nic.has_room() && self.nodes[host].host.needs_transmit(iface) {
                self.nodes[host]
                    .host
                    .transmit(self.now, iface, &mut packets, 1);
                if packets.is_empty() {
                    break;
                }
                for packet in packets.drain(..) {
                    self.queue_at_nic(id, packet);
                }
            }
            self.packets = packets;
        }
    }

    /// Passes a packet from a host to its card.
    fn queue_at_nic(&mut self, id: PortId, packet: Packet) {
        let now = self.now;
        self.observe(
            self.wires[id.link].ports[id.port].host,
            TracePoint::Queued,
            &packet,
        );
        let nic = &mut self.port(id).nic;
        if nic.config.mode == NicMode::Mtu {
            let largest = nic.config.mtu as usize + 18;
            debug_assert!(packet.segments() == 1 && packet.len() <= largest);
            debug_assert_ne!(packet.offload.checksum, Checksum::Partial);
        }
        match nic.enqueue(now, &packet) {
            Some(at) => self.events.schedule(at, Event::Sent(id, packet)),
            None => self.transmit_on_link(id, packet),
        }
    }

    /// Completes the packet with `token`, and reports that to the host now or after `tx_coalesce`.
    fn complete(&mut self, id: PortId, token: TxToken) {
        let now = self.now;
        let port = self.port(id);
        let wait = port.nic.config.tx_coalesce;
        if wait == Nanos::ZERO {
            let host = port.host;
            self.nodes[host.0].host.complete(now, token);
            return;
        }
        port.sent.push(token);
        if port.sent.len() == 1 {
            self.events.schedule(now + wait, Event::Complete(id));
        }
    }

    /// Sends a packet from a card: completes it for the host, and passes it to the link.
    fn transmit_on_link(&mut self, id: PortId, packet: Packet) {
        let host = self.port(id).host;
        self.observe(host, TracePoint::Sent, &packet);
        let now = self.now;
        self.complete(id, packet.tx);
        let mut fates = std::mem::take(&mut self.fates);
        let port = self.port(id);
        let switched = port.down.is_some();
        let reported_mtu = port.up.reports_mtu();
        port.up.send(now, as_on_wire(packet), &mut fates);
        for fate in fates.drain(..) {
            match fate {
                Fate::Lost(why, packet) => {
                    self.observe(host, TracePoint::Lost(why), &packet);
                    if let (Loss::TooBig, Some(mtu)) = (why, reported_mtu)
                        && let Some(message) = router::too_big(&packet, mtu)
                    {
                        self.events.schedule(now, Event::Arrives(id, message));
                    }
                }
                Fate::Arrives(at, packet) if switched => {
                    self.events.schedule(at, Event::AtSwitch(id, packet));
                }
                Fate::Arrives(at, packet) => {
                    let other = PortId {
                        port: 1 - id.port,
                        ..id
                    };
                    self.events.schedule(at, Event::Arrives(other, packet));
                }
            }
        }
        self.fates = fates;
    }

    /// Forwards a packet at the switch, to the port of its destination if it is known, else to all.
    fn forward(&mut self, from: PortId, packet: &Packet) {
        let wire = &mut self.wires[from.link];
        let link = wire.ports[from.port].nic.config.link;
        let known = addresses(packet, link).and_then(|(src, dst)| {
            wire.learned.insert(src, from.port);
            wire.learned.get(&dst).copied()
        });
        let targets = match known {
            Some(port) => port..port + 1,
            None => 0..wire.ports.len(),
        };
        let mut fates = std::mem::take(&mut self.fates);
        for port in targets.filter(|port| *port != from.port) {
            let to = PortId { port, ..from };
            let now = self.now;
            let Port { down, host, .. } = self.port(to);
            let host = *host;
            if let Some(down) = down {
                down.send(now, packet.clone(), &mut fates);
            }
            for fate in fates.drain(..) {
                match fate {
                    Fate::Lost(why, packet) => self.observe(host, TracePoint::Lost(why), &packet),
                    Fate::Arrives(at, packet) => {
                        self.events.schedule(at, Event::Arrives(to, packet));
                    }
                }
            }
        }
        self.fates = fates;
    }

    fn on_arrival(&mut self, id: PortId, packet: Packet) {
        let host = self.port(id).host;
        self.observe(host, TracePoint::Arrived, &packet);
        let now = self.now;
        let port = self.port(id);
        let first = port.gathered.is_empty();
        let at = now + port.nic.config.rx_coalesce;
        port.gathered.push(packet);
        if first {
            self.events.schedule(at, Event::Receive(id));
        }
    }

    fn observe(&mut self, host: HostId, point: TracePoint, packet: &Packet) {
        let event = TraceEvent {
            at: self.now,
            host,
            point,
            packet,
        };
        self.hash.update(&event);
        if let Some(observer) = &mut self.observer {
            observer(&event);
        }
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim")
            .field("now", &self.now)
            .field("hosts", &self.nodes.len())
            .field("links", &self.wires.len())
            .finish_non_exhaustive()
    }
}

/// Returns the packet without the sender's own state.
fn as_on_wire(packet: Packet) -> Packet {
    Packet {
        tx: TxToken::default(),
        ..packet
    }
}

/// Returns the source and destination by which a switch learns and forwards: hardware or IP
/// addresses. `None` for packets to all ports.
fn addresses(packet: &Packet, link: Link) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut parsed = packet.clone();
    parsed.parse(link).ok()?;
    let (src, dst) = match link {
        Link::Ethernet => (parsed.header.get(6..12)?, parsed.header.get(..6)?),
        Link::Ip => match parsed.header.first()? >> 4 {
            4 => (parsed.header.get(12..16)?, parsed.header.get(16..20)?),
            _ => (parsed.header.get(8..24)?, parsed.header.get(24..40)?),
        },
    };
    Some((src.to_vec(), dst.to_vec()))
}
