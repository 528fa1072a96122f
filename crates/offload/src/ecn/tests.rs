use fullsend_wire::ipv4::Ipv4View;
use fullsend_wire::ipv6::Ipv6View;

use crate::testing::TestPacket;

#[test]
fn ecn_capable_packets_are_marked_with_correct_checksums() {
    for v6 in [false, true] {
        for (ecn, marked) in [(0, false), (1, true), (2, true), (3, true)] {
            let tcp = TestPacket {
                v6,
                tos: 0xb8 | ecn,
                payload: b"text".to_vec(),
                ..TestPacket::default()
            };
            let mut packet = tcp.packet();
            packet.parse(tcp.link).unwrap();
            let before = packet.to_bytes();
            assert_eq!(packet.mark_ce(), marked);
            let after = packet.to_bytes();
            let tos = if v6 {
                Ipv6View::new(&after).unwrap().traffic_class()
            } else {
                let view = Ipv4View::new(&after).unwrap();
                assert!(view.checksum_ok());
                view.tos()
            };
            assert_eq!(tos, 0xb8 | if marked { 3 } else { 0 });
            let changed = before.iter().zip(&after).filter(|(a, b)| a != b).count();
            assert!(changed <= if v6 { 1 } else { 3 }, "{changed} bytes changed");
            if !marked {
                assert_eq!(before, after);
            }
        }
    }
}

#[test]
fn invalid_packets_are_not_marked() {
    assert!(!crate::Packet::default().mark_ce());
}
