//! The option of Accurate ECN (RFC 9768 3.2.3): byte counters for each ECN field.

use crate::EcnField;

/// Length of kind and length, in bytes.
const FIXED_LEN: usize = 2;
/// Length of a counter, in bytes.
const FIELD_LEN: usize = 3;
/// Number of counters in the longest option.
const MAX_FIELDS: usize = 3;

/// The order of the counters in an Accurate ECN option, given by its kind; CE is always second.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccEcnOrder {
    /// AccECN0: ECT(0), CE, ECT(1).
    #[default]
    Ect0First,
    /// AccECN1: ECT(1), CE, ECT(0).
    Ect1First,
}

impl AccEcnOrder {
    /// Returns the ECN field of each counter.
    const fn fields(self) -> [EcnField; MAX_FIELDS] {
        match self {
            Self::Ect0First => [EcnField::Ect0, EcnField::Ce, EcnField::Ect1],
            Self::Ect1First => [EcnField::Ect1, EcnField::Ce, EcnField::Ect0],
        }
    }
}

/// The byte counters of an Accurate ECN option, modulo 2^24: the first zero to three in its order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AccEcn {
    order: AccEcnOrder,
    fields: u8,
    bytes: [u8; FIELD_LEN * MAX_FIELDS],
}

impl AccEcn {
    /// Returns an option with the first three of `counters`, in the order of the option.
    pub fn new(order: AccEcnOrder, counters: &[u32]) -> Self {
        let mut bytes = [0; FIELD_LEN * MAX_FIELDS];
        for (field, counter) in bytes
            .as_chunks_mut::<FIELD_LEN>()
            .0
            .iter_mut()
            .zip(counters)
        {
            field.copy_from_slice(&counter.to_be_bytes()[1..]);
        }
        Self {
            order,
            fields: counters.len().min(MAX_FIELDS) as u8,
            bytes,
        }
    }

    /// Reads an option's value; the bytes after the last whole counter are ignored.
    pub(super) fn parse(order: AccEcnOrder, value: &[u8]) -> Self {
        let fields = (value.len() / FIELD_LEN).min(MAX_FIELDS);
        let len = fields * FIELD_LEN;
        let mut bytes = [0; FIELD_LEN * MAX_FIELDS];
        bytes[..len].copy_from_slice(&value[..len]);
        Self {
            order,
            fields: fields as u8,
            bytes,
        }
    }

    /// Returns the option with at most `fields` counters.
    #[must_use]
    pub fn shortened(mut self, fields: usize) -> Self {
        self.fields = self.fields.min(fields.min(MAX_FIELDS) as u8);
        self.bytes[usize::from(self.fields) * FIELD_LEN..].fill(0);
        self
    }

    /// Returns the number of counters.
    pub fn fields(&self) -> usize {
        self.fields.into()
    }

    /// Returns an iterator over the ECN fields and their counters, in bytes.
    pub fn counters(&self) -> impl Iterator<Item = (EcnField, u32)> {
        let values = self.value().as_chunks::<FIELD_LEN>().0;
        let counters = values
            .iter()
            .map(|&[a, b, c]| u32::from_be_bytes([0, a, b, c]));
        self.order.fields().into_iter().zip(counters)
    }

    /// Returns the order of the counters.
    pub(super) fn order(&self) -> AccEcnOrder {
        self.order
    }

    /// Returns the bytes after kind and length.
    pub(super) fn value(&self) -> &[u8] {
        &self.bytes[..self.fields() * FIELD_LEN]
    }

    /// Returns the length of the option without padding, in bytes.
    pub(super) fn len(&self) -> usize {
        FIXED_LEN + self.fields() * FIELD_LEN
    }

    /// Returns the option with as many counters as fit in `available` bytes, NOPs to a multiple of
    /// four included; `None` if not even an empty option fits.
    pub(super) fn truncated_to_fit(self, available: usize) -> Option<Self> {
        let fits = |&fields: &usize| self.shortened(fields).len().next_multiple_of(4) <= available;
        let fields = (0..=self.fields()).rev().find(fits)?;
        Some(self.shortened(fields))
    }

    /// Returns the length of the option with padding, in bytes.
    ///
    /// SACK blocks are aligned to four bytes by two NOPs. If they are next (`before_sack`), the
    /// option's last bytes may replace these NOPs.
    pub(super) fn padded_len(&self, before_sack: bool) -> usize {
        match self.len() % 4 {
            over @ 0..=2 if before_sack => self.len() - over,
            _ => self.len().next_multiple_of(4),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::{AccEcn, AccEcnOrder};
    use crate::EcnField;

    #[test]
    fn counters_follow_the_order_and_have_24_bits() {
        let option = AccEcn::new(AccEcnOrder::Ect1First, &[1, 0x0123_4567, 3]);
        let all: Vec<_> = option.counters().collect();
        assert_eq!(
            all,
            [
                (EcnField::Ect1, 1),
                (EcnField::Ce, 0x0023_4567),
                (EcnField::Ect0, 3)
            ]
        );
        let first: Vec<_> = option.shortened(1).counters().collect();
        assert_eq!(first, [(EcnField::Ect1, 1)]);
        let other = AccEcn::new(AccEcnOrder::Ect0First, &[7]);
        assert_eq!(other.counters().collect::<Vec<_>>(), [(EcnField::Ect0, 7)]);
        assert_eq!(option.shortened(9), option);
    }

    #[test]
    fn partial_counters_are_ignored() {
        let value = [0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4];
        for (len, fields) in [(0, 0), (2, 0), (3, 1), (5, 1), (8, 2), (9, 3), (12, 3)] {
            let option = AccEcn::parse(AccEcnOrder::Ect0First, &value[..len]);
            assert_eq!(option.fields(), fields, "{len}");
        }
    }

    #[test]
    fn counters_are_truncated_to_the_available_space() {
        let option = AccEcn::new(AccEcnOrder::Ect1First, &[1, 2, 3]);
        let fields = |available| {
            option
                .truncated_to_fit(available)
                .map(|option| option.fields())
        };
        assert_eq!(fields(40), Some(3));
        assert_eq!(fields(12), Some(3));
        assert_eq!(fields(11), Some(2));
        assert_eq!(fields(7), Some(0));
        assert_eq!(fields(3), None);
        let lens = [0, 1, 2, 3].map(|fields| {
            let option = option.shortened(fields);
            (option.padded_len(true), option.padded_len(false))
        });
        assert_eq!(lens, [(0, 4), (4, 8), (8, 8), (12, 12)]);
    }
}
