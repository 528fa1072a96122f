//! The parts of DNS messages that the relay reads and writes (RFC 1035 4).

use std::net::IpAddr;

/// Length of the header.
pub(super) const HEADER_LEN: usize = 12;
/// Longest name in its wire format, bytes.
const MAX_NAME: usize = 255;
pub(super) const CLASS_IN: u16 = 1;
pub(super) const TYPE_A: u16 = 1;
pub(super) const TYPE_AAAA: u16 = 28;
/// Seconds for which an answer of the relay itself may be cached.
pub(crate) const TTL: u32 = 60;

/// Flags in the second 16-bit word of the header.
pub(super) mod flag {
    pub(crate) const RESPONSE: u16 = 0x8000;
    pub(crate) const OPCODE: u16 = 0x7800;
    pub(crate) const TRUNCATED: u16 = 0x0200;
    pub(crate) const RECURSION_DESIRED: u16 = 0x0100;
    pub(crate) const RECURSION_AVAILABLE: u16 = 0x0080;
    pub(crate) const RESPONSE_CODE: u16 = 0x000f;
}

/// Response codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseCode {
    /// The answer section has the answer, which may be empty.
    NoError = 0,
    /// No resolver has answered.
    ServerFailure = 2,
    /// The name does not exist.
    NameError = 3,
    /// The relay does not relay messages of this kind.
    NotImplemented = 4,
    /// The policy forbids the answer.
    Refused = 5,
}

/// A query: its header and its only question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Query<'a> {
    /// The identifier.
    pub id: u16,
    flags: u16,
    /// The name in lower case, without the final dot. Bytes that are not printable, and dots and
    /// backslashes in labels, are written as `\ddd`.
    pub name: String,
    /// The type of the records.
    pub query_type: u16,
    class: u16,
    /// The question in its wire format.
    question: &'a [u8],
}

pub(super) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([word[0], word[1]]))
}

impl<'a> Query<'a> {
    /// Parses a message with one question. Returns `None` for a response or a malformed message, e.g. one
    /// with bytes after its last record.
    pub fn parse(message: &'a [u8]) -> Option<Self> {
        let flags = be16(message, 2)?;
        if flags & flag::RESPONSE != 0 || be16(message, 4)? != 1 {
            return None;
        }
        let (name, end) = parse_name(message, HEADER_LEN)?;
        // The other sections may have records, e.g. OPT (RFC 6891).
        let records = [6, 8, 10].map(|at| be16(message, at).map_or(0, u32::from));
        let mut next = end + 4;
        for _ in 0..records.iter().sum() {
            next = skip_record(message, next)?;
        }
        if next != message.len() {
            return None;
        }
        Some(Self {
            id: be16(message, 0)?,
            flags,
            name,
            query_type: be16(message, end)?,
            class: be16(message, end + 2)?,
            question: message.get(HEADER_LEN..end + 4)?,
        })
    }

    /// Returns whether the message requests records, and is not e.g. an update of a zone (RFC 2136).
    pub const fn is_standard(&self) -> bool {
        self.flags & flag::OPCODE == 0
    }

    /// Returns whether `message` is a response to this query with the identifier `id`: it has that
    /// identifier and the same question. Names are compared exactly, since resolvers copy them.
    pub fn is_answered_by(&self, id: u16, message: &[u8]) -> bool {
        be16(message, 0) == Some(id)
            && be16(message, 2).is_some_and(|flags| flags & flag::RESPONSE != 0)
            && be16(message, 4) == Some(1)
            && message
                .get(HEADER_LEN..)
                .is_some_and(|rest| rest.starts_with(self.question))
    }

    /// Builds a response without records.
    pub fn respond(&self, code: ResponseCode) -> Vec<u8> {
        self.respond_with(code, &[])
    }

    /// Returns the length of the question in its wire format.
    pub(super) const fn question_len(&self) -> usize {
        self.question.len()
    }

    /// Builds a response without records that makes the client repeat the query over TCP.
    pub fn respond_truncated(&self) -> Vec<u8> {
        let mut message = self.respond(ResponseCode::NoError);
        message[2] |= (flag::TRUNCATED >> 8) as u8;
        message
    }

    /// Builds a response with the `addresses` whose type the query requests.
    pub fn respond_with(&self, code: ResponseCode, addresses: &[IpAddr]) -> Vec<u8> {
        let asked = |address: &&IpAddr| {
            let record_type = if address.is_ipv4() { TYPE_A } else { TYPE_AAAA };
            self.class == CLASS_IN && self.query_type == record_type
        };
        let answers: Vec<_> = addresses.iter().filter(asked).collect();
        let kept = self.flags & (flag::OPCODE | flag::RECURSION_DESIRED);
        let flags = kept | flag::RESPONSE | flag::RECURSION_AVAILABLE | code as u16;
        let mut message = Vec::with_capacity(HEADER_LEN + self.question.len() + 28 * answers.len());
        for word in [self.id, flags, 1, answers.len() as u16, 0, 0] {
            message.extend(word.to_be_bytes());
        }
        message.extend(self.question);
        for address in answers {
            // The name is a pointer to the question's name.
            message.extend([0xc0, HEADER_LEN as u8]);
            message.extend(self.query_type.to_be_bytes());
            message.extend(CLASS_IN.to_be_bytes());
            message.extend(TTL.to_be_bytes());
            let data = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(data);
        }
        message
    }
}

