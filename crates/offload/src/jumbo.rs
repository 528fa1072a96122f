//! The jumbo payload option (RFC 2675) of IPv6 super-segments larger than 64 KiB.
//!
//! Inside this stack a length field of 0 and the length of the packet are enough. Older Linux
//! kernels recognize such packets only by a hop-by-hop header with this option, which carries the
//! length.

use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::{be16, put16, put32};
use crate::{Encap, GsoKind, Packet};

#[cfg(test)]
mod tests;

/// Length in bytes of a hop-by-hop header that contains only this option.
const LEN: usize = 8;
/// Bytes 1 to 3 of that header: its length (0: 8 bytes), the option type, the option length.
pub(crate) const OPTION: [u8; 3] = [0, 0xc2, 4];

impl Packet {
    /// Inserts the jumbo payload option (RFC 2675) into an IPv6 super-segment larger than 64 KiB.
    ///
    /// Returns whether it did. A packet is left unchanged if it is shorter, one segment, not IPv6,
    /// tunnelled, or has a hop-by-hop header already. [`segment`](crate::segment) removes the
    /// option.
    pub fn insert_jumbo_option(&mut self) -> bool {
        let network = usize::from(self.layers.network[0]);
        let fixed = network + 40;
        let size = usize::from(self.offload.gso_size);
        let is_eligible = self.layers.ethertype == ethertype::IPV6
            // Only segmentation removes the option.
            && self.offload.kind != GsoKind::None
            && size != 0
            && self.payload.len() > size
            && self.layers.encap == Encap::None
            && self.len() - fixed.min(self.len()) > usize::from(u16::MAX)
            && self.header.len() >= fixed
            && self.header[network + 6] != protocol::HOP_BY_HOP;
        if !is_eligible {
            return false;
        }
        self.header.prepend(LEN);
        self.header.copy_within(LEN..LEN + fixed, 0);
        let len = self.len() - fixed;
        let header = &mut *self.header;
        header[fixed] = header[network + 6];
        header[fixed + 1..fixed + 4].copy_from_slice(&OPTION);
        put32(header, fixed + 4, len as u32);
        header[network + 6] = protocol::HOP_BY_HOP;
        put16(header, network + 4, 0);
        self.layers.transport += LEN as u16;
        true
    }

    /// Removes the option before segmentation if it is alone in its header and the length field is
    /// 0. With a non-zero length field (an error by RFC 2675 3) the option was in the received
    /// segments and stays in each of them.
    pub(crate) fn remove_jumbo_option(&mut self) {
        let network = usize::from(self.layers.network[0]);
        let fixed = network + 40;
        let found = self.layers.ethertype == ethertype::IPV6
            && self.layers.encap == Encap::None
            && usize::from(self.layers.transport) >= fixed + LEN
            && self.header.len() >= fixed + LEN
            && self.header[network + 6] == protocol::HOP_BY_HOP
            && self.header[fixed + 1..fixed + 4] == OPTION
            && be16(&self.header, network + 4) == 0;
        if !found {
            return;
        }
        self.header[network + 6] = self.header[fixed];
        self.header.copy_within(0..fixed, LEN);
        self.header.truncate_front(LEN);
        self.layers.transport -= LEN as u16;
    }
}
