//! Parser of scripts.
//!
//! The syntax is packetdrill's, as in its documentation and public scripts. `docs/scripts.md` is
//! the reference.

mod call;
mod cursor;
mod define;
mod options;
mod packet;
#[cfg(test)]
mod tests;

use cursor::{Cursor, Result};
pub use define::define;

pub(crate) use packet::FLAG_LETTERS;

use crate::error::ScriptError;
use crate::script::{Action, Event, Nanos, Script, Setting, Time};

/// Parses a script.
///
/// # Errors
/// Returns the first syntax error, with what was expected there.
pub fn parse(text: &str) -> core::result::Result<Script, ScriptError> {
    let mut cursor = Cursor::new(text);
    let mut script = Script::default();
    cursor.skip_space()?;
    while cursor.rest().starts_with("--") {
        script.settings.push(setting(&mut cursor)?);
    }
    while cursor.peek().is_some() {
        script.events.push(event(&mut cursor)?);
    }
    Ok(script)
}

fn setting(cursor: &mut Cursor<'_>) -> Result<Setting> {
    let pos = cursor.pos();
    cursor.advance(2);
    let key = cursor.run(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if key.is_empty() {
        return cursor.expected("a setting's name after --");
    }
    let mut value = "";
    if cursor.rest().starts_with('=') {
        cursor.advance(1);
        value = if cursor.rest().starts_with('"') {
            cursor.advance(1);
            let inner = cursor.run(|c| c != '"' && c != '\n');
            cursor.require("\"")?;
            inner
        } else {
            cursor.run(|c| !c.is_whitespace())
        };
    }
    cursor.skip_space()?;
    Ok(Setting {
        pos,
        key: key.to_owned(),
        value: value.to_owned(),
    })
}

fn event(cursor: &mut Cursor<'_>) -> Result<Event> {
    let (pos, before) = (cursor.pos(), cursor.rest());
    // A command at the start or at the end may have no time.
    let time = if cursor.rest().starts_with('`') {
        Time::After(0)
    } else {
        time(cursor)?
    };
    let action = action(cursor)?;
    let text = &before[..before.len() - cursor.rest().len()];
    Ok(Event {
        pos,
        time,
        text: fold(text),
        action,
    })
}

/// Returns the text on one line, without comments.
fn fold(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    words.join(" ")
}

fn time(cursor: &mut Cursor<'_>) -> Result<Time> {
    if cursor.take("*")? {
        return Ok(Time::Any);
    }
    if cursor.take("+")? {
        let from = nanos(cursor, "a time in seconds after +")?;
        if !cursor.take("~")? {
            return Ok(Time::After(from));
        }
        cursor.require("+")?;
        return Ok(Time::AfterBetween(
            from,
            nanos(cursor, "a time in seconds")?,
        ));
    }
    let from = nanos(
        cursor,
        "a time (such as 0, +.1, 0.2~0.3 or *) or a command between `",
    )?;
    if cursor.take("~")? {
        return Ok(Time::Between(from, nanos(cursor, "a time in seconds")?));
    }
    Ok(Time::At(from))
}

/// Parses a decimal number of seconds, exactly.
fn nanos(cursor: &mut Cursor<'_>, what: &str) -> Result<Nanos> {
    let text = cursor.rest();
    let digits = |text: &str| {
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len())
    };
    let whole_len = digits(text);
    // A point that starts `...` is not part of the number.
    let fraction = text[whole_len..].strip_prefix('.');
    let fraction = fraction.filter(|rest| !rest.starts_with(".."));
    let point = usize::from(fraction.is_some());
    let fraction = fraction.unwrap_or("");
    let fraction_len = digits(fraction);
    if whole_len + fraction_len == 0 || whole_len > 9 {
        return cursor.expected(what);
    }
    let whole: Nanos = text[..whole_len].parse().unwrap_or(0);
    let padded = fraction[..fraction_len]
        .bytes()
        .chain(std::iter::repeat(b'0'));
    let part = padded
        .take(9)
        .fold(0, |sum: Nanos, digit| sum * 10 + Nanos::from(digit - b'0'));
    cursor.advance(whole_len + point + fraction_len);
    cursor.skip_space()?;
    Ok(whole * 1_000_000_000 + part)
}

fn action(cursor: &mut Cursor<'_>) -> Result<Action> {
    match cursor.peek() {
        Some('<') => {
            cursor.require("<")?;
            Ok(Action::Inject(packet::packet(cursor)?))
        }
        Some('>') => {
            cursor.require(">")?;
            Ok(Action::Expect(packet::packet(cursor)?))
        }
        Some('`') => shell(cursor),
        Some('%') => code(cursor),
        _ => Ok(Action::Call(call::call(cursor)?)),
    }
}

fn shell(cursor: &mut Cursor<'_>) -> Result<Action> {
    let open = cursor.rest();
    let Some(len) = open[1..].find('`') else {
        return cursor.expected("a command that ends with `");
    };
    cursor.advance(len + 2);
    cursor.skip_space()?;
    Ok(Action::Shell(open[1..=len].to_owned()))
}

fn code(cursor: &mut Cursor<'_>) -> Result<Action> {
    let open = cursor.rest();
    let end = open.strip_prefix("%{").and_then(|inner| inner.find("}%"));
    let Some(len) = end else {
        return cursor.expected("code between %{ and }%");
    };
    cursor.advance(2);
    let pos = cursor.pos();
    cursor.advance(len + 2);
    cursor.skip_space()?;
    Ok(Action::Code(open[2..2 + len].to_owned(), pos))
}
