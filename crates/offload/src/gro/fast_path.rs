//! The fast path: merges a packet that continues a held one without parsing it.
//!
//! It merges a packet only if the slow path would.

use super::candidate::Candidate;
use super::flow::{self, HashKeys};
use super::held::{HeldPacket, Merge};
use super::ids::{IpIds, LayerIds, NoId, OneId};
use super::predict::{HeaderKind, TcpHeaders, continues_any};
use super::table::HeldRef;
use super::{Gro, is_checksum_trusted_by_device};
use crate::checksum::{ChecksumResult, is_checksum_correct, verify};
use crate::{Checksum, Layers, Link, Packet};

/// The offsets of the header fields that are hashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    network: u16,
    transport: u16,
}

/// A failed lookup: no packet of this flow is held, provided that the packet has this layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct LookupMiss {
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
    pub(super) fn hash(self, front: &[u8], keys: &HashKeys) -> Option<u32> {
        flow::hash(front, self.network.into(), self.transport.into(), keys)
    }
}

impl LookupMiss {
    #[inline]
    pub(super) fn has_layout(self, layout: Layout) -> bool {
        self.layout == layout
    }
}

/// Returns the kind of a packet, 0 or 1: the IP version. Packets of one kind mostly have one
/// layout.
#[inline]
pub(super) fn layout_index(front: &[u8], link: Link) -> usize {
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
    pub(super) fn merge_predicted(
        &mut self,
        kept: &mut [Packet],
        packet: &mut Packet,
    ) -> Result<(), Option<LookupMiss>> {
        if self.table.is_empty() || packet.offload.gso_size != 0 {
            return Err(None);
        }
        let front = packet.leading_bytes();
        let held_ref = self.find_predicted(front)?;
        let held = self.table.read(held_ref, kept, self.config.max_size);
        let merge = match held.state.header_kind {
            HeaderKind::TcpV4 => held.check_predicted::<20, _>(kept, packet, front, OneId::new),
            HeaderKind::TcpV6 => held.check_predicted::<40, _>(kept, packet, front, |_| NoId),
            HeaderKind::OtherTcp | HeaderKind::Udp | HeaderKind::Unknown => {
                let merge = held.check_predicted_any(kept, packet, front).ok_or(None)?;
                self.merge(held_ref, merge, kept, packet);
                return Ok(());
            }
        };
        self.merge(held_ref, merge.ok_or(None)?, kept, packet);
        Ok(())
    }

    /// Returns the held packet with the same flow hash, assuming the layout of the packet of this
    /// kind that was parsed last.
    #[inline(always)]
    fn find_predicted(&mut self, front: &[u8]) -> Result<HeldRef, Option<LookupMiss>> {
        let layout = self.layouts[layout_index(front, self.config.link)];
        let hash = layout.hash(front, &self.keys).ok_or(None)?;
        let found = self.table.find(hash, |_| Some(()));
        Ok(found.ok_or(Some(LookupMiss { hash, layout }))?.0)
    }

    /// Merges a packet into the one held, and completes that if nothing more can join it.
    #[inline(always)]
    pub(super) fn merge(
        &mut self,
        held_ref: HeldRef,
        merge: Merge,
        kept: &mut [Packet],
        packet: &mut Packet,
    ) {
        self.stats.merged += 1;
        let held = self.table.held_mut(held_ref);
        let is_complete = held.merge(merge, &mut kept[held.index()], packet);
        if is_complete {
            self.table.complete(held_ref, kept);
        }
    }
}

impl HeldPacket {
    /// Returns the update of this record if a packet that begins with `front` continues it: TCP
    /// without a tunnel, after an IP header of `IP` bytes and possibly extension headers.
    #[inline(always)]
    fn check_predicted<const IP: usize, I: IpIds>(
        &self,
        kept: &[Packet],
        packet: &Packet,
        front: &[u8],
        ids: impl FnOnce(&[u8; IP]) -> I,
    ) -> Option<Merge> {
        let header = self.header_of(packet, front)?;
        let headers = TcpHeaders::<IP>::new(header, &self.state)?;
        let (total, network) = (packet.len(), usize::from(self.state.network[0]));
        if !headers.continues(&self.head, total - network)
            || network != 0 && header[..network] != kept[self.index()].header[..network]
        {
            return None;
        }
        let len = (total - header.len()) as u32;
        let checksum = packet.offload.checksum;
        let candidate = Candidate::from_tcp_segment(headers.tcp, len, ids(headers.ip), checksum);
        let merge = self.accepts(&candidate)?;
        let good = checksum != Checksum::Unverified
            || is_checksum_correct(
                front,
                packet.remaining_slices(),
                &kept[self.index()].layers,
                IP == 40,
            );
        good.then_some(merge)
    }

    /// Returns the update of this record if a packet that begins with `front` continues it, for
    /// UDP, tunnels and long headers.
    fn check_predicted_any(&self, kept: &[Packet], packet: &Packet, front: &[u8]) -> Option<Merge> {
        let head = &kept[self.index()];
        let layers = &head.layers;
        let header = self.header_of(packet, front)?;
        if !continues_any(header, packet.len(), &head.header, layers) {
            return None;
        }
        let candidate = Candidate::<LayerIds>::from_packet(header, layers, packet, false);
        let merge = self.accepts(&candidate)?;
        let good = is_checksum_trusted_by_device(packet, layers)
            || verify(front, packet.remaining_slices(), layers) == ChecksumResult::Good;
        good.then_some(merge)
    }

    /// Returns the headers of a packet, assuming that they are as long as this one's.
    #[inline(always)]
    fn header_of<'a>(&self, packet: &Packet, front: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::from(self.state.header_len);
        if !packet.header.is_empty() && front.len() != len {
            return None;
        }
        front.get(..len)
    }
}
