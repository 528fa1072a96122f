//! DNS messages (RFC 1035), as far as a resolver of addresses needs them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::WireError;
use crate::read::{array, be16, be32, put16};

/// Length of a message's header, bytes.
pub const HEADER_LEN: usize = 12;
/// Longest message that [`emit_query`] writes, bytes.
pub const MAX_QUERY_LEN: usize = HEADER_LEN + MAX_NAME_LEN + 4;

/// Longest name, with the lengths of its labels, bytes (RFC 1035 2.3.4).
const MAX_NAME_LEN: usize = 255;
const MAX_LABEL_LEN: usize = 63;
/// Most compression pointers in one name, so that a hostile message costs little time to read.
const MAX_POINTERS: u8 = 32;
/// The class of the Internet.
const CLASS_IN: u16 = 1;

mod flags {
    pub(super) const RESPONSE: u16 = 0x8000;
    pub(super) const OPCODE: u16 = 0x7800;
    pub(super) const TRUNCATED: u16 = 0x0200;
    pub(super) const RECURSION_DESIRED: u16 = 0x0100;
    pub(super) const RCODE: u16 = 0x000f;
}

/// Types of records.
pub mod kind {
    /// An IPv4 address.
    pub const A: u16 = 1;
    /// Another name of the host.
    pub const CNAME: u16 = 5;
    /// An IPv6 address (RFC 3596).
    pub const AAAA: u16 = 28;
}

/// Response codes (RFC 1035 4.1.1).
pub mod rcode {
    /// No error.
    pub const NO_ERROR: u8 = 0;
    /// The name does not exist.
    pub const NAME_ERROR: u8 = 3;
}

/// Writes a query for the records of type `kind` of `name`, recursion desired, and returns its
/// length in bytes.
///
/// # Errors
/// `BadField` for a name that is empty, not ASCII, or has a label that is empty or too long;
/// `BadLength` if it is too long altogether.
///
/// # Panics
/// If `out` is shorter than [`MAX_QUERY_LEN`].
pub fn emit_query(id: u16, name: &str, kind: u16, out: &mut [u8]) -> Result<usize, WireError> {
    put16(out, 0, id);
    put16(out, 2, flags::RECURSION_DESIRED);
    put16(out, 4, 1);
    out[6..HEADER_LEN].fill(0);
    let mut at = HEADER_LEN;
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        if label.is_empty() || label.len() > MAX_LABEL_LEN || !label.is_ascii() {
            return Err(WireError::BadField);
        }
        // The root label follows.
        if at + 1 + label.len() + 1 > HEADER_LEN + MAX_NAME_LEN {
            return Err(WireError::BadLength);
        }
        out[at] = label.len() as u8;
        out[at + 1..][..label.len()].copy_from_slice(label.as_bytes());
        at += 1 + label.len();
    }
    out[at] = 0;
    put16(out, at + 1, kind);
    put16(out, at + 3, CLASS_IN);
    Ok(at + 5)
}

/// A name in a message.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Name<'a> {
    /// Iterates over the labels. A name that is malformed, too long, or whose compression pointers
    /// do not point backwards (RFC 1035 4.1.4) ends with an error.
    pub const fn labels(self) -> Labels<'a> {
        Labels {
            message: self.message,
            at: Some(self.at),
            // A pointer must point before the name that it is in.
            limit: self.at,
            left: MAX_NAME_LEN,
            pointers: MAX_POINTERS,
        }
    }

    /// Returns whether both are the same valid name; case does not matter (RFC 4343).
    pub fn is_same(self, other: Name<'_>) -> bool {
        let (mut a, mut b) = (self.labels(), other.labels());
        loop {
            match (a.next(), b.next()) {
                (None, None) => return true,
                (Some(Ok(a)), Some(Ok(b))) if a.eq_ignore_ascii_case(b) => {}
                _ => return false,
            }
        }
    }

    /// Returns whether this is the name that `text` writes, with or without a dot at its end.
    pub fn is_text(self, text: &str) -> bool {
        let mut labels = self.labels();
        let mut parts = text.strip_suffix('.').unwrap_or(text).split('.');
        loop {
            match (labels.next(), parts.next()) {
                (None, None) => return true,
                (Some(Ok(a)), Some(b)) if a.eq_ignore_ascii_case(b.as_bytes()) => {}
                _ => return false,
            }
        }
    }

    /// Returns the offset of the first byte after the name in the message.
    fn end(self) -> Result<usize, WireError> {
        let mut at = self.at;
        loop {
            match *self.message.get(at).ok_or(WireError::Truncated)? {
                0 => return Ok(at + 1),
                len @ 1..=63 => at += 1 + usize::from(len),
                192.. => return Ok(at + 2),
                _ => return Err(WireError::BadField),
            }
        }
    }
}

/// The labels of a name, from [`Name::labels`].
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    message: &'a [u8],
    /// `None` after the end.
    at: Option<usize>,
    limit: usize,
    /// Bytes that the name may still have.
    left: usize,
    /// Pointers that may still be followed.
    pointers: u8,
}

