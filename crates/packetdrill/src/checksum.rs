//! Verification of the checksums of IP packets. It has its own arithmetic, so that an error in the
//! stack's does not hide itself.

use std::fmt;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// IPv6 extension headers with the common layout: hop-by-hop, routing, destination options.
const EXTENSIONS: [u8; 3] = [0, 43, 60];

/// The error of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadChecksum {
    /// The length fields of the packet do not match its length.
    Malformed,
    /// The IPv4 header checksum is wrong.
    Ipv4,
    /// The checksum of the protocol with this number is wrong.
    Transport(u8),
}

impl fmt::Display for BadChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("the lengths in its headers are wrong"),
            Self::Ipv4 => f.write_str("the IPv4 header's checksum is wrong"),
            Self::Transport(TCP) => f.write_str("the TCP checksum is wrong"),
            Self::Transport(UDP) => f.write_str("the UDP checksum is wrong"),
            Self::Transport(_) => f.write_str("the ICMP checksum is wrong"),
        }
    }
}

/// Returns the ones' complement sum of 16-bit words (RFC 1071). An odd byte is the first of its
/// word.
fn sum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for word in part.chunks(2) {
            sum += u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Verifies a whole IPv4 or IPv6 packet, or a fragment.
///
/// # Errors
/// The first error found.
pub fn verify(packet: &[u8]) -> Result<(), BadChecksum> {
    match packet.first().map(|first| first >> 4) {
        Some(4) => verify_v4(packet),
        Some(6) => verify_v6(packet),
        _ => Err(BadChecksum::Malformed),
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..at + 2)?;
    Some(usize::from(word[0]) << 8 | usize::from(word[1]))
}

fn verify_v4(packet: &[u8]) -> Result<(), BadChecksum> {
    let header_len = usize::from(packet[0] & 15) * 4;
    let total = be16(packet, 2);
    let header = packet.get(..header_len).filter(|h| h.len() >= 20);
    let header = header.ok_or(BadChecksum::Malformed)?;
    if total != Some(packet.len()) {
        return Err(BadChecksum::Malformed);
    }
    if sum([header]) != 0xffff {
        return Err(BadChecksum::Ipv4);
    }
    // The transport checksum of a fragment covers the whole packet.
    let fragment = be16(header, 6).is_none_or(|flags| flags & 0x3fff != 0);
    if fragment {
        return Ok(());
    }
    verify_transport(&header[12..20], header[9], &packet[header_len..])
}

fn verify_v6(packet: &[u8]) -> Result<(), BadChecksum> {
    let header = packet.get(..40).ok_or(BadChecksum::Malformed)?;
    if be16(header, 4) != Some(packet.len() - 40) {
        return Err(BadChecksum::Malformed);
    }
    let mut next = header[6];
    let mut rest = &packet[40..];
    while EXTENSIONS.contains(&next) {
        let [after, len, ..] = *rest else {
            return Err(BadChecksum::Malformed);
        };
        next = after;
        let len = usize::from(len) * 8 + 8;
        rest = rest.get(len..).ok_or(BadChecksum::Malformed)?;
    }
    verify_transport(&header[8..40], next, rest)
}

/// Verifies the checksum of a transport packet between these addresses.
fn verify_transport(addresses: &[u8], protocol: u8, segment: &[u8]) -> Result<(), BadChecksum> {
    let len = (segment.len() as u32).to_be_bytes();
    let pseudo_header = [addresses, &len, &[0, protocol]];
    let (min_len, has_pseudo_header) = match protocol {
        TCP => (20, true),
        UDP => (8, true),
        ICMPV6 => (4, true),
        ICMP => (4, false),
        _ => return Ok(()),
    };
    if segment.len() < min_len {
        return Err(BadChecksum::Malformed);
    }
    // The sender computed no checksum (RFC 768).
    if protocol == UDP && segment[6..8] == [0, 0] && addresses.len() == 8 {
        return Ok(());
    }
    let pseudo_header = pseudo_header.into_iter().filter(|_| has_pseudo_header);
    if sum(pseudo_header.chain([segment])) == 0xffff {
        Ok(())
    } else {
        Err(BadChecksum::Transport(protocol))
    }
}

#[cfg(test)]
mod tests {
    use super::{BadChecksum, verify};

    /// An ACK from 10.0.0.1 to 10.0.0.2, with manually computed checksums.
    const ACK: [u8; 40] = [
        0x45, 0, 0, 40, 0, 7, 0x40, 0, 64, 6, 0x26, 0xc7, 10, 0, 0, 1, 10, 0, 0, 2, 4, 0, 0, 80, 0,
        0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0x96, 0x7f, 0, 0,
    ];

    #[test]
    fn every_single_bit_error_is_detected() {
        assert_eq!(verify(&ACK), Ok(()));
        for bit in 0..ACK.len() * 8 {
            let mut packet = ACK;
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&packet).is_err(), "bit {bit}");
        }
        let mut packet = ACK;
        packet[37] ^= 1;
        assert_eq!(verify(&packet), Err(BadChecksum::Transport(6)));
        let mut packet = ACK;
        packet[11] ^= 1;
        assert_eq!(verify(&packet), Err(BadChecksum::Ipv4));
        assert_eq!(verify(&ACK[..39]), Err(BadChecksum::Malformed));
    }

    #[test]
    fn udp_and_icmpv6_over_ipv6() {
        let mut udp = vec![0x60, 0, 0, 0, 0, 9, 17, 64];
        udp.extend([[0; 15].as_slice(), &[1], &[0; 15], &[2]].concat());
        udp.extend([0, 1, 0, 2, 0, 9, 0xff, 0xc7, 0x00]);
        // 1 + 2 (addresses) + 9 (length) + 17 (protocol) + 1 + 2 + 9 = 41 = 0x29; ~0x29 = 0xffd6.
        udp[46..48].copy_from_slice(&[0xff, 0xd6]);
        assert_eq!(verify(&udp), Ok(()));
        udp[47] ^= 1;
        assert_eq!(verify(&udp), Err(BadChecksum::Transport(17)));
        udp[6] = 58;
        assert_eq!(verify(&udp), Err(BadChecksum::Transport(58)));
    }

    #[test]
    fn arbitrary_input_does_not_panic() {
        for len in 0..ACK.len() {
            for first in [0x40, 0x45, 0x4f, 0x60, 0x00] {
                let mut packet = ACK[..len].to_vec();
                if let Some(byte) = packet.first_mut() {
                    *byte = first;
                }
                assert!(verify(&packet).is_err());
            }
        }
    }
}
