use fullsend_offload::{Checksum, GsoKind, HeaderBuf, Link, Offload, Packet, Slice};
use fullsend_wire::checksum::sum;
use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::{Instant, Nanos, Seed};

use super::{Fate, LinkDirection, Loss};

fn direction(spec: &str) -> LinkDirection {
    LinkDirection::new(spec.parse().unwrap(), Seed::from_u64(3))
}

/// Returns an IPv4 TCP packet of `len` bytes with the given ECN field.
fn packet(len: usize, ecn: u8) -> Packet {
    let mut header = vec![0; 40];
    (header[0], header[1], header[8], header[9]) = (0x45, ecn, 64, 6);
    header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let value = sum(&header[..20]).checksum();
    header[10..12].copy_from_slice(&value.to_be_bytes());
    header[32] = 0x50;
    let mut packet = Packet {
        header: HeaderBuf::from_slice(&header),
        payload: Slice::copied_from(&vec![7; len - 40]).into(),
        ..Packet::default()
    };
    packet.parse(Link::Ip).unwrap();
    packet
}

/// Sends a packet; returns the arrival times in microseconds, and the losses.
fn send(direction: &mut LinkDirection, at_us: u64, packet: Packet) -> (Vec<u64>, Vec<Loss>) {
    let (mut arrivals, mut losses) = (Vec::new(), Vec::new());
    for fate in fates(direction, at_us, packet) {
        match fate {
            Fate::Arrives(at, _) => arrivals.push(at.as_micros()),
            Fate::Lost(why, _) => losses.push(why),
        }
    }
    (arrivals, losses)
}

fn fates(direction: &mut LinkDirection, at_us: u64, packet: Packet) -> Vec<Fate> {
    let mut fates = Vec::new();
    let now = Instant::ZERO + Nanos::from_micros(at_us);
    direction.send(now, packet, &mut fates);
    fates
}

#[test]
fn the_bottleneck_serializes_packets() {
    let mut direction = direction("rate 10mbit delay 5ms");
    assert_eq!(send(&mut direction, 0, packet(1250, 0)).0, [6_000]);
    assert_eq!(send(&mut direction, 0, packet(1250, 0)).0, [7_000]);
    assert_eq!(send(&mut direction, 10_000, packet(125, 0)).0, [15_100]);
}

#[test]
fn a_super_segment_takes_the_wire_bytes_of_its_segments() {
    let mut whole = packet(40 + 3000, 0);
    whole.offload = Offload {
        gso_size: 1000,
        gso_segs: 3,
        kind: GsoKind::TcpV4,
        checksum: Checksum::Partial,
        ..Offload::default()
    };
    // Three headers, and four bytes of overhead for each.
    let mut direction = direction("rate 8mbit 4 limit 5");
    assert_eq!(send(&mut direction, 0, whole.clone()).0, [3_132]);
    assert_eq!(send(&mut direction, 0, packet(996, 0)).0, [4_132]);
    // Seven packets would be queued.
    assert_eq!(send(&mut direction, 0, whole).1, [Loss::QueueFull]);
}

#[test]
fn a_full_queue_drops_until_it_drains() {
    let mut direction = direction("rate 10mbit limit 2");
    assert_eq!(send(&mut direction, 0, packet(1250, 0)).0, [1_000]);
    assert_eq!(send(&mut direction, 0, packet(1250, 0)).0, [2_000]);
    assert_eq!(
        send(&mut direction, 0, packet(1250, 0)).1,
        [Loss::QueueFull]
    );
    assert_eq!(send(&mut direction, 1_000, packet(1250, 0)).0, [3_000]);
}

#[test]
fn jitter_spreads_evenly_to_both_sides() {
    let mut direction = direction("delay 10ms 2ms");
    let mut arrivals: Vec<u64> = (0..2000)
        .flat_map(|_| send(&mut direction, 0, packet(100, 0)).0)
        .collect();
    arrivals.sort_unstable();
    assert!(arrivals[0] >= 8_000 && arrivals[0] < 8_050);
    assert!(arrivals[1999] <= 12_000 && arrivals[1999] > 11_950);
    assert!((9_900..10_100).contains(&arrivals[1000]));
}

#[test]
fn uniform_and_bursty_loss_match_their_rate() {
    let share = |spec: &str| {
        let mut direction = direction(spec);
        let lost: Vec<bool> = (0..50_000)
            .map(|_| !send(&mut direction, 0, packet(100, 0)).1.is_empty())
            .collect();
        let count = lost.iter().filter(|l| **l).count();
        let bursts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
        (count as f64 / 50_000.0, count as f64 / bursts as f64)
    };
    let (lost, run) = share("loss 2%");
    assert!((0.018..0.022).contains(&lost) && run < 1.1, "{lost} {run}");
    // A burst ends with 25 %: it is four packets long; one packet in 49 starts one.
    let (lost, run) = share("loss gemodel 0.5% 25%");
    assert!((0.015..0.025).contains(&lost), "{lost}");
    assert!((3.5..4.5).contains(&run), "{run}");
}

#[test]
fn duplication_and_reordering() {
    let mut twice = direction("duplicate 100% delay 1ms");
    assert_eq!(send(&mut twice, 0, packet(100, 0)).0, [1_000, 1_000]);
    let mut third = direction("delay 1ms reorder 100% gap 3");
    let arrivals: Vec<u64> = (0..6)
        .flat_map(|_| send(&mut third, 0, packet(100, 0)).0)
        .collect();
    assert_eq!(arrivals, [1_000, 1_000, 0, 1_000, 1_000, 0]);
}

#[test]
fn corruption_flips_one_bit_of_one_segment() {
    let mut whole = packet(40 + 3000, 0);
    whole.offload.gso_size = 1000;
    whole.offload.gso_segs = 3;
    whole.offload.kind = GsoKind::TcpV4;
    let mut good = Vec::new();
    fullsend_offload::segment(whole.clone(), &mut good);
    let mut direction = direction("corrupt 100%");
    let out = fates(&mut direction, 0, whole);
    assert_eq!(out.len(), 3);
    let flipped: u32 = out
        .iter()
        .zip(&good)
        .map(|(fate, good)| {
            let Fate::Arrives(_, packet) = fate else {
                panic!("{fate:?}");
            };
            let pairs = packet.to_bytes().into_iter().zip(good.to_bytes());
            pairs.map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
        })
        .sum();
    assert_eq!(flipped, 1);
}

#[test]
fn ecn_marks_instead_of_dropping() {
    let mut direction = direction("loss 100% ecn");
    assert_eq!(send(&mut direction, 0, packet(100, 0)).1, [Loss::Random]);
    for ecn in [1, 2, 3] {
        let out = fates(&mut direction, 0, packet(100, ecn));
        let [Fate::Arrives(_, marked)] = &out[..] else {
            panic!("{out:?}");
        };
        let ip = Ipv4View::new(&marked.header).unwrap();
        assert!(ip.tos() & 3 == 3 && ip.checksum_ok());
    }
}

#[test]
fn queueing_past_the_threshold_marks() {
    let mut direction = direction("rate 10mbit ce_threshold 1500us");
    let marks: Vec<u8> = (0..4)
        .flat_map(|_| fates(&mut direction, 0, packet(1250, 2)))
        .map(|fate| match fate {
            Fate::Arrives(_, packet) => packet.header[1] & 3,
            Fate::Lost(..) => 9,
        })
        .collect();
    assert_eq!(marks, [2, 2, 3, 3]);
}
