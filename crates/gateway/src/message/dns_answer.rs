//! The addresses in the answers of resolvers (RFC 1035 4, 3.2.1).

use std::net::IpAddr;
use std::sync::Arc;

use super::dns::{CLASS_IN, HEADER_LEN, Query, TYPE_A, TYPE_AAAA, be16, flag, push_text};

/// Longest name in its wire format, bytes.
const MAX_NAME: usize = 255;
const TYPE_CNAME: u16 = 5;
/// Most aliases of a name.
const MAX_ALIASES: usize = 16;
/// Type, class, TTL and the length of the data.
const FIXED_LEN: usize = 10;

/// An address in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AnsweredAddress {
    /// The address.
    pub address: IpAddr,
    /// TTL in seconds with which the name of the query, or an alias of it, has the address. `None` if it
    /// is the address of another name, or the response code is an error.
    pub ttl: Option<u32>,
}

/// The answer of a resolver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Whether the message was truncated and lacks records.
    pub is_truncated: bool,
    /// The addresses of the answer section.
    pub addresses: Vec<AnsweredAddress>,
    /// The aliases (CNAME) to which the name of the query leads, directly or through others, in the form
    /// of [`Query::name`].
    pub aliases: Vec<String>,
}

/// A record of the answer section.
struct Record<'a> {
    owner: Arc<str>,
    kind: u16,
    class: u16,
    ttl: u32,
    /// The data, and its offset in the message.
    data: &'a [u8],
    data_at: usize,
}

impl Answer {
    /// Parses a message that [answers](Query::is_answered_by) a query. Returns `None` if it is malformed
    /// up to the end of its answer section, or if the name has more than 16 aliases.
    pub fn parse(query: &Query<'_>, message: &[u8]) -> Option<Self> {
        let flags = be16(message, 2)?;
        let exists = flags & flag::RESPONSE_CODE == 0;
        let mut answer = Self {
            is_truncated: flags & flag::TRUNCATED != 0,
            addresses: Vec::new(),
            aliases: Vec::new(),
        };
        if answer.is_truncated {
            return Some(answer);
        }
        let records = parse_records(message, HEADER_LEN + query.question_len())?;
        let names = aliases(&query.name, &records, message)?;
        for record in &records {
            let address = match (record.class, record.kind) {
                (CLASS_IN, TYPE_A) => IpAddr::from(<[u8; 4]>::try_from(record.data).ok()?),
                (CLASS_IN, TYPE_AAAA) => IpAddr::from(<[u8; 16]>::try_from(record.data).ok()?),
                _ => continue,
            };
            let ttl = names.iter().find(|(name, _)| **name == *record.owner);
            let ttl = ttl.filter(|_| exists).map(|(_, ttl)| record.ttl.min(*ttl));
            answer.addresses.push(AnsweredAddress { address, ttl });
        }
        answer.aliases = names.into_iter().skip(1).map(|(name, _)| name).collect();
        Some(answer)
    }
}

/// Parses the records of the answer section, which begins at `at`.
fn parse_records(message: &[u8], at: usize) -> Option<Vec<Record<'_>>> {
    let mut records = Vec::new();
    let mut next = at;
    // The last owner that was only a pointer, and its name: most records have the same owner.
    let mut last: Option<(u16, Arc<str>)> = None;
    for _ in 0..be16(message, 6)? {
        let pointer = be16(message, next).filter(|word| *word >= 0xc000);
        let known = last.take().filter(|(known, _)| pointer == Some(*known));
        let (owner, fixed) = if let Some((_, owner)) = known {
            (owner, next + 2)
        } else {
            let (owner, fixed) = read_name(message, next)?;
            (Arc::from(owner), fixed)
        };
        last = pointer.map(|pointer| (pointer, owner.clone()));
        let data_at = fixed + FIXED_LEN;
        let data_len = usize::from(be16(message, data_at - 2)?);
        next = data_at + data_len;
        let ttl = u32::from(be16(message, fixed + 4)?) << 16 | u32::from(be16(message, fixed + 6)?);
        records.push(Record {
            owner,
            kind: be16(message, fixed)?,
            class: be16(message, fixed + 2)?,
            // A TTL with the highest bit set counts as 0 (RFC 2181 8).
            ttl: if ttl > i32::MAX as u32 { 0 } else { ttl },
            data: message.get(data_at..next)?,
            data_at,
        });
    }
    Some(records)
}

