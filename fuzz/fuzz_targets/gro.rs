//! Sends raw frames, split into slices anywhere, through GRO and then GSO: no panic, and the number
//! of payload bytes after GRO is that before.
#![no_main]

use fullsend_offload::{
    Chain, Checksum, Gro, GroConfig, GsoKind, Link, Packet, Slice, Tunnels, segment,
};
use fullsend_wire::Instant;
use libfuzzer_sys::fuzz_target;

const TUNNELS: Tunnels = Tunnels {
    fou: Some((5555, 47)),
    gue: Some(6080),
    ..Tunnels::STANDARD
};

/// Removes and returns the first `n` bytes, or all if there are fewer.
fn take<'a>(data: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = data.split_at(n.min(data.len()));
    *data = tail;
    head
}

fn frame(data: &mut &[u8]) -> Packet {
    let Some(&[len, cut, what, size]) = take(data, 4).first_chunk() else {
        return Packet::default();
    };
    let bytes = take(data, usize::from(len) * 4);
    let (a, b) = bytes.split_at(usize::from(cut).min(bytes.len()));
    let chain: Chain = [a, b].into_iter().map(Slice::copied_from).collect();
    let mut packet = Packet::from_frame(chain);
    packet.offload.checksum = match what % 4 {
        0 => Checksum::Partial,
        1 => Checksum::Valid,
        _ => Checksum::Unverified,
    };
    if what & 4 != 0 {
        packet.offload.gso_size = u16::from(size);
        packet.offload.gso_segs = u16::from(what >> 3);
        packet.offload.kind = if what & 8 == 0 {
            GsoKind::TcpV4
        } else {
            GsoKind::TcpV6
        };
    }
    packet
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let link = match take(&mut data, 1) {
        [n] if n % 2 == 1 => Link::Ethernet,
        _ => Link::Ip,
    };
    let mut gro = Gro::new(GroConfig {
        link,
        enabled: true,
        max_size: 65_536,
        tunnels: TUNNELS,
    });
    let (mut out, mut payload_in) = (Vec::new(), 0);
    while !data.is_empty() {
        let packet = frame(&mut data);
        let mut parsed = packet.clone();
        if parsed.parse_with_tunnels(link, &TUNNELS).is_ok() {
            payload_in += parsed.payload.len();
        }
        gro.receive(Instant::ZERO, packet);
    }
    gro.flush(&mut out);
    assert_eq!(
        out.iter().map(|p| p.payload.len()).sum::<usize>(),
        payload_in
    );
    let mut cut = Vec::new();
    for packet in out {
        segment(packet, &mut cut);
    }
});
