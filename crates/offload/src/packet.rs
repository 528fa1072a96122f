//! The one thing that travels.

use fullsend_buf::Chain;

/// A packet or super-segment: owned headers, shared payload, where each layer begins, and what is
/// left to do.
///
/// A packet fresh from a device has an empty header and its whole frame in `payload`; parsing
/// moves the headers out and fills `layers`.
#[derive(Clone, Debug, Default)]
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

/// Headers, with room in front for the layers below.
#[derive(Clone, Debug, Default)]
pub struct HeaderBuf {}

/// Offsets into the header, from its start; recorded once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layers {
    /// Network header: outer, and inner when encapsulated (else both the same).
    pub network: [u16; 2],
    /// Transport header of the innermost packet.
    pub transport: u16,
    /// EtherType of the outer network header; 0 before parsing.
    pub ethertype: u16,
    /// Final protocol (after IPv6 extension headers), as the IP protocol number.
    pub protocol: u8,
    /// Encapsulation levels (0 or 1).
    pub encap: u8,
    /// An IP fragment: no transport header can be read.
    pub fragment: bool,
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

/// Which segmentation a super-segment needs.
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
