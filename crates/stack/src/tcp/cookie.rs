//! SYN cookies (RFC 4987 3.6): the sequence number of a SYN-ACK encodes all that completing the
//! handshake needs, so that no memory is used during a SYN flood.
//!
//! The number has 29 bits of a keyed hash, one bit for the parity of the 64-second slot it was made
//! in, and two bits for the peer's MSS, rounded down to one of four. As on Linux, the low six bits
//! of the timestamp carry the other options, if both sides use timestamps.

use fullsend_wire::tcp::TcpOptions;
use fullsend_wire::{Instant, Nanos, SeqNum};

use crate::demux::FlowKey;
use crate::siphash::SipKey;

/// Length of a slot. A cookie is valid in the slot it was made in and in the next one.
const SLOT: Nanos = Nanos::from_secs(64);
/// Time after a listener last answered with a cookie in which cookies may come back.
pub(super) const COOKIE_WINDOW: Nanos = Nanos::from_secs(128);

/// Common values (Linux's choice): the minimum, a PPPoE tunnel, PPPoE, Ethernet.
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
/// The minimum, a tunnel, Ethernet, jumbo frames.
const MSS_V6: [u16; 4] = [1220, 1420, 1440, 8940];

/// Low bits of a timestamp: four for the window scale (15 means none), one for SACK, one for ECN.
const TS_BITS: u32 = 6;
const TS_MASK: u32 = (1 << TS_BITS) - 1;
const NO_SCALE: u32 = 0xf;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// Issues and checks SYN cookies.
#[derive(Clone, Copy, Debug)]
pub(super) struct SynCookies {
    flow_key: SipKey,
    key: SipKey,
}

/// The options of a SYN that a timestamp carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct EncodedOptions {
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    pub(super) ecn: bool,
}

impl SynCookies {
    /// Derives the keys from `secret`, which is also used for other purposes.
    pub(super) fn new(secret: SipKey) -> Self {
        Self {
            flow_key: secret.derive(1),
            key: secret.derive(2),
        }
    }

    /// Returns the sequence number of the SYN-ACK for a SYN with sequence number `irs` and this
    /// MSS.
    pub(super) fn issue(self, now: Instant, flow: &FlowKey, irs: SeqNum, mss: u16) -> SeqNum {
        let mss_table = mss_table(flow);
        let index = mss_table
            .iter()
            .rposition(|&entry| entry <= mss)
            .unwrap_or(0);
        SeqNum::new(self.cookie(flow, irs, slot(now), index as u32))
    }

    /// Checks a returned cookie. Returns its MSS and the slot it was made in, or `None` if it is
    /// invalid or expired.
    pub(super) fn check(
        self,
        now: Instant,
        flow: &FlowKey,
        irs: SeqNum,
        cookie: SeqNum,
    ) -> Option<(u16, u64)> {
        let (cookie, now) = (cookie.raw(), slot(now));
        let issue_slot = now - u64::from((cookie >> 2 ^ now as u32) & 1);
        let index = cookie & 3;
        (self.cookie(flow, irs, issue_slot, index) == cookie)
            .then(|| (mss_table(flow)[index as usize], issue_slot))
    }

    fn cookie(self, flow: &FlowKey, irs: SeqNum, slot: u64, index: u32) -> u32 {
        let words = [flow.hash(self.flow_key), slot << 2 | u64::from(index)];
        let hash = self.key.hash(words, irs.raw()) as u32;
        hash << 3 | (slot as u32 & 1) << 2 | index
    }
}

impl EncodedOptions {
    /// Returns the last timestamp not after `now` that carries these options.
    pub(super) fn to_timestamp(self, now: u32) -> u32 {
        let scale = self.window_scale.map_or(NO_SCALE, |s| u32::from(s).min(14));
        let bits = scale | if self.sack { SACK } else { 0 } | if self.ecn { ECN } else { 0 };
        let ts = now & !TS_MASK | bits;
        if ts > now {
            ts.wrapping_sub(1 << TS_BITS)
        } else {
            ts
        }
    }

    /// Returns the options that a timestamp carries.
    pub(super) fn from_timestamp(ts: u32) -> Self {
        let scale = ts & NO_SCALE;
        Self {
            window_scale: (scale != NO_SCALE).then_some(scale as u8),
            sack: ts & SACK != 0,
            ecn: ts & ECN != 0,
        }
    }

