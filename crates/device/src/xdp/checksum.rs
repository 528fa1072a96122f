//! Recognition of checksums that the sender's kernel has left to a network card.

use fullsend_wire::checksum::Sum;
use fullsend_wire::ethernet::EthernetView;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;
use fullsend_wire::numbers::{ethertype, protocol};

/// Returns whether the checksum field of a TCP or UDP packet holds the sum of the pseudo-header
/// alone, as a kernel leaves it for a network card that computes checksums.
///
/// A veth does not compute them, and XDP has no metadata that would report it. Each computed
/// checksum has this value with a probability of 2^-16; such a packet is not verified.
pub(super) fn is_partial(frame: &[u8]) -> bool {
    partial_sum(frame).is_some_and(|(field, pseudo)| field == pseudo.fold())
}

/// Returns the checksum field of a packet that has one, and the sum of its pseudo-header.
fn partial_sum(frame: &[u8]) -> Option<(u16, Sum)> {
    let ethernet = EthernetView::new(frame).ok()?;
    let packet = frame.get(ethernet.header_len()..)?;
    let (protocol, upper, pseudo) = match ethernet.ethertype() {
        ethertype::IPV4 => {
            let ip = Ipv4View::new(packet).ok().filter(|ip| !ip.is_fragment())?;
            (ip.protocol(), ip.payload(), ip.pseudo_sum())
        }
        ethertype::IPV6 => {
            let ip = Ipv6View::new(packet).ok()?;
            let len = ip.payload_len() as u32;
            let pseudo = Sum::pseudo_v6(ip.src(), ip.dst(), ip.next_header(), len);
            (ip.next_header(), ip.payload(), pseudo)
        }
        _ => return None,
    };
    let at = match protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let field = upper.get(at..at + 2)?;
    Some((u16::from_be_bytes([field[0], field[1]]), pseudo))
}
