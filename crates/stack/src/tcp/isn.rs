//! Initial sequence numbers (RFC 6528): a clock with steps of 4 us plus a keyed hash of the
//! 4-tuple. They increase for each 4-tuple and cannot be predicted from those of another.

use fullsend_wire::{Instant, SeqNum};

use crate::demux::FlowKey;
use crate::siphash::SipKey;

/// The generator of initial sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IsnGenerator {
    key: SipKey,
}

impl IsnGenerator {
    pub(crate) const fn new(key: SipKey) -> Self {
        Self { key }
    }

    /// Returns the ISN of a connection that is opened at `now`.
    pub(crate) fn generate(self, now: Instant, flow: &FlowKey) -> SeqNum {
        let clock = (now.as_nanos() >> 12) as u32;
        SeqNum::new(clock.wrapping_add(flow.hash(self.key) as u32))
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos};

    use super::IsnGenerator;
    use crate::demux::FlowKey;
    use crate::siphash::SipKey;

    #[test]
    fn isns_increase_with_time_and_differ_by_flow_and_key() {
        let flow = |port| {
            let remote = core::net::SocketAddr::from(([10, 0, 0, 2], port));
            FlowKey::new("10.0.0.1:80".parse().unwrap(), remote)
        };
        let isn = IsnGenerator::new(SipKey(1, 2));
        let now = Instant::from_nanos(7_000_000_000);
        let later = now + Nanos::from_secs(1);
        let first = isn.generate(now, &flow(1000));
        assert_eq!(isn.generate(now, &flow(1000)), first);
        // About 250,000 steps a second (RFC 9293 3.4.1).
        let step = isn.generate(later, &flow(1000)).since(first);
        assert!((240_000..260_000).contains(&step), "{step}");
        assert_ne!(isn.generate(now, &flow(1001)), first);
        let other = IsnGenerator::new(SipKey(1, 3));
        assert_ne!(other.generate(now, &flow(1000)), first);
    }
}
