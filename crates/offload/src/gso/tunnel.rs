//! The outer headers of each segment of a tunnelled super-segment.

use fullsend_wire::checksum::{Sum, sum};
use fullsend_wire::numbers::{ethertype, protocol};

use super::{IpTemplate, SegmentPosition};
use crate::bytes::{be16, put16};
use crate::{Encap, Layers, checksum};

/// The outer headers' fields that all segments share.
pub(super) struct OuterTemplate {
    layers: Layers,
    inner_v6: bool,
    network: IpTemplate,
    /// The sum of the pseudo-header of a UDP tunnel with checksums, without the length.
    udp_pseudo: Option<Sum>,
}

impl OuterTemplate {
    /// Returns `None` if the layers do not match the header.
    pub(super) fn new(header: &mut [u8], layers: &Layers, fixed_id: bool) -> Option<Self> {
        let v6 = layers.ethertype == ethertype::IPV6;
        let [network, inner] = layers.network.map(usize::from);
        let tunnel = usize::from(layers.tunnel);
        let tunnel_len = if layers.encap == Encap::Udp { 8 } else { 0 };
        if tunnel < network + if v6 { 40 } else { 20 } || inner < tunnel + tunnel_len {
            return None;
        }
        let udp_pseudo = (layers.encap == Encap::Udp && be16(header, tunnel + 6) != 0)
            .then(|| checksum::pseudo(header, network, v6, protocol::UDP, 0));
        Some(Self {
            layers: *layers,
            inner_v6: layers.inner_v6(header),
            network: IpTemplate::new(header, network, tunnel, v6, fixed_id),
            udp_pseudo,
        })
    }

    /// Writes the outer headers of a segment, whose inner headers must be complete.
    pub(super) fn write(&self, position: &SegmentPosition, header: &mut [u8]) {
        self.network.write(position, header);
        if self.layers.encap != Encap::Udp {
            return;
        }
        let (tunnel, transport) = (
            usize::from(self.layers.tunnel),
            usize::from(self.layers.transport),
        );
        let len = header.len() - tunnel + position.len;
        put16(header, tunnel + 4, len as u16);
        let Some(pseudo) = self.udp_pseudo else {
            return;
        };
        put16(header, tunnel + 6, 0);
        let inner_len = len - (transport - tunnel);
        let value = pseudo
            + Sum::dword(len as u32)
            + sum(&header[tunnel..transport])
            + checksum::inner_sum(header, &self.layers, self.inner_v6, inner_len);
        put16(header, tunnel + 6, value.udp_checksum());
    }
}
