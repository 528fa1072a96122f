//! TCP header and options (RFC 9293 3.1, RFC 7323, RFC 2018).

mod acc_ecn;
mod fastopen;
mod options;

use fullsend_units::{SeqNum, WireWindow};

use crate::WireError;
use crate::read::{be16, be32, put16, put32};
use options::{aligned_timestamps, put_timestamps};

pub use acc_ecn::{AccEcn, AccEcnOrder};
pub use fastopen::FastopenCookie;
pub use options::{SackBlock, SackBlocks, TcpOptions, Timestamps};

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

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the checksum field.
pub const CHECKSUM_OFFSET: usize = 16;
impl TcpRepr {
    /// Reads a header at the start of `bytes`, which may go on with payload; also its length in
    /// bytes. The checksum is not looked at.
    ///
    /// Unknown options are skipped, as are known ones of a wrong length and, without SYN, those
    /// that only a SYN may carry; an option whose length is impossible ends the list (RFC 9293
    /// 3.1, MUST-7).
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), WireError> {
        let Some((fixed, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(WireError::Truncated);
        };
        let header_len = usize::from(fixed[12] >> 4) * 4;
        let Some(options_len) = header_len.checked_sub(HEADER_LEN) else {
            return Err(WireError::BadLength);
        };
        let Some(options) = rest.get(..options_len) else {
            return Err(WireError::Truncated);
        };
        let flags = TcpFlags(be16(fixed, 12) & 0x1ff);
        let options = if let Some(timestamps) = aligned_timestamps(options) {
            TcpOptions {
                timestamps: Some(timestamps),
                ..TcpOptions::default()
            }
        } else if options.is_empty() {
            TcpOptions::default()
        } else {
            TcpOptions::parse(options, flags.contains(TcpFlags::SYN))
        };
        let repr = Self {
            src_port: be16(fixed, 0),
            dst_port: be16(fixed, 2),
            seq: SeqNum::new(be32(fixed, 4)),
            ack: SeqNum::new(be32(fixed, 8)),
            flags,
            window: WireWindow(be16(fixed, 14)),
            urgent: be16(fixed, 18),
            options,
        };
        Ok((repr, header_len))
    }

    /// Bytes that [`emit`](Self::emit) writes: a multiple of 4, 60 at most.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes the header at the start of `out`, with the checksum field zero; how long it is.
    /// SACK blocks that do not fit in 40 bytes of options are left out, the last first, and so are
    /// counters of Accurate ECN that do not fit even without them.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let header_len = self.header_len();
        self.fill(&mut out[..header_len]);
        header_len
    }

    /// [`emit`](Self::emit) into memory that is as long as [`header_len`](Self::header_len) says.
    ///
    /// # Panics
    /// If it is shorter, or much longer.
    #[inline]
    pub fn fill(&self, out: &mut [u8]) {
        let header_len = out.len();
        debug_assert_eq!(header_len, self.header_len());
        let (fixed, options) = out
            .split_first_chunk_mut::<HEADER_LEN>()
            .expect("a header has at least its fixed part");
        put16(fixed, 0, self.src_port);
        put16(fixed, 2, self.dst_port);
        put32(fixed, 4, self.seq.raw());
        put32(fixed, 8, self.ack.raw());
        put16(
            fixed,
            12,
            (header_len as u16) << 10 | (self.flags.0 & 0x1ff),
        );
        put16(fixed, 14, self.window.0);
        put16(fixed, CHECKSUM_OFFSET, 0);
        put16(fixed, 18, self.urgent);
        if options.is_empty() {
            return;
        }
        // In twelve bytes nothing has room beside them.
        if let Some(timestamps) = self.options.timestamps
            && !self.options.sack_permitted
            && let Ok(option) = <&mut [u8; 12]>::try_from(&mut *options)
        {
            return put_timestamps(option, timestamps);
        }
        self.options.emit(options);
    }
}

#[cfg(test)]
mod tests;
