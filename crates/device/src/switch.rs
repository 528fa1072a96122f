//! A switch between the stack of a gateway and several guests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

use fullsend_offload::{Checksum, Link, Packet, Pool, segment};

use crate::frames::{Events, POOL_BYTES};
use crate::{Caps, Device, DeviceCounters, LogLimit};

mod claims;
mod ended;
mod handle;
mod port;
mod table;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use claims::fuzz_claims;
use claims::{Claims, is_group, is_of_link};
pub use handle::SwitchHandle;
use handle::{Shared, State, now};
use port::{Port, PortWaker, QUEUE_BYTES, fit};
use table::Table;

/// Most ports.
const PORTS_MAX: usize = 64;
/// The limit of the log lines about devices that cannot be used.
static UNUSABLE: LogLimit = LogLimit::new();
/// Most frames of a port that one call receives before the next port.
const QUANTUM: usize = 64;
/// Packets that move at once to the device of the only port.
const SOLE_BATCH: usize = 64;
/// The token of the handles and of devices without a file. Other events have the number of their port.
const WAKE: u64 = 0;

/// The identity of a port of a [`Switch`], never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(u64);

/// A notification that a guest starts or stops using a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// The guest has sent its first frame.
    Connected {
        /// The guest's port.
        port: PortId,
        /// The first Ethernet address that the guest has used.
        mac: [u8; 6],
    },
    /// The guest's device has failed, e.g. because its connection has ended.
    Disconnected {
        /// The guest's port, which no longer exists.
        port: PortId,
        /// The first Ethernet address that the guest has used, if it was connected.
        mac: Option<[u8; 6]>,
    },
}

/// The configuration of a [`Switch`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// Size of the largest IP packet, bytes.
    pub mtu: u32,
    /// Whether guests reach each other, and not only the stack.
    pub is_joined: bool,
    /// The Ethernet address of the stack.
    pub mac: [u8; 6],
    /// The IP addresses of the stack.
    pub addresses: BTreeSet<IpAddr>,
}

/// The counters of a [`Switch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SwitchStats {
    /// Frames of guests that other guests have received, counted for each receiver.
    pub forwarded: u64,
    /// Frames to one address that went to all ports because no guest was known to have it.
    pub flooded: u64,
    /// Packets that were dropped because too many waited for their guest.
    pub dropped: u64,
    /// Frames that were dropped because of their source: the address of another guest (also of one that has
    /// ended), the stack or a group, contradictory addresses, or a VLAN tag.
    pub refused: u64,
    /// Frames to one address that were dropped because no guest that the sender reaches has it.
    pub unreachable: u64,
    /// Frames between guests that were dropped because their IP header is invalid, or because they are
    /// longer than the link allows.
    pub malformed: u64,
}

/// A [`Device`] whose peers are the devices of several guests.
///
/// The switch learns the Ethernet addresses behind each port. A frame to a known address goes only to its
/// port. Without [`is_joined`](SwitchConfig::is_joined), guests reach only the stack. With it, frames to
/// groups and to unknown addresses go to all ports. Super-segments pass whole to devices that accept
/// them.
///
/// # Addresses
/// An Ethernet or IP address belongs to the first guest that uses it. Frames of other guests with such a
/// source (of Ethernet, IP, ARP, or in neighbor discovery) are dropped, as are their probes for it. A
/// guest keeps its first Ethernet address and its first four IP addresses while its port exists. Up to 32
/// of each kind are known: another guest may take over the others 300 s after their last use, and if
/// there are too many, the least recently used one is forgotten. The addresses of the stack never belong
/// to a guest. [`SwitchHandle::lease`] reserves an address for one guest.
///
/// # Queues
/// Up to 2048 packets, or 8 MiB, wait for a guest that does not read. With a
/// [limit of the memory](Device::limit_memory), `n` guests have an (n+1)th of half of it each, but at least
/// one packet. Further packets are dropped, so that other guests are not affected. With a single port, the
/// stack's packets wait in the stack.
pub struct Switch {
    config: SwitchConfig,
    ports: Ports,
    shared: Arc<Shared>,
    /// The index of the port that is served next.
    next: usize,
    received: Vec<Packet>,
    /// The pool for received packets, and the limit of each device's own memory, bytes.
    memory: (Pool, usize),
    on_port: Option<Box<dyn FnMut(PortEvent) + Send>>,
    /// The sum of the counters of devices that have ended.
    ended: DeviceCounters,
}

