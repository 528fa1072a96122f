//! IGMP, versions 1 to 3 (RFC 1112, RFC 2236, RFC 3376): queries, and a host's reports.

use core::net::Ipv4Addr;

use crate::checksum::sum;
use crate::read::{array, put16};
use crate::{Nanos, WireError};

/// Length of a message of versions 1 and 2, bytes.
pub const HEADER_LEN: usize = 8;
/// Length of the header of a version 3 report, bytes.
pub const REPORT_HEADER_LEN: usize = 8;
/// Length of a group record without sources, bytes.
pub const RECORD_LEN: usize = 8;
/// Length of a version 3 query without sources, bytes.
const QUERY_V3_LEN: usize = 12;

mod kind {
    pub(super) const QUERY: u8 = 0x11;
    pub(super) const REPORT_V1: u8 = 0x12;
    pub(super) const REPORT_V2: u8 = 0x16;
    pub(super) const LEAVE: u8 = 0x17;
    pub(super) const REPORT_V3: u8 = 0x22;
}

/// The kind of a group record of IGMPv3 and `MLDv2`: with an empty source list, a group is filtered
/// either to include nothing or to exclude nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecordKind {
    /// The answer to a query: the group is joined (`MODE_IS_EXCLUDE`).
    IsJoined,
    /// The group has been left (`CHANGE_TO_INCLUDE_MODE`).
    Left,
    /// The group has been joined (`CHANGE_TO_EXCLUDE_MODE`).
    Joined,
}

impl RecordKind {
    /// Returns the number in a record.
    pub const fn number(self) -> u8 {
        match self {
            Self::IsJoined => 2,
            Self::Left => 3,
            Self::Joined => 4,
        }
    }
}

/// Returns the value of a code with an exponent: a number below 128 as it is, otherwise a mantissa
/// of four bits that is shifted (RFC 3376 4.1.1).
const fn decode(code: u8) -> u32 {
    if code < 128 {
        return code as u32;
    }
    let mantissa = (code & 0xf | 0x10) as u32;
    mantissa << ((code >> 4 & 7) + 3)
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IgmpRepr {
    /// A router's query.
    Query {
        /// The version of the querier: 1, 2 or 3.
        version: u8,
        /// The group in question; `None` for all.
        group: Option<Ipv4Addr>,
        /// The longest time within which to answer.
        max_response: Nanos,
    },
    /// Another host's report of version 1 or 2.
    Report {
        /// The group that the host has joined.
        group: Ipv4Addr,
    },
    /// Any other message: hosts ignore them.
    Other,
}

impl IgmpRepr {
    /// Reads a whole message and verifies its checksum.
    ///
    /// # Errors
    /// `Truncated` below 8 bytes; `BadField` if the checksum is wrong; `BadLength` for a query whose
    /// length is that of no version (RFC 3376 7.1).
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < HEADER_LEN {
            return Err(WireError::Truncated);
        }
        if !sum(bytes).is_valid() {
            return Err(WireError::BadField);
        }
        let group = Ipv4Addr::from(array::<4>(bytes, 4));
        match bytes[0] {
            kind::QUERY => {}
            kind::REPORT_V1 | kind::REPORT_V2 => return Ok(Self::Report { group }),
            _ => return Ok(Self::Other),
        }
        let tenths = |tenths: u32| Nanos::from_millis(u64::from(tenths) * 100);
        let (version, max_response) = match (bytes.len(), bytes[1]) {
            // RFC 2236 4: version 1 has no field; its hosts answer within 10 s.
            (HEADER_LEN, 0) => (1, tenths(100)),
            (HEADER_LEN, code) => (2, tenths(code.into())),
            (QUERY_V3_LEN.., code) => (3, tenths(decode(code))),
            _ => return Err(WireError::BadLength),
        };
        Ok(Self::Query {
            version,
            group: (!group.is_unspecified()).then_some(group),
            max_response,
        })
    }
}

/// Writes a message of version 1 or 2 about `group`: a report, or with `leave` a leave message, which
/// version 1 does not have. Returns its length in bytes.
///
/// # Panics
/// If `out` is shorter than [`HEADER_LEN`].
pub fn emit_old(version: u8, leave: bool, group: Ipv4Addr, out: &mut [u8]) -> usize {
    let out = &mut out[..HEADER_LEN];
    out.fill(0);
    out[0] = match (version, leave) {
        (_, true) => kind::LEAVE,
        (1, false) => kind::REPORT_V1,
        _ => kind::REPORT_V2,
    };
    out[4..].copy_from_slice(&group.octets());
    let checksum = sum(out).checksum();
    put16(out, 2, checksum);
    HEADER_LEN
}

