//! Prefetching of connections. Where there are many flows, the connection of a packet is not in the
//! CPU cache. So the connections of a batch are looked up before the first packet is processed: the
//! processor then waits for all of them at once, not for each in turn.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hint::black_box;

use fullsend_offload::Packet;
use fullsend_wire::numbers::{ethertype, protocol};

use super::Tcp;
use super::socket::Entry;
use crate::Host;
use crate::demux::{Addr, FlowKey, Mark, Target};

impl Host {
    /// Prefetches the connections of packets that are about to be processed.
    #[inline]
    pub(crate) fn tcp_look_ahead(&mut self, batch: &[Packet]) {
        if self.tcp.flows.is_large() && batch.len() > 1 {
            self.tcp.look_ahead(batch);
        }
    }
}

/// Scratch buffers for prefetching.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    marks: Vec<Mark>,
    sockets: Vec<u32>,
}

impl Tcp {
    /// Performs one step for the whole batch at a time, in loops so short that the processor runs
    /// several iterations at once.
    #[inline(never)]
    fn look_ahead(&mut self, batch: &[Packet]) {
        let Ahead { marks, sockets } = &mut self.ahead;
        marks.clear();
        sockets.clear();
        let keys = batch.iter().filter_map(flow_key);
        marks.extend(keys.map(|key| self.flows.mark(&key)));
        for mark in marks {
            if let Some(Target::Socket(index)) = self.flows.guess(mark) {
                sockets.push(index);
            }
        }
        self.fetch(&self.ahead.sockets);
    }

    /// Prefetches the connections of timers that are about to be run.
    #[inline]
    pub(crate) fn fetch_due(&self, due: &[u32]) {
        if self.flows.is_large() && due.len() > 1 {
            self.fetch(due);
        }
    }

    /// Prefetches the first `max` sockets of a ready queue.
    #[inline]
    pub(super) fn fetch_ready(&mut self, ready: &VecDeque<u32>, max: usize) {
        if self.flows.is_large() && ready.len().min(max) > 1 {
            self.ahead.sockets.clear();
            self.ahead.sockets.extend(ready.iter().take(max));
            self.fetch(&self.ahead.sockets);
        }
    }

    /// Reads a little of each entry, and of the memory that it refers to.
    #[inline(never)]
    fn fetch(&self, indices: &[u32]) {
        let sockets = || {
            let entries = indices.iter().filter_map(|&index| self.table.get(index));
            entries.filter_map(|entry| match entry {
                Entry::Conn(socket) => Some(socket),
                Entry::Held(_) | Entry::Request(_) => None,
            })
        };
        black_box(
            indices
                .iter()
                .filter(|&&index| self.wheel.is_armed(index))
                .count(),
        );
        black_box(sockets().fold(0, |sum, socket| sum ^ socket.fetch()));
        black_box(sockets().fold(0, |sum, socket| sum ^ socket.conn.fetch_far()));
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
