//! TCP header and options (RFC 9293 3.1, RFC 7323, RFC 2018).

mod acc_ecn;

use fullsend_units::{SeqNum, WireWindow};

use crate::WireError;
use crate::read::{be16, be32, put16, put32};

pub use acc_ecn::{AccEcn, AccEcnOrder};

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

    /// Keeps the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.blocks
            .iter_mut()
            .skip(len)
            .for_each(|block| *block = SackBlock::default());
        self.len = self.len.min(len.min(4) as u8);
    }

    /// The blocks.
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.len as usize]
    }
}

/// A TCP Fast Open cookie (RFC 7413 2); an empty one asks for a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FastopenCookie {
    bytes: [u8; 16],
    len: u8,
    experimental: bool,
}

impl FastopenCookie {
    /// The request for a cookie.
    pub const REQUEST: Self = Self {
        bytes: [0; 16],
        len: 0,
        experimental: false,
    };

    /// A cookie of 4 to 16 bytes, an even number of them; or none for the request.
    pub fn new(cookie: &[u8]) -> Option<Self> {
        if !(matches!(cookie.len(), 0 | 4..=16) && cookie.len().is_multiple_of(2)) {
            return None;
        }
        let mut bytes = [0; 16];
        bytes[..cookie.len()].copy_from_slice(cookie);
        let len = cookie.len() as u8;
        Some(Self {
            bytes,
            len,
            experimental: false,
        })
    }

    /// The same in the option's older form or not: that of experiments (RFC 6994), kind 254.
    #[must_use]
    pub const fn in_form(self, experimental: bool) -> Self {
        Self {
            experimental,
            ..self
        }
    }

    /// It came, or goes, in the older form.
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// The cookie.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// It asks for a cookie.
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// Bytes in front of the cookie: kind, length, and what tells experiments apart.
    const fn head_len(&self) -> usize {
        if self.experimental { 4 } else { 2 }
    }

    /// Bytes of the option, NOPs behind it included.
    const fn option_len(&self) -> usize {
        (self.head_len() + self.len as usize).next_multiple_of(4)
    }