/// Writes a report of version 3 with these records, and returns its length in bytes:
/// [`REPORT_HEADER_LEN`] and [`RECORD_LEN`] for each record.
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_report(records: &[(RecordKind, Ipv4Addr)], out: &mut [u8]) -> usize {
    let len = REPORT_HEADER_LEN + records.len() * RECORD_LEN;
    let out = &mut out[..len];
    out.fill(0);
    out[0] = kind::REPORT_V3;
    put16(out, 6, records.len() as u16);
    let (_, list) = out.split_at_mut(REPORT_HEADER_LEN);
    for (record, (kind, group)) in list.chunks_exact_mut(RECORD_LEN).zip(records) {
        record[0] = kind.number();
        record[4..].copy_from_slice(&group.octets());
    }
    let checksum = sum(out).checksum();
    put16(out, 2, checksum);
    len
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{IgmpRepr, RecordKind, decode, emit_old, emit_report};
    use crate::checksum::sum;
    use crate::{Nanos, WireError};

    /// Returns a message with its checksum.
    fn message(bytes: &[u8]) -> Vec<u8> {
        let mut message = bytes.to_vec();
        let checksum = sum(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        message
    }

    #[test]
    fn the_version_of_a_query_follows_from_its_length_and_code() {
        let group = Some([239, 1, 2, 3].into());
        for (bytes, version, group, tenths) in [
            (&[0x11, 0, 0, 0, 0, 0, 0, 0][..], 1, None, 100),
            (&[0x11, 20, 0, 0, 239, 1, 2, 3], 2, group, 20),
            (&[0x11, 0, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0], 3, None, 0),
            (
                &[0x11, 0x8f, 0, 0, 239, 1, 2, 3, 2, 125, 0, 1, 1, 1, 1, 1],
                3,
                group,
                248,
            ),
        ] {
            let expected = IgmpRepr::Query {
                version,
                group,
                max_response: Nanos::from_millis(tenths * 100),
            };
            assert_eq!(IgmpRepr::parse(&message(bytes)), Ok(expected));
        }
        let between = message(&[0x11, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(IgmpRepr::parse(&between), Err(WireError::BadLength));
        let mut wrong = message(&[0x11, 1, 0, 0, 0, 0, 0, 0]);
        wrong[7] = 1;
        assert_eq!(IgmpRepr::parse(&wrong), Err(WireError::BadField));
        assert_eq!([decode(127), decode(128), decode(255)], [127, 128, 31_744]);
    }

    #[test]
    fn reports_have_the_layout_of_their_rfcs() {
        let group = [239, 1, 2, 3].into();
        let mut out = [0xff; 24];
        let len = emit_old(2, false, group, &mut out);
        assert_eq!(out[..len], message(&[0x16, 0, 0, 0, 239, 1, 2, 3]));
        let report = IgmpRepr::Report { group };
        assert_eq!(IgmpRepr::parse(&out[..len]), Ok(report));
        let len = emit_old(2, true, group, &mut out);
        assert_eq!(out[..len], message(&[0x17, 0, 0, 0, 239, 1, 2, 3]));
        assert_eq!(IgmpRepr::parse(&out[..len]), Ok(IgmpRepr::Other));

        let records = [
            (RecordKind::Joined, group),
            (RecordKind::Left, [224, 0, 0, 9].into()),
        ];
        let len = emit_report(&records, &mut out);
        let expected = [
            &[0x22, 0, 0, 0, 0, 0, 0, 2][..],
            &[4, 0, 0, 0, 239, 1, 2, 3],
            &[3, 0, 0, 0, 224, 0, 0, 9],
        ];
        assert_eq!(out[..len], message(&expected.concat()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panics(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = IgmpRepr::parse(&bytes);
            if bytes.len() >= 4 {
                let mut bytes = bytes;
                bytes[2..4].fill(0);
                let _ = IgmpRepr::parse(&message(&bytes));
            }
        }
    }
}
