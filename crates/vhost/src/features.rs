//! The feature bits of virtio-net, and the effects of those that a guest has accepted.

use fullsend_offload::{Checksum, GsoKind, Packet};
use fullsend_wire::numbers::ethertype;
use fullsend_wire::tcp::TcpFlags;
use fullsend_wire::vnet::VNET_HDR_LEN;

// The features of virtio 1.2, 5.1.3 and 6. `GUEST_*` allows the device to send such packets to the guest,
// and `HOST_*` allows the opposite direction.
const CSUM: u64 = 1 << 0;
const GUEST_CSUM: u64 = 1 << 1;
const MTU: u64 = 1 << 3;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const MRG_RXBUF: u64 = 1 << 15;
const MQ: u64 = 1 << 22;
const INDIRECT_DESC: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
/// Rings are initially disabled (`VHOST_USER_F_PROTOCOL_FEATURES`).
const PROTOCOL_FEATURES: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
const GUEST_USO4: u64 = 1 << 54;
const GUEST_USO6: u64 = 1 << 55;
const HOST_USO: u64 = 1 << 56;

/// Length of `virtio_net_hdr` with `num_buffers`, in bytes.
pub(crate) const HEADER_MAX: usize = VNET_HDR_LEN + 2;

/// The features that the guest's driver has accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Features(u64);

impl Features {
    /// The features that a card with one pair of queues offers.
    const OFFERED: Self = Self(
        CSUM | GUEST_CSUM
            | MTU
            | GUEST_TSO4
            | GUEST_TSO6
            | GUEST_ECN
            | HOST_TSO4
            | HOST_TSO6
            | HOST_ECN
            | MRG_RXBUF
            | INDIRECT_DESC
            | EVENT_IDX
            | PROTOCOL_FEATURES
            | VERSION_1
            | GUEST_USO4
            | GUEST_USO6
            | HOST_USO,
    );

    /// Returns the features that a card with this number of pairs of queues offers. The monitor serves
    /// the control queue, with which the driver chooses the number of used pairs.
    pub(crate) fn offered(pairs: usize) -> Self {
        let mq = if pairs > 1 { MQ } else { 0 };
        Self(Self::OFFERED.0 | mq)
    }

    /// Returns the features in `bits`, or `None` if one of them is not in this set.
    pub(crate) fn accepted(self, bits: u64) -> Option<Self> {
        (bits & !self.0 == 0).then_some(Self(bits))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    pub(crate) fn event_idx(self) -> bool {
        self.has(EVENT_IDX)
    }

    pub(crate) fn mergeable(self) -> bool {
        self.has(MRG_RXBUF)
    }

    /// Returns whether rings work only after `SET_VRING_ENABLE`.
    pub(crate) fn rings_begin_disabled(self) -> bool {
        self.has(PROTOCOL_FEATURES)
    }

    /// Returns the length of the header before each packet, bytes. `num_buffers` is always present since
    /// virtio 1.0.
    pub(crate) fn header_len(self) -> usize {
        if self.0 & (VERSION_1 | MRG_RXBUF) == 0 {
            VNET_HDR_LEN
        } else {
            HEADER_MAX
        }
    }

    /// Returns whether the guest accepts packets without a complete checksum.
    pub(crate) fn guest_csum(self) -> bool {
        self.has(GUEST_CSUM)
    }

    /// Returns whether the guest accepts the packet unchanged. Otherwise the device must segment it, or
    /// complete its checksum.
    pub(crate) fn accepts(self, packet: &Packet) -> bool {
        if packet.offload.checksum == Checksum::Partial && !self.has(GUEST_CSUM) {
            return false;
        }
        if packet.payload.len() <= usize::from(packet.offload.gso_size) {
            return true;
        }
        let wanted = match packet.offload.kind {
            GsoKind::None => return true,
            GsoKind::TcpV4 => GUEST_TSO4,
            GsoKind::TcpV6 => GUEST_TSO6,
            GsoKind::Udp if packet.layers.ethertype == ethertype::IPV6 => GUEST_USO6,
            GsoKind::Udp => GUEST_USO4,
        };
        let flags = packet.transport_header().get(13).copied().unwrap_or(0);
        let cwr = packet.offload.kind != GsoKind::Udp
            && TcpFlags(u16::from(flags)).contains(TcpFlags::CWR);
        self.has(wanted) && (!cwr || self.has(GUEST_ECN))
    }
}
