//! What a script's author is told.

use std::fmt;

/// A place in a script's text, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pos {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

impl Pos {
    /// So many lines further down.
    pub(crate) fn down(self, lines: u32) -> Self {
        Self {
            line: self.line + lines,
            column: if lines == 0 { self.column } else { 1 },
        }
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A script that cannot be read, or that the stack did not satisfy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptError {
    /// Where.
    pub pos: Pos,
    /// What was expected, and what was there.
    pub message: String,
}

impl ScriptError {
    /// An error at a place.
    pub fn new(pos: Pos, message: impl Into<String>) -> Self {
        Self {
            pos,
            message: message.into(),
        }
    }
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.pos, self.message)
    }
}

impl std::error::Error for ScriptError {}