/// The ports, and scratch space for segments.
struct Ports {
    events: Events,
    list: Vec<Port>,
    index: BTreeMap<PortId, usize>,
    segments: Vec<Packet>,
    mtu: usize,
    /// Most bytes of the queues of all ports together.
    queue_bytes: usize,
}

impl Switch {
    /// Returns a switch without ports; its [`handle`](Self::handle) adds them.
    ///
    /// # Errors
    /// The error of the operating system, e.g. too many open files.
    pub fn new(config: SwitchConfig) -> io::Result<Self> {
        let table = Table::new(config.mac, config.addresses.clone());
        let shared = Arc::new(Shared::new(table)?);
        let events = Events::new()?;
        events.add_with(shared.wake_file().as_fd(), WAKE)?;
        let ports = Ports {
            events,
            list: Vec::new(),
            index: BTreeMap::new(),
            segments: Vec::new(),
            mtu: config.mtu as usize,
            queue_bytes: usize::MAX,
        };
        Ok(Self {
            config,
            ports,
            shared,
            next: 0,
            received: Vec::new(),
            // All devices share one pool, so that many guests do not keep the memory of several.
            memory: (Pool::new(POOL_BYTES), usize::MAX),
            on_port: None,
            ended: DeviceCounters::default(),
        })
    }

    /// Calls `callback` at each [`PortEvent`]. The callback runs while the stack is locked, and must not
    /// use the stack or block.
    #[must_use]
    pub fn on_port(mut self, callback: impl FnMut(PortEvent) + Send + 'static) -> Self {
        self.on_port = Some(Box::new(callback));
        self
    }

    /// Returns a handle that changes and inspects the switch.
    pub fn handle(&self) -> SwitchHandle {
        SwitchHandle(self.shared.clone())
    }

    fn report(&mut self, event: PortEvent) {
        if let Some(callback) = &mut self.on_port {
            callback(event);
        }
    }

    /// Marks the ports that have events.
    fn take_events(&mut self) {
        let Ports {
            events,
            list,
            index,
            ..
        } = &mut self.ports;
        let mut has_woken = false;
        events.take(|event| match event.token {
            WAKE => has_woken = true,
            token => {
                let port = index
                    .get(&PortId(token))
                    .and_then(|index| list.get_mut(*index));
                if let Some(port) = port {
                    port.on_event();
                    port.has_ended |= event.is_end;
                }
            }
        });
        if !has_woken {
            return;
        }
        self.take_wakes();
        // Events of other ports that precede the addition of a device are processed first: the last
        // connection of its guest may have ended.
        if self.add_attached() {
            self.take_events();
        }
    }

    /// Marks the ports whose devices without a file have woken the switch.
    fn take_wakes(&mut self) {
        for port in &mut self.ports.list {
            let woken = |waker: &Arc<PortWaker>| waker.is_woken.swap(false, Ordering::AcqRel);
            if port.waker.as_ref().is_some_and(woken) {
                port.on_event();
            }
        }
    }

    /// Adds ports for the waiting devices. Returns whether there were any.
    fn add_attached(&mut self) -> bool {
        let mut has_added = false;
        loop {
            let attached = self.shared.state.lock().attached.pop_front();
            let Some((id, device)) = attached else {
                return has_added;
            };
            has_added = true;
            if let Err(error) = self.add_port(id, device) {
                UNUSABLE.warn(error.to_string(), || {
                    format!("cannot use the device of a guest: {error}")
                });
                self.remove_port(id);
            }
        }
    }