impl<'a> Labels<'a> {
    fn read(&mut self) -> Result<Option<&'a [u8]>, WireError> {
        let Some(mut at) = self.at.take() else {
            return Ok(None);
        };
        loop {
            match *self.message.get(at).ok_or(WireError::Truncated)? {
                0 => return Ok(None),
                len @ 1..=63 => {
                    let len = usize::from(len);
                    let label = self.message.get(at + 1..at + 1 + len);
                    self.left = self.left.checked_sub(1 + len).ok_or(WireError::BadLength)?;
                    self.at = Some(at + 1 + len);
                    return label.map(Some).ok_or(WireError::Truncated);
                }
                192.. => {
                    let pair = self.message.get(at..at + 2).ok_or(WireError::Truncated)?;
                    let to = usize::from(be16(pair, 0) & 0x3fff);
                    // Each pointer points further back, so that there is an end.
                    if to >= self.limit || self.pointers == 0 {
                        return Err(WireError::BadField);
                    }
                    self.pointers -= 1;
                    (at, self.limit) = (to, to);
                }
                _ => return Err(WireError::BadField),
            }
        }
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = Result<&'a [u8], WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// The data of a record.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// The address of an `A` or `AAAA` record.
    Address(IpAddr),
    /// The name of a `CNAME` record.
    Alias(Name<'a>),
    /// The data of any other record.
    Other,
}

/// A resource record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The name that the record belongs to.
    pub owner: Name<'a>,
    /// The record's type; see [`kind`].
    pub kind: u16,
    /// Time for which the record may be cached, in seconds.
    pub ttl_s: u32,
    /// The record's data.
    pub data: Data<'a>,
}

/// A view of a response with one question.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    message: &'a [u8],
    /// Offset of the first answer.
    answers: usize,
}

impl<'a> Response<'a> {
    /// Reads the header and the question of a response.
    ///
    /// # Errors
    /// `Truncated` if the message ends before the first answer, `BadField` if it is not a response to
    /// a standard query with one question.
    pub fn new(message: &'a [u8]) -> Result<Self, WireError> {
        if message.len() < HEADER_LEN {
            return Err(WireError::Truncated);
        }
        let flags = be16(message, 2);
        let questions = be16(message, 4);
        if flags & flags::RESPONSE == 0 || flags & flags::OPCODE != 0 || questions != 1 {
            return Err(WireError::BadField);
        }
        let question = Name {
            message,
            at: HEADER_LEN,
        };
        let answers = question.end()? + 4;
        if answers > message.len() {
            return Err(WireError::Truncated);
        }
        Ok(Self { message, answers })
    }

    /// Returns the ID of the query.
    pub const fn id(&self) -> u16 {
        be16(self.message, 0)
    }

    /// Returns whether the response was too long for a datagram.
    pub const fn is_truncated(&self) -> bool {
        be16(self.message, 2) & flags::TRUNCATED != 0
    }

    /// Returns the response code; see [`rcode`].
    pub const fn rcode(&self) -> u8 {
        (be16(self.message, 2) & flags::RCODE) as u8
    }

    /// Returns the name in question.
    pub const fn question(&self) -> Name<'a> {
        Name {
            message: self.message,
            at: HEADER_LEN,
        }
    }

    /// Returns whether the question is for records of type `kind` of `name` in the Internet.
    pub fn is_about(&self, name: &str, kind: u16) -> bool {
        be16(self.message, self.answers - 4) == kind
            && be16(self.message, self.answers - 2) == CLASS_IN
            && self.question().is_text(name)
    }

    /// Iterates over the answers of the Internet's class. It ends at the first that is malformed.
    pub const fn answers(&self) -> Answers<'a> {
        Answers {
            message: self.message,
            at: self.answers,
            left: be16(self.message, 6),
        }
    }
}

/// The answers of a response, from [`Response::answers`].
#[derive(Clone, Debug)]
pub struct Answers<'a> {
    message: &'a [u8],
    at: usize,
    left: u16,
}

impl<'a> Answers<'a> {
    /// Reads the next record and its class.
    fn read(&mut self) -> Option<(Record<'a>, u16)> {
        let message = self.message;
        let owner = Name {
            message,
            at: self.at,
        };
        let fields = owner.end().ok()?;
        let header = message.get(fields..fields + 10)?;
        let (kind, len) = (be16(header, 0), usize::from(be16(header, 8)));
        let start = fields + 10;
        let bytes = message.get(start..start + len)?;
        let data = match (kind, len) {
            (kind::A, 4) => Data::Address(Ipv4Addr::from(array::<4>(bytes, 0)).into()),
            (kind::AAAA, 16) => Data::Address(Ipv6Addr::from(array::<16>(bytes, 0)).into()),
            (kind::CNAME, _) => Data::Alias(Name { message, at: start }),
            _ => Data::Other,
        };
        self.at = start + len;
        let record = Record {
            owner,
            kind,
            ttl_s: be32(header, 4),
            data,
        };
        Some((record, be16(header, 2)))
    }
}

