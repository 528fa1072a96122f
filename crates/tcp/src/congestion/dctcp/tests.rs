use fullsend_wire::{Instant, SeqNum};

use super::Dctcp;
use crate::congestion::{Algorithm, CcInfo, CongestionEvent, Cwnd, MarkSample};

/// A sender whose windows have 1,000 bytes each.
struct MarkedFlow {
    cc: Dctcp,
    una: u32,
}

impl MarkedFlow {
    fn new() -> Self {
        let cc = Dctcp::new();
        Self { cc, una: 0 }
    }

    /// Completes one window with `marked_bytes` marked bytes, and returns alpha.
    fn window(&mut self, marked_bytes: u32) -> u32 {
        self.una += 1000;
        self.cc.on_marks(&MarkSample {
            acked_bytes: 1000,
            marked_bytes,
            snd_una: SeqNum::new(self.una),
            snd_nxt: SeqNum::new(self.una + 1000),
        });
        self.alpha()
    }

    fn alpha(&self) -> u32 {
        match self.cc.info() {
            CcInfo::Dctcp { alpha, .. } => alpha,
            other => panic!("{other:?}"),
        }
    }

    fn ssthresh(&mut self, cwnd: u32, event: CongestionEvent) -> u32 {
        let window = Cwnd {
            cwnd,
            ..Cwnd::default()
        };
        self.cc.ssthresh(&window, event, Instant::ZERO)
    }
}

/// RFC 8257 3.3, computed by hand: alpha loses a sixteenth, and gains 64 for a fully marked window.
#[test]
fn alpha_follows_the_share_of_marked_bytes() {
    let mut sender = MarkedFlow::new();
    assert_eq!(sender.alpha(), 1024);
    // 1024 - 64 + 64.
    assert_eq!(sender.window(1000), 1024);
    // 1024 - 64; 960 - 60; 900 - 56; 844 - 52.
    assert_eq!([0; 4].map(|none| sender.window(none)), [960, 900, 844, 792]);
    // 792 - 49 + 64 * 250 / 1000.
    assert_eq!(sender.window(250), 759);
    // 759 - 47 + 64 * 999 / 1000, rounded down.
    assert_eq!(sender.window(999), 775);
}

#[test]
fn alpha_reaches_zero_and_not_below() {
    let mut sender = MarkedFlow::new();
    let mut windows = 0;
    while sender.window(0) > 0 {
        windows += 1;
        assert!(windows < 100);
    }
    assert_eq!(sender.window(0), 0);
    // 64 * 15 / 1000 is less than one; 64 * 16 / 1000 is one.
    assert_eq!(sender.window(15), 0);
    assert_eq!(sender.window(16), 1);
    assert_eq!(sender.window(0), 0);
}

/// Several ACKs of one window cause one update, at the ACK that reaches its end.
#[test]
fn alpha_changes_once_a_window() {
    let mut sender = MarkedFlow::new();
    let ack = |una, marked_bytes| MarkSample {
        acked_bytes: 100,
        marked_bytes,
        snd_una: SeqNum::new(una),
        snd_nxt: SeqNum::new(1000),
    };
    // The first ACK ends the initial window.
    sender.cc.on_marks(&ack(100, 0));
    assert_eq!(sender.alpha(), 960);
    for una in (200..1000).step_by(100) {
        sender.cc.on_marks(&ack(una, 100));
        assert_eq!(sender.alpha(), 960);
    }
    let CcInfo::Dctcp { ab_ecn, ab_tot, .. } = sender.cc.info() else {
        panic!("it is DCTCP");
    };
    assert_eq!((ab_ecn, ab_tot), (800, 800));
    // 960 - 60 + 64 * 800 / 900.
    sender.cc.on_marks(&ack(1000, 0));
    assert_eq!(sender.alpha(), 956);
}

/// RFC 8257 3.3: cwnd * (1 - alpha / 2).
#[test]
fn a_mark_reduces_by_half_of_alpha() {
    let mut sender = MarkedFlow::new();
    assert_eq!(sender.ssthresh(100, CongestionEvent::Ecn), 50);
    while sender.window(0) > 256 {}
    // 256 - 16 + ...: the next value below is 255.
    let alpha = sender.alpha();
    assert!((240..=256).contains(&alpha), "{alpha}");
    assert_eq!(
        sender.ssthresh(100, CongestionEvent::Ecn),
        100 - 100 * alpha / 2048
    );
    while sender.window(0) > 0 {}
    assert_eq!(sender.ssthresh(100, CongestionEvent::Ecn), 100);
    assert_eq!(MarkedFlow::new().ssthresh(3, CongestionEvent::Ecn), 2);
}

/// RFC 8257 3.5.
#[test]
fn a_loss_halves_for_any_alpha() {
    let mut sender = MarkedFlow::new();
    while sender.window(0) > 0 {}
    for event in [CongestionEvent::Loss, CongestionEvent::Rto] {
        assert_eq!(sender.ssthresh(100, event), 50);
    }
}

/// A loss in the window that a mark has already reduced: in total the reduction of Reno.
#[test]
fn a_loss_after_a_mark_reduces_to_half_in_total() {
    let mut sender = MarkedFlow::new();
    while sender.window(0) > 0 {}
    let mut window = Cwnd {
        cwnd: 100,
        ..Cwnd::default()
    };
    window.reduce(97);
    window.cwnd = 98;
    assert_eq!(sender.cc.ssthresh_of_loss_after_mark(&window), 50);
    window.ssthresh = 50;
    assert_eq!(sender.cc.ssthresh_of_loss_after_mark(&window), 50);
}

#[test]
fn without_ecn_dctcp_is_reno() {
    let mut sender = MarkedFlow::new();
    while sender.window(0) > 0 {}
    sender.cc.disable_ecn();
    assert_eq!(sender.cc.name(), "dctcp-reno");
    assert_eq!(sender.cc.info(), CcInfo::DctcpFallback);
    assert_eq!(sender.ssthresh(100, CongestionEvent::Ecn), 50);
}
