use std::sync::atomic::{AtomicU64, Ordering};

use fullsend_offload::{Link, Packet, Tunnels};
use fullsend_wire::Nanos;

use super::legacy::LegacyComplete;
use super::{ENCAPSULATIONS, EXPERIMENT};
use crate::experiment::{AFTER, Progress, RunContext, Scale};
use crate::testing::quick_all;

#[test]
fn the_second_parse_finds_what_the_first_recorded() {
    for encapsulation in &ENCAPSULATIONS {
        let mut packet = Packet::from_frame(encapsulation.frame(0));
        packet
            .parse_with_tunnels(Link::Ip, &Tunnels::STANDARD)
            .expect("it is whole");
        let mut legacy = LegacyComplete::default();
        let found = legacy.complete(&packet.header);
        let recorded = (usize::from(packet.layers.transport), packet.layers.protocol);
        assert_eq!(found, Some(recorded), "{}", encapsulation.received.row);
        assert_eq!(legacy.walks as f64, encapsulation.walks[1]);
    }
    assert_eq!(LegacyComplete::default().complete(&[0x60; 6]), None);
}

#[test]
fn headers_are_parsed_once_instead_of_twice() {
    let cases = quick_all(&EXPERIMENT);
    let figures = EXPERIMENT.figures(&cases);
    assert!(
        figures.iter().all(|f| f.holds != Some(false)),
        "{figures:?}"
    );
    assert_eq!(figures.iter().filter(|f| f.holds.is_some()).count(), 6);
}

#[test]
fn with_a_clock_durations_are_reported() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    let case = |case| {
        EXPERIMENT.run(&RunContext {
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