    /// Fills `out`, as long as [`option_len`](Self::option_len) says.
    fn emit(&self, out: &mut [u8]) {
        let (head, len) = (self.head_len(), self.head_len() + usize::from(self.len));
        let [high, low] = FASTOPEN_EXPERIMENT;
        let kind = if self.experimental {
            kind::EXPERIMENT
        } else {
            kind::FASTOPEN
        };
        out[..head].copy_from_slice(&[kind, len as u8, high, low][..head]);
        out[head..len].copy_from_slice(self.as_slice());
        out[len..].fill(kind::NOP);
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
    /// Fast Open (RFC 7413 4.1.1), on SYN only.
    pub fastopen: Option<FastopenCookie>,
    /// Accurate ECN's byte counters (RFC 9768 3.2.3).
    pub acc_ecn: Option<AccEcn>,
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

/// Option kinds (RFC 9293 3.1, RFC 7323, RFC 2018, RFC 7413, RFC 9768).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const WINDOW_SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMESTAMPS: u8 = 8;
    pub(super) const FASTOPEN: u8 = 34;
    pub(super) const ACC_ECN0: u8 = 172;
    pub(super) const ACC_ECN1: u8 = 174;
    pub(super) const EXPERIMENT: u8 = 254;
}

/// Fast Open among the experiments (RFC 7413 appendix).
const FASTOPEN_EXPERIMENT: [u8; 2] = [0xf9, 0x89];

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Offset of the checksum field.
pub const CHECKSUM_OFFSET: usize = 16;
/// NOP, NOP, kind, length: how nearly every stack aligns timestamps (RFC 7323 appendix A).
const ALIGNED_TIMESTAMPS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

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

/// The aligned option.
#[inline]
fn put_timestamps(option: &mut [u8; 12], timestamps: Timestamps) {
    option[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
    put32(option, 4, timestamps.val);
    put32(option, 8, timestamps.ecr);
}

/// The timestamps if they are all there is, in their usual place.
#[inline]
fn aligned_timestamps(options: &[u8]) -> Option<Timestamps> {
    let options: &[u8; 12] = options.try_into().ok()?;
    (options[..4] == ALIGNED_TIMESTAMPS).then(|| Timestamps {
        val: be32(options, 4),
        ecr: be32(options, 8),
    })
}

impl TcpOptions {
    /// Most bytes of options in a header.
    pub const MAX_LEN: usize = MAX_HEADER_LEN - HEADER_LEN;

    /// Reads the options' bytes.
    fn parse(mut bytes: &[u8], syn: bool) -> Self {
        let mut options = Self::default();
        loop {
            bytes = match *bytes {
                [kind::NOP, ref rest @ ..] => rest,
                [kind, len, ..] if kind != kind::END && len >= 2 => {
                    let Some((option, rest)) = bytes.split_at_checked(usize::from(len)) else {
                        return options;
                    };
                    options.take(kind, &option[2..], syn);
                    rest
                }
                // The end, its option, or a length that cannot be.
                _ => return options,
            };
        }
    }

    /// Takes one option's value in.
    fn take(&mut self, kind: u8, value: &[u8], syn: bool) {
        match (kind, value) {
            (kind::MSS, &[high, low]) if syn => self.mss = Some(u16::from_be_bytes([high, low])),
            (kind::WINDOW_SCALE, &[shift]) if syn => self.window_scale = Some(shift),
            (kind::SACK_PERMITTED, []) if syn => self.sack_permitted = true,
            (kind::FASTOPEN, cookie) if syn => self.fastopen = FastopenCookie::new(cookie),
            (kind::EXPERIMENT, &[high, low, ref cookie @ ..])
                if syn && [high, low] == FASTOPEN_EXPERIMENT =>
            {
                let cookie = FastopenCookie::new(cookie);
                self.fastopen = cookie.map(|cookie| cookie.in_form(true));
            }
            (kind::TIMESTAMPS, value) if value.len() == 8 => {
                self.timestamps = Some(Timestamps {
                    val: be32(value, 0),
                    ecr: be32(value, 4),
                });
            }
            (kind::SACK, value) if value.len().is_multiple_of(8) => {
                self.sack = SackBlocks::default();
                for block in value.as_chunks::<8>().0 {
                    self.sack.push(SackBlock {
                        left: SeqNum::new(be32(block, 0)),
                        right: SeqNum::new(be32(block, 4)),
                    });
                }
            }
            (kind::ACC_ECN0, value) => {
                self.acc_ecn = Some(AccEcn::parse(AccEcnOrder::Ect0First, value));
            }
            (kind::ACC_ECN1, value) => {
                self.acc_ecn = Some(AccEcn::parse(AccEcnOrder::Ect1First, value));
            }
            _ => {}
        }
    }

    /// Bytes they take in a header: a multiple of 4, at most [`MAX_LEN`](Self::MAX_LEN).
    #[inline]
    pub fn len(&self) -> usize {
        if self.acc_ecn.is_some() {
            return self.len_with_acc_ecn();
        }
        let rest = self.len_of_rest();
        rest + sack_len(self.sack_fitting(rest))
    }

    /// There are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing is left out.
    pub fn fits(&self) -> bool {
        let Some(option) = &self.acc_ecn else {
            let blocks = self.sack.as_slice();
            return self.sack_fitting(self.len_of_rest()).len() == blocks.len();
        };
        let sack = sack_len(self.sack.as_slice());
        let option = option.padded_len(sack > 0 && self.sack_is_next());
        self.len_of_rest() + option + sack <= Self::MAX_LEN
    }

    #[cold]
    fn len_with_acc_ecn(&self) -> usize {
        let (_, padded, blocks) = self.acc_ecn_fitting();
        self.len_of_rest() + padded + sack_len(blocks)
    }

    /// Without SACK blocks and Accurate ECN's counters.
    #[inline]
    fn len_of_rest(&self) -> usize {
        let aligned = |there: bool, len: usize| if there { len } else { 0 };
        aligned(self.timestamps.is_some(), 12)
            + aligned(self.mss.is_some(), 4)
            + aligned(self.window_scale.is_some(), 4)
            // SACK permitted stands where the two NOPs of the timestamps would.
            + aligned(self.sack_permitted && self.timestamps.is_none(), 4)
            + self.fastopen.as_ref().map_or(0, FastopenCookie::option_len)
    }

    /// The SACK blocks that fit behind `before` bytes.
    #[inline]
    fn sack_fitting(&self, before: usize) -> &[SackBlock] {
        let blocks = self.sack.as_slice();
        if blocks.is_empty() {
            return blocks;
        }
        let room = Self::MAX_LEN.saturating_sub(before + 4) / 8;
        &blocks[..blocks.len().min(room)]
    }

    /// SACK blocks would come right behind Accurate ECN's counters.
    fn sack_is_next(&self) -> bool {
        let sack_permitted = self.sack_permitted && self.timestamps.is_none();
        self.window_scale.is_none() && self.fastopen.is_none() && !sack_permitted
    }

    /// The counters that fit, the bytes they take, and the SACK blocks that fit beside them.
    fn acc_ecn_fitting(&self) -> (Option<AccEcn>, usize, &[SackBlock]) {
        let rest = self.len_of_rest();
        let option = self
            .acc_ecn
            .and_then(|option| option.fitting(Self::MAX_LEN - rest));
        let padded = |next: bool| option.map_or(0, |option| option.padded_len(next));
        let blocks = self.sack_fitting(rest + padded(self.sack_is_next()));
        (
            option,
            padded(!blocks.is_empty() && self.sack_is_next()),
            blocks,
        )
    }

    /// Fills `out`, which is as long as [`len`](Self::len) says.
    fn emit(&self, out: &mut [u8]) {
        let mut out = Rest(out);
        if let Some(mss) = self.mss {
            let option = out.next::<4>();
            option[..2].copy_from_slice(&[kind::MSS, 4]);
            put16(option, 2, mss);
        }
        if let Some(timestamps) = self.timestamps {
            let option = out.next::<12>();
            put_timestamps(option, timestamps);
            if self.sack_permitted {
                option[..2].copy_from_slice(&[kind::SACK_PERMITTED, 2]);
            }
        }
        let (blocks, nops) = if self.acc_ecn.is_some() {
            self.emit_acc_ecn(&mut out)
        } else if self.sack.as_slice().is_empty() {
            (self.sack.as_slice(), 0)
        } else {
            (self.sack_fitting(self.len_of_rest()), 2)
        };
        if self.sack_permitted && self.timestamps.is_none() {
            *out.next() = [kind::NOP, kind::NOP, kind::SACK_PERMITTED, 2];
        }
        if let Some(shift) = self.window_scale {
            *out.next() = [kind::NOP, kind::WINDOW_SCALE, 3, shift];
        }
        if let Some(cookie) = &self.fastopen {
            let (option, rest) = out.0.split_at_mut(cookie.option_len());
            cookie.emit(option);
            out = Rest(rest);
        }
        if !blocks.is_empty() {
            for _ in 0..nops {
                *out.next() = [kind::NOP];
            }
            *out.next() = [kind::SACK, 2 + 8 * blocks.len() as u8];
            for block in blocks {
                let option = out.next::<8>();
                put32(option, 0, block.left.raw());
                put32(option, 4, block.right.raw());
            }
        }
    }

    /// Writes Accurate ECN's counters; the SACK blocks that fit beside them, and the NOPs that
    /// these need.
    #[cold]
    fn emit_acc_ecn<'a>(&'a self, out: &mut Rest<'_>) -> (&'a [SackBlock], usize) {
        let (option, padded, blocks) = self.acc_ecn_fitting();
        let Some(option) = option else {
            return (blocks, 2);
        };
        let kind = match option.order() {
            AccEcnOrder::Ect0First => kind::ACC_ECN0,
            AccEcnOrder::Ect1First => kind::ACC_ECN1,
        };
        *out.next() = [kind, option.len() as u8];
        for field in option.value().as_chunks::<3>().0 {
            *out.next() = *field;
        }
        for _ in option.len()..padded {
            *out.next() = [kind::NOP];
        }
        (blocks, 2 - option.len().saturating_sub(padded))
    }
}

/// Bytes that these blocks take, NOPs before them included.
#[inline]
fn sack_len(blocks: &[SackBlock]) -> usize {
    match blocks {
        [] => 0,
        blocks => 4 + 8 * blocks.len(),
    }
}

/// The bytes of options not yet written.
struct Rest<'a>(&'a mut [u8]);

impl<'a> Rest<'a> {
    #[inline]
    fn next<const N: usize>(&mut self) -> &'a mut [u8; N] {
        self.0
            .split_off_mut(..N)
            .and_then(|bytes| bytes.first_chunk_mut())
            .expect("`len` counts what is written")
    }
}

#[cfg(test)]
mod tests;
