//! The packet parser: determines the offset of each header.

use bytes::Bytes;
use fullsend_wire::checksum::sum;
use fullsend_wire::numbers::ethertype::{IPV4, IPV6, QINQ, VLAN};
use fullsend_wire::numbers::protocol::{
    DESTINATION, FRAGMENT, GRE, HOP_BY_HOP, IPIP, IPV6 as ENCAPSULATED_V6, ROUTING, TCP, UDP,
};

use crate::bytes::be16;
use crate::tunnel::{self, Encap, Inner};
use crate::{Checksum, Layers, Link, Packet, ParseError, Slice, Tunnels, jumbo};

#[cfg(test)]
mod tests;

/// The protocol number of the authentication header (RFC 4302).
const AUTHENTICATION: u8 = 51;

/// The most IPv6 extension headers parsed; the protocol after more of them is not determined.
const MAX_EXTENSIONS: usize = 8;

/// The most bytes after the outer IP header that determine the inner packet: UDP, GUE and GRE.
const MAX_TUNNEL_PREFIX: usize = 16;

/// The result of parsing a frame's headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ParsedHeaders {
    pub(crate) layers: Layers,
    /// Offset of the payload.
    pub(crate) header_len: usize,
    /// Offset of the end of the payload; bytes after it are link-layer padding or `has_trailer`.
    pub(crate) end: usize,
    /// Whether the frame has bytes after `end`.
    pub(crate) padded: bool,
    /// Whether the IP packet has bytes after the datagram, whose end UDP's length field gives.
    pub(crate) has_trailer: bool,
    /// Whether there are headers that differ between packets of a flow, or that were not parsed.
    pub(crate) opaque: bool,
    /// Whether the slice ends before the bytes that determine a tunnel's inner packet.
    needs_more_bytes: bool,
}

/// The reason for which a parse stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HeaderError {
    /// The slice ends inside a header; the frame may have more slices.
    NeedMoreBytes,
    Invalid(ParseError),
}

const TRUNCATED: HeaderError = HeaderError::Invalid(ParseError::Truncated);
const MALFORMED: HeaderError = HeaderError::Invalid(ParseError::Malformed);

#[inline]
fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<&[u8; N], HeaderError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(HeaderError::NeedMoreBytes)
}

/// Parses the headers of a frame of `total` bytes that begins with `bytes`. A super-segment longer
/// than IP's length field can express has 0 in it (`oversize`).
#[inline]
fn parse_headers(
    bytes: &[u8],
    total: usize,
    link: Link,
    tunnels: &Tunnels,
    oversize: bool,
) -> Result<ParsedHeaders, HeaderError> {
    let (network, ethertype) = match link {
        Link::Ip => match array::<1>(bytes, 0)?[0] >> 4 {
            4 => (0, IPV4),
            6 => (0, IPV6),
            _ => return Err(MALFORMED),
        },
        Link::Ethernet => ethernet(bytes, 0)?,
    };
    let mut headers = ParsedHeaders::at(network, ethertype, total);
    match ethertype {
        IPV4 => ipv4(bytes, total, oversize, &mut headers)?,
        IPV6 => ipv6(bytes, total, oversize, &mut headers)?,
        _ => return Ok(headers),
    }
    let ip_end = headers.end;
    transport(bytes, &mut headers)?;
    headers.padded = headers.end != total;
    headers.has_trailer = headers.end != ip_end;
    if headers.layers.protocol != TCP && *tunnels != Tunnels::NONE && !headers.layers.fragment {
        parse_tunnel(bytes, total, tunnels, oversize, &mut headers)?;
    }
    Ok(headers)
}