    fn add_port(&mut self, id: PortId, mut device: Box<dyn Device>) -> io::Result<()> {
        let caps = device.caps();
        if caps.link != Link::Ethernet || caps.mtu < self.config.mtu {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "it has {:?} frames and an MTU of {} bytes; use an Ethernet device with at least {}",
                    caps.link, caps.mtu, self.config.mtu
                ),
            ));
        }
        device.limit_memory(&self.memory.0, self.memory.1);
        let mut waker = None;
        if let Some(file) = device.fd() {
            self.ports.events.add_with(file, id.0)?;
        } else {
            let port_waker = Arc::new(PortWaker {
                is_woken: AtomicBool::new(false),
                shared: self.shared.clone(),
            });
            if !device.set_waker(&Waker::from(port_waker.clone())) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it has no file and wakes no driver; use another device",
                ));
            }
            waker = Some(port_waker);
        }
        self.ports.push(Port::new(id, device, waker));
        Ok(())
    }

    /// Removes a port whose device has failed or cannot be used.
    fn remove_port(&mut self, id: PortId) {
        let mut was_connected = false;
        if let Some(mut port) = self.ports.remove(id) {
            was_connected = port.is_connected;
            if let Some(file) = port.device.fd() {
                self.ports.events.remove(file);
            }
            port.device.close();
            self.ended.add(&port.device.counters());
        }
        let mut state = self.shared.state.lock();
        let mac = state.table.first_mac(id).filter(|_| was_connected);
        let connected = self.ports.list.iter().filter(|port| port.is_connected);
        let beside = connected.map(|port| port.id).collect();
        state.table.remove_port(now(), id, beside);
        state.ports -= 1;
        drop(state);
        self.report(PortEvent::Disconnected { port: id, mac });
    }

    /// Sends the waiting packets of ports whose devices may accept them, and removes the ports that fail.
    fn flush(&mut self, now: Instant) {
        let mut failed = Vec::new();
        let Ports { events, list, .. } = &mut self.ports;
        for port in list.iter_mut().filter(|port| port.may_flush(now)) {
            if let Err(error) = port.flush(now, events) {
                tracing::debug!(%error, "the device of a guest has failed");
                failed.push(port.id);
            }
        }
        for id in failed {
            self.remove_port(id);
        }
    }

    /// Receives from the port at `index`. Returns the number of frames, and whether the port still
    /// exists.
    fn receive_from(
        &mut self,
        index: usize,
        batch: &mut Vec<Packet>,
        now: Instant,
    ) -> (usize, bool) {
        let Some(port) = self.ports.list.get_mut(index) else {
            return (0, false);
        };
        let id = port.id;
        let received = port.receive(&mut self.received, QUANTUM);
        let count = *received.as_ref().unwrap_or(&0);
        let mut connected = None;
        let mut packets = std::mem::take(&mut self.received);
        {
            let shared = self.shared.clone();
            let mut state = shared.state.lock();
            let mut rest = packets.drain(..);
            while let Some(packet) = rest.next() {
                let Some(claims) = allowed(&mut state, now, id, &packet) else {
                    if self.ports.may_defer(&state, index, &packet) {
                        let first = std::iter::once(packet);
                        self.ports.list[index].defer(first.chain(rest.by_ref()));
                        break;
                    }
                    state.stats.refused += 1;
                    continue;
                };
                if !self.ports.list[index].is_connected {
                    self.ports.list[index].is_connected = true;
                    // Earlier frames may have been refused.
                    connected = state.table.first_mac(id);
                }
                self.route(&mut state, (now, id), &claims, packet, batch);
            }
            drop(rest);
        }
        self.received = packets;
        if let Some(mac) = connected {
            self.report(PortEvent::Connected { port: id, mac });
        }
        if let Err(error) = received {
            tracing::debug!(%error, "the device of a guest has ended");
            self.remove_port(id);
            return (count, false);
        }
        (count, true)
    }

    /// Passes a frame of the guest at `from` to the stack, to other guests, or to both.
    fn route(
        &mut self,
        state: &mut State,
        (now, from): (Instant, PortId),
        claims: &Claims,
        packet: Packet,
        batch: &mut Vec<Packet>,
    ) {
        if claims.dst == self.config.mac {
            batch.push(packet);
            return;
        }
        let is_joined = self.config.is_joined;
        if is_group(claims.dst) {
            if is_joined && self.ports.list.len() > 1 && !is_of_link(claims.dst) {
                self.ports.flood(state, now, from, packet.clone(), false);
            }
            batch.push(packet);
            return;
        }
        match state.table.port_to(now, claims.dst) {
            Some(to) if is_joined && to != from => self.ports.forward(state, now, to, packet),
            None if is_joined => {
                state.stats.flooded += 1;
                let has_ended = state.table.has_ended(now, claims.dst);
                self.ports.flood(state, now, from, packet, has_ended);
            }
            _ => state.stats.unreachable += 1,
        }
    }

    /// Passes a packet from the stack to guests.
    fn route_from_stack(&mut self, state: &mut State, now: Instant, packet: Packet) {
        let Some(&dst) = packet.header.as_slice().first_chunk::<6>() else {
            return;
        };
        if is_group(dst) {
            return self.ports.send_to_others(state, now, None, &packet, false);
        }
        match state.table.port_to(now, dst) {
            Some(to) => self.ports.send(state, now, to, packet),
            None if self.config.is_joined => {
                state.stats.flooded += 1;
                let has_ended = state.table.has_ended(now, dst);
                self.ports
                    .send_to_others(state, now, None, &packet, has_ended);
            }
            // Other guests must not receive the packet.
            None => state.stats.unreachable += 1,
        }
    }
}

