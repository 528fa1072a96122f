//! Transport checksums of whole packets: completing a `Partial` one, verifying a received one.

use fullsend_buf::{Chain, Slice};
use fullsend_wire::checksum::{Running, Sum, sum};
use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::{be16, put16};
use crate::{Checksum, Layers, Packet};

/// Where the checksum stands in the transport header.
pub(crate) const fn field(protocol: u8) -> Option<usize> {
    match protocol {
        protocol::TCP => Some(16),
        protocol::UDP => Some(6),
        _ => None,
    }
}

/// The pseudo-header's sum over a packet whose innermost addresses stand in `header` (RFC 9293
/// 3.1, RFC 8200 8.1). `len` counts transport header and payload.
#[inline]
pub(crate) fn pseudo(header: &[u8], layers: &Layers, v6: bool, len: usize) -> Sum {
    let network = usize::from(layers.network[1]);
    let addresses = if v6 {
        &header[network + 8..network + 40]
    } else {
        &header[network + 12..network + 20]
    };
    sum(addresses) + Sum::dword(len as u32) + Sum::word(u16::from(layers.protocol))
}

/// The sum over a chain, appended to `start` at an even offset.
#[inline]
pub(crate) fn sum_chain(start: Sum, chain: &Chain) -> Sum {
    match chain.slices() {
        [] => start,
        [one] => start + sum(one),
        many => {
            let mut running = Running::from(start);
            for slice in many {
                running.push(slice);
            }
            running.sum()
        }
    }
}

impl Packet {
    /// Turns a `Partial` transport checksum into the full one. Does nothing to a packet without
    /// one, nor to a super-segment, whose segments each get their own when it is cut.
    pub fn complete_checksum(&mut self) {
        let transport = usize::from(self.layers.transport);
        let Some(field) = field(self.layers.protocol) else {
            return;
        };
        if self.offload.checksum != Checksum::Partial
            || self.segments() > 1
            || self.header.len() < transport + field + 2
        {
            return;
        }
        let total = sum_chain(sum(&self.header[transport..]), &self.payload);
        let value = match self.layers.protocol {
            protocol::UDP => total.udp_checksum(),
            _ => total.checksum(),
        };
        put16(&mut self.header, transport + field, value);
        self.offload.checksum = Checksum::Unverified;
    }
}

/// What a look at a received transport checksum says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    Bad,
    /// Nothing that can be verified packet by packet: a fragment, or another protocol.
    Unknown,
}

/// Verifies a packet given in pieces: `front` begins with the headers, `rest` follows it.
#[inline]
pub(crate) fn verify(front: &[u8], rest: &[Slice], layers: &Layers) -> Verdict {
    let Some(field) = field(layers.protocol).filter(|_| !layers.fragment) else {
        return Verdict::Unknown;
    };
    let v6 = layers.ethertype == ethertype::IPV6;
    let transport = usize::from(layers.transport);
    // RFC 768: no checksum over IPv4; RFC 8200 8.1: required over IPv6.
    if layers.protocol == protocol::UDP && be16(front, transport + field) == 0 {
        return if v6 { Verdict::Bad } else { Verdict::Good };
    }
    let upper = &front[transport..];
    let len = upper.len() + rest.iter().map(Slice::len).sum::<usize>();
    let start = pseudo(front, layers, v6, len) + sum(upper);
    let total = match rest {
        [] => start,
        [one] if upper.len().is_multiple_of(2) => start + sum(one),
        _ => {
            let mut running = Running::from(pseudo(front, layers, v6, len));
            running.push(upper);
            for slice in rest {
                running.push(slice);
            }
            running.sum()
        }
    };
    if total.is_valid() {
        Verdict::Good
    } else {
        Verdict::Bad
    }
}
