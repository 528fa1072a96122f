//! TCP header and options (RFC 9293 3.1, RFC 7323, RFC 2018).

mod acc_ecn;
mod fastopen;
mod options;

use crate::read::{be16, be32, put16, put32};
use crate::{SeqNum, WireError, WireWindow};
use options::{aligned_timestamps, put_timestamps};

pub use acc_ecn::{AccEcn, AccEcnOrder};
pub use fastopen::FastopenCookie;
pub use options::{SackBlock, SackBlocks, TcpOptions, Timestamps};

/// The flag bits of a TCP header, AE (bit 8) included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct TcpFlags(pub u16);

impl TcpFlags {
    /// FIN: the sender has no more data.
    pub const FIN: Self = Self(0x001);
    /// SYN: synchronise sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// RST: reset the connection.
    pub const RST: Self = Self(0x004);
    /// PSH: push.
    pub const PSH: Self = Self(0x008);
    /// ACK: the acknowledgement number is significant.
    pub const ACK: Self = Self(0x010);
    /// URG: the urgent pointer is significant.
    pub const URG: Self = Self(0x020);
    /// ECE: ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// CWR: congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// AE: Accurate ECN (RFC 9768); formerly NS.
    pub const AE: Self = Self(0x100);

    /// Returns whether all bits of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any bit of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the bits of both.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the bits of `self` that are not in `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The fields of a TCP header.
///
/// ```
/// use fullsend_wire::tcp::{TcpFlags, TcpOptions, TcpRepr};
/// use fullsend_wire::{SeqNum, WireWindow};
///
/// let syn = TcpRepr {
///     src_port: 1024,
///     dst_port: 80,
///     seq: SeqNum::new(1),
///     ack: SeqNum::new(0),
///     flags: TcpFlags::SYN,
///     window: WireWindow(65_535),
///     urgent: 0,
///     options: TcpOptions { mss: Some(1460), ..TcpOptions::default() },
/// };
/// let mut header = [0; 60];
/// let len = syn.emit(&mut header); // the checksum field is 0
/// assert_eq!(len, 24);
/// assert_eq!(TcpRepr::parse(&header[..len]), Ok((syn, len)));
/// ```
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
    /// Window field, not yet scaled.
    pub window: WireWindow,
    /// Urgent pointer; significant only with URG set.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

/// Length of a header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// Length of the longest header, in bytes.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the checksum field from the start of the header, in bytes.
pub const CHECKSUM_OFFSET: usize = 16;
impl TcpRepr {
    /// Reads the header at the start of `bytes`, and returns it with its length in bytes.
    ///
    /// Payload may follow. The checksum is not verified. Unknown options are skipped, as are known
    /// options of a wrong length and, without SYN, those that only a SYN may carry; an option whose
    /// length is impossible ends the list (RFC 9293 3.1, MUST-7).
    ///
    /// # Errors
    /// `Truncated` if `bytes` end before the header does; `BadLength` for a data offset below 5.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), WireError> {
        let mut repr = Self::default();
        let header_len = repr.read(bytes)?;
        Ok((repr, header_len))
    }

    /// Reads the header at the start of `bytes` into this one, as [`parse`](Self::parse) does, and
    /// returns its length in bytes. This saves a copy where the header is part of a larger value. After an
    /// error the header is unchanged.
    ///
    /// # Errors
    /// `Truncated` if `bytes` end before the header does; `BadLength` for a data offset below 5.
    #[inline(always)]
    pub fn read(&mut self, bytes: &[u8]) -> Result<usize, WireError> {
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
        // Each field is stored in its place. A copy of a value that was just built would wait until its
        // stores are complete.
        self.src_port = be16(fixed, 0);
        self.dst_port = be16(fixed, 2);
        self.seq = SeqNum::new(be32(fixed, 4));
        self.ack = SeqNum::new(be32(fixed, 8));
        self.flags = flags;
        self.window = WireWindow(be16(fixed, 14));
        self.urgent = be16(fixed, 18);
        self.options = TcpOptions::default();
        if let Some(timestamps) = aligned_timestamps(options) {
            self.options.timestamps = Some(timestamps);
        } else if !options.is_empty() {
            self.options = TcpOptions::parse(options, flags.contains(TcpFlags::SYN));
        }
        Ok(header_len)
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes: a multiple of 4, 60 at most.
    #[inline]
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes the header at the start of `out` with a zero checksum field, and returns its length
    /// in bytes.
    ///
    /// SACK blocks that do not fit in 40 bytes of options are left out, the last first, and so are
    /// counters of Accurate ECN that do not fit even without SACK blocks.
    ///
    /// # Panics
    /// If `out` is shorter than [`header_len`](Self::header_len).
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let header_len = self.header_len();
        self.fill(&mut out[..header_len]);
        header_len
    }

    /// Writes the header like [`emit`](Self::emit), into memory of exactly
    /// [`header_len`](Self::header_len) bytes.
    ///
    /// # Panics
    /// If `out` is shorter, or much longer.
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
        // Timestamps alone take twelve bytes, so that no other option is present (SACK permitted
        // replaces their NOPs).
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
