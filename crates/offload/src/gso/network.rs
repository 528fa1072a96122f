//! An IP header on every segment: its length, and IPv4's ID and checksum.

use fullsend_wire::checksum::{Sum, sum};

use super::Place;
use crate::bytes::{be16, put16};

/// What the segments' IP headers at one place have alike.
pub(super) struct Network {
    at: usize,
    v6: bool,
    /// The IPv4 header without total length, ID and checksum.
    sum: Sum,
    ip_id: u16,
    /// 0 where all segments carry the same ID, else 1.
    ip_id_step: u16,
}

impl Network {
    /// Of the header from `at` to `end`, which loses what differs.
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
    pub(super) fn write(&self, place: &Place, header: &mut [u8]) {
        let at = self.at;
        let len = header.len() - at + place.len;
        if self.v6 {
            return put16(header, at + 4, (len - 40) as u16);
        }
        let id = self
            .ip_id
            .wrapping_add(place.index.wrapping_mul(self.ip_id_step));
        let sum = self.sum + Sum::word(len as u16) + Sum::word(id);
        put16(header, at + 2, len as u16);
        put16(header, at + 4, id);
        put16(header, at + 10, sum.checksum());
    }
}