impl<'a> Iterator for Answers<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        while self.left > 0 {
            self.left -= 1;
            let Some((record, class)) = self.read() else {
                self.left = 0;
                return None;
            };
            if class == CLASS_IN {
                return Some(record);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::{String, ToString};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::{Data, MAX_QUERY_LEN, Response, emit_query, kind};
    use crate::WireError;

    fn query(name: &str) -> Result<Vec<u8>, WireError> {
        let mut out = [0; MAX_QUERY_LEN];
        let len = emit_query(7, name, kind::A, &mut out)?;
        Ok(out[..len].to_vec())
    }

    /// Returns a response to [`query`] with these answers: owner, type and data.
    fn response(name: &str, answers: &[(&[u8], u16, &[u8])]) -> Vec<u8> {
        let mut message = query(name).unwrap();
        message[2] |= 0x80;
        message[7] = answers.len() as u8;
        for (owner, kind, data) in answers {
            message.extend(*owner);
            message.extend(kind.to_be_bytes());
            message.extend([0, 1, 0, 0, 0, 60]);
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(*data);
        }
        message
    }

    #[test]
    fn queries_have_the_layout_of_rfc_1035() {
        let expected = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x04test\0\0\x01\0\x01";
        assert_eq!(query("www.test").unwrap(), expected);
        assert_eq!(query("www.test.").unwrap(), expected);
        for name in ["", ".", "a..b", "ä.test", &"a".repeat(64)] {
            assert_eq!(query(name), Err(WireError::BadField), "{name:?}");
        }
        let longest = ["a"; 127].join(".");
        assert_eq!(query(&longest).unwrap().len(), MAX_QUERY_LEN);
        let longer = ["a"; 128].join(".");
        assert_eq!(query(&longer), Err(WireError::BadLength));
    }

    #[test]
    fn aliases_and_compressed_names_are_followed() {
        // 12: www.test, 16: test. The alias `real.test` is at offset 26 + 12.
        let message = response(
            "www.test",
            &[
                (b"\xc0\x0c", kind::CNAME, b"\x04real\xc0\x10"),
                (b"\xc0\x26", kind::A, &[10, 0, 0, 9]),
                (b"\x04real\x04TEST\0", kind::A, &[10, 0, 0, 10]),
            ],
        );
        let response = Response::new(&message).unwrap();
        assert!(response.id() == 7 && response.is_about("WWW.test.", kind::A));
        assert!(!response.is_about("www.tes", kind::A) && !response.is_about("www.test", 28));
        let answers: Vec<_> = response.answers().collect();
        assert!(answers[0].owner.is_same(response.question()));
        let Data::Alias(alias) = answers[0].data else {
            panic!("{:?}", answers[0]);
        };
        assert!(alias.is_text("real.test") && !alias.is_same(response.question()));
        assert!(
            answers[1..]
                .iter()
                .all(|answer| answer.owner.is_same(alias))
        );
        assert!(matches!(answers[2].data, Data::Address(ip) if ip.to_string() == "10.0.0.10"));
        assert_eq!(answers[1].ttl_s, 60);
    }

    #[test]
    fn pointers_that_do_not_point_backwards_end_the_name() {
        for owner in [b"\xc0\x1a", b"\xc0\x1b", b"\xff\xff"] {
            let message = response("www.test", &[(owner, kind::A, &[1; 4])]);
            let response = Response::new(&message).unwrap();
            let answer = response.answers().next().unwrap();
            assert!(answer.owner.labels().any(|label| label.is_err()));
            assert!(!answer.owner.is_same(answer.owner));
        }
    }

    #[test]
    fn answers_end_where_the_message_does() {
        let message = response("a.b", &[(&b"\xc0\x0c"[..], kind::A, &[1; 4][..]); 3]);
        for len in 0..message.len() {
            if let Ok(response) = Response::new(&message[..len]) {
                assert!(response.answers().count() < 3);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = bytes;
            if bytes.len() > 12 {
                bytes[2] |= 0x80;
                bytes[2] &= 0x87;
                (bytes[4], bytes[5]) = (0, 1);
            }
            if let Ok(response) = Response::new(&bytes) {
                for answer in response.answers() {
                    let labels = answer.owner.labels().take(200).count();
                    prop_assert!(labels < 200);
                    let _ = answer.owner.is_same(response.question());
                }
            }
        }

        #[test]
        fn valid_names_are_read_back(name in "[a-z0-9-]{1,63}(\\.[a-z0-9-]{1,20}){0,5}") {
            let mut message = query(&name).unwrap();
            message[2] |= 0x80;
            let response = Response::new(&message).unwrap();
            let labels: Vec<String> = response
                .question()
                .labels()
                .map(|label| String::from_utf8(label.unwrap().to_vec()).unwrap())
                .collect();
            prop_assert_eq!(labels.join("."), name);
        }
    }
}
