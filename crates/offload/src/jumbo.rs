//! The jumbo payload option (RFC 2675) on IPv6 super-segments beyond 64 KiB.
//!
//! Here a length field of 0 and the packet's own length are enough. Kernels before Linux 6.x told
//! such packets by a hop-by-hop header that says the length again.

use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::{be16, put16, put32};
use crate::{Encap, Packet};

#[cfg(test)]
mod tests;

/// Hop-by-hop header with the option alone.
const LEN: usize = 8;
/// Its second to fourth byte: 8 bytes in all, option type, option length.
pub(crate) const OPTION: [u8; 3] = [0, 0xc2, 4];

impl Packet {
    /// Puts the jumbo payload option into a super-segment beyond 64 KiB; false, and nothing
    /// changes, if it is none, is not IPv6, is tunnelled, or has hop-by-hop options already.
    /// [`segment`](crate::segment) takes it out again.
    pub fn put_jumbo_option(&mut self) -> bool {
        let network = usize::from(self.layers.network[0]);
        let fixed = network + 40;
        let suits = self.layers.ethertype == ethertype::IPV6
            && self.layers.encap == Encap::None
            && self.len() - fixed.min(self.len()) > usize::from(u16::MAX)
            && self.header.len() >= fixed
            && self.header[network + 6] != protocol::HOP_BY_HOP;
        if !suits {
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

    /// Takes the option out of a packet that is about to be cut, where it stands alone and counts.
    /// Where the length field is not 0 (RFC 2675 3: an error), it came with the segments and stays
    /// on each of them.
    pub(crate) fn drop_jumbo_option(&mut self) {
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
