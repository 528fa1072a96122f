//! A link with its own MTU in the middle of the path: larger packets are dropped, and the router
//! in front of it reports that or does not (RFC 1191, RFC 4443 3.2, RFC 2923 2.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use fullsend_offload::{Packet, Slice, segment};
use fullsend_wire::icmpv4::{Icmpv4Repr, unreachable};
use fullsend_wire::icmpv6::Icmpv6Repr;
use fullsend_wire::ipv4::{self, Ipv4Repr, Ipv4View};
use fullsend_wire::ipv6::{self, Ipv6Repr, Ipv6View};
use fullsend_wire::numbers::protocol;

/// The addresses of the router.
const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);
const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xfe);

/// Bytes of the dropped packet that the message quotes.
const QUOTED_LEN: usize = 500;

/// Returns the packets that `packet` becomes on a link of `mtu`: itself, or the segments of a
/// super-segment if some are too large.
pub(crate) fn split_for_mtu(packet: Packet, mtu: u32) -> Vec<Packet> {
    let mut pieces = vec![packet];
    if pieces[0].segments() > 1 {
        let whole = pieces.swap_remove(0);
        let first = whole.header.len() + usize::from(whole.offload.gso_size);
        if first - usize::from(whole.layers.network[0]) <= mtu as usize {
            return vec![whole];
        }
        segment(whole, &mut pieces);
    }
    pieces
}

/// Returns whether the packet is larger than the link's MTU.
pub(crate) fn is_too_big(packet: &Packet, mtu: u32) -> bool {
    let network = usize::from(packet.layers.network[0]);
    packet.segments() == 1 && packet.len() - network > mtu as usize
}

/// Returns the router's message to the sender of a dropped packet; `None` if none may be sent.
pub(crate) fn too_big(packet: &Packet, mtu: u32) -> Option<Packet> {
    let mut bytes = packet.to_bytes();
    bytes.truncate(QUOTED_LEN);
    let message = match bytes.first()? >> 4 {
        4 => too_big_v4(&bytes, mtu)?,
        6 => too_big_v6(&bytes, mtu)?,
        _ => return None,
    };
    Some(Packet::from_frame(Slice::copied_from(&message)))
}

fn too_big_v4(quote: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let to = Ipv4View::new(quote).ok()?.src();
    let message = Icmpv4Repr::Unreachable {
        code: unreachable::FRAGMENTATION_NEEDED,
        mtu: mtu as u16,
        quote,
    };
    let header = Ipv4Repr::new(ROUTER_V4, to, protocol::ICMP, message.len() as u16);
    let mut out = vec![0; ipv4::HEADER_LEN + message.len()];
    header.emit(&mut out);
    message.emit(&mut out[ipv4::HEADER_LEN..]);
    Some(out)
}

fn too_big_v6(quote: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let to = Ipv6View::new(quote).ok()?.src();
    let message = Icmpv6Repr::PacketTooBig { mtu, quote };
    let header = Ipv6Repr::new(ROUTER_V6, to, protocol::ICMPV6, message.len() as u16);
    let mut out = vec![0; ipv6::HEADER_LEN + message.len()];
    header.emit(&mut out);
    message.emit(ROUTER_V6, to, &mut out[ipv6::HEADER_LEN..]);
    Some(out)
}
