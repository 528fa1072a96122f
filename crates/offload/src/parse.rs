//! The one parse: finds where each layer begins.

use crate::{Layers, Link, Packet, ParseError};

/// EtherTypes and protocol numbers that the walk knows.
pub(crate) mod number {
    pub(crate) const IPV4: u16 = 0x0800;
    pub(crate) const IPV6: u16 = 0x86dd;
    pub(crate) const VLAN: u16 = 0x8100;
    pub(crate) const QINQ: u16 = 0x88a8;
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTH: u8 = 51;
    pub(crate) const DEST_OPTIONS: u8 = 60;
}
use number::{AUTH, DEST_OPTIONS, FRAGMENT, HOP_BY_HOP, IPV4, IPV6, QINQ, ROUTING, TCP, UDP, VLAN};

/// What the walk over a frame's headers found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) layers: Layers,
    /// Where the payload begins.
    pub(crate) header_len: usize,
    /// Where the payload ends; link-layer padding follows if the frame is longer.
    pub(crate) end: usize,
}

/// Why a walk stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// The bytes at hand end inside a header; the frame may have more.
    Short,
    Bad(ParseError),
}

const TRUNCATED: Stop = Stop::Bad(ParseError::Truncated);
const MALFORMED: Stop = Stop::Bad(ParseError::Malformed);

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<&[u8; N], Stop> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(Stop::Short)
}

/// Walks the headers of a frame of `total` bytes that begins with `bytes`.
#[inline]
fn walk(bytes: &[u8], total: usize, link: Link, oversize: bool) -> Result<Walk, Stop> {
    let (network, ethertype) = match link {
        Link::Ip => match array::<1>(bytes, 0)?[0] >> 4 {
            4 => (0, IPV4),
            6 => (0, IPV6),
            _ => return Err(MALFORMED),
        },
        Link::Ethernet => ethernet(bytes)?,
    };
    let mut walk = Walk {
        layers: Layers {
            network: [network as u16; 2],
            transport: network as u16,
            ethertype,
            ..Layers::default()
        },
        header_len: network,
        end: total,
    };
    match ethertype {
        IPV4 => ipv4(bytes, total, oversize, &mut walk)?,
        IPV6 => ipv6(bytes, total, oversize, &mut walk)?,
        _ => return Ok(walk),
    }
    transport(bytes, &mut walk)?;
    Ok(walk)
}

/// Where the network header begins, and of what kind it is.
#[inline]
fn ethernet(bytes: &[u8]) -> Result<(usize, u16), Stop> {
    let header: &[u8; 14] = array(bytes, 0)?;
    let mut at = 14;
    let mut ethertype = be16(header, 12);
    // IEEE 802.1Q and 802.1ad: one tag, or a service tag in front of it.
    for _ in 0..2 {
        if !matches!(ethertype, VLAN | QINQ) {
            break;
        }
        ethertype = be16(array::<4>(bytes, at)?, 2);
        at += 4;
    }
    Ok((at, ethertype))
}

/// Where an IP packet ends whose length field says `len`. A super-segment too long for the field
/// carries 0 in it (`oversize`).
#[inline]
fn ip_end(start: usize, len: usize, total: usize, oversize: bool) -> Result<usize, Stop> {
    if len == 0 && oversize {
        return Ok(total);
    }
    if start + len > total {
        return Err(TRUNCATED);
    }
    Ok(start + len)
}

#[inline]
fn ipv4(bytes: &[u8], total: usize, oversize: bool, walk: &mut Walk) -> Result<(), Stop> {
    let at = walk.header_len;
    let header: &[u8; 20] = array(bytes, at)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_len < 20 {
        return Err(MALFORMED);
    }
    let whole = bytes.get(at..at + header_len).ok_or(Stop::Short)?;
    // RFC 791 3.1.
    if !header_checksum_ok(whole) {
        return Err(MALFORMED);
    }
    walk.end = ip_end(at, be16(header, 2) as usize, total, oversize)?;
    if walk.end < at + header_len {
        return Err(MALFORMED);
    }
    walk.layers.protocol = header[9];
    walk.layers.fragment = be16(header, 6) & 0x3fff != 0;
    walk.header_len = at + header_len;
    Ok(())
}

/// Sums in 32-bit words, a header being a whole number of them.
#[inline]
fn header_checksum_ok(header: &[u8]) -> bool {
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words
        .iter()
        .map(|&w| u64::from(u32::from_be_bytes(w)))
        .sum();
    sum != 0 && sum % 0xffff == 0
}

#[inline]
fn ipv6(bytes: &[u8], total: usize, oversize: bool, walk: &mut Walk) -> Result<(), Stop> {
    let at = walk.header_len;
    let header: &[u8; 40] = array(bytes, at)?;
    if header[0] >> 4 != 6 {
        return Err(MALFORMED);
    }
    let start = at + 40;
    walk.end = ip_end(start, be16(header, 4) as usize, total, oversize)?;
    walk.layers.protocol = header[6];
    walk.header_len = start;
    if matches!(
        header[6],
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTH | DEST_OPTIONS
    ) {
        extension_headers(bytes, walk)?;
    }
    Ok(())
}

