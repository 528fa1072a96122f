//! What makes two packets of one flow, and what else must be equal for them to join.

use fullsend_wire::numbers::ethertype;
use fullsend_wire::tcp::TcpFlags;

use crate::Layers;
use crate::bytes::be32;

/// IPv6's version and flow label; the traffic class lies between them.
const VERSION_AND_LABEL: u32 = 0xf00f_ffff;

/// A parsed header, layer by layer.
#[derive(Clone, Copy)]
pub(super) struct Flow<'a> {
    layers: &'a Layers,
    link: &'a [u8],
    /// The IP header with its extension headers.
    network: &'a [u8],
    tcp: &'a [u8; 20],
    options: &'a [u8],
}

impl<'a> Flow<'a> {
    /// `None` if the layers are not those of `header`.
    #[inline]
    pub(super) fn new(header: &'a [u8], layers: &'a Layers) -> Option<Self> {
        let (below, upper) = header.split_at_checked(usize::from(layers.transport))?;
        let (link, network) = below.split_at_checked(usize::from(layers.network[0]))?;
        let (tcp, options) = upper.split_first_chunk()?;
        let flow = Self {
            layers,
            link,
            network,
            tcp,
            options,
        };
        (network.len() >= if flow.v6() { 40 } else { 20 }).then_some(flow)
    }

    #[inline]
    fn v6(&self) -> bool {
        self.layers.ethertype == ethertype::IPV6
    }

    /// Source and destination, and for IPv6 the extension headers behind them.
    #[inline]
    fn addresses(&self) -> &'a [u8] {
        &self.network[if self.v6() { 8 } else { 12 }..]
    }

    /// A number that is equal for equal addresses and ports. Not keyed: what strangers can do
    /// with collisions is bounded by the table's eight by eight.
    #[inline]
    pub(super) fn hash(&self) -> u32 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mix = u64::from(be32(self.tcp, 0)).wrapping_mul(ODD);
        let addresses = &self.addresses()[..if self.v6() { 32 } else { 8 }];
        for word in addresses.as_chunks::<8>().0 {
            mix = (mix.rotate_left(29) ^ u64::from_ne_bytes(*word)).wrapping_mul(ODD);
        }
        (mix >> 32) as u32
    }

    /// Of one flow: it would be wrong to hold both, and right to compare them further.
    #[inline]
    pub(super) fn is_same_flow(&self, other: &Self) -> bool {
        let label = |flow: &Self| be32(flow.network, 0) & VERSION_AND_LABEL;
        self.tcp[..4] == other.tcp[..4]
            && self.addresses() == other.addresses()
            && self.layers == other.layers
            && self.link == other.link
            && (!self.v6() || (label(self) == label(other) && self.network[6] == other.network[6]))
    }

    /// Nothing but lengths, IP ID, sequence number, FIN, PSH and checksums sets the two apart.
    #[inline]
    pub(super) fn is_like(&self, head: &Self) -> bool {
        let (mine, heads) = (self.network, head.network);
        let network = if self.v6() {
            // Traffic class; hop limit.
            mine[..4] == heads[..4] && mine[7] == heads[7]
        } else {
            // TOS; fragmentation flags and TTL.
            mine[1] == heads[1] && mine[6..9] == heads[6..9]
        };
        let may_differ = u32::from(TcpFlags::FIN.0 | TcpFlags::PSH.0) << 16;
        let flags_and_window = be32(self.tcp, 12) ^ be32(head.tcp, 12);
        network
            && self.tcp[8..12] == head.tcp[8..12]
            && flags_and_window & !may_differ == 0
            && self.tcp[18..20] == head.tcp[18..20]
            && self.options == head.options
    }
}
