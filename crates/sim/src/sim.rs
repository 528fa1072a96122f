//! The simulator: hosts, links, and the clock that moves from event to event.

use std::collections::BTreeMap;
use std::fmt;

use fullsend_offload::{Checksum, Link, Packet, TxToken};
use fullsend_stack::{Host, HostConfig, IfaceId, Mac};
use fullsend_tcp::Sysctl;
use fullsend_units::{Instant, Nanos, Rng, Seed};

use crate::events::{Event, Events, PortId};
use crate::lane::{Fate, Lane};
use crate::nic::{Nic, NicConfig, NicMode};
use crate::trace::TraceHash;
use crate::{Loss, Netem, Point, Tap, router};

/// A host's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HostId(pub usize);

/// A link's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LinkId(pub usize);

/// Free payload memory that a host keeps for reuse, bytes.
const POOL_BYTES: usize = 4 << 20;

/// Events at one instant after which time is taken to stand still: a host whose deadline stays in
/// the past would hang the run.
const STANDSTILL: u32 = 1_000_000;

struct Node {
    host: Host,
    /// By interface.
    ports: Vec<PortId>,
}

/// One end of a link.
struct Port {
    host: HostId,
    iface: IfaceId,
    nic: Nic,
    /// From the host, and from the switch to it.
    up: Lane,
    down: Option<Lane>,
    /// What the card gathered for its host.
    gathered: Vec<Packet>,
    /// What it has sent and not told its host of.
    sent: Vec<TxToken>,
}

struct Wire {
    ports: Vec<Port>,
    /// Of a switch: behind which end a source address was seen.
    learned: BTreeMap<Vec<u8>, usize>,
}

