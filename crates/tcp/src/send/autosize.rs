//! TSO autosizing: super-segments follow the pacing rate on long paths, and are as large as the
//! device accepts on short ones.

use fullsend_wire::{Mss, Nanos, Rate, cold_path};

use super::Sender;
use super::pacing::{PACING_SHIFT, Path};
use crate::{Cx, DeviceCaps};

/// The longest TCP header, and one byte so that the length fits IP's length field.
const HEADER_RESERVE: u32 = 60 + 1;

/// Returns the most payload bytes that the device accepts in one super-segment.
pub(crate) fn gso_max_payload(device: &DeviceCaps, ip_header_len: u16) -> u32 {
    let headers = u32::from(ip_header_len) + HEADER_RESERVE;
    device.gso_max_size.saturating_sub(headers)
}

/// Returns the bytes of one burst: what the pacing rate carries in 2^-10 s, and a part of `gso_max`
/// that halves with each `2^rtt_log` microseconds of round trip.
#[inline]
fn burst_bytes(gso_max: u32, rate: impl FnOnce() -> Rate, min_rtt_us: u64, rtt_log: u32) -> u32 {
    let halvings = min_rtt_us >> rtt_log;
    if halvings == 0 {
        return gso_max;
    }
    let share = if halvings < 32 {
        gso_max >> halvings
    } else {
        0
    };
    let rate_bytes = rate().0 >> PACING_SHIFT;
    rate_bytes.saturating_add(share.into()).min(gso_max.into()) as u32
}

/// Returns whether the round trip is so short that bursts are as large as the device accepts.
#[inline]
pub(super) fn is_path_short(cx: &Cx<'_>, path: Path<'_>) -> bool {
    let min_rtt_us = path.rtt.min_rtt().map_or(0, Nanos::as_micros);
    min_rtt_us >> cx.sysctl.tcp_tso_rtt_log == 0
}

impl Sender {
    /// Returns the most segments of a super-segment that is sent now.
    #[inline]
    pub(crate) fn max_segs(&self, cx: &Cx<'_>, path: Path<'_>) -> u32 {
        let gso_max = gso_max_payload(&cx.device, self.ip_header_len);
        let min_rtt_us = path.rtt.min_rtt().map_or(0, Nanos::as_micros);
        let rate = || self.pacing_rate(path, cx.sysctl);
        let bytes = burst_bytes(gso_max, rate, min_rtt_us, cx.sysctl.tcp_tso_rtt_log);
        let mss = self.mss.bytes();
        let most = (gso_max / mss).min(cx.device.gso_max_segs).clamp(1, 0xffff);
        let least = path
            .congestion
            .algorithm()
            .min_tso_segs()
            .unwrap_or(cx.sysctl.tcp_min_tso_segs);
        (bytes / mss).max(least).min(most)
    }

    /// Updates the size to which writes fill a super-segment: a multiple of the MSS that the device
    /// accepts and of which the peer's window holds two.
    pub(crate) fn sync_size_goal(&mut self, device: &DeviceCaps) {
        let gso_max = gso_max_payload(device, self.ip_header_len);
        self.size_goal_for = device.gso_max_size;
        self.size_goal = size_goal(gso_max, device.gso_max_segs, self.max_wnd, self.mss);
    }

    /// Performs [`sync_size_goal`](Self::sync_size_goal) if the device's limit has changed.
    #[inline]
    pub(crate) fn refresh_size_goal(&mut self, device: &DeviceCaps) {
        if self.size_goal_for != device.gso_max_size {
            cold_path();
            self.sync_size_goal(device);
        }
    }
}

fn size_goal(gso_max: u32, gso_max_segs: u32, max_wnd: u32, mss: Mss) -> u32 {
    let bytes = gso_max.min(max_wnd / 2);
    (bytes / mss.bytes()).min(gso_max_segs).max(1) * mss.bytes()
}

#[cfg(test)]
mod tests {
    use fullsend_wire::{Mss, Nanos, Rate};

    use super::{burst_bytes, gso_max_payload, is_path_short, size_goal};
    use crate::DeviceCaps;
    use crate::rtt::RttEstimator;
    use crate::send::properties::{SenderConfig, TestSender};

    const CLASSIC: DeviceCaps = DeviceCaps {
        mtu: 1500,
        gso_max_size: 65_536,
        gso_max_segs: 65_535,
        fq: false,
    };

    #[test]
    fn the_classic_super_segment_is_45_segments() {
        let mss = Mss::clamped(1448);
        for ip_header_len in [20, 40] {
            let max = gso_max_payload(&CLASSIC, ip_header_len);
            assert_eq!(size_goal(max, 65_535, 1 << 20, mss), 65_160);
            assert_eq!(size_goal(max, 10, 1 << 20, mss), 14_480);
            assert_eq!(size_goal(max, 65_535, 20_000, mss), 8688);
            assert_eq!(size_goal(max, 65_535, 0, mss), 1448);
        }
    }

    #[test]
    fn bursts_shrink_with_the_round_trip_and_grow_with_the_rate() {
        let at = |rate: u64, rtt_us| burst_bytes(65_160, || Rate(rate), rtt_us, 9);
        assert_eq!(at(0, 100), 65_160);
        assert_eq!(at(0, 600), 32_580);
        assert_eq!(at(10_240_000, 600), 42_580);
        assert_eq!(at(0, 100_000), 0);
        assert_eq!(at(125_000_000, 100_000), 65_160);
    }

    /// Spec 1.6: from 32 halvings on the part that halves is zero.
    #[test]
    fn rate_share_remains_at_any_round_trip() {
        for halvings in [31, 32, 33, 100] {
            let bytes = burst_bytes(u32::MAX, || Rate(10_240_000), halvings << 9, 9);
            assert_eq!(bytes, 10_000 + u32::from(halvings == 31), "{halvings}");
        }
    }

    /// Spec 1.6: the part that halves is whole up to 511 microseconds.
    #[test]
    fn a_path_is_short_below_512_microseconds() {
        let mut sender = TestSender::new(SenderConfig::default());
        for (us, short) in [(1, true), (511, true), (512, false), (513, false)] {
            *sender.conn.parts_mut().rtt = RttEstimator::new(200_000, 120_000);
            let rtt = Nanos::from_micros(us);
            sender
                .conn
                .parts_mut()
                .rtt
                .on_sample(sender.now, rtt, false);
            let is_short = sender.with(|conn, cx| is_path_short(cx, conn.sender_and_path().1));
            assert_eq!(is_short, short, "{us}");
        }
    }
}
