//! Explicit congestion notification, as a queue sees it.

use fullsend_wire::checksum;
use fullsend_wire::numbers::ethertype;

use crate::Packet;
use crate::bytes::{be16, put16};

#[cfg(test)]
mod tests;

/// The ECN field's mask, and its value Congestion Experienced (RFC 3168 5).
const CE: u16 = 0b11;

/// Marks the outer IP header; false, and nothing changes, if its sender is not ECN-capable.
pub(crate) fn mark_ce(packet: &mut Packet) -> bool {
    let v6 = packet.layers.ethertype == ethertype::IPV6;
    let network = usize::from(packet.layers.network[0]);
    let header = &mut *packet.header;
    let Some(header) = header.get_mut(network..).filter(|h| h.len() >= 20) else {
        return false;
    };
    // The field ends IPv4's first word; IPv6's traffic class stands four bits further up.
    let shift = if v6 { 4 } else { 0 };
    let word = be16(header, 0);
    if word >> shift & CE == 0 {
        return false;
    }
    let marked = word | CE << shift;
    put16(header, 0, marked);
    if !v6 {
        // RFC 1624.
        let sum = be16(header, 10);
        put16(header, 10, checksum::update(sum, word, marked));
    }
    true
}