/// Parses the most common headers: TCP over IP without options, extension headers or VLAN tags.
/// After `None`, [`parse_headers`] must parse the packet.
#[inline(always)]
fn parse_plain_tcp(bytes: &[u8], total: usize, link: Link) -> Option<ParsedHeaders> {
    let (network, ethertype) = match link {
        Link::Ip => (0, if bytes.first()? >> 4 == 4 { IPV4 } else { IPV6 }),
        Link::Ethernet => (14, be16(bytes.first_chunk::<14>()?, 12)),
    };
    let ip: &[u8; 40] = bytes.get(network..)?.first_chunk()?;
    let (ip_len, protocol, len, is_usual) = match ethertype {
        IPV4 => {
            let fragment = be16(ip, 6) & 0x3fff != 0;
            let whole = !fragment && sum(&ip[..20]).is_valid();
            (20, ip[9], usize::from(be16(ip, 2)), ip[0] == 0x45 && whole)
        }
        IPV6 => (40, ip[6], usize::from(be16(ip, 4)) + 40, ip[0] >> 4 == 6),
        _ => return None,
    };
    let transport = network + ip_len;
    let tcp: &[u8; 20] = bytes.get(transport..)?.first_chunk()?;
    let header_len = transport + usize::from(tcp[12] >> 4) * 4;
    let all = is_usual && protocol == TCP && network + len == total;
    if !all || tcp[12] < 0x50 || header_len > bytes.len() {
        return None;
    }
    let mut headers = ParsedHeaders::at(network, ethertype, total);
    headers.layers.transport = transport as u16;
    headers.layers.protocol = TCP;
    headers.header_len = header_len;
    Some(headers)
}

impl ParsedHeaders {
    /// Returns the initial state of a parse: a network header at `network`.
    #[inline]
    fn at(network: usize, ethertype: u16, total: usize) -> Self {
        Self {
            layers: Layers {
                network: [network as u16; 2],
                transport: network as u16,
                ethertype,
                ..Layers::default()
            },
            header_len: network,
            end: total,
            padded: false,
            has_trailer: false,
            opaque: false,
            needs_more_bytes: false,
        }
    }
}

/// Continues the parse after a tunnel header. If the inner packet is not a complete TCP or UDP
/// packet that ends with the outer packet, or is a tunnel itself, the result remains the outer
/// packet, marked `opaque`.
fn parse_tunnel(
    bytes: &[u8],
    total: usize,
    tunnels: &Tunnels,
    oversize: bool,
    headers: &mut ParsedHeaders,
) -> Result<(), HeaderError> {
    let layers = headers.layers;
    let at = usize::from(layers.transport);
    let found = if layers.protocol == UDP {
        tunnel::udp_inner(bytes, at, tunnels).map(|inner| (Encap::Udp, inner))
    } else {
        tunnel::inner(bytes, at, layers.protocol, tunnels)
    };
    let Some((encap, inner)) = found else {
        let is_tunnel = is_tunnel(bytes, &layers, tunnels);
        headers.opaque |= is_tunnel;
        // An enabled IP tunnel has no header of its own, so its inner packet was found.
        let is_supported =
            is_tunnel && (layers.protocol == UDP || layers.protocol == GRE && tunnels.gre);
        headers.needs_more_bytes = is_supported && bytes.len() < total.min(at + MAX_TUNNEL_PREFIX);
        return Ok(());
    };
    match parse_inner(bytes, headers.end, tunnels, oversize, inner) {
        Ok(found) => {
            headers.header_len = found.header_len;
            headers.opaque |= found.opaque;
            headers.layers = Layers {
                network: [layers.network[0], found.layers.network[1]],
                transport: found.layers.transport,
                protocol: found.layers.protocol,
                tunnel: layers.transport,
                encap,
                ..layers
            };
            Ok(())
        }
        // The rest of the headers may be in the next slice.
        Err(HeaderError::NeedMoreBytes) if bytes.len() < total => Err(HeaderError::NeedMoreBytes),
        Err(_) => {
            headers.opaque = true;
            Ok(())
        }
    }
}

/// Parses an inner packet, which must end at `end`.
fn parse_inner(
    bytes: &[u8],
    end: usize,
    tunnels: &Tunnels,
    oversize: bool,
    inner: Inner,
) -> Result<ParsedHeaders, HeaderError> {
    let (network, ethertype) = match inner {
        Inner::Ip { at, v6 } => (at, if v6 { IPV6 } else { IPV4 }),
        Inner::Ethernet { at } => ethernet(bytes, at)?,
    };
    let mut headers = ParsedHeaders::at(network, ethertype, end);
    match ethertype {
        IPV4 => ipv4(bytes, end, oversize, &mut headers)?,
        IPV6 => ipv6(bytes, end, oversize, &mut headers)?,
        _ => return Err(MALFORMED),
    }
    transport(bytes, &mut headers)?;
    let layers = &headers.layers;
    let known = matches!(layers.protocol, TCP | UDP) && !layers.fragment && headers.end == end;
    let options = ethertype == IPV4 && usize::from(layers.transport) != network + 20;
    if !known || options || is_tunnel(bytes, layers, tunnels) {
        return Err(MALFORMED);
    }
    Ok(headers)
}