/// RFC 8200 4: skips what stands between the IPv6 header and the upper layer.
fn extension_headers(bytes: &[u8], walk: &mut Walk) -> Result<(), Stop> {
    let first = walk.header_len;
    while !walk.layers.fragment {
        let at = walk.header_len;
        // RFC 8200 4.1: hop-by-hop options come first; elsewhere they are an unknown protocol.
        let known = match walk.layers.protocol {
            HOP_BY_HOP => at == first,
            ROUTING | FRAGMENT | AUTH | DEST_OPTIONS => true,
            _ => false,
        };
        if !known {
            break;
        }
        let head: &[u8; 8] = array(bytes, at)?;
        let len = match walk.layers.protocol {
            FRAGMENT => 8,
            AUTH => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        // RFC 6946: a fragment header with nothing before or behind it is a whole packet.
        let offset_and_more = be16(head, 2) & 0xfff9;
        walk.layers.fragment = walk.layers.protocol == FRAGMENT && offset_and_more != 0;
        walk.layers.protocol = head[0];
        walk.header_len = at + len;
        if walk.header_len > walk.end {
            return Err(TRUNCATED);
        }
        if walk.header_len > bytes.len() {
            return Err(Stop::Short);
        }
    }
    Ok(())
}

#[inline]
fn transport(bytes: &[u8], walk: &mut Walk) -> Result<(), Stop> {
    let at = walk.header_len;
    // More than 64 KiB of headers cannot be recorded.
    walk.layers.transport = u16::try_from(at).map_err(|_| MALFORMED)?;
    if walk.layers.fragment {
        return Ok(());
    }
    let len = match walk.layers.protocol {
        TCP => {
            if at + 20 > walk.end {
                return Err(TRUNCATED);
            }
            let header: &[u8; 20] = array(bytes, at)?;
            let len = usize::from(header[12] >> 4) * 4;
            if len < 20 {
                return Err(MALFORMED);
            }
            len
        }
        UDP => {
            if at + 8 > walk.end {
                return Err(TRUNCATED);
            }
            udp_end(array(bytes, at)?, walk)?;
            8
        }
        _ => 0,
    };
    walk.header_len = at + len;
    if walk.header_len > walk.end {
        return Err(TRUNCATED);
    }
    if walk.header_len > bytes.len() {
        return Err(Stop::Short);
    }
    Ok(())
}

/// RFC 768: the datagram may end before the IP packet does.
fn udp_end(header: &[u8; 8], walk: &mut Walk) -> Result<(), Stop> {
    let len = usize::from(be16(header, 4));
    let at = usize::from(walk.layers.transport);
    // Zero stands for a super-segment longer than the field can tell.
    if len == 0 && walk.end - at > usize::from(u16::MAX) {
        return Ok(());
    }
    if len < 8 {
        return Err(MALFORMED);
    }
    if at + len > walk.end {
        return Err(TRUNCATED);
    }
    walk.end = at + len;
    Ok(())
}

impl Packet {
    /// Finds the layers, moves the headers out of the payload into `header`, and cuts off
    /// link-layer padding. Verifies the IPv4 header checksum, not the transport's.
    ///
    /// A packet with its header apart already (from a device in this process) is parsed from it.
    pub fn parse(&mut self, link: Link) -> Result<(), ParseError> {
        let walk = self.walk(link)?;
        self.accept(&walk);
        Ok(())
    }

    /// The walk alone. On success the headers lie in one piece: `header`, or the front of the
    /// first slice if `header` is empty.
    #[inline]
    pub(crate) fn walk(&mut self, link: Link) -> Result<Walk, ParseError> {
        let total = self.len();
        let oversize = self.offload.gso_size != 0 && total > usize::from(u16::MAX);
        let front = match self.front() {
            Some(front) => walk(front, total, link, oversize),
            None => Err(Stop::Short),
        };
        match front {
            Ok(walk) if self.header.is_empty() || self.header.len() == walk.header_len => Ok(walk),
            Err(Stop::Bad(error)) => Err(error),
            Ok(_) | Err(Stop::Short) => self.walk_linear(link, oversize),
        }
    }

    /// The piece that the headers are expected in.
    #[inline]
    pub(crate) fn front(&self) -> Option<&[u8]> {
        if self.header.is_empty() {
            self.payload.slices().first().map(|s| s.as_slice())
        } else {
            Some(&self.header)
        }
    }

    /// For headers that straddle pieces: copies the frame into one.
    #[cold]
    fn walk_linear(&mut self, link: Link, oversize: bool) -> Result<Walk, ParseError> {
        let frame = self.to_bytes();
        let found = walk(&frame, frame.len(), link, oversize);
        self.header.clear();
        self.payload = fullsend_buf::Slice::from(bytes::Bytes::from(frame)).into();
        found.map_err(|stop| match stop {
            Stop::Short => ParseError::Truncated,
            Stop::Bad(error) => error,
        })
    }

    /// Does what the walk found to be done.
    #[inline]
    pub(crate) fn accept(&mut self, walk: &Walk) {
        self.layers = walk.layers;
        self.payload.truncate(walk.end - self.header.len());
        if self.header.is_empty() {
            if let Some(first) = self.payload.slices().first() {
                self.header = crate::HeaderBuf::from_slice(&first[..walk.header_len]);
            }
            self.payload.advance(walk.header_len);
        }
    }
}
