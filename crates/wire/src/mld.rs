//! Multicast Listener Discovery, versions 1 and 2 (RFC 2710, RFC 3810): queries, and a host's
//! reports. The messages are `ICMPv6`; the checksum is that of [`icmpv6`](crate::icmpv6).

use core::net::Ipv6Addr;

use crate::checksum::{Sum, sum};
use crate::igmp::RecordKind;
use crate::numbers::protocol;
use crate::read::{array, be16, put16};
use crate::{Nanos, WireError};

/// Length of a message of version 1, bytes.
pub const HEADER_LEN: usize = 24;
/// Length of the header of a version 2 report, bytes.
pub const REPORT_HEADER_LEN: usize = 8;
/// Length of a group record without sources, bytes.
pub const RECORD_LEN: usize = 20;
/// Length of a version 2 query without sources, bytes.
const QUERY_V2_LEN: usize = 28;

mod kind {
    pub(super) const QUERY: u8 = 130;
    pub(super) const REPORT_V1: u8 = 131;
    pub(super) const DONE: u8 = 132;
    pub(super) const REPORT_V2: u8 = 143;
}

/// Returns whether a type of `ICMPv6` is one that [`MldRepr::parse`] reads.
pub const fn is_mld(kind: u8) -> bool {
    matches!(kind, kind::QUERY | kind::REPORT_V1)
}

/// Returns the value of a maximum response code (RFC 3810 5.1.3), milliseconds.
const fn decode(code: u16) -> u32 {
    if code < 0x8000 {
        return code as u32;
    }
    let mantissa = (code & 0xfff | 0x1000) as u32;
    mantissa << ((code >> 12 & 7) + 3)
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MldRepr {
    /// A router's query.
    Query {
        /// The version of the querier: 1 or 2.
        version: u8,
        /// The group in question; `None` for all.
        group: Option<Ipv6Addr>,
        /// The longest time within which to answer.
        max_response: Nanos,
    },
    /// Another host's report of version 1.
    Report {
        /// The group that the host has joined.
        group: Ipv6Addr,
    },
}

impl MldRepr {
    /// Reads a whole message. The caller has verified the checksum, that the hop limit is 1, and that
    /// the source is a link-local address.
    ///
    /// # Errors
    /// `Truncated` below 24 bytes; `BadLength` for a query whose length is that of no version (RFC
    /// 3810 8.1); `BadVersion` for another type.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < HEADER_LEN {
            return Err(WireError::Truncated);
        }
        let group = Ipv6Addr::from(array::<16>(bytes, 8));
        match bytes[0] {
            kind::QUERY => {}
            kind::REPORT_V1 => return Ok(Self::Report { group }),
            _ => return Err(WireError::BadVersion),
        }
        let code = be16(bytes, 4);
        let (version, millis) = match bytes.len() {
            HEADER_LEN => (1, u32::from(code)),
            QUERY_V2_LEN.. => (2, decode(code)),
            _ => return Err(WireError::BadLength),
        };
        Ok(Self::Query {
            version,
            group: (!group.is_unspecified()).then_some(group),
            max_response: Nanos::from_millis(millis.into()),
        })
    }
}

/// Writes the checksum of a message from `src` to `dst`.
fn finish((src, dst): (Ipv6Addr, Ipv6Addr), out: &mut [u8]) {
    put16(out, 2, 0);
    let pseudo = Sum::pseudo_v6(src, dst, protocol::ICMPV6, out.len() as u32);
    let checksum = (pseudo + sum(out)).checksum();
    put16(out, 2, checksum);
}

/// Writes a message of version 1 about `group`: a report, or with `leave` a done message. Returns its
/// length in bytes.
///
/// # Panics
/// If `out` is shorter than [`HEADER_LEN`].
pub fn emit_old(
    leave: bool,
    group: Ipv6Addr,
    addrs: (Ipv6Addr, Ipv6Addr),
    out: &mut [u8],
) -> usize {
    let out = &mut out[..HEADER_LEN];
    out.fill(0);
    out[0] = if leave { kind::DONE } else { kind::REPORT_V1 };
    out[8..].copy_from_slice(&group.octets());
    finish(addrs, out);
    HEADER_LEN
}

/// Writes a report of version 2 with these records, and returns its length in bytes:
/// [`REPORT_HEADER_LEN`] and [`RECORD_LEN`] for each record.
///
/// # Panics
/// If `out` is shorter than that.
pub fn emit_report(
    records: &[(RecordKind, Ipv6Addr)],
    addrs: (Ipv6Addr, Ipv6Addr),
    out: &mut [u8],
) -> usize {
    let len = REPORT_HEADER_LEN + records.len() * RECORD_LEN;
    let out = &mut out[..len];
    out.fill(0);
    out[0] = kind::REPORT_V2;
    put16(out, 6, records.len() as u16);
    let (_, list) = out.split_at_mut(REPORT_HEADER_LEN);
    for (record, (kind, group)) in list.chunks_exact_mut(RECORD_LEN).zip(records) {
        record[0] = kind.number();
        record[4..].copy_from_slice(&group.octets());
    }
    finish(addrs, out);
    len
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;

    use proptest::prelude::*;

    use super::{MldRepr, decode, emit_old, emit_report, is_mld};
    use crate::igmp::RecordKind;
    use crate::{Nanos, WireError, icmpv6};

    #[test]
    fn the_version_of_a_query_follows_from_its_length() {
        let group: core::net::Ipv6Addr = "ff05::1:3".parse().unwrap();
        for (len, version) in [(24, 1), (28, 2), (44, 2)] {
            let mut query = vec![0; len];
            query[0] = 130;
            query[4..6].copy_from_slice(&[0x10, 0]);
            let expected = |group| MldRepr::Query {
                version,
                group,
                max_response: Nanos::from_millis(4096),
            };
            assert_eq!(MldRepr::parse(&query), Ok(expected(None)));
            query[8..24].copy_from_slice(&group.octets());
            assert_eq!(MldRepr::parse(&query), Ok(expected(Some(group))));
        }
        let mut between = vec![0; 26];
        between[0] = 130;
        assert_eq!(MldRepr::parse(&between), Err(WireError::BadLength));
        assert_eq!(
            [decode(0x7fff), decode(0x8000), decode(0xffff)],
            [32_767, 32_768, 8_387_584]
        );
    }

    #[test]
    fn reports_have_the_layout_of_their_rfcs() {
        let group = "ff05::1:3".parse().unwrap();
        let addrs = ("fe80::1".parse().unwrap(), "ff02::16".parse().unwrap());
        let mut out = [0xff; 64];
        for leave in [false, true] {
            let len = emit_old(leave, group, addrs, &mut out);
            assert!(icmpv6::checksum_ok(addrs.0, addrs.1, &out[..len]));
            assert_eq!(
                (len, out[0], out[8..24] == group.octets()),
                (24, 131 + u8::from(leave), true)
            );
        }
        assert!(is_mld(131) && !is_mld(132));
        let records = [(RecordKind::Joined, group), (RecordKind::IsJoined, group)];
        let len = emit_report(&records, addrs, &mut out);
        assert!(icmpv6::checksum_ok(addrs.0, addrs.1, &out[..len]));
        assert_eq!((len, out[0], &out[4..9]), (48, 143, &[0, 0, 0, 2, 4][..]));
        assert_eq!((out[28], out[32..48] == group.octets()), (2, true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = MldRepr::parse(&bytes);
        }
    }
}