/// Returns whether the protocol or the UDP port is that of a tunnel.
fn is_tunnel(bytes: &[u8], layers: &Layers, tunnels: &Tunnels) -> bool {
    match layers.protocol {
        IPIP | ENCAPSULATED_V6 | GRE => true,
        UDP => {
            let port = Some(be16(bytes, usize::from(layers.transport) + 2));
            let fou = tunnels.fou.map(|(port, _)| port);
            [tunnels.vxlan, tunnels.geneve, fou, tunnels.gue].contains(&port)
        }
        _ => false,
    }
}

/// Returns the offset of the network header and its EtherType.
#[inline]
fn ethernet(bytes: &[u8], start: usize) -> Result<(usize, u16), HeaderError> {
    let header: &[u8; 14] = array(bytes, start)?;
    let mut at = start + 14;
    let mut ethertype = be16(header, 12);
    // IEEE 802.1Q and 802.1ad: one tag, or a service tag followed by one tag.
    for _ in 0..2 {
        if !matches!(ethertype, VLAN | QINQ) {
            break;
        }
        ethertype = be16(array::<4>(bytes, at)?, 2);
        at += 4;
    }
    Ok((at, ethertype))
}

/// Returns the end of an IP packet whose length field is `len`, counted from `start`. With
/// `oversize`, 0 stands for the rest of the frame.
#[inline]
fn ip_end(start: usize, len: usize, total: usize, oversize: bool) -> Result<usize, HeaderError> {
    if len == 0 && oversize {
        return Ok(total);
    }
    if start + len > total {
        return Err(TRUNCATED);
    }
    Ok(start + len)
}

#[inline]
fn ipv4(
    bytes: &[u8],
    total: usize,
    oversize: bool,
    headers: &mut ParsedHeaders,
) -> Result<(), HeaderError> {
    let at = headers.header_len;
    let header: &[u8; 20] = array(bytes, at)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_len < 20 {
        return Err(MALFORMED);
    }
    let whole = bytes
        .get(at..at + header_len)
        .ok_or(HeaderError::NeedMoreBytes)?;
    // RFC 791 3.1: a packet with a wrong header checksum is dropped.
    if !sum(whole).is_valid() {
        return Err(MALFORMED);
    }
    headers.end = ip_end(at, be16(header, 2) as usize, total, oversize)?;
    if headers.end < at + header_len {
        return Err(MALFORMED);
    }
    headers.layers.protocol = header[9];
    headers.layers.fragment = be16(header, 6) & 0x3fff != 0;
    headers.header_len = at + header_len;
    Ok(())
}

#[inline]
fn ipv6(
    bytes: &[u8],
    total: usize,
    oversize: bool,
    headers: &mut ParsedHeaders,
) -> Result<(), HeaderError> {
    let at = headers.header_len;
    let header: &[u8; 40] = array(bytes, at)?;
    if header[0] >> 4 != 6 {
        return Err(MALFORMED);
    }
    let start = at + 40;
    let len = usize::from(be16(header, 4));
    if len == 0 && !oversize && header[6] == HOP_BY_HOP {
        // RFC 2675 3: the IP input reports it. The packet has all bytes of the frame.
        headers.layers.protocol = HOP_BY_HOP;
        headers.header_len = start;
        headers.opaque = true;
        return Ok(());
    }
    headers.end = ip_end(start, len, total, oversize)?;
    headers.layers.protocol = header[6];
    headers.header_len = start;
    if matches!(
        header[6],
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION
    ) {
        extension_headers(bytes, headers)?;
    }
    Ok(())
}

/// Parses the IPv6 extension headers up to the upper-layer header (RFC 8200 4).
fn extension_headers(bytes: &[u8], headers: &mut ParsedHeaders) -> Result<(), HeaderError> {
    let first = headers.header_len;
    for _ in 0..MAX_EXTENSIONS {
        if headers.layers.fragment {
            break;
        }
        let at = headers.header_len;
        // RFC 8200 4.1: hop-by-hop options must come first; elsewhere they are an unknown protocol.
        let known = match headers.layers.protocol {
            HOP_BY_HOP => at == first,
            ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION => true,
            _ => false,
        };
        if !known {
            break;
        }
        let head: &[u8; 8] = array(bytes, at)?;
        let len = match headers.layers.protocol {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(head[1]) + 2) * 4,
            _ => (usize::from(head[1]) + 1) * 8,
        };
        // RFC 6946: a packet whose fragment header has offset 0 and no M flag is complete.
        let offset_and_more = be16(head, 2) & 0xfff9;
        headers.layers.fragment = headers.layers.protocol == FRAGMENT && offset_and_more != 0;
        headers.opaque |= match headers.layers.protocol {
            FRAGMENT | AUTHENTICATION => true,
            // RFC 2675 3: with a non-zero payload length the option is an error, and not that of a
            // super-segment.
            HOP_BY_HOP => head[1..4] == jumbo::OPTION && be16(bytes, first - 36) != 0,
            _ => false,
        };
        headers.layers.protocol = head[0];
        headers.header_len = at + len;
        if headers.header_len > headers.end {
            return Err(TRUNCATED);
        }
    }
    Ok(())
}

