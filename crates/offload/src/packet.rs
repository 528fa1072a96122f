//! The one thing that travels.

use alloc::vec::Vec;

use fullsend_buf::{Chain, Slice};

use crate::{Encap, HeaderBuf, ecn};

/// A packet or super-segment: owned headers, shared payload, where each layer begins, and what is
/// left to do.
///
/// A packet fresh from a device has an empty header and its whole frame in `payload`;
/// [`parse`](Self::parse) moves the headers out and fills `layers`.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Link (if any), network and transport headers, contiguous.
    pub header: HeaderBuf,
    /// What follows the headers.
    pub payload: Chain,
    /// Where each header begins.
    pub layers: Layers,
    /// What is left to do.
    pub offload: Offload,
    /// Whom to tell when the device is done with it.
    pub tx: TxToken,
}

// Packets move between queues by value.
const _: () = assert!(size_of::<Packet>() <= 256);

impl Default for Packet {
    /// No bytes, and nothing to do. Of constants, so that it is written straight to where it goes:
    /// put together from its parts' defaults, it stalls the processor on its way there.
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
    /// A frame fresh from a device, not parsed yet.
    #[inline]
    pub fn from_frame(frame: impl Into<Chain>) -> Self {
        Self {
            payload: frame.into(),
            ..Self::default()
        }
    }

    /// Bytes in all, headers and payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// No bytes at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Packets it stands for on a wire; at least 1.
    #[inline]
    pub fn segments(&self) -> u32 {
        u32::from(self.offload.gso_segs.max(1))
    }

    /// Bytes it takes on a wire once it is cut: the headers count once for each segment.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.header.len() * self.segments() as usize + self.payload.len()
    }

    /// Sets the Congestion Experienced mark in the (outer) IP header, as a router would; false,
    /// and nothing changes, where the sender does not understand it (RFC 3168 5).
    pub fn mark_ce(&mut self) -> bool {
        ecn::mark_ce(self)
    }

    /// The pieces in order, none of them empty: what a vectored write takes.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(self.header.as_slice())
            .filter(|header| !header.is_empty())
            .chain(self.payload.slices().iter().map(Slice::as_slice))
    }

    /// Appends all bytes to `out`.
    pub fn gather(&self, out: &mut Vec<u8>) {
        out.reserve(self.len());
        self.slices().for_each(|piece| out.extend_from_slice(piece));
    }

    /// All bytes, copied into one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.gather(&mut out);
        out
    }

    /// The network header and what follows it in the header; the outer one when encapsulated.
    #[inline]
    pub fn network_header(&self) -> &[u8] {
        self.header
            .get(self.layers.network[0] as usize..)
            .unwrap_or(&[])
    }

    /// The transport header; empty in a fragment or before parsing.
    #[inline]
    pub fn transport_header(&self) -> &[u8] {
        self.header
            .get(self.layers.transport as usize..)
            .unwrap_or(&[])
    }
}

/// Offsets into the header, from its start; recorded once.
///
/// The payload begins where the header ends: behind the TCP or UDP header, and right behind the
/// IP headers for every other protocol and for fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Network header: outer, and inner when encapsulated (else both the same).
    pub network: [u16; 2],
    /// Transport header of the innermost packet.
    pub transport: u16,
    /// EtherType of the outer network header; 0 before parsing.
    pub ethertype: u16,
    /// Tunnel header (GRE, UDP) behind the outer network header; 0 when not encapsulated.
    pub tunnel: u16,
    /// Final protocol (after IPv6 extension headers), as the IP protocol number.
    pub protocol: u8,
    /// What lies between the two network headers.
    pub encap: Encap,
    /// An IP fragment: no transport header can be read.
    pub fragment: bool,
}

impl Layers {
    /// The innermost network header is IPv6's, of these headers.
    #[inline]
    pub(crate) fn inner_v6(&self, header: &[u8]) -> bool {
        header
            .get(usize::from(self.network[1]))
            .is_some_and(|first| first >> 4 == 6)
    }
}

/// What is known or owed about the transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Checksum {
    /// In the header, not looked at yet.
    #[default]
    Unverified,
    /// The field holds the pseudo-header's sum; whoever puts it on a wire completes it. On
    /// receive: never was on a wire, good as it is.
    Partial,
    /// Verified.
    Valid,
}

/// Which segmentation a super-segment needs. It is of the innermost packet; whether there is a
/// tunnel around it, [`Layers::encap`] says, and few devices can cut through one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GsoKind {
    /// It is one packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// Same-size UDP datagrams.
    Udp,
}

/// Work left to a device or to software behind us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offload {
    /// Payload bytes per segment; 0 when it is one packet.
    pub gso_size: u16,
    /// Segments it stands for (0 or 1: one packet).
    pub gso_segs: u16,
    /// Kind of segmentation.
    pub kind: GsoKind,
    /// Transport checksum.
    pub checksum: Checksum,
    /// All segments carry the same IPv4 ID instead of counting up: outer and inner header.
    pub fixed_id: [bool; 2],
    /// All segments carry TCP's CWR flag, which Accurate ECN (RFC 9768) counts with, and not the
    /// first alone (RFC 3168). Only software cuts so.
    pub repeats_cwr: bool,
}

/// Who is told when a device completes a packet. The default is nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxToken {
    /// The socket, as its host numbers it; 0 is nobody.
    pub socket: u64,
    /// Memory charged (spec: truesize).
    pub truesize: u32,
    /// Earliest departure in ns since the host's start; 0 is at once.
    pub departure_ns: u64,
}

/// What a frame begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An IP header (TUN).
    Ip,
    /// An Ethernet header (TAP).
    Ethernet,
}

/// Why a frame could not be parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// It ends before a header does.
    Truncated,
    /// A header contradicts itself or its checksum is wrong.
    Malformed,
}
