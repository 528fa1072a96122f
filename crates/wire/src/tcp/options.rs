//! The options of a TCP header (RFC 9293 3.1, RFC 7323, RFC 2018): their bytes and their meaning.

use super::acc_ecn::{AccEcn, AccEcnOrder};
use super::fastopen::{self, FastopenCookie};
use super::{HEADER_LEN, MAX_HEADER_LEN};
use crate::read::{be32, put16, put32};
use crate::{SeqNum, cold_path};

/// The TCP timestamps option (RFC 7323 3.2).
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
    /// First byte received.
    pub left: SeqNum,
    /// The byte after the last one received.
    pub right: SeqNum,
}

/// Up to four SACK blocks, the most recent first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    len: u8,
}

impl SackBlocks {
    /// Adds a block; returns `false`, without a change, if there are four already.
    pub fn push(&mut self, block: SackBlock) -> bool {
        let Some(slot) = self.blocks.get_mut(self.len as usize) else {
            return false;
        };
        *slot = block;
        self.len += 1;
        true
    }

    /// Keeps the first `len` blocks.
    pub fn truncate(&mut self, len: usize) {
        self.blocks
            .iter_mut()
            .skip(len)
            .for_each(|block| *block = SackBlock::default());
        self.len = self.len.min(len.min(4) as u8);
    }

    /// Returns the blocks.
    #[inline]
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..self.len as usize]
    }
}

/// The TCP options that this stack implements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// MSS option as sent (RFC 9293 3.7.1), on SYN only.
    pub mss: Option<u16>,
    /// Window scale shift as sent (RFC 7323 2.2), on SYN only.
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 2), on SYN only.
    pub sack_permitted: bool,
    /// Timestamps (RFC 7323 3.2).
    pub timestamps: Option<Timestamps>,
    /// SACK blocks (RFC 2018 3).
    pub sack: SackBlocks,
    /// Fast Open cookie (RFC 7413 4.1.1), on SYN only.
    pub fastopen: Option<FastopenCookie>,
    /// Accurate ECN's byte counters (RFC 9768 3.2.3).
    pub acc_ecn: Option<AccEcn>,
}

/// Option kinds (RFC 9293 3.1, RFC 7323, RFC 2018, RFC 7413, RFC 9768).
pub(super) mod kind {
    pub(in crate::tcp) const END: u8 = 0;
    pub(in crate::tcp) const NOP: u8 = 1;
    pub(in crate::tcp) const MSS: u8 = 2;
    pub(in crate::tcp) const WINDOW_SCALE: u8 = 3;
    pub(in crate::tcp) const SACK_PERMITTED: u8 = 4;
    pub(in crate::tcp) const SACK: u8 = 5;
    pub(in crate::tcp) const TIMESTAMPS: u8 = 8;
    pub(in crate::tcp) const FASTOPEN: u8 = 34;
    pub(in crate::tcp) const ACC_ECN0: u8 = 172;
    pub(in crate::tcp) const ACC_ECN1: u8 = 174;
    pub(in crate::tcp) const EXPERIMENT: u8 = 254;
}

/// NOP, NOP, kind, length: the usual alignment of timestamps (RFC 7323 appendix A).
const ALIGNED_TIMESTAMPS: [u8; 4] = [kind::NOP, kind::NOP, kind::TIMESTAMPS, 10];

impl TcpOptions {
    /// Most bytes of options in a header.
    pub const MAX_LEN: usize = MAX_HEADER_LEN - HEADER_LEN;

    /// Reads the bytes of the options; `syn`: accepts those that only a SYN may carry.
    #[inline(never)]
    pub(super) fn parse(mut bytes: &[u8], syn: bool) -> Self {
        let mut options = Self::default();
        loop {
            bytes = match *bytes {
                [kind::NOP, ref rest @ ..] => rest,
                [kind, len, ..] if kind != kind::END && len >= 2 => {
                    let Some((option, rest)) = bytes.split_at_checked(usize::from(len)) else {
                        return options;
                    };
                    options.set_option(kind, &option[2..], syn);
                    rest
                }
                // The list is complete, or a length is impossible.
                _ => return options,
            };
        }
    }