/// Returns the claims of a guest's frame, or `None` if the guest may not make them.
fn allowed(state: &mut State, now: Instant, port: PortId, packet: &Packet) -> Option<Claims> {
    let claims = Claims::of_packet(packet)?;
    // The sender's own address is claimed first, as the first address does not age.
    let mut macs = [claims.src].into_iter().chain(claims.client);
    if !macs.all(|mac| state.table.claim_mac(now, port, mac)) {
        return None;
    }
    let mut addresses = claims.addresses.iter().flatten();
    let is_allowed = addresses.all(|address| state.table.claim_ip(now, port, *address));
    let may_probe = |address| state.table.probe_ip(now, port, address);
    (is_allowed && claims.probed.is_none_or(may_probe)).then_some(claims)
}

impl Ports {
    fn push(&mut self, port: Port) {
        self.index.insert(port.id, self.list.len());
        self.list.push(port);
        self.share_queues();
    }

    /// Gives each port its share of the queues, such that another one finds room.
    fn share_queues(&mut self) {
        let share = (self.queue_bytes / (self.list.len() + 1)).min(QUEUE_BYTES);
        for port in &mut self.list {
            port.limit_queue(share);
        }
    }

    /// Returns whether a frame of the port at `index` must wait: none of its guest's frames was allowed
    /// yet, and the port that has its addresses has unhandled events, e.g. the end of its connection.
    fn may_defer(&self, state: &State, index: usize, packet: &Packet) -> bool {
        let port = &self.list[index];
        if !port.may_defer() {
            return false;
        }
        let Some(claims) = Claims::of_packet(packet) else {
            return false;
        };
        let of_mac = state.table.port_of_mac(claims.src);
        let addresses = claims.addresses.iter().flatten().chain(&claims.probed);
        let of_ips = addresses.filter_map(|address| state.table.port_of_ip(*address));
        let mut owners = of_mac.into_iter().chain(of_ips);
        owners.any(|owner| owner != port.id && self.is_ready(owner))
    }

    fn is_ready(&self, id: PortId) -> bool {
        let port = self.index.get(&id).and_then(|index| self.list.get(*index));
        port.is_some_and(|port| port.is_ready)
    }

    fn remove(&mut self, id: PortId) -> Option<Port> {
        let index = self.index.remove(&id)?;
        let port = self.list.remove(index);
        for (index, port) in self.list.iter().enumerate().skip(index) {
            self.index.insert(port.id, index);
        }
        self.share_queues();
        Some(port)
    }

    /// Queues a packet of the stack for the guest at `to`. A device that has not refused packets first gets
    /// those that wait if there is no room.
    fn send(&mut self, state: &mut State, now: Instant, to: PortId, packet: Packet) {
        let Some(&index) = self.index.get(&to) else {
            return;
        };
        self.make_room(now, index, packet.len());
        if !self.list[index].enqueue(packet, &mut self.segments) {
            state.stats.dropped += 1;
        }
    }

    fn make_room(&mut self, now: Instant, index: usize, len: usize) {
        let port = &mut self.list[index];
        if !port.has_room(len) && port.may_flush(now) {
            // An error is that of the next flush, too, which removes the port.
            let _ = port.flush(now, &self.events);
        }
    }

    /// Queues a packet for all ports except `from`, or if it is for a guest that has ended, for those whose
    /// guest has sent nothing: it may have returned, and another one must not continue its connections.
    fn send_to_others(
        &mut self,
        state: &mut State,
        now: Instant,
        from: Option<PortId>,
        packet: &Packet,
        has_ended: bool,
    ) {
        // The segments are made once and shared, as there may be many ports and segments.
        let mut segments = Vec::new();
        for index in 0..self.list.len() {
            let port = &self.list[index];
            if Some(port.id) == from || has_ended && port.is_connected {
                continue;
            }
            self.make_room(now, index, packet.len());
            let port = &mut self.list[index];
            let is_queued = if port.needs_software(packet) {
                if segments.is_empty() {
                    segment(packet.clone(), &mut segments);
                }
                port.enqueue_segments(packet.len(), segments.iter().cloned())
            } else {
                port.enqueue_segments(packet.len(), std::iter::once(packet.clone()))
            };
            state.stats.dropped += u64::from(!is_queued);
        }
    }