/// Returns the offset after the record at `at`.
fn skip_record(message: &[u8], at: usize) -> Option<usize> {
    /// Type, class, TTL and the length of the data.
    const FIXED_LEN: usize = 10;
    let mut next = at;
    loop {
        let len = usize::from(*message.get(next)?);
        next += 1;
        match len {
            0 => break,
            1..64 => next += len,
            // A pointer ends the name (RFC 1035 4.1.4).
            0xc0.. => {
                next += 1;
                break;
            }
            _ => return None,
        }
    }
    let data_len = be16(message, next + FIXED_LEN - 2)?;
    let end = next + FIXED_LEN + usize::from(data_len);
    (end <= message.len()).then_some(end)
}

/// Parses the name at `at`, which must not be compressed: names of questions are not. Returns its text
/// and the offset after it.
fn parse_name(message: &[u8], at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut next = at;
    loop {
        let len = usize::from(*message.get(next)?);
        next += 1;
        if len == 0 {
            return Some((name, next));
        }
        if len > 63 || next + len - at > MAX_NAME - 1 {
            return None;
        }
        push_text(&mut name, message.get(next..next + len)?);
        next += len;
    }
}

/// Appends a label to the text of a name.
pub(super) fn push_text(name: &mut String, label: &[u8]) {
    if !name.is_empty() {
        name.push('.');
    }
    for &byte in label {
        match byte {
            b'.' | b'\\' => escape(name, byte),
            b'!'..=b'~' => name.push(byte.to_ascii_lowercase().into()),
            _ => escape(name, byte),
        }
    }
}

/// Appends a byte as `\ddd`.
fn escape(name: &mut String, byte: u8) {
    name.push('\\');
    name.extend([byte / 100, byte / 10 % 10, byte % 10].map(|digit| char::from(b'0' + digit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &[u8], query_type: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split(|byte| *byte == b'.') {
            message.push(label.len() as u8);
            message.extend(label);
        }
        message.push(0);
        message.extend(query_type.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    #[test]
    fn a_query_has_a_name_and_a_type() {
        let message = query(b"wWw.Example.com", 28);
        let parsed = Query::parse(&message).unwrap();
        assert_eq!((parsed.id, parsed.query_type), (0x1234, 28));
        assert_eq!(parsed.name, "www.example.com");
        let message = query(b"a\\b c\xff.x", 1);
        assert_eq!(Query::parse(&message).unwrap().name, "a\\092b\\032c\\255.x");
    }

    #[test]
    fn malformed_queries_are_rejected() {
        let good = query(b"example.com", 1);
        for len in 0..good.len() {
            assert_eq!(Query::parse(&good[..len]), None, "{len}");
        }
        let mut response = good.clone();
        response[2] |= 0x80;
        assert_eq!(Query::parse(&response), None);
        let mut pointer = good.clone();
        pointer[HEADER_LEN] = 0xc0;
        assert_eq!(Query::parse(&pointer), None);
        let mut two = good.clone();
        two[5] = 2;
        assert_eq!(Query::parse(&two), None);
        // A second query behind the first.
        assert_eq!(Query::parse(&[good.clone(), good].concat()), None);
        assert_eq!(
            Query::parse(&query(&"abc.".repeat(64).as_bytes()[..255], 1)),
            None
        );
    }

    #[test]
    fn the_records_of_a_query_end_with_it() {
        let mut message = query(b"example.com", 1);
        message[11] = 2;
        // OPT with four bytes of data, and a record whose name is a pointer.
        message.extend([0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4]);
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 9]);
        assert!(Query::parse(&message).is_some());
        for len in HEADER_LEN..message.len() {
            assert_eq!(Query::parse(&message[..len]), None, "{len}");
        }
        message.push(0);
        assert_eq!(Query::parse(&message), None);
    }

    #[test]
    fn only_messages_that_ask_for_records_are_standard() {
        let mut message = query(b"example.com", 1);
        assert!(Query::parse(&message).unwrap().is_standard());
        // UPDATE (RFC 2136).
        message[2] |= 5 << 3;
        assert!(!Query::parse(&message).unwrap().is_standard());
    }

    #[test]
    fn only_a_response_to_the_same_question_answers_it() {
        let message = query(b"example.com", 1);
        let parsed = Query::parse(&message).unwrap();
        let response = parsed.respond(ResponseCode::NameError);
        assert!(parsed.is_answered_by(parsed.id, &response));
        assert_eq!(response[3] & 0xf, 3);
        assert!(!parsed.is_answered_by(parsed.id, &message), "a query");
        let mut other_id = response.clone();
        other_id[0] ^= 1;
        assert!(!parsed.is_answered_by(parsed.id, &other_id));
        let other = query(b"example.net", 1);
        let other = Query::parse(&other).unwrap().respond(ResponseCode::NoError);
        assert!(!parsed.is_answered_by(parsed.id, &other));
        let truncated = parsed.respond_truncated();
        assert!(parsed.is_answered_by(parsed.id, &truncated));
        assert_eq!(truncated[2] & 2, 2);
        let mut no_question = response.clone();
        no_question[5] = 0;
        assert!(!parsed.is_answered_by(parsed.id, &no_question));
    }

    #[test]
    fn a_redirected_name_has_the_addresses_of_the_queried_family() {
        let addresses = ["192.0.2.7", "2001:db8::7"].map(|a| a.parse().unwrap());
        for (query_type, data) in [(1, 4), (28, 16)] {
            let message = query(b"example.com", query_type);
            let parsed = Query::parse(&message).unwrap();
            let response = parsed.respond_with(ResponseCode::NoError, &addresses);
            assert_eq!(be16(&response, 6), Some(1));
            assert_eq!(response.len(), message.len() + 12 + data);
        }
        let message = query(b"example.com", 16);
        let parsed = Query::parse(&message).unwrap();
        let response = parsed.respond_with(ResponseCode::NoError, &addresses);
        assert_eq!(be16(&response, 6), Some(0));
    }
}
