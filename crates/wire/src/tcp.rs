//! TCP header and options (RFC 9293 3.1, RFC 7323, RFC 2018).

use fullsend_units::{SeqNum, WireWindow};

/// The flag bits of a TCP header, AE (bit 8) included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Push.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x010);
    /// The urgent field is significant.
    pub const URG: Self = Self(0x020);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN (RFC 9768), once NS.
    pub const AE: Self = Self(0x100);

    /// All bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without the bits of `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// RFC 7323 3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timestamps {
    /// TSval.
    pub val: u32,
    /// TSecr; significant only with ACK set.
    pub ecr: u32,
}

/// One SACK block: the half-open range `[left, right)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlock {
    /// First byte held.
    pub left: SeqNum,
    /// The byte after the last one held.
    pub right: SeqNum,
}

/// Up to four SACK blocks, most recent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    len: u8,
}

impl SackBlocks {
    /// Adds a block; false (and no change) when four are there.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(self.len as usize) else {
            return false;
        };
        *slot = block;
        self.len += 1;
        true
    }

    /// The blocks.
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.len as usize]
    }
}

/// The options that mean something to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// MSS option as sent (RFC 9293 3.7.1), on SYN only.
    pub mss: Option<u16>,
    /// Window scale shift as sent (RFC 7323 2.2), on SYN only.
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 2), on SYN only.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks.
    pub sack: SackBlocks,
}

/// A TCP header's meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpRepr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte (of the SYN, if set).
    pub seq: SeqNum,
    /// Acknowledgement number; significant only with ACK set.
    pub ack: SeqNum,
    /// Flags.
    pub flags: TcpFlags,
    /// Window as on the wire.
    pub window: WireWindow,
    /// Urgent pointer; significant only with URG set.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}
