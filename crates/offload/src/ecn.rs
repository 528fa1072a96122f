//! Setting of the ECN field's Congestion Experienced mark, for queues.

use fullsend_wire::checksum;
use fullsend_wire::numbers::ethertype;

use crate::Packet;
use crate::bytes::{be16, put16};

#[cfg(test)]
mod tests;

/// The mask of the ECN field, which is also its value Congestion Experienced (RFC 3168 5).
const CE: u16 = 0b11;

/// Sets Congestion Experienced in the outer IP header. Returns whether it did: a packet whose
/// sender is not ECN-capable is left unchanged.
pub(crate) fn mark_ce(packet: &mut Packet) -> bool {
    let v6 = packet.layers.ethertype == ethertype::IPV6;
    let network = usize::from(packet.layers.network[0]);
    let header = &mut *packet.header;
    let Some(header) = header.get_mut(network..).filter(|h| h.len() >= 20) else {
        return false;
    };
    // The ECN field is in bits 0 and 1 of the first 16-bit word in IPv4, in bits 4 and 5 in IPv6.
    let shift = if v6 { 4 } else { 0 };
    let word = be16(header, 0);
    if word >> shift & CE == 0 {
        return false;
    }
    let marked = word | CE << shift;
    put16(header, 0, marked);
    if !v6 {
        // RFC 1624: incremental update of the header checksum.
        let sum = be16(header, 10);
        put16(header, 10, checksum::update(sum, word, marked));
    }
    true
}
