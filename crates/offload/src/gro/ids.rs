//! The IP ID rule: at each layer all segments have the ID of the first one, or increase it by one.

use fullsend_wire::numbers::ethertype;

use super::held::HeldState;
use crate::bytes::be16;
use crate::{Encap, Layers};

/// The IPv4 IDs of a packet.
pub(super) trait IpIds: Copy {
    /// Returns for each layer whether the ID is constant from this packet on, or `None` if an ID
    /// breaks the rule. `gso` is the packet's own `fixed_id` if it is a super-segment.
    fn check(&self, held: &HeldState, gso: Option<[bool; 2]>) -> Option<[bool; 2]>;
    /// Returns the outer and the inner ID; 0 for IPv6.
    fn both(&self) -> [u16; 2];
    /// Returns whether an IPv4 header checksum is 0xffff. No sum of a header gives it, so that
    /// segmentation would not restore it.
    fn has_ffff_checksum(&self) -> bool;
}

/// The empty set of IDs of an IPv6 packet without a tunnel.
#[derive(Clone, Copy)]
pub(super) struct NoId;

/// The ID of an IPv4 packet without a tunnel.
#[derive(Clone, Copy)]
pub(super) struct OneId {
    id: u16,
    checksum: u16,
}

/// The IDs of a packet with any layers.
#[derive(Clone, Copy)]
pub(super) struct LayerIds([Option<OneId>; 2]);

impl OneId {
    #[inline(always)]
    pub(super) fn new(ip: &[u8; 20]) -> Self {
        Self {
            id: be16(ip, 4),
            checksum: be16(ip, 10),
        }
    }

    /// Reads the ID of the IPv4 header at `network`.
    #[inline(always)]
    pub(super) fn read(header: &[u8], network: u16) -> Self {
        let ip = header.get(usize::from(network)..);
        Self::new(ip.and_then(|ip| ip.first_chunk()).unwrap_or(&[0; 20]))
    }

    /// Returns whether the ID is constant at one layer; the second segment determines that.
    #[inline(always)]
    fn check_layer(self, held: &HeldState, layer: usize, gso: Option<[bool; 2]>) -> Option<bool> {
        let ahead = self.id.wrapping_sub(held.ip_id[layer]);
        let fixed = if held.count == 1 {
            ahead == 0
        } else {
            held.fixed_id[layer]
        };
        let expected = if fixed { 0 } else { held.count };
        let agrees = gso.is_none_or(|own| own[layer] == fixed);
        (ahead == expected && agrees).then_some(fixed)
    }
}

impl LayerIds {
    pub(super) fn new(header: &[u8], layers: &Layers) -> Self {
        let one =
            |layer: usize, v6: bool| (!v6).then(|| OneId::read(header, layers.network[layer]));
        let outer = one(0, layers.ethertype == ethertype::IPV6);
        Self(if layers.encap == Encap::None {
            [outer; 2]
        } else {
            [outer, one(1, layers.inner_v6(header))]
        })
    }
}

impl IpIds for NoId {
    #[inline(always)]
    fn check(&self, _: &HeldState, _: Option<[bool; 2]>) -> Option<[bool; 2]> {
        Some([false; 2])
    }

    #[inline(always)]
    fn both(&self) -> [u16; 2] {
        [0; 2]
    }

    #[inline(always)]
    fn has_ffff_checksum(&self) -> bool {
        false
    }
}

impl IpIds for OneId {
    #[inline(always)]
    fn check(&self, held: &HeldState, gso: Option<[bool; 2]>) -> Option<[bool; 2]> {
        self.check_layer(held, 1, gso).map(|fixed| [fixed; 2])
    }

    #[inline(always)]
    fn both(&self) -> [u16; 2] {
        [self.id; 2]
    }

    #[inline(always)]
    fn has_ffff_checksum(&self) -> bool {
        self.checksum == 0xffff
    }
}

impl IpIds for LayerIds {
    fn check(&self, held: &HeldState, gso: Option<[bool; 2]>) -> Option<[bool; 2]> {
        let layer = |n: usize| match self.0[n] {
            None => Some(false),
            Some(one) => one.check_layer(held, n, gso),
        };
        Some([layer(0)?, layer(1)?])
    }

    fn both(&self) -> [u16; 2] {
        self.0.map(|one| one.map_or(0, |one| one.id))
    }

    fn has_ffff_checksum(&self) -> bool {
        self.0.iter().flatten().any(|one| one.checksum == 0xffff)
    }
}
