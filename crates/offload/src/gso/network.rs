//! The IP header of each segment: its length, and IPv4's ID and checksum.

use fullsend_wire::checksum::{Sum, sum};

use super::SegmentPosition;
use crate::bytes::{be16, put16};

/// The fields of an IP header that all segments share.
pub(super) struct IpTemplate {
    at: usize,
    v6: bool,
    /// The sum of the IPv4 header without total length, ID and checksum.
    sum: Sum,
    ip_id: u16,
    /// 0 if all segments carry the same ID, otherwise 1.
    ip_id_step: u16,
}

impl IpTemplate {
    /// Records the header from `at` to `end`, and zeroes the fields of an IPv4 header that differ
    /// between segments.
    pub(super) fn new(header: &mut [u8], at: usize, end: usize, v6: bool, fixed_id: bool) -> Self {
        let mut this = Self {
            at,
            v6,
            sum: Sum::ZERO,
            ip_id: be16(header, at + 4),
            ip_id_step: u16::from(!fixed_id),
        };
        if !v6 {
            put16(header, at + 2, 0);
            put16(header, at + 4, 0);
            put16(header, at + 10, 0);
            this.sum = sum(&header[at..end]);
        }
        this
    }

    #[inline]
    pub(super) fn write(&self, position: &SegmentPosition, header: &mut [u8]) {
        let at = self.at;
        let len = header.len() - at + position.len;
        if self.v6 {
            return put16(header, at + 4, (len - 40) as u16);
        }
        let id = self
            .ip_id
            .wrapping_add(position.index.wrapping_mul(self.ip_id_step));
        let sum = self.sum + Sum::word(len as u16) + Sum::word(id);
        put16(header, at + 2, len as u16);
        put16(header, at + 4, id);
        put16(header, at + 10, sum.checksum());
    }
}
