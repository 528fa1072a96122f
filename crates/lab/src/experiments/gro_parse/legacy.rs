//! The second parse: what completed an aggregate before anybody had recorded its layers.

const HOP_BY_HOP: u8 = 0;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// Finds the protocol that completes an aggregate by a walk over each of its IPv6 headers.
#[derive(Default)]
pub(super) struct LegacyComplete {
    /// IPv6 headers and what extends them, walked.
    pub(super) walks: u64,
}

impl LegacyComplete {
    /// Where the transport header begins, and which it is; `None` where the headers end before.
    pub(super) fn complete(&mut self, header: &[u8]) -> Option<(usize, u8)> {
        let mut at = 0;
        loop {
            self.walks += 1;
            let mut next = *header.get(at + 6)?;
            at += 40;
            // RFC 8200 4: headers that say in units of eight bytes how long they are.
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
