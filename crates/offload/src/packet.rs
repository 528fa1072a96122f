//! The packet that all layers exchange.

use alloc::vec::Vec;

use crate::{Chain, Encap, HeaderBuf, Slice, ecn};

/// A packet or super-segment with owned headers, shared payload, header offsets and pending
/// offloads.
///
/// A packet received from a device has an empty `header` and its whole frame in `payload`;
/// [`parse`](Self::parse) moves the headers to `header` and fills `layers`.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Link (if any), network and transport headers, contiguous.
    pub header: HeaderBuf,
    /// The bytes after the headers.
    pub payload: Chain,
    /// The offset of each header.
    pub layers: Layers,
    /// Segmentation and checksums that are still to be done.
    pub offload: Offload,
    /// The sender to notify when the device has completed the packet.
    pub tx: TxToken,
}

// Packets move between queues by value.
const _: () = assert!(size_of::<Packet>() <= 256);

impl Default for Packet {
    /// Returns an empty packet without offloads. It is built from constants, so that the compiler
    /// writes it directly to its destination: a copy of the defaults of its fields would stall the
    /// processor.
    #[inline]
    fn default() -> Self {
        const EMPTY: (HeaderBuf, Layers, Offload, TxToken) = (
            HeaderBuf::new(),
            Layers {
                network: [0; 2],
                transport: 0,
                ethertype: 0,
                tunnel: 0,
                protocol: 0,
                encap: Encap::None,
                fragment: false,
            },
            Offload {
                gso_size: 0,
                gso_segs: 0,
                kind: GsoKind::None,
                checksum: Checksum::Unverified,
                fixed_id: [false; 2],
                repeats_cwr: false,
            },
            TxToken {
                socket: 0,
                truesize: 0,
                departure_ns: 0,
            },
        );
        Self {
            header: EMPTY.0,
            payload: Chain::new(),
            layers: EMPTY.1,
            offload: EMPTY.2,
            tx: EMPTY.3,
        }
    }
}

impl Packet {
    /// Returns an unparsed packet that holds a frame received from a device.
    #[inline]
    pub fn from_frame(frame: impl Into<Chain>) -> Self {
        Self {
            payload: frame.into(),
            ..Self::default()
        }
    }

    /// Returns the length of headers and payload, in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Returns whether the packet has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets on the wire, at least 1.
    #[inline]
    pub fn segments(&self) -> u32 {
        u32::from(self.offload.gso_segs.max(1))
    }

    /// Returns the bytes on the wire after segmentation, with the headers counted once per segment.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header.len() * self.segments() as usize + self.payload.len()
    }

    /// Sets Congestion Experienced in the (outer) IP header, as a router does (RFC 3168 5).
    ///
    /// Returns whether it did: a packet whose sender is not ECN-capable is left unchanged.
    pub fn mark_ce(&mut self) -> bool {
        ecn::mark_ce(self)
    }

    /// Returns the non-empty slices of headers and payload in order, for a vectored write.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.header.as_slice())
            .filter(|header| !header.is_empty())
            .chain(self.payload.slices().iter().map(Slice::as_slice))
    }

    /// Appends the bytes of headers and payload to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        self.slices().for_each(|slice| out.extend_from_slice(slice));
    }

    /// Returns a contiguous copy of headers and payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }

    /// Returns the headers from the (outer) network header on.
    #[inline]
    pub fn network_header(&self) -> &[u8] {
        self.header
            .get(self.layers.network[0] as usize..)
            .unwrap_or(&[])
    }

    /// Returns the (innermost) transport header; empty in a fragment and before parsing.
    #[inline]
    pub fn transport_header(&self) -> &[u8] {
        self.header
            .get(self.layers.transport as usize..)
            .unwrap_or(&[])
    }
}

/// Offsets of the headers in [`Packet::header`], in bytes, and their protocols.
///
/// The payload begins where the header ends: after the TCP or UDP header, or directly after the
/// IP headers for other protocols and fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// The outer and the inner network header; the same twice when not encapsulated.
    pub network: [u16; 2],
    /// The transport header of the innermost packet.
    pub transport: u16,
    /// The EtherType of the outer network header; 0 before parsing.
    pub ethertype: u16,
    /// The tunnel header (GRE, UDP) after the outer network header; 0 when not encapsulated.
    pub tunnel: u16,
    /// The IP protocol number after IPv6 extension headers, of the innermost packet.
    pub protocol: u8,
    /// The encapsulation between the two network headers.
    pub encap: Encap,
    /// Whether the packet is an IP fragment, whose transport header is not parsed.
    pub fragment: bool,
}

impl Layers {
    /// Returns whether the innermost network header in `header` is IPv6.
    #[inline]
    pub(crate) fn inner_v6(&self, header: &[u8]) -> bool {
        header
            .get(usize::from(self.network[1]))
            .is_some_and(|first| first >> 4 == 6)
    }
}

/// The state of the transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// The header contains a checksum that has not been verified.
    #[default]
    Unverified,
    /// The field contains the sum of the pseudo-header; the checksum must be completed before the
    /// packet is sent on a wire. A received packet in this state was never on a wire, and is valid.
    Partial,
    /// The checksum was verified.
    Valid,
}

/// The kind of segmentation that a super-segment needs, of the innermost packet.
///
/// [`Layers::encap`] indicates a tunnel around it, which few devices can segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GsoKind {
    /// No segmentation: one packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of the same size, of which the last may be shorter.
    Udp,
}

/// Segmentation and checksums that the device or [`segment`](crate::segment) must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// Payload bytes per segment; 0 for a single packet.
    pub gso_size: u16,
    /// Number of segments; 0 or 1 for a single packet.
    pub gso_segs: u16,
    /// The kind of segmentation.
    pub kind: GsoKind,
    /// The state of the transport checksum.
    pub checksum: Checksum,
    /// Whether all segments carry the same IPv4 ID instead of increasing ones, in the outer and the
    /// inner header.
    pub fixed_id: [bool; 2],
    /// Whether all segments carry TCP's CWR flag, which is part of Accurate ECN's counter (RFC
    /// 9768), and not only the first one (RFC 3168). Devices cannot do this;
    /// [`segment`](crate::segment) can.
    pub repeats_cwr: bool,
}

/// The sender to notify when the device has completed a packet; the default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxToken {
    /// The host's number of the socket; 0 for none.
    pub socket: u64,
    /// Memory charged to the socket for the packet, in bytes.
    pub truesize: u32,
    /// Earliest departure time in ns since the host's start; 0 for immediately.
    pub departure_ns: u64,
}

/// The kind of a device's frames: the header that they begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// Frames begin with an IP header (TUN).
    Ip,
    /// Frames begin with an Ethernet header (TAP).
    Ethernet,
}

/// The error of a frame that could not be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// The frame is shorter than its headers, or than one of their length fields requires.
    Truncated,
    /// A version or length field is invalid, or the IPv4 header checksum is wrong.
    Malformed,
}
