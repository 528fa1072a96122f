//! Prefetching of connections. Where there are many flows, the connection of a packet is not in the
//! CPU cache. So the connections of a batch are looked up before the first packet is processed: the
//! processor then waits for all of them at once, not for each in turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use fullsend_offload::Packet;
use fullsend_wire::numbers::{ethertype, protocol};

use super::Tcp;
use super::socket::SocketEntry;
use crate::Host;
use crate::demux::{Addr, FlowKey, FlowOwner, LookupKey};

impl Host {
    /// Prefetches the connections of packets that are about to be processed.
    #[inline]
    pub(crate) fn tcp_prefetch(&mut self, batch: &[Packet]) {
        if self.tcp.flows.is_large() && batch.len() > 1 {
            self.tcp.prefetch_batch(batch);
        }
    }
}

/// Scratch buffers for prefetching.
#[derive(Debug, Default)]
pub(crate) struct PrefetchBuffers {
    lookup_keys: Vec<LookupKey>,
    sockets: Vec<u32>,
}

impl Tcp {
    /// Performs one step for the whole batch at a time, in loops so short that the processor runs
    /// several iterations at once.
    #[inline(never)]
    fn prefetch_batch(&mut self, batch: &[Packet]) {
        let PrefetchBuffers {
            lookup_keys,
            sockets,
        } = &mut self.prefetch_buffers;
        lookup_keys.clear();
        sockets.clear();
        let keys = batch.iter().filter_map(flow_key);
        lookup_keys.extend(keys.map(|key| self.flows.lookup_key(&key)));
        for lookup_key in lookup_keys {
            if let Some(FlowOwner::Socket(index)) = self.flows.probable_owner(lookup_key) {
                sockets.push(index);
            }
        }
        self.prefetch(&self.prefetch_buffers.sockets);
    }

    /// Prefetches the connections of timers that are about to be run.
    #[inline]
    pub(crate) fn prefetch_due(&self, due: &[u32]) {
        if self.flows.is_large() && due.len() > 1 {
            self.prefetch(due);
        }
    }

    /// Prefetches the first `max` sockets of a ready queue.
    #[inline]
    pub(super) fn prefetch_ready(&mut self, ready: &VecDeque<u32>, max: usize) {
        if self.flows.is_large() && ready.len().min(max) > 1 {
            self.prefetch_first(ready, max);
        }
    }

    #[inline(never)]
    fn prefetch_first(&mut self, ready: &VecDeque<u32>, max: usize) {
        self.prefetch_buffers.sockets.clear();
        self.prefetch_buffers.sockets.extend(ready.iter().take(max));
        self.prefetch(&self.prefetch_buffers.sockets);
    }

    /// Reads a little of each entry, and of the memory that it refers to.
    #[inline(never)]
    fn prefetch(&self, indices: &[u32]) {
        let sockets = || {
            let entries = indices.iter().filter_map(|&index| self.table.get(index));
            entries.filter_map(|entry| match entry {
                SocketEntry::Conn(socket) => Some(socket),
                SocketEntry::DeferredSyn(_) | SocketEntry::HalfOpen(_) => None,
            })
        };
        for &index in indices {
            self.wheel.prefetch(index);
        }
        for socket in sockets() {
            socket.prefetch();
        }
        for socket in sockets() {
            socket.conn.prefetch_indirect();
        }
    }
}

/// Returns the 4-tuple of a TCP packet that is not a fragment.
#[inline]
fn flow_key(packet: &Packet) -> Option<FlowKey> {
    if packet.layers.protocol != protocol::TCP || packet.layers.fragment {
        return None;
    }
    let network = packet.network_header();
    let (local, remote) = match packet.layers.ethertype {
        ethertype::IPV4 => {
            let &[.., s0, s1, s2, s3, d0, d1, d2, d3] = network.first_chunk::<20>()?;
            (Addr::v4([d0, d1, d2, d3]), Addr::v4([s0, s1, s2, s3]))
        }
        ethertype::IPV6 => {
            let (src, dst) = network.get(8..40)?.split_first_chunk::<16>()?;
            (Addr::v6(*dst.first_chunk()?), Addr::v6(*src))
        }
        _ => return None,
    };
    let &[s0, s1, d0, d1] = packet.transport_header().first_chunk::<4>()?;
    Some(FlowKey {
        local,
        remote,
        local_port: u16::from_be_bytes([d0, d1]),
        remote_port: u16::from_be_bytes([s0, s1]),
    })
}
