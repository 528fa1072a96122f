//! Transport checksums of whole packets: completion of `Partial` ones, verification of received
//! ones.

use fullsend_wire::checksum::{RunningSum, Sum, sum};
use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::{be16, put16};
use crate::{Chain, Checksum, Encap, Layers, Packet, Slice};

#[cfg(test)]
mod tests;

/// Returns the offset of the checksum in the transport header of `protocol`, in bytes.
pub(crate) const fn checksum_offset(protocol: u8) -> Option<usize> {
    match protocol {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        _ => None,
    }
}

/// Returns the sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1) with the addresses of the IP
/// header at `network`. `len` is the length of the transport header and payload, in bytes.
#[inline]
pub(crate) fn pseudo(header: &[u8], network: usize, v6: bool, protocol: u8, len: usize) -> Sum {
    // Each slice has a length that the compiler knows.
    let addresses = if v6 {
        sum(&header[network + 8..network + 40])
    } else {
        sum(&header[network + 12..network + 20])
    };
    addresses + Sum::dword(len as u32) + Sum::word(u16::from(protocol))
}

/// Returns the sum of `start` and the bytes of `chain`, which begin at an even offset.
#[inline]
pub(crate) fn sum_chain(start: Sum, chain: &Chain) -> Sum {
    match chain.slices() {
        [] => start,
        [one] => start + sum(one),
        many => {
            let mut running = RunningSum::from(start);
            for slice in many {
                running.push(slice);
            }
            running.sum()
        }
    }
}

impl Packet {
    /// Completes a `Partial` transport checksum in software.
    ///
    /// A packet in any other state is left unchanged, and so is a super-segment: each of its
    /// segments gets its own checksum when it is segmented.
    pub fn complete_checksum(&mut self) {
        let transport = usize::from(self.layers.transport);
        let Some(checksum_offset) = checksum_offset(self.layers.protocol) else {
            return;
        };
        if self.offload.checksum != Checksum::Partial
            || self.segments() > 1
            || self.header.len() < transport + checksum_offset + 2
        {
            return;
        }
        let total = sum_chain(sum(&self.header[transport..]), &self.payload);
        let value = match self.layers.protocol {
            protocol::UDP => total.udp_checksum(),
            _ => total.checksum(),
        };
        put16(&mut self.header, transport + checksum_offset, value);
        self.offload.checksum = Checksum::Unverified;
    }

    /// Makes the transport checksum of a parsed packet `Partial`, whatever the field contains: the
    /// device that sends the packet, or [`complete_checksum`](Self::complete_checksum), computes it.
    ///
    /// A packet that is neither TCP nor UDP, and a fragment, are left unchanged.
    ///
    /// ```
    /// use fullsend_offload::{Checksum, Link, Packet, Slice};
    ///
    /// let mut datagram = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0x66, 0xcf, 10, 0, 0, 1, 10, 0, 0, 2];
    /// datagram.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    /// let mut packet = Packet::from_frame(Slice::copied_from(&datagram));
    /// packet.parse(Link::Ip).unwrap();
    /// packet.make_checksum_partial();
    /// assert_eq!(packet.offload.checksum, Checksum::Partial);
    /// packet.complete_checksum();
    /// assert_eq!(packet.to_bytes()[26..], [0xeb, 0xcb]);
    /// ```
    pub fn make_checksum_partial(&mut self) {
        let layers = &self.layers;
        let transport = usize::from(layers.transport);
        let Some(offset) = checksum_offset(layers.protocol).filter(|_| !layers.fragment) else {
            return;
        };
        if self.header.len() < transport + offset + 2 {
            return;
        }
        let (network, len) = (usize::from(layers.network[1]), self.len() - transport);
        let v6 = layers.inner_v6(&self.header);
        let partial = pseudo(&self.header, network, v6, layers.protocol, len).fold();
        put16(&mut self.header, transport + offset, partial);
        self.offload.checksum = Checksum::Partial;
    }
}

