//! Errors of scripts, with their position.

use std::fmt;

/// A position in a script's text, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pos {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

impl Pos {
    /// Returns the position `lines` further down.
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

/// The error of a script that cannot be parsed, or that the stack did not satisfy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptError {
    /// Position of the error.
    pub pos: Pos,
    /// The expected and the actual text or event.
    pub message: String,
}

impl ScriptError {
    /// Returns an error at a position.
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