    /// Returns the options that both `syn` and the SYN-ACK have.
    pub(super) fn of(syn_ack: &TcpOptions, syn: &TcpOptions, ecn: bool) -> Self {
        Self {
            window_scale: syn.window_scale.filter(|_| syn_ack.window_scale.is_some()),
            sack: syn_ack.sack_permitted,
            ecn,
        }
    }
}

/// Returns the number of the slot at `now`. It begins at 1, unlike Linux's, so that there is always
/// a previous slot.
pub(super) fn slot(now: Instant) -> u64 {
    1 + now.as_nanos() / SLOT.as_nanos()
}

const fn mss_table(flow: &FlowKey) -> &'static [u16; 4] {
    if flow.remote.is_v4() {
        &MSS_V4
    } else {
        &MSS_V6
    }
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Instant, Nanos, Rng, Seed, SeqNum};

    use super::{EncodedOptions, SynCookies};
    use crate::demux::FlowKey;
    use crate::siphash::SipKey;

    const COOKIES: SynCookies = SynCookies {
        flow_key: SipKey(1, 2),
        key: SipKey(3, 4),
    };

    fn flow(port: u16) -> FlowKey {
        let remote = core::net::SocketAddr::from(([10, 0, 0, 2], port));
        FlowKey::new("10.0.0.1:80".parse().unwrap(), remote)
    }

    #[test]
    fn a_cookie_is_valid_for_its_flow_and_about_a_minute() {
        let irs = SeqNum::new(77);
        for start_s in [0, 63, 64, 100, 1_000_000] {
            let now = Instant::ZERO + Nanos::from_secs(start_s);
            let cookie = COOKIES.issue(now, &flow(1), irs, 1460);
            let check = |after_s, flow: &FlowKey, irs| {
                COOKIES.check(now + Nanos::from_secs(after_s), flow, irs, cookie)
            };
            let issue_slot = super::slot(now);
            assert_eq!(check(0, &flow(1), irs), Some((1460, issue_slot)));
            assert_eq!(check(64, &flow(1), irs), Some((1460, issue_slot)));
            assert_eq!(check(128, &flow(1), irs), None);
            assert_eq!(check(0, &flow(2), irs), None);
            assert_eq!(check(0, &flow(1), irs + 1), None);
        }
    }

    #[test]
    fn guessed_cookies_are_invalid() {
        let mut rng = Rng::new(Seed::from_u64(9));
        let passed = (0..200_000)
            .filter(|_| {
                let guess = SeqNum::new(rng.next_u32());
                COOKIES
                    .check(Instant::ZERO, &flow(1), SeqNum::new(77), guess)
                    .is_some()
            })
            .count();
        assert_eq!(passed, 0);
    }

    #[test]
    fn the_mss_is_rounded_down() {
        let v6 = FlowKey::new(
            "[fd00::1]:80".parse().unwrap(),
            "[fd00::2]:9".parse().unwrap(),
        );
        let read = |flow: &FlowKey, mss| {
            let irs = SeqNum::new(5);
            let cookie = COOKIES.issue(Instant::ZERO, flow, irs, mss);
            COOKIES.check(Instant::ZERO, flow, irs, cookie).unwrap().0
        };
        let v4 = [100, 536, 1299, 1300, 1459, 1460, 9000].map(|mss| read(&flow(1), mss));
        assert_eq!(v4, [536, 536, 536, 1300, 1440, 1460, 1460]);
        assert_eq!(
            [1220, 1440, 9000].map(|mss| read(&v6, mss)),
            [1220, 1440, 8940]
        );
    }

    #[test]
    fn timestamps_encode_options_and_are_not_in_the_future() {
        let mut rng = Rng::new(Seed::from_u64(9));
        for _ in 0..1000 {
            let encoded = EncodedOptions {
                window_scale: rng.chance(0.9).then(|| rng.below(15) as u8),
                sack: rng.chance(0.5),
                ecn: rng.chance(0.5),
            };
            let now = 64 + rng.next_u32() / 2;
            let ts = encoded.to_timestamp(now);
            assert!(ts <= now && now - ts < 128);
            assert_eq!(EncodedOptions::from_timestamp(ts), encoded);
        }
    }
}
