//! Where flows are many, none of them is in the cache when its packet comes. The connections of a
//! batch are looked up before the first is worked on: the processor then waits for their memory
//! side by side, and not for each in its turn.

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
    /// Packets that are about to be worked on.
    #[inline]
    pub(crate) fn tcp_look_ahead(&mut self, batch: &[Packet]) {
        if self.tcp.flows.is_large() && batch.len() > 1 {
            self.tcp.look_ahead(batch);
        }
    }
}

/// Scratch of a look ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    marks: Vec<Mark>,
    sockets: Vec<u32>,
}

impl Tcp {
    /// One step for all at a time, in loops so short that the processor is in several rounds of
    /// them at once.
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

    /// Timers that are about to be worked on.
    #[inline]
    pub(crate) fn fetch_due(&self, due: &[u32]) {
        if self.flows.is_large() && due.len() > 1 {
            self.fetch(due);
        }
    }

    /// Sockets whose turn to send it is, the first `max` of them.
    #[inline]
    pub(super) fn fetch_ready(&mut self, ready: &VecDeque<u32>, max: usize) {
        if self.flows.is_large() && ready.len().min(max) > 1 {
            self.ahead.sockets.clear();
            self.ahead.sockets.extend(ready.iter().take(max));
            self.fetch(&self.ahead.sockets);
        }
    }

    /// Reads a little of each of these, and of what belongs to them.
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

/// The four-tuple of an IPv4 or IPv6 packet without options.
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
