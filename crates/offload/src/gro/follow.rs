//! The fast path: merges a packet that continues a held one without parsing it.
//!
//! It merges a packet only if the slow path would.

use super::flow::{self, Keys};
use super::held::{Held, Joining};
use super::ids::{Ids, LayerIds, NoId, OneId};
use super::predict::{Plain, Shape, continues_any};
use super::step::Step;
use super::table::At;
use super::{Gro, is_trusted};
use crate::checksum::{Verdict, is_right, verify};
use crate::{Checksum, Layers, Link, Packet};

/// The offsets of the header fields that are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    network: u16,
    transport: u16,
}

/// A failed lookup: no packet of this flow is held, provided that the packet has this layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    pub(super) hash: u32,
    layout: Layout,
}

impl Layout {
    #[inline]
    pub(super) fn of(layers: &Layers) -> Self {
        Self {
            network: layers.network[1],
            transport: layers.transport,
        }
    }

    #[inline]
    pub(super) fn hash(self, front: &[u8], keys: &Keys) -> Option<u32> {
        flow::hash(front, self.network.into(), self.transport.into(), keys)
    }
}

impl Absent {
    #[inline]
    pub(super) fn is_of(self, layout: Layout) -> bool {
        self.layout == layout
    }
}

/// Returns the kind of a packet, 0 or 1: the IP version. Packets of one kind mostly have one
/// layout.
#[inline]
pub(super) fn kind(front: &[u8], link: Link) -> usize {
    let v6 = match link {
        Link::Ip => front.first().is_some_and(|first| first & 0x20 != 0),
        // The last byte of the EtherType. For VLAN-tagged frames either kind works.
        Link::Ethernet => front.get(13) == Some(&0xdd),
    };
    usize::from(v6)
}

impl Gro {
    /// Merges a packet into the held one that it continues. Returns an error if the packet must be
    /// parsed, with the lookup's result if it failed.
    #[inline]
    pub(super) fn follow(
        &mut self,
        kept: &mut [Packet],
        packet: &mut Packet,
    ) -> Result<(), Option<Absent>> {
        if self.table.is_empty() || packet.offload.gso_size != 0 {
            return Err(None);
        }
        let front = packet.front();
        let at = self.guess(front)?;
        let held = self.table.read(at, kept, self.config.max_size);
        let joining = match held.control.shape {
            Shape::V4 => held.followed_by::<20, _>(kept, packet, front, OneId::new),
            Shape::V6 => held.followed_by::<40, _>(kept, packet, front, |_| NoId),
            Shape::Tcp | Shape::Udp | Shape::Unread => {
                let joining = held.followed_by_any(kept, packet, front).ok_or(None)?;
                self.join(at, joining, kept, packet);
                return Ok(());
            }
        };
        self.join(at, joining.ok_or(None)?, kept, packet);
        Ok(())
    }

    /// Returns the held packet with the same flow hash, assuming the layout of the packet of this
    /// kind that was parsed last.
    #[inline(always)]
    fn guess(&mut self, front: &[u8]) -> Result<At, Option<Absent>> {
        let layout = self.layouts[kind(front, self.config.link)];
        let hash = layout.hash(front, &self.keys).ok_or(None)?;
        let found = self.table.find(hash, |_| Some(()));
        Ok(found.ok_or(Some(Absent { hash, layout }))?.0)
    }

    /// Merges a packet into the one held, and completes that if nothing more can join it.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        at: At,
        joining: Joining,
        kept: &mut [Packet],
        packet: &mut Packet,
    ) {
        self.stats.merged += 1;
        let held = self.table.held_mut(at);
        let ends = held.join(joining, &mut kept[held.place()], packet);
        if ends {
            self.table.complete(at, kept);
        }
    }
}

impl Held {
    /// Returns the update of this record if a packet that begins with `front` continues it: TCP
    /// without a tunnel, behind an IP header of `IP` bytes and possibly extension headers.
    #[inline(always)]
    fn followed_by<const IP: usize, I: Ids>(
        &self,
        kept: &[Packet],
        packet: &Packet,
        front: &[u8],
        ids: impl FnOnce(&[u8; IP]) -> I,
    ) -> Option<Joining> {
        let header = self.header_of(packet, front)?;
        let plain = Plain::<IP>::new(header, &self.control)?;
        let (total, network) = (packet.len(), usize::from(self.control.network[0]));
        if !plain.continues(&self.head, total - network)
            || network != 0 && header[..network] != kept[self.place()].header[..network]
        {
            return None;
        }
        let len = (total - header.len()) as u32;
        let checksum = packet.offload.checksum;
        let step = Step::segment(plain.tcp, len, ids(plain.ip), checksum);
        let joining = self.accepts(&step)?;
        let good = checksum != Checksum::Unverified
            || is_right(front, packet.rest(), &kept[self.place()].layers, IP == 40);
        good.then_some(joining)
    }

    /// Returns the update of this record if a packet that begins with `front` continues it, for
    /// UDP, tunnels and long headers.
    #[inline(never)]
    fn followed_by_any(&self, kept: &[Packet], packet: &Packet, front: &[u8]) -> Option<Joining> {
        let head = &kept[self.place()];
        let layers = &head.layers;
        let header = self.header_of(packet, front)?;
        if !continues_any(header, packet.len(), &head.header, layers) {
            return None;
        }
        let step = Step::<LayerIds>::any(header, layers, packet, false);
        let joining = self.accepts(&step)?;
        let good =
            is_trusted(packet, layers) || verify(front, packet.rest(), layers) == Verdict::Good;
        good.then_some(joining)
    }

    /// Returns the headers of a packet, assuming that they are as long as this one's.
    #[inline(always)]
    fn header_of<'a>(&self, packet: &Packet, front: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::from(self.control.header_len);
        if !packet.header.is_empty() && front.len() != len {
            return None;
        }
        front.get(..len)
    }
}
