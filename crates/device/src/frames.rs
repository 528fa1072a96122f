//! Links to a virtual machine whose monitor (QEMU, libkrun, vfkit, ...) sends and receives Ethernet
//! frames through a socket or a pair of pipes.

mod connection;
mod datagrams;
mod events;
mod hyperkit;
mod length;
mod link;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use datagrams::{DatagramListener, DatagramPeer, FrameDatagrams};
pub(crate) use events::{Events, RoomEvents, wake, wake_file};
pub use link::{FrameAttachment, FrameLink, PeerEvent};

/// The longest frame: a full IPv6 payload, and IPv6, Ethernet and VLAN headers.
const FRAME_MAX: usize = 65_535 + 40 + 18;
/// The shortest frame: an Ethernet header.
const FRAME_MIN: usize = 14;
/// Bytes of an Ethernet header with a VLAN tag.
const LINK_HEADER_MAX: usize = 18;
/// Bytes of free memory that the pool of a link keeps.
pub(crate) const POOL_BYTES: usize = 16 << 20;

/// The framing on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Framing {
    /// A stream in which four bytes, the frame's length in network byte order, precede each frame:
    /// QEMU's `-netdev stream`, libkrun, passt.
    ///
    /// The checksums of received frames are not verified: nothing between the virtual machine and this
    /// process can damage a frame, and libkrun does not complete them. A peer that has sent a TCP
    /// super-segment (up to 64 KiB in a frame, without an offload header) also receives super-segments
    /// from then on, with complete checksums.
    Qemu,
    /// A stream in which two bytes, the frame's length in little-endian order, precede each frame:
    /// gvproxy's standard input and output.
    Plain,
    /// [`Plain`](Self::Plain) after the handshake of HyperKit and VPNKit, in which the peer receives
    /// the guest's Ethernet address.
    Hyperkit {
        /// The guest's Ethernet address.
        guest_mac: [u8; 6],
    },
    /// A `SOCK_SEQPACKET` socket on which each message is a frame: User Mode Linux, bess.
    Messages,
}

/// The counters of a link to a virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct FrameStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Received frames that were dropped for lack of memory.
    pub rx_dropped: u64,
    /// System calls that read, including those that found nothing.
    pub rx_calls: u64,
    /// Frames sent, each segment of a super-segment counted.
    pub tx_frames: u64,
    /// Packets that were dropped because no peer was connected, or because it rejected them.
    pub tx_dropped: u64,
    /// System calls that wrote, including those that found no room.
    pub tx_calls: u64,
    /// Peers that have connected.
    pub connections: u64,
    /// Connections that were closed because of an invalid frame length or handshake, and datagrams of
    /// senders without an address.
    pub malformed: u64,
}