/// Returns the name and its aliases, each with the least TTL of the records that lead to it. `None` if an
/// alias is malformed, or if there are more than [`MAX_ALIASES`]: the policy judges each.
fn aliases(name: &str, records: &[Record<'_>], message: &[u8]) -> Option<Vec<(String, u32)>> {
    let is_alias = |record: &&Record<'_>| record.class == CLASS_IN && record.kind == TYPE_CNAME;
    let mut targets = Vec::new();
    for record in records.iter().filter(is_alias) {
        let (target, end) = read_name(message, record.data_at)?;
        if end != record.data_at + record.data.len() {
            return None;
        }
        targets.push((&*record.owner, target, record.ttl));
    }
    let mut names = vec![(name.to_owned(), u32::MAX)];
    let mut next = 0;
    while let Some((name, ttl)) = names.get(next).cloned() {
        for (_, target, alias_ttl) in targets.iter().filter(|(owner, ..)| *owner == name) {
            // Each name is added once, so that a loop ends.
            let is_new = names.iter().all(|(known, _)| known != target);
            if is_new && names.len() > MAX_ALIASES {
                return None;
            }
            if is_new {
                names.push((target.clone(), ttl.min(*alias_ttl)));
            }
        }
        next += 1;
    }
    Some(names)
}

/// Reads a name that may be compressed (RFC 1035 4.1.4). Returns its text in the form of [`Query::name`]
/// and the offset after it.
fn read_name(message: &[u8], at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut wire_len = 1;
    let (mut next, mut end) = (at, None);
    // Pointers must lead backwards, so that a loop ends.
    let mut limit = at;
    loop {
        let len = usize::from(*message.get(next)?);
        match len {
            0 => return Some((name, end.unwrap_or(next + 1))),
            1..64 => {
                wire_len += 1 + len;
                if wire_len > MAX_NAME {
                    return None;
                }
                push_text(&mut name, message.get(next + 1..next + 1 + len)?);
                next += 1 + len;
            }
            0xc0.. => {
                end = end.or(Some(next + 2));
                next = usize::from(be16(message, next)? & 0x3fff);
                if next >= limit {
                    return None;
                }
                limit = next;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for label in name.split('.').filter(|label| !label.is_empty()) {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
        out
    }

    /// A query for `name`, in the case of letters that it has.
    fn query_for(name: &str) -> Vec<u8> {
        let header = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0].to_vec();
        [header, wire(name), vec![0, 1, 0, 1]].concat()
    }

    /// The answer to a query with these records: owner, type, TTL and data.
    fn answer(query: &[u8], records: &[(Vec<u8>, u16, u32, Vec<u8>)]) -> Vec<u8> {
        let mut message = query.to_vec();
        message[2] |= 0x80;
        message[7] = records.len() as u8;
        for (owner, kind, ttl, data) in records {
            message.extend(owner);
            message.extend(kind.to_be_bytes());
            message.extend([0, 1]);
            message.extend(ttl.to_be_bytes());
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(data);
        }
        message
    }

    fn parse(query: &[u8], message: &[u8]) -> Option<Vec<(String, Option<u32>)>> {
        let query = Query::parse(query).unwrap();
        let answer = Answer::parse(&query, message)?;
        let text = |a: &AnsweredAddress| (a.address.to_string(), a.ttl);
        Some(answer.addresses.iter().map(text).collect())
    }

    const POINTER: [u8; 2] = [0xc0, 12];

    #[test]
    fn addresses_of_the_queried_name_have_a_ttl() {
        let query = query_for("wWw.Example.org");
        let v6 = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let message = answer(
            &query,
            &[
                (POINTER.into(), 1, 60, vec![192, 0, 2, 1]),
                (POINTER.into(), 1, 50, vec![192, 0, 2, 3]),
                // A pointer to the parent.
                (vec![0xc0, 16], 1, 60, vec![192, 0, 2, 4]),
                (wire("www.eXample.ORG"), 28, 1 << 31, v6.into()),
                (wire("other.example"), 1, 60, vec![192, 0, 2, 2]),
                (POINTER.into(), 16, 60, b"\x04text".to_vec()),
            ],
        );
        let expected = [
            ("192.0.2.1".to_owned(), Some(60)),
            ("192.0.2.3".to_owned(), Some(50)),
            ("192.0.2.4".to_owned(), None),
            ("2001:db8::1".to_owned(), Some(0)),
            ("192.0.2.2".to_owned(), None),
        ];
        assert_eq!(parse(&query, &message).unwrap(), expected);
        // Cut anywhere in the answer section, it is malformed.
        for len in query.len()..message.len() {
            assert_eq!(parse(&query, &message[..len]), None, "{len}");
        }
        let mut no_such_name = message;
        no_such_name[3] |= 3;
        let parsed = parse(&query, &no_such_name).unwrap();
        assert!(parsed.iter().all(|(_, ttl)| ttl.is_none()), "{parsed:?}");
    }

    #[test]
    fn aliases_are_followed_with_their_shortest_ttl() {
        let query = query_for("www.example.org");
        let message = answer(
            &query,
            &[
                // The end of the chain first.
                (wire("edge.cdn.test"), 1, 300, vec![192, 0, 2, 1]),
                (wire("cdn.test"), 5, 20, wire("edge.cdn.test")),
                (POINTER.into(), 5, 60, wire("CDN.test")),
                // An alias of another name, and a loop.
                (wire("other.example"), 5, 60, wire("secret.example")),
                (wire("secret.example"), 1, 60, vec![192, 0, 2, 2]),
                (wire("edge.cdn.test"), 5, 60, POINTER.into()),
            ],
        );
        let expected = [
            ("192.0.2.1".to_owned(), Some(20)),
            ("192.0.2.2".to_owned(), None),
        ];
        assert_eq!(parse(&query, &message).unwrap(), expected);
        let answer = Answer::parse(&Query::parse(&query).unwrap(), &message).unwrap();
        assert_eq!(answer.aliases, ["cdn.test", "edge.cdn.test"]);
    }

    #[test]
    fn chains_of_aliases_are_limited() {
        let query = query_for("n0.test");
        let chain = |len: usize| {
            let alias = |n: usize| {
                let target = wire(&format!("n{}.test", n + 1));
                (wire(&format!("n{n}.test")), 5, 60, target)
            };
            let mut records: Vec<_> = (0..len).map(alias).collect();
            records.push((wire(&format!("n{len}.test")), 1, 60, vec![192, 0, 2, 1]));
            Some(parse(&query, &answer(&query, &records))?[0].1)
        };
        assert_eq!(chain(MAX_ALIASES), Some(Some(60)));
        assert_eq!(chain(MAX_ALIASES + 1), None);
    }

    #[test]
    fn malformed_records_are_rejected() {
        let query = query_for("example.org");
        let at = query.len() as u8;
        for (owner, kind, data) in [
            // Addresses of wrong lengths.
            (POINTER.to_vec(), 1, vec![1, 2, 3]),
            (POINTER.to_vec(), 28, vec![1, 2, 3, 4]),
            // An alias with bytes after its name, and one that ends in the middle of its name.
            (POINTER.to_vec(), 5, b"\x01x\0y".to_vec()),
            (POINTER.to_vec(), 5, b"\x03x".to_vec()),
            // Pointers to themselves and forwards, and a label of a reserved kind.
            (vec![0xc0, at], 1, vec![192, 0, 2, 1]),
            (vec![0xc0, at + 4], 1, vec![192, 0, 2, 1]),
            (vec![0x40, 0], 1, vec![192, 0, 2, 1]),
        ] {
            let message = answer(&query, &[(owner.clone(), kind, 60, data)]);
            assert_eq!(parse(&query, &message), None, "{owner:?} {kind}");
        }
        // A name of more than 255 bytes, by a pointer to 200 bytes of labels.
        let long = ["x"; 4].map(|x| x.repeat(49)).join(".");
        let query = query_for(&long);
        let owner = [wire(&long)[..200].to_vec(), POINTER.to_vec()].concat();
        let message = answer(&query, &[(owner, 1, 60, vec![192, 0, 2, 1])]);
        assert_eq!(parse(&query, &message), None);
    }

    #[test]
    fn truncated_answers_have_no_addresses() {
        let query = query_for("example.org");
        let mut message = answer(&query, &[(POINTER.into(), 1, 60, vec![192, 0, 2, 1])]);
        message[2] |= 2;
        let parsed = Answer::parse(&Query::parse(&query).unwrap(), &message).unwrap();
        assert!(parsed.is_truncated && parsed.addresses.is_empty());
    }
}
