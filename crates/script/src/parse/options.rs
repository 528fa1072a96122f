//! Parser of TCP options between `<` and `>`.

use super::cursor::{Cursor, Result};
use crate::error::ScriptError;
use crate::tcp_option::TcpOption;

/// Most bytes of options in a header (RFC 9293 3.1).
const MAX_LEN: usize = 40;

/// Parses the list, up to its `>`.
pub(super) fn options(cursor: &mut Cursor<'_>) -> Result<Vec<TcpOption>> {
    let pos = cursor.pos();
    let mut list = Vec::new();
    loop {
        list.push(option(cursor)?);
        if !cursor.take(",")? {
            break;
        }
    }
    let mut bytes = Vec::new();
    for option in &list {
        option.emit(&mut bytes);
    }
    if bytes.len() > MAX_LEN {
        let message = format!(
            "the options have {} bytes; at most {MAX_LEN} fit",
            bytes.len()
        );
        return Err(ScriptError::new(pos, message));
    }
    Ok(list)
}

fn option(cursor: &mut Cursor<'_>) -> Result<TcpOption> {
    let pos = cursor.pos();
    let Some(word) = cursor.word()? else {
        return cursor.expected("a TCP option");
    };
    Ok(match word {
        "nop" => TcpOption::Nop,
        "eol" => TcpOption::Eol,
        "sackOK" => TcpOption::SackPermitted,
        "mss" => TcpOption::Mss(cursor.number("an MSS")?),
        "wscale" => TcpOption::WindowScale(cursor.number("a window scale")?),
        "sack" => TcpOption::Sack(sack(cursor)?),
        "TS" => timestamps(cursor)?,
        "FO" | "FOEXP" => TcpOption::FastOpen {
            cookie: hex(cursor)?,
            experimental: word == "FOEXP",
        },
        "ECN" => acc_ecn(cursor)?,
        "md5" => TcpOption::Other {
            kind: 19,
            data: hex(cursor)?,
        },
        other => {
            let message = format!(
                "expected a TCP option (nop, eol, mss, wscale, sackOK, sack, TS, FO, FOEXP, ECN, \
                 md5), found \"{other}\""
            );
            return Err(ScriptError::new(pos, message));
        }
    })
}

fn sack(cursor: &mut Cursor<'_>) -> Result<Vec<(u32, u32)>> {
    let mut blocks = Vec::new();
    while blocks.is_empty() || cursor.peek().is_some_and(|c| c.is_ascii_digit()) {
        let left = cursor.number("a SACK block such as 1001:2001")?;
        cursor.require(":")?;
        blocks.push((left, cursor.number("the end of a SACK block")?));
    }
    Ok(blocks)
}

fn timestamps(cursor: &mut Cursor<'_>) -> Result<TcpOption> {
    cursor.require("val")?;
    let val = cursor.number("a timestamp")?;
    cursor.require("ecr")?;
    let ecr = cursor.number("a timestamp")?;
    Ok(TcpOption::Timestamps { val, ecr })
}

/// Parses bytes in hexadecimal, possibly none.
fn hex(cursor: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let pos = cursor.pos();
    let digits = cursor.run(|c| c.is_ascii_hexdigit());
    cursor.skip_space()?;
    if !digits.len().is_multiple_of(2) {
        return Err(ScriptError::new(
            pos,
            "expected an even number of hex digits",
        ));
    }
    let byte = |pair: &[u8]| -> Option<u8> {
        u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok()
    };
    Ok(digits.as_bytes().chunks(2).filter_map(byte).collect())
}

/// Parses `e1b 1 ceb 0 e0b 1`, or the other order, or the first one or two of them.
fn acc_ecn(cursor: &mut Cursor<'_>) -> Result<TcpOption> {
    let e1b_first = cursor.rest().starts_with("e1b");
    let names = if e1b_first {
        ["e1b", "ceb", "e0b"]
    } else {
        ["e0b", "ceb", "e1b"]
    };
    let mut counters = Vec::new();
    for name in names {
        if !cursor.take_word(name)? {
            break;
        }
        let pos = cursor.pos();
        let count: u32 = cursor.number("a byte counter")?;
        if count > 0xff_ffff {
            let message = format!("{count} is out of range for a byte counter, which has 24 bits");
            return Err(ScriptError::new(pos, message));
        }
        counters.push(count);
    }
    Ok(TcpOption::AccEcn {
        e1b_first,
        counters,
    })
}
