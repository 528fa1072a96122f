//! The jumbo payload option (RFC 2675) on IPv6 super-segments beyond 64 KiB.
//!
//! Here a length field of 0 and the packet's own length are enough. Kernels before Linux 6.x told
//! such packets by a hop-by-hop header that says the length again.

use fullsend_wire::numbers::{ethertype, protocol};

use crate::bytes::{be16, put16, put32};
use crate::{Encap, Packet};

/// Hop-by-hop header with the option alone.
const LEN: usize = 8;
/// Its second to fourth byte: 8 bytes in all, option type, option length.
pub(crate) const OPTION: [u8; 3] = [0, 0xc2, 4];

impl Packet {
    /// Puts the jumbo payload option into a super-segment beyond 64 KiB; false, and nothing
    /// changes, if it is none, is not IPv6, is tunnelled, or has hop-by-hop options already.
    /// [`segment`](crate::segment) takes it out again.
    pub fn put_jumbo_option(&mut self) -> bool {
        let network = usize::from(self.layers.network[0]);
        let fixed = network + 40;
        let suits = self.layers.ethertype == ethertype::IPV6
            && self.layers.encap == Encap::None
            && self.len() - fixed.min(self.len()) > usize::from(u16::MAX)
            && self.header.len() >= fixed
            && self.header[network + 6] != protocol::HOP_BY_HOP;
        if !suits {
            return false;
        }
        self.header.prepend(LEN);
        self.header.copy_within(LEN..LEN + fixed, 0);
        let len = self.len() - fixed;
        let header = &mut *self.header;
        header[fixed] = header[network + 6];
        header[fixed + 1..fixed + 4].copy_from_slice(&OPTION);
        put32(header, fixed + 4, len as u32);
        header[network + 6] = protocol::HOP_BY_HOP;
        put16(header, network + 4, 0);
        self.layers.transport += LEN as u16;
        true
    }

    /// Takes the option out of a packet that is about to be cut, where it stands alone and counts.
    /// Where the length field is not 0 (RFC 2675 3: an error), it came with the segments and stays
    /// on each of them.
    pub(crate) fn drop_jumbo_option(&mut self) {
        let network = usize::from(self.layers.network[0]);
        let fixed = network + 40;
        let found = self.layers.ethertype == ethertype::IPV6
            && self.layers.encap == Encap::None
            && usize::from(self.layers.transport) >= fixed + LEN
            && self.header.len() >= fixed + LEN
            && self.header[network + 6] == protocol::HOP_BY_HOP
            && self.header[fixed + 1..fixed + 4] == OPTION
            && be16(&self.header, network + 4) == 0;
        if !found {
            return;
        }
        self.header[network + 6] = self.header[fixed];
        self.header.copy_within(0..fixed, LEN);
        self.header.truncate_front(LEN);
        self.layers.transport -= LEN as u16;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use fullsend_units::Instant;

    use crate::testing::{Tcp, payload};
    use crate::{Gro, GroConfig, GsoKind, Link, Packet, Tunnels, segment};

    fn poll(packets: impl IntoIterator<Item = Packet>) -> Vec<Packet> {
        let mut gro = Gro::new(GroConfig {
            link: Link::Ip,
            enabled: true,
            max_size: 8 * 65_535,
            tunnels: Tunnels::NONE,
        });
        for packet in packets {
            gro.receive(Instant::ZERO, packet);
        }
        let mut out = Vec::new();
        gro.flush(&mut out);
        out
    }

    fn cut(packets: Vec<Packet>) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for packet in packets {
            segment(packet, &mut out);
        }
        out.iter().map(Packet::to_bytes).collect()
    }

    fn joined(tcp: &Tcp, count: usize) -> (Packet, Vec<Vec<u8>>) {
        let run = tcp.run(count, 1400);
        let mut out = poll(run.iter().map(Tcp::packet));
        assert_eq!(out.len(), 1);
        (out.remove(0), run.iter().map(Tcp::frame).collect())
    }

    #[test]
    fn the_option_says_the_length_and_goes_when_cut() {
        let (mut packet, frames) = joined(&Tcp::v6(), 100);
        let transport = packet.transport_header().to_vec();
        assert!(packet.put_jumbo_option());
        let len = 8 + 32 + 140_000_u32;
        let [a, b, c, d] = len.to_be_bytes();
        assert_eq!(packet.header[4..8], [0, 0, 0, 64]);
        assert_eq!(packet.header[40..48], [6, 0, 0xc2, 4, a, b, c, d]);
        assert_eq!(packet.transport_header(), transport);
        assert!(!packet.put_jumbo_option());
        // Across a link it is parsed as it is.
        let mut parsed = packet.clone();
        parsed.parse(Link::Ip).unwrap();
        assert_eq!(parsed.layers, packet.layers);
        assert_eq!(cut(vec![packet]), frames);
    }

    /// RFC 2675 3: with a payload length that is not 0 it is an error, which is the destination's to
    /// report. It stays on each packet.
    #[test]
    fn an_option_that_came_with_the_segments_stays_on_each() {
        let tcp = Tcp {
            extensions: vec![(0, vec![0, 0xc2, 4, 0, 1, 0, 0])],
            ..Tcp::v6()
        };
        let run = tcp.run(60, 1400);
        let frames: Vec<_> = run.iter().map(Tcp::frame).collect();
        let packets = poll(run.iter().map(Tcp::packet));
        assert_eq!(cut(packets), frames);
        // The same, joined by a device.
        let mut joined = Tcp {
            payload: payload(tcp.seq, 3 * 1400),
            ..tcp
        }
        .packet();
        joined.offload.kind = GsoKind::TcpV6;
        joined.offload.gso_size = 1400;
        joined.parse(Link::Ip).unwrap();
        assert_eq!(cut(vec![joined]), frames[..3]);
    }

    #[test]
    fn super_segments_with_the_option_join() {
        let run = Tcp::v6().run(100, 1400);
        let mut halves = run
            .chunks(50)
            .flat_map(|half| poll(half.iter().map(Tcp::packet)));
        let mut with_option = || {
            let mut half = halves.next().unwrap();
            assert!(half.put_jumbo_option());
            half
        };
        let packets = poll([with_option(), with_option()]);
        assert_eq!(packets.len(), 1);
        let frames: Vec<_> = run.iter().map(Tcp::frame).collect();
        assert_eq!(cut(packets), frames);
    }

    #[test]
    fn only_ipv6_beyond_64_kib_takes_it() {
        for (tcp, count) in [(Tcp::v6(), 46), (Tcp::default(), 100)] {
            let (mut packet, _) = joined(&tcp, count);
            let before = packet.to_bytes();
            assert!(!packet.put_jumbo_option());
            assert_eq!(packet.to_bytes(), before);
        }
    }
}
