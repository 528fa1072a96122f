//! Accurate ECN (RFC 9768): GRO does not coalesce packets if that would lose a count.

use super::*;

const AE: u16 = 0x100;

/// Returns TCP options with timestamps and the AccECN option, which reports `marked` CE bytes.
fn counting(marked: u8) -> Vec<u8> {
    let mut options = vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 3];
    options.extend([174, 11, 0, 0, 1, 0, 0, marked, 0, 0, 1, 1]);
    options
}

#[test]
fn segments_with_equal_ace_counters_are_merged() {
    for tcp in shapes() {
        let tcp = TestPacket {
            flags: ACK | AE | ECE,
            options: counting(7),
            ..tcp
        };
        assert_eq!(trace(&tcp.run(3, 1000)), "3000/1000*3");
    }
}

#[test]
fn a_different_ace_counter_starts_a_new_super_segment() {
    for tcp in shapes() {
        let tcp = TestPacket {
            flags: ACK | AE | ECE,
            options: counting(7),
            ..tcp
        };
        let flags = |packet: &mut TestPacket| packet.flags ^= AE;
        let option = |packet: &mut TestPacket| packet.options = counting(8);
        for change in [flags, option] {
            let mut run = tcp.run(4, 1000);
            run[2..].iter_mut().for_each(change);
            assert_eq!(trace(&run), "2000/1000*2 2000/1000*2");
        }
    }
}
