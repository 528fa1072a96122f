use std::sync::atomic::{AtomicU64, Ordering};

use fullsend_offload::{Link, Packet, Tunnels};
use fullsend_units::Nanos;

use super::legacy::LegacyComplete;
use super::{EXPERIMENT, SHAPES};
use crate::experiment::{AFTER, Progress, Run, Scale};
use crate::testing::quick_all;

#[test]
fn the_second_walk_finds_what_the_first_recorded() {
    for shape in &SHAPES {
        let mut packet = Packet::from_frame(shape.frame(0));
        packet
            .parse_through(Link::Ip, &Tunnels::STANDARD)
            .expect("it is whole");
        let mut legacy = LegacyComplete::default();
        let found = legacy.complete(&packet.header);
        let recorded = (usize::from(packet.layers.transport), packet.layers.protocol);
        assert_eq!(found, Some(recorded), "{}", shape.received.row);
        assert_eq!(legacy.walks as f64, shape.walks[1]);
    }
    assert_eq!(LegacyComplete::default().complete(&[0x60; 6]), None);
}

#[test]
fn nothing_is_walked_twice_and_it_was() {
    let cases = quick_all(&EXPERIMENT);
    let figures = EXPERIMENT.figures(&cases);
    assert!(
        figures.iter().all(|f| f.holds != Some(false)),
        "{figures:?}"
    );
    assert_eq!(figures.iter().filter(|f| f.holds.is_some()).count(), 6);
}

#[test]
fn with_a_clock_times_are_told() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let case = |case| {
        EXPERIMENT.run(&Run {
            case,
            seed: 1,
            scale: Scale::Quick,
            clock: Some(|| Nanos::from_nanos(NOW.fetch_add(440, Ordering::Relaxed))),
            progress: &Progress::default(),
        })
    };
    let cases = [case(0), case(1)];
    assert_eq!(cases[AFTER].get("extension_ns_per_packet"), 10.0);
    let figures = EXPERIMENT.figures(&cases);
    let row = |what| figures.iter().find(|f| f.what == what).expect(what);
    let time = row("IPv6: a packet's time, measured here");
    assert_eq!((time.ours, time.holds), ([Some(10.0); 2], None));
    let cost = row("extension headers: cost beside plain IPv6, measured here");
    assert_eq!(cost.show(cost.reference), "9.7");
    assert_eq!(cost.show(cost.ours), "0");
}
