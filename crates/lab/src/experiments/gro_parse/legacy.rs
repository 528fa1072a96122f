//! The second parse, which completed an aggregate before its layers were recorded.

const HOP_BY_HOP: u8 = 0;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// Finds the protocol that completes an aggregate by a walk over each of its IPv6 headers.
#[derive(Default)]
pub(super) struct LegacyComplete {
    /// Walked IPv6 headers, each with its extension headers.
    pub(super) walks: u64,
}

impl LegacyComplete {
    /// Returns the offset and the protocol of the transport header; `None` if the bytes end before
    /// it.
    pub(super) fn complete(&mut self, header: &[u8]) -> Option<(usize, u8)> {
        let mut at = 0;
        loop {
            self.walks += 1;
            let mut next = *header.get(at + 6)?;
            at += 40;
            // RFC 8200 4: these headers give their length in units of eight bytes.
            while matches!(next, HOP_BY_HOP | ROUTING | DESTINATION) {
                let [following, len] = *header.get(at..)?.first_chunk()?;
                next = following;
                at += (usize::from(len) + 1) * 8;
            }
            if next != IPV6 {
                return Some((at, next));
            }
        }
    }
}
