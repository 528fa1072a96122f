//! The one parse: finds where each layer begins.

use bytes::Bytes;
use fullsend_buf::Slice;

use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::ethertype::{IPV4, IPV6, QINQ, VLAN};
use fullsend_wire::numbers::protocol::{DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING, TCP, UDP};

use crate::bytes::be16;
use crate::{HeaderBuf, Layers, Link, Packet, ParseError};

#[cfg(test)]
mod tests;

/// Authentication header (RFC 4302).
const AUTH: u8 = 51;

/// What the walk over a frame's headers found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub(crate) layers: Layers,
    /// Where the payload begins.
    pub(crate) header_len: usize,
    /// Where the payload ends; link-layer padding follows if the frame is longer.
    pub(crate) end: usize,
    /// There was something behind the end.
    pub(crate) padded: bool,
    /// IPv6 extension headers that differ from packet to packet stand in front.
    pub(crate) opaque: bool,
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
        padded: false,
        opaque: false,
    };
    match ethertype {
        IPV4 => ipv4(bytes, total, oversize, &mut walk)?,
        IPV6 => ipv6(bytes, total, oversize, &mut walk)?,
        _ => return Ok(walk),
    }
    transport(bytes, &mut walk)?;
    walk.padded = walk.end != total;
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
    if !sum(whole).is_valid() {
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
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTH | DESTINATION
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
            ROUTING | FRAGMENT | AUTH | DESTINATION => true,
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
        walk.opaque |= matches!(walk.layers.protocol, FRAGMENT | AUTH);
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
            udp_end(*array(bytes, at)?, walk)?;
            8
        }
        _ => 0,
    };
    walk.header_len = at + len;
    if walk.header_len > usize::from(u16::MAX) {
        return Err(MALFORMED);
    }
    if walk.header_len > walk.end {
        return Err(TRUNCATED);
    }
    if walk.header_len > bytes.len() {
        return Err(Stop::Short);
    }
    Ok(())
}

/// RFC 768: the datagram may end before the IP packet does.
fn udp_end(header: [u8; 8], walk: &mut Walk) -> Result<(), Stop> {
    let len = usize::from(be16(&header, 4));
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
        self.take_headers(&walk);
        Ok(())
    }

    /// The walk alone: padding is gone afterwards, and the headers lie in one piece at the
    /// [`front`](Self::front), but not moved out.
    #[inline]
    pub(crate) fn walk(&mut self, link: Link) -> Result<Walk, ParseError> {
        let total = self.len();
        let oversize = self.offload.gso_size != 0 && total > usize::from(u16::MAX);
        let found = walk(self.front(), total, link, oversize);
        let walk = match found {
            Ok(walk) if self.header.is_empty() || self.header.len() == walk.header_len => walk,
            Err(Stop::Bad(error)) => return Err(error),
            Ok(_) | Err(Stop::Short) => self.walk_linear(link, oversize)?,
        };
        self.layers = walk.layers;
        if walk.padded {
            self.payload.truncate(walk.end - self.header.len());
        }
        Ok(walk)
    }

    /// The piece that holds the headers.
    #[inline]
    pub(crate) fn front(&self) -> &[u8] {
        if self.header.is_empty() {
            self.payload.slices().first().map_or(&[], Slice::as_slice)
        } else {
            &self.header
        }
    }

    /// The pieces behind the front.
    #[inline]
    pub(crate) fn rest(&self) -> &[Slice] {
        let slices = self.payload.slices();
        if self.header.is_empty() {
            slices.get(1..).unwrap_or(&[])
        } else {
            slices
        }
    }

    /// For headers that straddle pieces: copies the frame into one.
    #[cold]
    fn walk_linear(&mut self, link: Link, oversize: bool) -> Result<Walk, ParseError> {
        let frame = self.to_bytes();
        let found = walk(&frame, frame.len(), link, oversize);
        self.header.clear();
        self.payload = Slice::from(Bytes::from(frame)).into();
        found.map_err(|stop| match stop {
            Stop::Short => ParseError::Truncated,
            Stop::Bad(error) => error,
        })
    }

    /// Moves the headers that the walk found out of the payload.
    #[inline]
    pub(crate) fn take_headers(&mut self, walk: &Walk) {
        if self.header.is_empty() {
            self.header = HeaderBuf::from_slice(&self.front()[..walk.header_len]);
            self.payload.advance(walk.header_len);
        }
    }
}
