//! A position in the text, and the tokens to be read from it.

use crate::error::{Pos, ScriptError};

/// A reader of a script's text, character by character.
pub(super) struct Cursor<'a> {
    rest: &'a str,
    pos: Pos,
}

pub(super) type Result<T> = core::result::Result<T, ScriptError>;

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            pos: Pos { line: 1, column: 1 },
        }
    }

    pub(super) fn pos(&self) -> Pos {
        self.pos
    }

    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    /// Returns an error that names the expected token.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T> {
        let there: String = self
            .rest
            .chars()
            .take_while(|&c| c != '\n')
            .take(20)
            .collect();
        let there = if self.rest.is_empty() {
            "the end of the script".to_owned()
        } else if there.is_empty() {
            "the end of the line".to_owned()
        } else {
            format!("\"{}\"", there.trim_end())
        };
        Err(ScriptError::new(
            self.pos,
            format!("expected {what}, found {there}"),
        ))
    }

    /// Advances by `bytes`, which end at a character boundary; returns them.
    pub(super) fn advance(&mut self, bytes: usize) -> &'a str {
        let (done, rest) = self.rest.split_at(bytes);
        for c in done.chars() {
            if c == '\n' {
                self.pos.line += 1;
                self.pos.column = 1;
            } else {
                self.pos.column += 1;
            }
        }
        self.rest = rest;
        done
    }

    /// Skips white space and the three forms of comments.
    pub(super) fn skip_space(&mut self) -> Result<()> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if self.rest.starts_with("//") || self.rest.starts_with('#') {
                let line = self.rest.find('\n').unwrap_or(self.rest.len());
                self.advance(line);
            } else if self.rest.starts_with("/*") {
                let Some(end) = self.rest.find("*/") else {
                    return self.expected("a comment that ends with */");
                };
                self.advance(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    /// Consumes `token` and the space after it, if it is next; returns whether it was.
    pub(super) fn take(&mut self, token: &str) -> Result<bool> {
        if !self.rest.starts_with(token) {
            return Ok(false);
        }
        self.advance(token.len());
        self.skip_space()?;
        Ok(true)
    }

    /// Consumes `token`, or returns an error if it is not next.
    pub(super) fn require(&mut self, token: &str) -> Result<()> {
        if self.take(token)? {
            return Ok(());
        }
        self.expected(&format!("\"{token}\""))
    }

    /// Consumes the characters that satisfy `is`, without the space after them.
    pub(super) fn run(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let len = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        self.advance(len)
    }

    /// Consumes a name and the space after it; `None` if there is no name.
    pub(super) fn word(&mut self) -> Result<Option<&'a str>> {
        if !self
            .peek()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        {
            return Ok(None);
        }
        let word = self.run(|c| c.is_ascii_alphanumeric() || c == '_');
        self.skip_space()?;
        Ok(Some(word))
    }

    /// Consumes `word` if it is the next name; returns whether it was.
    pub(super) fn take_word(&mut self, word: &str) -> Result<bool> {
        let next = self.rest.strip_prefix(word);
        let ends = next
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'));
        Ok(ends && self.take(word)?)
    }

    /// Parses an integer, decimal or 0x, and the space after it.
    pub(super) fn integer(&mut self, what: &str) -> Result<i64> {
        let (negative, digits) = match self.rest.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, self.rest),
        };
        let (radix, digits) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => (16, hex),
            None => (10, digits),
        };
        let len = digits
            .find(|c: char| !c.is_digit(radix))
            .unwrap_or(digits.len());
        let Ok(value) = u64::from_str_radix(&digits[..len], radix) else {
            return self.expected(what);
        };
        let value = if negative {
            (value as i64).checked_neg().filter(|v| *v <= 0)
        } else {
            Some(value as i64)
        };
        let Some(value) = value else {
            return self.expected(what);
        };
        self.advance(self.rest.len() - digits.len() + len);
        self.skip_space()?;
        Ok(value)
    }

    /// Parses an integer that fits in `T`.
    pub(super) fn number<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T> {
        let before = self.pos;
        let value = self.integer(what)?;
        T::try_from(value)
            .map_err(|_| ScriptError::new(before, format!("{value} is out of range for {what}")))
    }
}