    /// Stores the value of one option.
    fn set_option(&mut self, kind: u8, value: &[u8], syn: bool) {
        match (kind, value) {
            (kind::MSS, &[high, low]) if syn => self.mss = Some(u16::from_be_bytes([high, low])),
            (kind::WINDOW_SCALE, &[shift]) if syn => self.window_scale = Some(shift),
            (kind::SACK_PERMITTED, []) if syn => self.sack_permitted = true,
            (kind::FASTOPEN, cookie) if syn => self.fastopen = FastopenCookie::new(cookie),
            (kind::EXPERIMENT, &[high, low, ref cookie @ ..])
                if syn && [high, low] == fastopen::EXPERIMENT =>
            {
                let cookie = FastopenCookie::new(cookie);
                self.fastopen = cookie.map(|cookie| cookie.with_experimental(true));
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

    /// Returns the length of the options in a header, in bytes: a multiple of 4, at most
    /// [`MAX_LEN`](Self::MAX_LEN).
    #[inline]
    pub fn len(&self) -> usize {
        if self.acc_ecn.is_some() {
            return self.len_with_acc_ecn();
        }
        let rest = self.base_len();
        if self.sack.len == 0 {
            return rest;
        }
        self.len_with_sack(rest)
    }

    /// Returns whether there are no options.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether all options, SACK blocks and counters fit in a header.
    pub fn fits(&self) -> bool {
        let Some(option) = &self.acc_ecn else {
            let blocks = self.sack.as_slice();
            return self.sack_blocks_that_fit(self.base_len()).len() == blocks.len();
        };
        let sack = sack_len(self.sack.as_slice());
        let option = option.padded_len(sack > 0 && self.sack_is_next());
        self.base_len() + option + sack <= Self::MAX_LEN
    }

    #[inline(never)]
    fn len_with_sack(&self, rest: usize) -> usize {
        rest + sack_len(self.sack_blocks_that_fit(rest))
    }

    fn len_with_acc_ecn(&self) -> usize {
        let (_, padded, blocks) = self.acc_ecn_that_fits();
        self.base_len() + padded + sack_len(blocks)
    }

    /// Returns the length of the options without SACK blocks and Accurate ECN's counters, in bytes.
    #[inline]
    fn base_len(&self) -> usize {
        let aligned = |is_present: bool, len: usize| if is_present { len } else { 0 };
        let mut len = aligned(self.timestamps.is_some(), 12)
            + aligned(self.mss.is_some(), 4)
            + aligned(self.window_scale.is_some(), 4)
            // SACK permitted replaces the two NOPs of the timestamps.
            + aligned(self.sack_permitted && self.timestamps.is_none(), 4);
        if let Some(cookie) = &self.fastopen {
            cold_path();
            len += cookie.option_len();
        }
        len
    }

    /// Returns the SACK blocks that fit after `before` bytes of other options.
    #[inline]
    fn sack_blocks_that_fit(&self, before: usize) -> &[SackBlock] {
        let blocks = self.sack.as_slice();
        if blocks.is_empty() {
            return blocks;
        }
        let max_blocks = Self::MAX_LEN.saturating_sub(before + 4) / 8;
        &blocks[..blocks.len().min(max_blocks)]
    }

    /// Returns whether SACK blocks would directly follow Accurate ECN's counters.
    fn sack_is_next(&self) -> bool {
        let sack_permitted = self.sack_permitted && self.timestamps.is_none();
        self.window_scale.is_none() && self.fastopen.is_none() && !sack_permitted
    }

    /// Returns the counters that fit, their length in bytes, and the SACK blocks that fit beside
    /// them.
    fn acc_ecn_that_fits(&self) -> (Option<AccEcn>, usize, &[SackBlock]) {
        let rest = self.base_len();
        let option = self
            .acc_ecn
            .and_then(|option| option.truncated_to_fit(Self::MAX_LEN - rest));
        let padded = |next: bool| option.map_or(0, |option| option.padded_len(next));
        let blocks = self.sack_blocks_that_fit(rest + padded(self.sack_is_next()));
        (
            option,
            padded(!blocks.is_empty() && self.sack_is_next()),
            blocks,
        )
    }

    /// Fills `out`, which has [`len`](Self::len) bytes.
    pub(super) fn emit(&self, out: &mut [u8]) {
        let mut out = OptionWriter(out);
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
            (self.sack_blocks_that_fit(self.base_len()), 2)
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
            out = OptionWriter(rest);
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

    /// Writes Accurate ECN's counters; returns the SACK blocks that fit beside them, and the number
    /// of NOPs that these need.
    fn emit_acc_ecn<'a>(&'a self, out: &mut OptionWriter<'_>) -> (&'a [SackBlock], usize) {
        let (option, padded, blocks) = self.acc_ecn_that_fits();
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

/// Returns the length of an option with these blocks in bytes, NOPs before it included.
#[inline]
fn sack_len(blocks: &[SackBlock]) -> usize {
    match blocks {
        [] => 0,
        blocks => 4 + 8 * blocks.len(),
    }
}

/// The part of the options' memory that is not yet written.
struct OptionWriter<'a>(&'a mut [u8]);

impl<'a> OptionWriter<'a> {
    #[inline]
    fn next<const N: usize>(&mut self) -> &'a mut [u8; N] {
        self.0
            .split_off_mut(..N)
            .and_then(|bytes| bytes.first_chunk_mut())
            .expect("`len` counts what is written")
    }
}

/// Writes the timestamps option with its two NOPs.
#[inline]
pub(super) fn put_timestamps(option: &mut [u8; 12], timestamps: Timestamps) {
    option[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
    put32(option, 4, timestamps.val);
    put32(option, 8, timestamps.ecr);
}

/// Returns the timestamps if they are the only option, aligned as usual.
#[inline]
pub(super) fn aligned_timestamps(options: &[u8]) -> Option<Timestamps> {
    let options: &[u8; 12] = options.try_into().ok()?;
    (options[..4] == ALIGNED_TIMESTAMPS).then(|| Timestamps {
        val: be32(options, 4),
        ecr: be32(options, 8),
    })
}