/// The result of verifying a received transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChecksumResult {
    Good,
    Bad,
    /// Not verifiable: a fragment, or a protocol other than TCP and UDP.
    Unknown,
}

/// Verifies the transport checksum of a packet that consists of `front`, which begins with the
/// headers, and `rest`. In a tunnelled packet both checksums are verified, while the payload is
/// summed once.
#[inline]
pub(crate) fn verify(front: &[u8], rest: &[Slice], layers: &Layers) -> ChecksumResult {
    let Some(checksum_offset) = checksum_offset(layers.protocol).filter(|_| !layers.fragment)
    else {
        return ChecksumResult::Unknown;
    };
    let tunnelled = layers.encap != Encap::None;
    let v6 = if tunnelled {
        layers.inner_v6(front)
    } else {
        layers.ethertype == ethertype::IPV6
    };
    let transport = usize::from(layers.transport);
    // RFC 768: a checksum of 0 means none over IPv4. RFC 8200 8.1: over IPv6 it is required.
    let is_absent =
        layers.protocol == protocol::UDP && be16(front, transport + checksum_offset) == 0;
    let good = if is_absent {
        !v6
    } else {
        is_checksum_correct(front, rest, layers, v6)
    };
    if good && (!tunnelled || is_outer_checksum_correct(front, rest, layers, v6, is_absent)) {
        ChecksumResult::Good
    } else {
        ChecksumResult::Bad
    }
}

/// Returns whether the innermost transport checksum is correct.
pub(crate) fn is_checksum_correct(front: &[u8], rest: &[Slice], layers: &Layers, v6: bool) -> bool {
    let transport = usize::from(layers.transport);
    let upper = &front[transport..];
    let len = upper.len() + rest.iter().map(Slice::len).sum::<usize>();
    let network = usize::from(layers.network[1]);
    let start = pseudo(front, network, v6, layers.protocol, len);
    sum_slices(start, upper, rest).is_valid()
}

#[inline]
fn sum_slices(start: Sum, first: &[u8], rest: &[Slice]) -> Sum {
    match rest {
        [] => start + sum(first),
        [one] if first.len().is_multiple_of(2) => start + sum(first) + sum(one),
        _ => {
            let mut running = RunningSum::from(start);
            running.push(first);
            for slice in rest {
                running.push(slice);
            }
            running.sum()
        }
    }
}

/// Returns whether the outer checksum of a UDP tunnel is correct or absent (RFC 6935). Header and
/// payload of an inner packet whose checksum is correct sum up to the complement of its
/// pseudo-header's sum, so they are not summed again.
fn is_outer_checksum_correct(
    front: &[u8],
    rest: &[Slice],
    layers: &Layers,
    inner_v6: bool,
    inner_has_no_checksum: bool,
) -> bool {
    let (tunnel, transport) = (usize::from(layers.tunnel), usize::from(layers.transport));
    if layers.encap != Encap::Udp || be16(front, tunnel + 6) == 0 {
        return true;
    }
    let len = front.len() - tunnel + rest.iter().map(Slice::len).sum::<usize>();
    let v6 = layers.ethertype == ethertype::IPV6;
    let start = pseudo(
        front,
        usize::from(layers.network[0]),
        v6,
        protocol::UDP,
        len,
    );
    if inner_has_no_checksum {
        return sum_slices(start, &front[tunnel..], rest).is_valid();
    }
    let inner = inner_sum(front, layers, inner_v6, len - (transport - tunnel));
    (start + sum(&front[tunnel..transport]) + inner).is_valid()
}

/// Returns the sum of an inner transport header and payload of `len` bytes whose checksum is
/// correct.
#[inline]
pub(crate) fn inner_sum(header: &[u8], layers: &Layers, v6: bool, len: usize) -> Sum {
    let network = usize::from(layers.network[1]);
    Sum::from_folded(pseudo(header, network, v6, layers.protocol, len).checksum())
}
