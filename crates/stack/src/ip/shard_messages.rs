//! The messages between the neighbour tables of a stack's shards.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use fullsend_wire::Instant;

use super::neighbour::{DadResult, MessageContent, NeighbourMessage, ShardSet};
use crate::Host;

impl Host {
    /// Returns whether [`take_neighbour_messages`](Self::take_neighbour_messages) has messages to
    /// return. If so, [`poll_deadline`](Self::poll_deadline) is not in the future.
    #[inline]
    pub fn has_neighbour_messages(&self) -> bool {
        !self.ip.neighbour_messages.is_empty()
    }

    /// Takes the messages to the neighbour tables of other shards since the last call, each with the
    /// index of its shard. The caller passes them to that shard's host
    /// ([`on_neighbour_message`](Self::on_neighbour_message)).
    pub fn take_neighbour_messages(&mut self) -> Vec<(usize, NeighbourMessage)> {
        core::mem::take(&mut self.ip.neighbour_messages)
    }

    /// Processes a message of another shard of the host's stack.
    pub fn on_neighbour_message(&mut self, now: Instant, message: NeighbourMessage) {
        let NeighbourMessage { iface, content } = message;
        match content {
            MessageContent::Request(request) => {
                self.with_neighbours(now, iface, |neighbours, _, out| {
                    neighbours.on_request(now, &request, out);
                });
            }
            MessageContent::Update {
                neighbour,
                resolution,
            } => self.with_neighbours(now, iface, |neighbours, _, out| {
                neighbours.on_update(now, neighbour, resolution, out);
            }),
            MessageContent::Detected { address, result } => {
                self.on_dad_result(now, iface, address, result);
            }
        }
    }

    /// Reports the result of duplicate address detection to the other shards.
    pub(super) fn report_detection(&mut self, iface: u16, address: Ipv6Addr, result: DadResult) {
        let others = ShardSet::all_but_first(self.shard_count());
        let message = MessageContent::Detected { address, result };
        self.queue_neighbour_messages(iface, [(others, message)]);
    }

    pub(super) fn queue_neighbour_messages(
        &mut self,
        iface: u16,
        messages: impl IntoIterator<Item = (ShardSet, MessageContent)>,
    ) {
        for (shards, content) in messages {
            let message = NeighbourMessage { iface, content };
            let messages = shards.iter().map(|shard| (shard, message));
            self.ip.neighbour_messages.extend(messages);
        }
    }
}