    /// Queues a frame of a guest for another guest.
    fn forward(&mut self, state: &mut State, now: Instant, to: PortId, mut packet: Packet) {
        if parse_for_guest(state, &mut packet, self.mtu) {
            state.stats.forwarded += 1;
            self.send(state, now, to, packet);
        }
    }

    /// Queues a frame of the guest at `from` for all other guests.
    fn flood(
        &mut self,
        state: &mut State,
        now: Instant,
        from: PortId,
        mut packet: Packet,
        has_ended: bool,
    ) {
        if parse_for_guest(state, &mut packet, self.mtu) {
            state.stats.forwarded += self.list.len() as u64 - 1;
            self.send_to_others(state, now, Some(from), &packet, has_ended);
        }
    }
}

/// Converts a received frame to a packet that can be sent. Returns `false` if that is impossible.
fn parse_for_guest(state: &mut State, packet: &mut Packet, mtu: usize) -> bool {
    if packet.parse(Link::Ethernet).is_err() || !fit(packet, mtu) {
        state.stats.malformed += 1;
        return false;
    }
    // A checksum may be marked valid without being complete, as on a link that cannot damage data. The
    // receiver's device then completes it if necessary.
    if packet.offload.checksum == Checksum::Valid {
        packet.make_checksum_partial();
    }
    true
}

impl Device for Switch {
    fn caps(&self) -> Caps {
        Caps::offloading(Link::Ethernet, self.config.mtu)
    }

    fn transmit(&mut self, batch: &mut VecDeque<Packet>) -> io::Result<()> {
        let (now, shared) = (now(), self.shared.clone());
        loop {
            let is_sole = self.ports.list.len() == 1;
            // The packets of the only guest wait in the stack, whose sockets then send less.
            if is_sole && self.ports.list[0].has_queued() {
                self.ports.list[0].retry();
                self.flush(now);
                if self.ports.list.first().is_some_and(Port::has_queued) {
                    return Ok(());
                }
                continue;
            }
            let max = if is_sole { SOLE_BATCH } else { batch.len() };
            let mut state = shared.state.lock();
            for _ in 0..max {
                let sole = self.ports.list.first().filter(|_| is_sole);
                let fits = |next: &Packet| sole.is_none_or(|port| port.has_room(next.len()));
                if !batch.front().is_some_and(fits) {
                    break;
                }
                if let Some(packet) = batch.pop_front() {
                    self.route_from_stack(&mut state, now, packet);
                }
            }
            drop(state);
            self.flush(now);
            if batch.is_empty() {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, batch: &mut Vec<Packet>, max: usize) -> io::Result<usize> {
        self.take_events();
        // The event may have been room at a device.
        let now = now();
        self.flush(now);
        let (mut count, mut left) = (0, self.ports.list.len());
        while left > 0 && count < max {
            left -= 1;
            if self.next >= self.ports.list.len() {
                self.next = 0;
            }
            let is_ready = self
                .ports
                .list
                .get(self.next)
                .is_some_and(|port| port.is_ready);
            let mut exists = true;
            if is_ready {
                let (received, remains) = self.receive_from(self.next, batch, now);
                count += received;
                exists = remains;
            }
            self.next += usize::from(exists);
        }
        self.flush(now);
        Ok(if self.has_received() {
            count.max(max)
        } else {
            count
        })
    }

    fn has_received(&self) -> bool {
        self.ports.list.iter().any(|port| port.is_ready)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ports.events.as_fd())
    }

    fn limit_memory(&mut self, pool: &Pool, max_bytes: usize) {
        self.memory = (pool.clone(), max_bytes);
        // The other half is for what devices receive.
        self.ports.queue_bytes = max_bytes / 2;
        self.ports.share_queues();
        for port in &mut self.ports.list {
            port.device.limit_memory(pool, max_bytes);
        }
    }

    fn counters(&mut self) -> DeviceCounters {
        let mut all = self.ended;
        for port in &mut self.ports.list {
            all.add(&port.device.counters());
        }
        all
    }

    fn close(&mut self) {
        self.shared.close();
        for port in &mut self.ports.list {
            port.device.close();
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.close();
    }
}
