//! The size limit of super-segments: 64 KiB or as configured, without and in every tunnel.

use super::*;

/// Returns a packet of every header shape, with TCP and with UDP.
fn all() -> impl Iterator<Item = TestPacket> {
    let with = |udp| {
        shapes()
            .into_iter()
            .map(move |tcp| TestPacket { udp, ..tcp })
    };
    with(false).chain(with(true))
}

/// Returns what a GRO with this limit delivers, after asserting that segmentation restores the
/// packets.
fn outcome(max_size: u32, tcp: &TestPacket, lens: &[usize]) -> String {
    let run = consecutive(tcp, lens);
    let out = poll(
        &mut gro_with_max_size(max_size),
        run.iter().map(TestPacket::packet),
    );
    assert_restored(&out, &run, tcp);
    show(&out)
}

#[test]
fn the_64_kib_limit_is_exact() {
    for tcp in all() {
        let room = 65_535 - header_len(&tcp);
        let full = room / 1448;
        let mut lens = vec![1448; full];
        let whole = full * 1448;
        // The last packet fills the super-segment to 65,535 bytes.
        lens.push(room - whole);
        let coalesced = alloc::format!("{room}/1448*{}", full + 1);
        assert_eq!(outcome(65_536, &tcp, &lens), coalesced, "{tcp:?}");
        // One more byte would make it 65,536 bytes long.
        lens[full] += 1;
        let apart = alloc::format!("{whole}/1448*{full} {}", lens[full]);
        assert_eq!(outcome(65_536, &tcp, &lens), apart, "{tcp:?}");
    }
}

#[test]
fn the_next_packet_starts_a_super_segment() {
    for tcp in all() {
        let fit = (65_535 - header_len(&tcp)) / 1448;
        let rest = 50 - fit;
        let two = alloc::format!("{}/1448*{fit} {}/1448*{rest}", fit * 1448, rest * 1448);
        assert_eq!(outcome(65_536, &tcp, &[1448; 50]), two, "{tcp:?}");
    }
}

#[test]
fn max_size_below_64_kib_is_exact() {
    for tcp in all() {
        let three = header_len(&tcp) as u32 + 3000;
        let lens = [1000; 4];
        assert_eq!(outcome(three + 1, &tcp, &lens), "3000/1000*3 1000");
        assert_eq!(outcome(three, &tcp, &lens), "2000/1000*2 2000/1000*2");
    }
}

#[test]
fn only_tcp_without_a_tunnel_grows_beyond_64k() {
    for tcp in all() {
        let run = tcp.run(60, 1448);
        let out = poll(
            &mut gro_with_max_size(300_000),
            run.iter().map(TestPacket::packet),
        );
        let grows = tcp.outer.is_none() && !tcp.udp;
        assert_eq!(out.len(), if grows { 1 } else { 2 }, "{tcp:?}");
        assert!(grows || out.iter().all(|p| p.len() < 65_536));
        assert_restored(&out, &run, &tcp);
    }
}

#[test]
fn link_headers_do_not_count() {
    for tcp in both_ip_versions() {
        let tcp = TestPacket {
            link: Link::Ethernet,
            vlan: Some(5),
            ..tcp
        };
        let mut gro = Gro::new(GroConfig {
            max_size: (header_len(&tcp) - 18 + 3001) as u32,
            ..GroConfig::new(Link::Ethernet)
        });
        let out = poll(&mut gro, tcp.run(4, 1000).iter().map(TestPacket::packet));
        assert_eq!(show(&out), "3000/1000*3 1000");
    }
}

#[test]
fn super_segments_above_64_kib_have_a_length_of_zero() {
    for tcp in both_ip_versions() {
        let mut gro = gro_with_max_size(200_000);
        let run = tcp.run(100, 1000);
        let out = poll(&mut gro, run.iter().map(TestPacket::packet));
        assert_eq!(show(&out), "100000/1000*100");
        let at = if tcp.v6 { 4 } else { 2 };
        assert_eq!(out[0].network_header()[at..at + 2], [0, 0]);
        let mut again = Vec::new();
        segment(out[0].clone(), &mut again);
        let frames: Vec<_> = again.iter().map(Packet::to_bytes).collect();
        assert_eq!(
            frames,
            run.iter().map(TestPacket::frame).collect::<Vec<_>>()
        );
        // Sent over a link in this process, it is parsed by its own length.
        assert_eq!(show(&poll(&mut gro, out)), "100000/1000*100");
    }
}
