//! The quick way: a packet that plainly follows one that is held joins it without a parse.
//!
//! It decides nothing that the long way would decide otherwise.

use super::flow;
use super::held::Held;
use super::ids::{Ids, LayerIds, NoId, OneId};
use super::predict::{Plain, Shape, continues_any};
use super::step::Step;
use super::table::At;
use super::{Gro, is_trusted};
use crate::checksum::{Verdict, is_right, verify};
use crate::{Checksum, Layers, Link, Packet};

/// Where the hash of a packet's flow is taken from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Layout {
    network: u16,
    transport: u16,
}

/// Nothing is held of the flow that a packet is of, if this is its layout.
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
    pub(super) fn hash(self, front: &[u8]) -> Option<u32> {
        flow::hash(front, self.network.into(), self.transport.into())
    }
}

impl Absent {
    #[inline]
    pub(super) fn is_of(self, layout: Layout) -> bool {
        self.layout == layout
    }
}

/// Packets of one kind are likely to have one layout: 0 or 1.
#[inline]
pub(super) fn kind(front: &[u8], link: Link) -> usize {
    let v6 = match link {
        Link::Ip => front.first().is_some_and(|first| first & 0x20 != 0),
        // The EtherType's last byte; of what has a VLAN tag the one kind is as good as the other.
        Link::Ethernet => front.get(13) == Some(&0xdd),
    };
    usize::from(v6)
}

impl Gro {
    /// Joins a packet to the one that it plainly follows.
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
        let recent = self.table.recent();
        let recent = recent.filter(|&at| self.table.held(at).may_precede(front));
        let mut at = match recent {
            Some(at) => at,
            None => self.guess(front)?,
        };
        while !self.follow_at(at, kept, packet) {
            // Two flows may have come to one sequence number.
            let guess = self.guess(packet.front())?;
            if guess == at {
                return Err(None);
            }
            at = guess;
        }
        Ok(())
    }

    #[inline(always)]
    fn follow_at(&mut self, at: At, kept: &mut [Packet], packet: &mut Packet) -> bool {
        match self.table.held(at).control.shape {
            Shape::V4 => self.follow_tcp::<20, _>(at, kept, packet, OneId::new),
            Shape::V6 | Shape::V6Ext => self.follow_tcp::<40, _>(at, kept, packet, |_| NoId),
            Shape::Tcp | Shape::Udp => self.follow_any(at, kept, packet),
        }
    }

    /// What is held of a packet's flow, if its headers lie as those of the last that was parsed.
    #[inline]
    fn guess(&mut self, front: &[u8]) -> Result<At, Option<Absent>> {
        let layout = self.layouts[kind(front, self.config.link)];
        let hash = layout.hash(front).ok_or(None)?;
        let found = self.table.find(hash, |_| Some(()));
        Ok(found.ok_or(Some(Absent { hash, layout }))?.0)
    }

    /// TCP without a tunnel, behind `IP` bytes of IP header and maybe extension headers.
    #[inline(always)]
    fn follow_tcp<const IP: usize, I: Ids>(
        &mut self,
        at: At,
        kept: &mut [Packet],
        packet: &mut Packet,
        ids: impl FnOnce(&[u8; IP]) -> I,
    ) -> bool {
        let held = self.table.held(at);
        let (network, transport) = (held.control.network[0], held.control.transport);
        let network = usize::from(network);
        let Some((link, header)) = held
            .header_of(packet)
            .and_then(|header| header.split_at_checked(network))
        else {
            return false;
        };
        let extensions = usize::from(transport) - network - IP;
        let Some(plain) = Plain::<IP>::new(header, extensions) else {
            return false;
        };
        let total = packet.len();
        if !plain.continues(&held.head, total - network)
            || network != 0 && link != &kept[held.place()].header[..network]
        {
            return false;
        }
        let len = (total - network - header.len()) as u32;
        let checksum = packet.offload.checksum;
        let step = Step::segment(plain.tcp, len, ids(plain.ip), checksum);
        let Some(fixed) = held.accepts(&step) else {
            return false;
        };
        let good = checksum != Checksum::Unverified
            || is_right(
                packet.front(),
                packet.rest(),
                &kept[held.place()].layers,
                IP == 40,
            );
        if good {
            self.join(at, &step, fixed, kept, packet);
        }
        good
    }

    /// Tunnels and UDP.
    #[inline(never)]
    fn follow_any(&mut self, at: At, kept: &mut [Packet], packet: &mut Packet) -> bool {
        let held = self.table.held(at);
        let head = &kept[held.place()];
        let layers = &head.layers;
        let Some(header) = held.header_of(packet) else {
            return false;
        };
        if !continues_any(header, packet.len(), &head.header, layers) {
            return false;
        }
        let step = Step::<LayerIds>::any(header, layers, packet, false);
        let Some(fixed) = held.accepts(&step) else {
            return false;
        };
        let good = is_trusted(packet, layers)
            || verify(packet.front(), packet.rest(), layers) == Verdict::Good;
        if good {
            self.join(at, &step, fixed, kept, packet);
        }
        good
    }

    /// Joins a packet to the one held.
    #[inline(always)]
    pub(super) fn join<I: Ids>(
        &mut self,
        at: At,
        step: &Step<I>,
        fixed_id: [bool; 2],
        kept: &mut [Packet],
        packet: &mut Packet,
    ) {
        self.stats.merged += 1;
        let held = self.table.held_mut(at);
        let ends = held.join(step, fixed_id, &mut kept[held.place()], packet);
        if ends {
            self.table.complete(at, kept);
        }
    }
}

impl Held {
    /// The bytes of a packet that are its headers if they are as long as this one's.
    #[inline(always)]
    fn header_of<'a>(&self, packet: &'a Packet) -> Option<&'a [u8]> {
        let len = usize::from(self.control.header_len);
        let apart = packet.header.len();
        let front = packet.front();
        if apart == 0 || apart == len {
            front.get(..len)
        } else {
            None
        }
    }
}
