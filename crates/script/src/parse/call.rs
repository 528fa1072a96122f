//! Parser of system calls and their arguments.

use super::cursor::{Cursor, Result};
use super::nanos;
use crate::script::{Call, Expr, ExprKind, Field};

/// Most levels of nesting in arguments.
const MAX_DEPTH: u32 = 16;

/// Parses `[...end] name(args) = result [ERRNO] [(note)]`.
pub(super) fn call(cursor: &mut Cursor<'_>) -> Result<Call> {
    let end = if cursor.take("...")? {
        Some(nanos(cursor, "the time at which the call returns")?)
    } else {
        None
    };
    let Some(name) = cursor.word()? else {
        return cursor.expected("a packet (< or >), a system call, code (%{) or a command (`)");
    };
    cursor.require("(")?;
    let args = list(cursor, ")", 0)?;
    cursor.require("=")?;
    let result = expr(cursor, 0)?;
    let errno = cursor.word()?.map(str::to_owned);
    if cursor.take("(")? {
        cursor.run(|c| c != ')' && c != '\n');
        cursor.require(")")?;
    }
    Ok(Call {
        end,
        name: name.to_owned(),
        args,
        result,
        errno,
    })
}

/// Parses expressions separated by commas, up to `close`.
fn list(cursor: &mut Cursor<'_>, close: &str, depth: u32) -> Result<Vec<Expr>> {
    let mut items = Vec::new();
    if cursor.take(close)? {
        return Ok(items);
    }
    loop {
        items.push(expr(cursor, depth + 1)?);
        if cursor.take(close)? {
            return Ok(items);
        }
        if !cursor.take(",")? {
            return cursor.expected(&format!("\",\" or \"{close}\""));
        }
    }
}

fn expr(cursor: &mut Cursor<'_>, depth: u32) -> Result<Expr> {
    if depth > MAX_DEPTH {
        return cursor.expected("arguments that are nested less deeply");
    }
    let first = primary(cursor, depth)?;
    if !cursor.take("|")? {
        return Ok(first);
    }
    let pos = first.pos;
    let mut flags = vec![first, primary(cursor, depth)?];
    while cursor.take("|")? {
        flags.push(primary(cursor, depth)?);
    }
    let kind = ExprKind::Or(flags);
    Ok(Expr { pos, kind })
}

fn primary(cursor: &mut Cursor<'_>, depth: u32) -> Result<Expr> {
    let pos = cursor.pos();
    let kind = if cursor.take("...")? {
        ExprKind::Any
    } else if cursor.rest().starts_with('"') {
        ExprKind::Text(text(cursor)?)
    } else if cursor.take("[")? {
        ExprKind::Array(list(cursor, "]", depth)?)
    } else if cursor.take("{")? {
        ExprKind::Struct(fields(cursor, depth)?)
    } else if let Some(word) = cursor.word()? {
        if cursor.take("(")? {
            ExprKind::Apply(word.to_owned(), list(cursor, ")", depth)?)
        } else {
            ExprKind::Word(word.to_owned())
        }
    } else {
        ExprKind::Int(cursor.integer("an argument")?)
    };
    Ok(Expr { pos, kind })
}

fn text(cursor: &mut Cursor<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    cursor.advance(1);
    loop {
        let Some(c) = cursor.peek().filter(|&c| c != '\n') else {
            return cursor.expected("a string that ends with \"");
        };
        cursor.advance(c.len_utf8());
        match c {
            '"' => break,
            '\\' => bytes.push(escaped(cursor)?),
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    cursor.skip_space()?;
    // `"abc"...` is a string of which only the start is compared.
    cursor.take("...")?;
    Ok(bytes)
}

fn escaped(cursor: &mut Cursor<'_>) -> Result<u8> {
    let value = match cursor.peek() {
        Some('n') => b'\n',
        Some('r') => b'\r',
        Some('t') => b'\t',
        Some('0') => 0,
        Some(c @ ('"' | '\\')) => c as u8,
        Some('x') => {
            let digits = cursor.rest().get(1..3).unwrap_or("");
            let Ok(value) = u8::from_str_radix(digits, 16) else {
                return cursor.expected("two hex digits after \\x");
            };
            cursor.advance(2);
            value
        }
        _ => return cursor.expected("one of \\n \\r \\t \\0 \\\" \\\\ \\xHH"),
    };
    cursor.advance(1);
    Ok(value)
}

fn fields(cursor: &mut Cursor<'_>, depth: u32) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    if cursor.take("}")? {
        return Ok(fields);
    }
    loop {
        fields.push(field(cursor, depth + 1)?);
        if cursor.take("}")? {
            return Ok(fields);
        }
        if !cursor.take(",")? {
            return cursor.expected("\",\" or \"}\"");
        }
    }
}

/// Parses `name=value`, `name(count)=value` or a value.
fn field(cursor: &mut Cursor<'_>, depth: u32) -> Result<Field> {
    let first = expr(cursor, depth)?;
    if !cursor.take("=")? {
        return Ok(Field {
            name: None,
            count: None,
            value: first,
        });
    }
    let (name, count) = match first.kind {
        ExprKind::Word(name) => (name, None),
        ExprKind::Apply(name, mut args) if args.len() == 1 => (name, args.pop()),
        _ => return cursor.expected("a field's name before the \"=\""),
    };
    Ok(Field {
        name: Some(name),
        count,
        value: expr(cursor, depth)?,
    })
}