#[inline]
fn transport(bytes: &[u8], headers: &mut ParsedHeaders) -> Result<(), HeaderError> {
    let at = headers.header_len;
    // `Layers` cannot express offsets beyond 64 KiB.
    headers.layers.transport = u16::try_from(at).map_err(|_| MALFORMED)?;
    if headers.layers.fragment {
        return Ok(());
    }
    let len = match headers.layers.protocol {
        TCP => {
            if at + 20 > headers.end {
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
            if at + 8 > headers.end {
                return Err(TRUNCATED);
            }
            udp_end(*array(bytes, at)?, headers)?;
            8
        }
        _ => 0,
    };
    headers.header_len = at + len;
    if headers.header_len > headers.end {
        return Err(TRUNCATED);
    }
    if headers.header_len > bytes.len() {
        return Err(HeaderError::NeedMoreBytes);
    }
    Ok(())
}

/// Sets the end to that of the datagram (RFC 768), which may be before the end of the IP packet.
fn udp_end(header: [u8; 8], headers: &mut ParsedHeaders) -> Result<(), HeaderError> {
    let len = usize::from(be16(&header, 4));
    let at = usize::from(headers.layers.transport);
    // 0 stands for a super-segment longer than the length field can express.
    if len == 0 && headers.end - at > usize::from(u16::MAX) {
        return Ok(());
    }
    if len < 8 {
        return Err(MALFORMED);
    }
    if at + len > headers.end {
        return Err(TRUNCATED);
    }
    headers.end = at + len;
    Ok(())
}

impl Packet {
    /// Parses the headers and moves them from `payload` to `header`.
    ///
    /// Removes link-layer padding and bytes after a UDP datagram. Verifies the IPv4 header
    /// checksum, but not the transport checksum. Headers that are in `header` already (as from a
    /// device in this process) are parsed there.
    ///
    /// ```
    /// use fullsend_offload::{Link, Packet, Slice};
    ///
    /// let frame = [
    ///     0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0x26, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4
    ///     4, 0, 0, 53, 0, 9, 0, 0, b'x', // UDP
    /// ];
    /// let mut packet = Packet::from_frame(Slice::copied_from(&frame));
    /// packet.parse(Link::Ip).unwrap();
    /// assert_eq!(packet.layers.transport, 20);
    /// assert_eq!(packet.header.len(), 28);
    /// assert_eq!(packet.payload.len(), 1);
    /// ```
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if the frame ends inside a header or before the length that a
    /// header gives. [`ParseError::Malformed`] if a version, header length, or UDP length is
    /// invalid, or the IPv4 header checksum is wrong. The packet must then be dropped.
    pub fn parse(&mut self, link: Link) -> Result<(), ParseError> {
        self.parse_with_tunnels(link, &Tunnels::NONE)
    }

    /// Parses the headers as [`parse`](Self::parse) does, including those inside `tunnels`.
    ///
    /// In a tunnelled packet `header` then extends to the end of the inner transport header.
    ///
    /// # Errors
    /// As [`parse`](Self::parse). An invalid inner packet is no error: only the outer headers are
    /// then parsed.
    pub fn parse_with_tunnels(&mut self, link: Link, tunnels: &Tunnels) -> Result<(), ParseError> {
        let headers = self.parse_headers(link, tunnels, &mut 0)?;
        self.take_headers(&headers);
        Ok(())
    }

    /// Parses the headers without moving them: afterwards they are contiguous at the
    /// front ([`leading_bytes`](Self::leading_bytes)), and padding is removed.
    ///
    /// Increments `parsed`, so that statistics and tests show how often headers are parsed.
    #[inline]
    pub(crate) fn parse_headers(
        &mut self,
        link: Link,
        tunnels: &Tunnels,
        parsed: &mut u64,
    ) -> Result<ParsedHeaders, ParseError> {
        *parsed += 1;
        let total = self.len();
        let oversize = self.offload.gso_size != 0 && total > usize::from(u16::MAX);
        if let Some(headers) = parse_plain_tcp(self.leading_bytes(), total, link)
            && (self.header.is_empty() || self.header.len() == headers.header_len)
        {
            debug_assert_eq!(
                Ok(headers),
                parse_headers(self.leading_bytes(), total, link, tunnels, oversize)
            );
            self.layers = headers.layers;
            self.count_segments(&headers);
            return Ok(headers);
        }
        self.parse_any_headers(total, link, tunnels, oversize)
    }

    /// Parses headers that [`parse_plain_tcp`] does not.
    #[inline(never)]
    fn parse_any_headers(
        &mut self,
        total: usize,
        link: Link,
        tunnels: &Tunnels,
        oversize: bool,
    ) -> Result<ParsedHeaders, ParseError> {
        let found = parse_headers(self.leading_bytes(), total, link, tunnels, oversize);
        // A partial checksum is that of the transport header which its sender put in front.
        let is_locally_generated =
            self.offload.checksum == Checksum::Partial && !self.header.is_empty();
        let headers = match found {
            Ok(headers)
                if (!headers.needs_more_bytes || is_locally_generated)
                    && (self.header.is_empty() || self.header.len() == headers.header_len) =>
            {
                headers
            }
            Err(HeaderError::Invalid(error)) => return Err(error),
            Ok(_) | Err(HeaderError::NeedMoreBytes) => {
                self.parse_linearized(link, tunnels, oversize)?
            }
        };
        self.layers = headers.layers;
        if headers.padded {
            self.payload.truncate(headers.end - self.header.len());
        }
        self.count_segments(&headers);
        Ok(headers)
    }

    /// Computes the number of segments, at most 65,535, of a super-segment from a device, which
    /// gives only the size of each.
    #[inline]
    fn count_segments(&mut self, headers: &ParsedHeaders) {
        if self.offload.gso_size != 0 && self.offload.gso_segs == 0 {
            self.set_segment_count(headers.end - headers.header_len);
        }
    }

    #[inline(never)]
    fn set_segment_count(&mut self, payload_len: usize) {
        let count = payload_len.div_ceil(usize::from(self.offload.gso_size));
        self.offload.gso_segs = u16::try_from(count).unwrap_or(u16::MAX);
    }

    /// Returns the slice that contains the headers.
    #[inline(always)]
    pub(crate) fn leading_bytes(&self) -> &[u8] {
        if self.header.is_empty() {
            self.first_slice()
        } else {
            &self.header
        }
    }

    // Inlined, its three kinds of memory would separate the code of the parser.
    #[inline(never)]
    fn first_slice(&self) -> &[u8] {
        self.payload.slices().first().map_or(&[], Slice::as_slice)
    }

    /// Returns the slices after the front.
    #[inline(always)]
    pub(crate) fn remaining_slices(&self) -> &[Slice] {
        let slices = self.payload.slices();
        if self.header.is_empty() {
            slices.get(1..).unwrap_or(&[])
        } else {
            slices
        }
    }

    /// Copies the frame into one slice and parses it, for headers that span several slices.
    fn parse_linearized(
        &mut self,
        link: Link,
        tunnels: &Tunnels,
        oversize: bool,
    ) -> Result<ParsedHeaders, ParseError> {
        let frame = self.to_bytes();
        let found = parse_headers(&frame, frame.len(), link, tunnels, oversize);
        self.header.clear();
        self.payload = Slice::from(Bytes::from(frame)).into();
        found.map_err(|error_kind| match error_kind {
            HeaderError::NeedMoreBytes => ParseError::Truncated,
            HeaderError::Invalid(error) => error,
        })
    }

    /// Moves the headers that were parsed from the payload to `header`.
    #[inline(always)]
    pub(crate) fn take_headers(&mut self, headers: &ParsedHeaders) {
        if self.header.is_empty() {
            self.move_headers(headers.header_len);
        }
    }

    #[inline(never)]
    fn move_headers(&mut self, header_len: usize) {
        if let Some(front) = self.payload.slices().first() {
            let header = self.header.prepend(header_len);
            header.copy_from_slice(&front[..header_len]);
            self.payload.advance(header_len);
        }
    }
}
