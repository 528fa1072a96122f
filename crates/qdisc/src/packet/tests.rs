use fullsend_offload::{Link, Packet, Slice, TxToken};
use fullsend_wire::Instant;

use crate::QueuedPacket;

/// Returns a UDP packet of 2,528 bytes with ECT(0), to be segmented into three.
fn super_segment() -> Packet {
    let mut frame = [0; 2528];
    frame[..8].copy_from_slice(&[0x60, 0x20, 0, 0, 0x09, 0xb8, 17, 64]);
    frame[44..46].copy_from_slice(&2488_u16.to_be_bytes());
    let mut packet = Packet::from_frame(Slice::copied_from(&frame));
    packet.parse(Link::Ip).unwrap();
    packet.offload.gso_size = 1000;
    packet.offload.gso_segs = 3;
    packet.tx = TxToken {
        socket: 7,
        truesize: 4096,
        departure_ns: 5_000,
    };
    packet
}

#[test]
fn a_super_segment_counts_its_bytes_on_the_wire() {
    let mut packet = super_segment();
    assert_eq!(packet.header.len(), 48);
    assert_eq!(QueuedPacket::wire_len(&packet), 3 * 48 + 2480);
    assert_eq!(QueuedPacket::segments(&packet), 3);
    assert_eq!(QueuedPacket::flow(&packet), 7);
    assert_eq!(QueuedPacket::departure(&packet), Instant::from_nanos(5_000));
    assert!(QueuedPacket::mark_ce(&mut packet));
    // RFC 3168 5: CE is both bits of the traffic class.
    assert_eq!(packet.header[..2], [0x60, 0x30]);
}

#[test]
fn packets_that_are_not_ecn_capable_are_not_marked() {
    let mut packet = super_segment();
    packet.header[1] = 0;
    assert!(!QueuedPacket::mark_ce(&mut packet));
    assert_eq!(packet.header[..2], [0x60, 0]);
}
