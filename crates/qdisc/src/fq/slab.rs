//! Storage for queued packets: one slab, linked into queues.

use alloc::vec::Vec;

use fullsend_wire::Instant;

pub(super) const NIL: u32 = u32::MAX;

/// A queue of packets in a [`PacketSlab`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Fifo {
    head: u32,
    tail: u32,
    pub(super) len: u32,
}

impl Fifo {
    pub(super) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
        len: 0,
    };
}

#[derive(Debug)]
struct Node<P> {
    /// Departure time; not before the packet's arrival.
    departure: Instant,
    next: u32,
    packet: Option<P>,
}

/// All queued packets. The entry freed last is filled first, as it is still in the cache.
#[derive(Debug)]
pub(super) struct PacketSlab<P> {
    nodes: Vec<Node<P>>,
    free: u32,
    len: u32,
}

impl<P> PacketSlab<P> {
    pub(super) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            free: NIL,
            len: 0,
        }
    }

    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Appends a packet to a queue. Packets are large: this copies one once, and `pop` once more.
    #[inline]
    pub(super) fn push(&mut self, fifo: &mut Fifo, packet: P, departure: Instant) {
        let index = self.free;
        let index = if let Some(node) = self.nodes.get_mut(index as usize) {
            self.free = node.next;
            node.departure = departure;
            node.next = NIL;
            node.packet = Some(packet);
            index
        } else {
            self.nodes.push(Node {
                departure,
                next: NIL,
                packet: Some(packet),
            });
            self.nodes.len() as u32 - 1
        };
        if let Some(tail) = self.nodes.get_mut(fifo.tail as usize) {
            tail.next = index;
        } else {
            fifo.head = index;
        }
        fifo.tail = index;
        fifo.len += 1;
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self, fifo: &mut Fifo) -> Option<P> {
        let index = fifo.head;
        let node = self.nodes.get_mut(index as usize)?;
        fifo.head = node.next;
        if fifo.head == NIL {
            fifo.tail = NIL;
        }
        fifo.len -= 1;
        self.len -= 1;
        node.next = self.free;
        self.free = index;
        node.packet.take()
    }

    /// Returns the first packet of a queue and its departure time.
    #[inline]
    pub(super) fn front(&mut self, fifo: &Fifo) -> Option<(&mut P, Instant)> {
        let node = self.nodes.get_mut(fifo.head as usize)?;
        node.packet.as_mut().map(|packet| (packet, node.departure))
    }
}
