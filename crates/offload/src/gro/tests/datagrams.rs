//! UDP: coalescing of datagrams of one size.

use super::*;

/// Returns a datagram with every header shape.
fn datagrams() -> Vec<TestPacket> {
    let udp = |tcp| TestPacket { udp: true, ..tcp };
    shapes().into_iter().map(udp).collect()
}

#[test]
fn datagrams_of_equal_size_are_merged_and_segmented_again() {
    for udp in datagrams() {
        let run = udp.run(5, 1000);
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(show_lens(&out), "5000/1000*5", "{udp:?}");
        assert_eq!(out[0].offload.kind, GsoKind::Udp);
        assert_restored(&out, &run, &udp);
    }
}

/// Returns lengths and segments as `show` does, without TCP flags.
fn show_lens(out: &[Packet]) -> String {
    let one = |p: &Packet| match p.segments() {
        1 => alloc::format!("{}", p.payload.len()),
        n => alloc::format!("{}/{}*{n}", p.payload.len(), p.offload.gso_size),
    };
    out.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn lens(udp: &TestPacket, lens: &[usize]) -> String {
    let mut run = udp.run(lens.len(), 1000);
    for (packet, len) in run.iter_mut().zip(lens) {
        packet.payload = payload(1, *len);
    }
    let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
    assert_restored(&out, &run, udp);
    show_lens(&out)
}

#[test]
fn a_shorter_datagram_ends_and_a_longer_one_starts_a_super_segment() {
    for udp in datagrams() {
        assert_eq!(lens(&udp, &[1000, 1000, 400, 1000]), "2400/1000*3 1000");
        assert_eq!(lens(&udp, &[1000, 1200, 1200]), "1000 2400/1200*2");
        assert_eq!(lens(&udp, &[1000, 0, 1000]), "1000 0 1000");
        assert_eq!(lens(&udp, &[7, 7, 7]), "21/7*3");
    }
}

#[test]
fn at_most_64_datagrams_are_merged() {
    for udp in datagrams() {
        assert_eq!(lens(&udp, &[100; 70]), "6400/100*64 600/100*6");
    }
}

#[test]
fn a_datagram_without_a_checksum_passes_unmerged() {
    // Over IPv6 the checksum is required (RFC 8200 8.1).
    for udp in datagrams().into_iter().filter(|udp| !udp.v6) {
        let mut run = udp.run(3, 1000);
        run[1].no_checksum = true;
        let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
        assert_eq!(show_lens(&out), "1000 1000 1000");
        assert_restored(&out, &run, &udp);
    }
}

#[test]
fn a_wrong_checksum_passes_unmerged() {
    for udp in datagrams() {
        let mut run = udp.run(3, 1000);
        run[1].break_checksum = true;
        let mut gro = new_gro();
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        let bad = |p: &&Packet| p.offload.checksum == Checksum::Unverified;
        let bad: Vec<_> = out.iter().filter(bad).map(Packet::to_bytes).collect();
        assert_eq!(bad, [run[1].frame()]);
        assert_eq!(gro.stats().bad_checksum, 1);
    }
}

/// Packets with different TTL or traffic class belong to the same flow and are not overtaken by
/// packets that are coalesced.
#[test]
fn datagrams_with_different_ttl_tos_or_port_are_not_merged() {
    let changes: [fn(&mut TestPacket); 3] = [|p| p.ttl -= 1, |p| p.tos = 4, |p| p.port += 1];
    for udp in datagrams() {
        for (change, left) in changes.into_iter().zip([3, 3, 2]) {
            let mut run = udp.run(3, 1000);
            change(&mut run[1]);
            if left == 2 {
                // The third packet has an IP ID with which it could join the first.
                let (first, third) = (run[0].clone(), &mut run[2]);
                third.ip_id = first.ip_id;
                third.outer = first.outer;
            }
            let out = poll(&mut new_gro(), run.iter().map(TestPacket::packet));
            assert_eq!(out.len(), left, "{udp:?}");
            if left == 3 {
                assert_restored(&out, &run, &udp);
            }
        }
    }
}
