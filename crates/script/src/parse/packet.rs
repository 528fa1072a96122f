//! Parser of packets.

use super::cursor::{Cursor, Result};
use super::options;
use crate::error::ScriptError;
use crate::script::{Body, EcnSpec, Icmp, IpSpec, Packet, Quoted, Segment};

/// Parses a packet after `<` or `>`.
pub(super) fn packet(cursor: &mut Cursor<'_>) -> Result<Packet> {
    let mut ip = IpSpec::default();
    let mut quoted = None;
    if cursor.take("[")? {
        if cursor.peek().is_some_and(|c| c.is_ascii_digit()) || cursor.take_word("udp")? {
            quoted = Some(quote(cursor)?);
        } else {
            ip = ip_spec(cursor)?;
        }
        cursor.require("]")?;
    }
    let body = if cursor.take_word("icmp")? {
        Body::Icmp(icmp(cursor, quoted)?)
    } else if cursor.take_word("udp")? {
        cursor.require("(")?;
        let len = cursor.number("a datagram's length")?;
        cursor.require(")")?;
        Body::Udp(len)
    } else {
        Body::Tcp(segment(cursor)?)
    };
    Ok(Packet { ip, body })
}

fn ip_spec(cursor: &mut Cursor<'_>) -> Result<IpSpec> {
    let mut spec = IpSpec::default();
    loop {
        let before = cursor.pos();
        let Some(word) = cursor.word()? else {
            return cursor.expected("noecn, ect0, ect1, ect01, ce, tos, ttl or flowlabel");
        };
        match word {
            "noecn" => spec.ecn = Some(EcnSpec::Is(0)),
            "ect1" => spec.ecn = Some(EcnSpec::Is(1)),
            "ect0" => spec.ecn = Some(EcnSpec::Is(2)),
            "ce" => spec.ecn = Some(EcnSpec::Is(3)),
            "ect01" => spec.ecn = Some(EcnSpec::Ect01),
            "tos" => spec.tos = Some(cursor.number("a type of service")?),
            "ttl" => spec.ttl = Some(cursor.number("a TTL")?),
            "flowlabel" => spec.flow_label = Some(cursor.number("a flow label")?),
            other => {
                let message = format!(
                    "expected noecn, ect0, ect1, ect01, ce, tos, ttl or flowlabel, found \"{other}\""
                );
                return Err(ScriptError::new(before, message));
            }
        }
        if !cursor.take(",")? {
            return Ok(spec);
        }
    }
}

fn quote(cursor: &mut Cursor<'_>) -> Result<Quoted> {
    if cursor.take("(")? {
        let len = cursor.number("a datagram's length")?;
        cursor.require(")")?;
        return Ok(Quoted::Udp(len));
    }
    let (seq, len) = sequence(cursor)?;
    Ok(Quoted::Tcp(seq, len))
}

fn icmp(cursor: &mut Cursor<'_>, quoted: Option<Quoted>) -> Result<Icmp> {
    let Some(kind) = cursor.word()? else {
        return cursor.expected("an ICMP type");
    };
    let mut message = Icmp {
        kind: kind.to_owned(),
        code: None,
        mtu: None,
        quoted,
    };
    if !starts_with_word(cursor, "mtu") {
        message.code = cursor.word()?.map(str::to_owned);
    }
    if cursor.take_word("mtu")? {
        message.mtu = Some(cursor.number("an MTU")?);
    }
    if cursor.take("[")? {
        cursor.take_word("udp")?;
        message.quoted = Some(quote(cursor)?);
        cursor.require("]")?;
    }
    Ok(message)
}

fn starts_with_word(cursor: &Cursor<'_>, word: &str) -> bool {
    let rest = cursor.rest().strip_prefix(word);
    rest.is_some_and(|rest| rest.starts_with(char::is_whitespace))
}

/// Parses `start:end(len)`.
fn sequence(cursor: &mut Cursor<'_>) -> Result<(u32, u32)> {
    let pos = cursor.pos();
    let start: u32 = cursor.number("a sequence number")?;
    cursor.require(":")?;
    let end: u32 = cursor.number("the sequence number of the end")?;
    cursor.require("(")?;
    let len: u32 = cursor.number("a payload's length")?;
    cursor.require(")")?;
    if end.wrapping_sub(start) != len {
        let message = format!("{start}:{end} is not {len} bytes");
        return Err(ScriptError::new(pos, message));
    }
    Ok((start, len))
}

fn segment(cursor: &mut Cursor<'_>) -> Result<Segment> {
    let flags = flags(cursor)?;
    let (seq, len) = sequence(cursor)?;
    let mut segment = Segment {
        flags,
        seq,
        len,
        ack: None,
        window: None,
        urgent: None,
        options: Some(Vec::new()),
    };
    if cursor.take_word("ack")? {
        segment.ack = Some(cursor.number("an acknowledgement number")?);
    }
    if cursor.take_word("win")? {
        segment.window = Some(cursor.number("a window")?);
    }
    if cursor.take_word("urg")? {
        segment.urgent = Some(cursor.number("an urgent pointer")?);
    }
    if cursor.take("<")? {
        segment.options = if cursor.take("...")? {
            None
        } else {
            Some(options::options(cursor)?)
        };
        cursor.require(">")?;
    }
    Ok(segment)
}

/// The letters of the flags, in the order of their bits.
pub(crate) const FLAG_LETTERS: [(char, u16); 9] = [
    ('F', 0x01),
    ('S', 0x02),
    ('R', 0x04),
    ('P', 0x08),
    ('.', 0x10),
    ('U', 0x20),
    ('E', 0x40),
    ('W', 0x80),
    ('A', 0x100),
];

/// Parses flags: letters, `.` for ACK, a digit for the ACE field of RFC 9768, `-` for none.
fn flags(cursor: &mut Cursor<'_>) -> Result<u16> {
    if cursor.take("-")? {
        return Ok(0);
    }
    let text = cursor.rest();
    let mut bits = 0;
    let mut len = 0;
    for c in text.chars().take_while(|c| !c.is_whitespace()) {
        bits |= match (FLAG_LETTERS.iter().find(|(letter, _)| *letter == c), c) {
            (Some((_, bit)), _) => *bit,
            (None, '0'..='7') => (c as u16 - '0' as u16) << 6,
            _ => {
                cursor.advance(len);
                return cursor.expected("flags (of S F R P . U E W A, a digit 0 to 7, or -)");
            }
        };
        len += 1;
    }
    if len == 0 {
        return cursor.expected("flags (of S F R P . U E W A, a digit 0 to 7, or -)");
    }
    cursor.advance(len);
    cursor.skip_space()?;
    Ok(bits)
}