/// The function that sees packets.
type Watcher = Box<dyn FnMut(&Tap<'_>)>;

/// Hosts and links in virtual time.
///
/// Calls to a host (through [`host`](Self::host), with [`now`](Self::now)) and
/// [`run_until`](Self::run_until) alternate: what the calls gave the host to send leaves it when
/// the simulation runs on.
pub struct Sim {
    now: Instant,
    rng: Rng,
    nodes: Vec<Node>,
    wires: Vec<Wire>,
    events: Events,
    hash: TraceHash,
    watcher: Option<Watcher>,
    fates: Vec<Fate>,
    packets: Vec<Packet>,
    at_this_instant: u32,
}

impl Sim {
    /// An empty world at time zero. Everything that is random derives from `seed`.
    pub fn new(seed: Seed) -> Self {
        Self {
            now: Instant::ZERO,
            rng: Rng::new(seed),
            nodes: Vec::new(),
            wires: Vec::new(),
            events: Events::default(),
            hash: TraceHash::new(),
            watcher: None,
            fates: Vec::new(),
            packets: Vec::new(),
            at_this_instant: 0,
        }
    }

    /// Adds a host with default tunables; change them with [`Host::sysctl_mut`].
    pub fn add_host(&mut self) -> HostId {
        let config = HostConfig {
            seed: self.rng.fork(),
            sysctl: Sysctl::default(),
            pool_bytes: POOL_BYTES,
        };
        self.nodes.push(Node {
            host: Host::new(config),
            ports: Vec::new(),
        });
        HostId(self.nodes.len() - 1)
    }

    /// A cable between two hosts, `netem` for the way from each. Each gets an interface, its
    /// next number.
    pub fn connect(&mut self, hosts: [HostId; 2], nic: NicConfig, netem: [Netem; 2]) -> LinkId {
        let ends = hosts.into_iter().zip(netem);
        let ports = ends.map(|(host, netem)| (host, netem, None)).collect();
        self.add_wire(nic, ports)
    }

    /// A switch that learns, with a cable to each host: `up` is the way to the switch, `down`
    /// from it.
    pub fn switch(&mut self, hosts: &[HostId], nic: NicConfig, up: Netem, down: Netem) -> LinkId {
        let ports = hosts.iter().map(|host| (*host, up, Some(down))).collect();
        self.add_wire(nic, ports)
    }

    fn add_wire(&mut self, nic: NicConfig, ends: Vec<(HostId, Netem, Option<Netem>)>) -> LinkId {
        let link = self.wires.len();
        let mut ports = Vec::new();
        for (host, up, down) in ends {
            let up = Lane::new(up, self.rng.fork());
            let down = down.map(|netem| Lane::new(netem, self.rng.fork()));
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

    /// Changes the way from one end of a link: to the other end, or to the switch.
    pub fn set_netem(&mut self, link: LinkId, from: HostId, netem: Netem) {
        let ports = &mut self.wires[link.0].ports;
        for port in ports.iter_mut().filter(|port| port.host == from) {
            port.up.set_netem(netem);
        }
    }

    /// Now, on every host.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// A host, to make calls on.
    ///
    /// # Panics
    /// If it is not of this simulation.
    pub fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.nodes[id.0].host
    }

    /// Has `watcher` called for every packet that is sent, arrives or is lost; [`line`](crate::line)
    /// makes text of it.
    pub fn watch(&mut self, watcher: impl FnMut(&Tap<'_>) + 'static) {
        self.watcher = Some(Box::new(watcher));
    }

    /// Leaves payload out of the hash from here on: for long runs whose bytes nobody doubts.
    pub const fn hash_headers_only(&mut self) {
        self.hash.headers_only();
    }

    /// A hash over every packet so far, where and when it was seen.
    pub const fn trace_hash(&self) -> u64 {
        self.hash.value()
    }

    /// Lets time pass until `done` says so, which is asked after every event and may make calls
    /// on hosts; false if that did not happen by `deadline`.
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

    /// Lets time pass until `deadline`.
    pub fn run_to(&mut self, deadline: Instant) {
        while self.step(deadline) {}
    }

    /// The next thing that happens by `deadline`; false, and it is `deadline`, if nothing does.
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
            _ => self.happen(),
        }
        true
    }

    fn advance(&mut self, at: Instant) {
        if at > self.now {
            self.now = at;
            self.at_this_instant = 0;
        }
        self.at_this_instant += 1;
        assert!(
            self.at_this_instant < STANDSTILL,
            "time stands still at {:?}: a host's deadline does not move on",
            self.now
        );
    }

    /// The earliest host's deadline, and whose it is.
    fn next_timer(&self) -> Option<(Instant, usize)> {
        let deadline = |(i, node): (usize, &Node)| node.host.poll_deadline().map(|at| (at, i));
        self.nodes.iter().enumerate().filter_map(deadline).min()
    }

    fn happen(&mut self) {
        match self.events.pop() {
            None => {}
            Some(Event::Sent(port, packet)) => {
                self.port(port).nic.sent();
                self.depart(port, packet);
            }
            Some(Event::AtSwitch(from, packet)) => self.forward(from, &packet),
            Some(Event::Arrives(port, packet)) => self.arrive(port, packet),
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

    /// Moves what a host has to send into its cards, as far as they have room.
    fn transmit(&mut self, host: usize) {
        for iface in 0..self.nodes[host].ports.len() {
            let id = self.nodes[host].ports[iface];
            let iface = IfaceId(iface as u16);
            let mut packets = std::mem::take(&mut self.packets);
            if !self.port(id).nic.has_room() {
                // A full ring does not keep sockets from their qdisc.
                let host = &mut self.nodes[host].host;
                host.transmit(self.now, iface, &mut packets, 0);
            }
            while self.port(id).nic.has_room() && self.nodes[host].host.wants_transmit(iface) {
                self.nodes[host]
                    .host
                    .transmit(self.now, iface, &mut packets, 1);
                if packets.is_empty() {
                    break;
                }
                for packet in packets.drain(..) {
                    self.take(id, packet);
                }
            }
            self.packets = packets;
        }
    }

    /// A card takes a packet from its host.
    fn take(&mut self, id: PortId, packet: Packet) {
        let now = self.now;
        self.see(
            self.wires[id.link].ports[id.port].host,
            Point::Queued,
            &packet,
        );
        let nic = &mut self.port(id).nic;
        if nic.config.mode == NicMode::Mtu {
            let largest = nic.config.mtu as usize + 18;
            debug_assert!(packet.segments() == 1 && packet.len() <= largest);
            debug_assert_ne!(packet.offload.checksum, Checksum::Partial);
        }
        match nic.take(now, &packet) {
            Some(at) => self.events.schedule(at, Event::Sent(id, packet)),
            None => self.depart(id, packet),
        }
    }

    /// A card is done with what carried `token`, and tells its host now or soon.
    fn complete(&mut self, id: PortId, token: TxToken) {
        let now = self.now;
        let port = self.port(id);
        let wait = port.nic.config.tx_wait;
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

    /// A packet leaves a card: completed for its host, on its way for the link.
    fn depart(&mut self, id: PortId, packet: Packet) {
        let host = self.port(id).host;
        self.see(host, Point::Sent, &packet);
        let now = self.now;
        self.complete(id, packet.tx);
        let mut fates = std::mem::take(&mut self.fates);
        let port = self.port(id);
        let switched = port.down.is_some();
        let told = port.up.tells_mtu();
        port.up.send(now, as_on_wire(packet), &mut fates);
        for fate in fates.drain(..) {
            match fate {
                Fate::Lost(why, packet) => {
                    self.see(host, Point::Lost(why), &packet);
                    if let (Loss::TooBig, Some(mtu)) = (why, told)
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

    /// The switch sends a packet on: to the end that its destination was seen behind, or to all.
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
                    Fate::Lost(why, packet) => self.see(host, Point::Lost(why), &packet),
                    Fate::Arrives(at, packet) => {
                        self.events.schedule(at, Event::Arrives(to, packet));
                    }
                }
            }
        }
        self.fates = fates;
    }

    fn arrive(&mut self, id: PortId, packet: Packet) {
        let host = self.port(id).host;
        self.see(host, Point::Arrived, &packet);
        let now = self.now;
        let port = self.port(id);
        let first = port.gathered.is_empty();
        let at = now + port.nic.config.rx_wait;
        port.gathered.push(packet);
        if first {
            self.events.schedule(at, Event::Receive(id));
        }
    }

    fn see(&mut self, host: HostId, point: Point, packet: &Packet) {
        let tap = Tap {
            at: self.now,
            host,
            point,
            packet,
        };
        self.hash.see(&tap);
        if let Some(watcher) = &mut self.watcher {
            watcher(&tap);
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

/// What of a packet a receiver can know.
fn as_on_wire(packet: Packet) -> Packet {
    Packet {
        tx: TxToken::default(),
        ..packet
    }
}

/// Source and destination by which a switch learns and forwards: hardware addresses, or IP's.
/// `None` for what must go to all.
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
