//! Ephemeral ports (RFC 6056 3.3.4, double-hash port selection): successive connections to one
//! destination use successive ports, starting at a port that depends on a secret key.

use core::ops::RangeInclusive;

use crate::demux::Addr;
use crate::siphash::SipKey;

/// Number of counters; destinations that hash to the same one share it.
const TABLE_LEN: usize = 64;

/// The allocator of ephemeral ports.
#[derive(Clone, Debug)]
pub(crate) struct EphemeralPorts {
    offset_key: SipKey,
    index_key: SipKey,
    table: [u16; TABLE_LEN],
}

impl EphemeralPorts {
    pub(crate) const fn new(offset_key: SipKey, index_key: SipKey) -> Self {
        Self {
            offset_key,
            index_key,
            table: [0; TABLE_LEN],
        }
    }

    /// Returns the next port of `range`, in this destination's order, for which `is_free` returns
    /// `true`; `None` if there is none.
    pub(crate) fn choose(
        &mut self,
        range: RangeInclusive<u16>,
        (local, remote, remote_port): (Addr, Addr, u16),
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let ([a, b], [c, d]) = (local.words(), remote.words());
        let hash = |key: SipKey| key.hash([a, b, c, d], remote_port.into());
        let count = u64::from(*range.end()).checked_sub(u64::from(*range.start()))? + 1;
        let offset = hash(self.offset_key) % count;
        let next = &mut self.table[hash(self.index_key) as usize % TABLE_LEN];
        for _ in 0..count {
            let port = range.start() + ((offset + u64::from(*next)) % count) as u16;
            *next = next.wrapping_add(1);
            if is_free(port) {
                return Some(port);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::EphemeralPorts;
    use crate::demux::Addr;
    use crate::siphash::SipKey;

    fn to(last: u8) -> (Addr, Addr, u16) {
        (Addr::v4([10, 0, 0, 1]), Addr::v4([10, 0, 0, last]), 80)
    }

    #[test]
    fn every_port_is_chosen_once_until_exhausted() {
        let mut ports = EphemeralPorts::new(SipKey(1, 2), SipKey(3, 4));
        let mut used = BTreeSet::new();
        for _ in 0..100 {
            let port = ports.choose(40_000..=40_099, to(2), |p| !used.contains(&p));
            assert!(used.insert(port.unwrap()));
        }
        assert_eq!(
            ports.choose(40_000..=40_099, to(2), |p| !used.contains(&p)),
            None
        );
        assert_eq!(ports.choose(7..=7, to(2), |_| true), Some(7));
        assert!(ports.choose(0..=u16::MAX, to(2), |_| true).is_some());
    }

    #[test]
    fn destinations_start_at_unrelated_ports() {
        let mut ports = EphemeralPorts::new(SipKey(1, 2), SipKey(3, 4));
        let first: BTreeSet<_> = (2..50)
            .map(|d| ports.choose(32_768..=60_999, to(d), |_| true))
            .collect();
        assert!(first.len() > 45);
    }
}
