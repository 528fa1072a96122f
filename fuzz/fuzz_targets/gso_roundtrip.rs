//! Coalesces mostly consecutive TCP packets with changed header bytes and correct checksums:
//! segmentation restores exactly these packets.
#![no_main]

use fullsend_offload::{Checksum, Gro, GroConfig, Link, Packet, Slice, Tunnels, segment};
use fullsend_wire::Instant;
use fullsend_wire::checksum::{Sum, sum};
use libfuzzer_sys::fuzz_target;

/// A flow: its header template and the sequence number and IP ID of its next packet.
struct Flow {
    v6: bool,
    header: Vec<u8>,
    seq: u32,
    ip_id: u16,
}

impl Flow {
    fn new(v6: bool) -> Self {
        let mut header = if v6 {
            let mut ip = vec![0xfd; 40];
            ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 6, 64]);
            ip
        } else {
            vec![
                0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
            ]
        };
        header.extend([
            0, 80, 4, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x80, 0x10, 1, 0, 0, 0, 0, 0,
        ]);
        header.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        Self {
            v6,
            header,
            seq: u32::MAX - 999,
            ip_id: 0xfffd,
        }
    }

    /// Returns the next packet with `len` payload bytes and header byte `at` changed, in all later
    /// packets too if `lasting`.
    fn next(&mut self, len: usize, at: usize, change: u8, lasting: bool) -> Vec<u8> {
        let v6 = self.v6;
        let t = if v6 { 40 } else { 20 };
        let mut frame = self.header.clone();
        frame[t + 4..t + 8].copy_from_slice(&self.seq.to_be_bytes());
        if !v6 {
            frame[4..6].copy_from_slice(&self.ip_id.to_be_bytes());
        }
        frame.extend((0..len).map(|i| (i as u8) ^ len as u8));
        let whole = frame.len();
        if v6 {
            frame[4..6].copy_from_slice(&((whole - 40) as u16).to_be_bytes());
        } else {
            frame[2..4].copy_from_slice(&(whole as u16).to_be_bytes());
        }
        let at = at % self.header.len();
        frame[at] ^= change;
        if lasting {
            self.header[at] ^= change;
        }
        self.seq = self.seq.wrapping_add(len as u32);
        self.ip_id = self.ip_id.wrapping_add(1);
        put_checksums_right(&mut frame, v6, t);
        frame
    }
}

/// The encapsulation of a packet.
#[derive(Clone, Copy)]
enum Tunnel {
    None,
    Ip6,
    GreKey,
    Vxlan,
}

/// Returns the encapsulated packet, with byte `at` of the outer headers changed.
fn wrap(inner: &[u8], v6: bool, tunnel: Tunnel, id: u16, at: usize, change: u8) -> Vec<u8> {
    let ether = if v6 { [0x86, 0xdd] } else { [8, 0] };
    let head = match tunnel {
        Tunnel::None => return inner.to_vec(),
        Tunnel::Ip6 => vec![],
        Tunnel::GreKey => vec![0x20, 0, ether[0], ether[1], 0, 0, 0, 1],
        Tunnel::Vxlan => {
            let mut udp = vec![0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0];
            udp[4..6].copy_from_slice(&(30 + inner.len() as u16).to_be_bytes());
            udp.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, ether[0], ether[1]]);
            udp
        }
    };
    let mut out = if matches!(tunnel, Tunnel::Ip6) {
        let mut ip = vec![0xfc; 40];
        let next = if v6 { 41 } else { 4 };
        ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, next, 64]);
        ip[4..6].copy_from_slice(&(inner.len() as u16).to_be_bytes());
        ip
    } else {
        let protocol = if matches!(tunnel, Tunnel::Vxlan) {
            17
        } else {
            47
        };
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        ip.extend([192, 0, 2, 1, 192, 0, 2, 2]);
        let len = (20 + head.len() + inner.len()) as u16;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip
    };
    let network = out.len();
    out.extend(head);
    let at = at % out.len();
    out[at] ^= change;
    out.extend(inner);
    if !matches!(tunnel, Tunnel::Ip6) {
        out[10..12].fill(0);
        let value = sum(&out[..20]).checksum();
        out[10..12].copy_from_slice(&value.to_be_bytes());
    }
    if matches!(tunnel, Tunnel::Vxlan) {
        out[network + 6..network + 8].fill(0);
        let value = sum(&out[12..20])
            + Sum::dword((out.len() - network) as u32)
            + Sum::word(17)
            + sum(&out[network..]);
        out[network + 6..network + 8].copy_from_slice(&value.udp_checksum().to_be_bytes());
    }
    out
}

fn put_checksums_right(frame: &mut [u8], v6: bool, t: usize) {
    let addresses = if v6 { 8..40 } else { 12..20 };
    if !v6 {
        frame[10..12].fill(0);
        let value = sum(&frame[..20]).checksum();
        frame[10..12].copy_from_slice(&value.to_be_bytes());
    }
    frame[t + 16..t + 18].fill(0);
    let value = sum(&frame[addresses])
        + Sum::dword((frame.len() - t) as u32)
        + Sum::word(6)
        + sum(&frame[t..]);
    frame[t + 16..t + 18].copy_from_slice(&value.checksum().to_be_bytes());
}

fuzz_target!(|data: &[u8]| {
    let mut flows: Vec<_> = (0..8).map(|i| Flow::new(i % 2 == 1)).collect();
    let tunnels = [Tunnel::None, Tunnel::Ip6, Tunnel::GreKey, Tunnel::Vxlan];
    let mut gro = Gro::new(GroConfig {
        link: Link::Ip,
        enabled: true,
        max_size: 65_536,
        tunnels: Tunnels::STANDARD,
    });
    let (mut expected, mut out) = (Vec::new(), Vec::new());
    for step in data.as_chunks::<5>().0 {
        let [what, len, at, change, outer] = *step;
        let index = usize::from(what & 1) + usize::from(outer & 3) * 2;
        let flow = &mut flows[index];
        // Most packets have the same length.
        let len = if what & 6 == 0 { usize::from(len) } else { 100 };
        let change = if what & 0x18 == 0 { change } else { 0 };
        // The change is either in the inner or in the outer headers.
        let (inner_change, outer_change) = match outer & 4 {
            0 => (change, 0),
            _ => (0, change),
        };
        let (v6, id) = (flow.v6, flow.ip_id);
        let frame = flow.next(len, usize::from(at), inner_change, what & 0x20 != 0);
        let tunnel = tunnels[usize::from(outer & 3)];
        let frame = wrap(&frame, v6, tunnel, id, usize::from(at), outer_change);
        let packet = Packet::from_frame(Slice::copied_from(&frame));
        let mut parsed = packet.clone();
        if parsed
            .parse_with_tunnels(Link::Ip, &Tunnels::STANDARD)
            .is_ok()
        {
            expected.push(parsed.to_bytes());
        }
        gro.receive(Instant::ZERO, packet);
    }
    gro.flush(&mut out);
    let mut cut = Vec::new();
    for packet in out {
        assert!(packet.offload.checksum != Checksum::Partial || packet.segments() > 1);
        segment(packet, &mut cut);
    }
    let mut cut: Vec<_> = cut.iter().map(Packet::to_bytes).collect();
    cut.sort();
    expected.sort();
    assert_eq!(cut, expected);
});
