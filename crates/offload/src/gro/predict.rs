//! Header prediction: most packets follow the one before them, and one comparison of the headers
//! says so without a parse.
//!
//! What the comparison passes over is what may differ between packets that join; a packet found
//! so has the layers of the one it follows. Everything else takes the way of the parse.

use fullsend_wire::checksum::sum;
use fullsend_wire::tcp::TcpFlags;

use crate::Layers;
use crate::bytes::{be16, be32};

/// The headers at the front of a packet of `total` bytes are those of `head`, but for the fields
/// that count on from packet to packet; they are whole and agree with the length.
#[inline]
pub(super) fn continues(
    front: &[u8],
    total: usize,
    head: &[u8],
    layers: &Layers,
    v6: bool,
) -> bool {
    let network = usize::from(layers.network[0]);
    let transport = network + if v6 { 40 } else { 20 };
    let Some(front) = front.get(..head.len()) else {
        return false;
    };
    // Extension headers take the way of the parse.
    if usize::from(layers.transport) != transport {
        return false;
    }
    let (Some(mine), Some(heads)) = (split(front, transport), split(head, transport)) else {
        return false;
    };
    let same_network = if v6 {
        ipv6(
            &front[network..transport],
            &head[network..transport],
            total - network,
        )
    } else {
        ipv4(
            &front[network..transport],
            &head[network..transport],
            total - network,
        )
    };
    tcp(mine.0, heads.0)
        && same_network
        && options(mine.1, heads.1)
        // Without a link header, spare the call that compares nothing.
        && (network == 0 || front[..network] == head[..network])
}

/// The TCP header and its options.
#[inline]
fn split(header: &[u8], transport: usize) -> Option<(&[u8; 20], &[u8])> {
    header.get(transport..)?.split_first_chunk()
}

/// Ports, ACK, offset, flags, window and urgent pointer.
#[inline]
fn tcp(mine: &[u8; 20], heads: &[u8; 20]) -> bool {
    const MAY_DIFFER: u32 = ((TcpFlags::FIN.0 | TcpFlags::PSH.0) as u32) << 16;
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let urgent = differs(16) & 0xffff;
    differs(0) | differs(8) | (differs(12) & !MAY_DIFFER) | urgent == 0
}

#[inline]
fn options(mine: &[u8], heads: &[u8]) -> bool {
    // Both are whole words, and as long as each other.
    let words = mine.as_chunks::<4>().0.iter().zip(heads.as_chunks::<4>().0);
    words.fold(0, |all, (a, b)| {
        all | (u32::from_ne_bytes(*a) ^ u32::from_ne_bytes(*b))
    }) == 0
}

/// Equal but for length, ID and checksum; the length is right, and so is the checksum.
#[inline]
fn ipv4(mine: &[u8], heads: &[u8], len: usize) -> bool {
    let (Some(mine), Some(heads)) = (mine.first_chunk::<20>(), heads.first_chunk::<20>()) else {
        return false;
    };
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let first = differs(0) & 0xffff_0000;
    let fragment = differs(4) & 0xffff;
    let ttl_protocol = differs(8) & 0xffff_0000;
    (first | fragment | ttl_protocol | differs(12) | differs(16)) == 0
        && usize::from(be16(mine, 2)) == len
        && sum(mine).is_valid()
}

/// Equal but for the length, which is right.
#[inline]
fn ipv6(mine: &[u8], heads: &[u8], len: usize) -> bool {
    let (Some(mine), Some(heads)) = (mine.first_chunk::<40>(), heads.first_chunk::<40>()) else {
        return false;
    };
    let differs = |at| be32(mine, at) ^ be32(heads, at);
    let addresses = (8..40).step_by(4).fold(0, |all, at| all | differs(at));
    (differs(0) | (differs(4) & 0xffff) | addresses) == 0 && usize::from(be16(mine, 4)) + 40 == len
}
