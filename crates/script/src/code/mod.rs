//! The small language of `%{ ... }%`: assertions over the socket's `tcp_info`.
//!
//! Statements stand on lines or between `;`: `assert condition`, `assert condition, message`,
//! `name = expression` (`+=`, `-=` too), `print(...)` (shown with `-v`). Expressions have Python's operators and
//! their order, chained comparisons, tuples and `in`.

mod eval;
mod read;
#[cfg(test)]
mod tests;

use crate::error::ScriptError;
use crate::script::{Action, Script};

pub(crate) use eval::{Names, Scope};
pub(crate) use read::read;

/// Reads the code of a script without running it.
///
/// # Errors
/// The first place that is not as the language has it.
pub fn check_code(script: &Script) -> Result<(), ScriptError> {
    for event in &script.events {
        if let Action::Code(text, pos) = &event.action {
            read(text).map_err(|(line, message)| ScriptError::new(pos.down(line), message))?;
        }
    }
    Ok(())
}

/// A statement and the line of the code it is on, from 0.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) text: String,
    pub(crate) kind: StatementKind,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum StatementKind {
    Assert(Node, Option<Node>),
    Assign(String, Node),
    Print(Vec<Node>),
    /// `import` and `pass`.
    Nothing,
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Node {
    Int(i128),
    Float(f64),
    Text(String),
    Name(String),
    Call(String, Vec<Node>),
    Unary(&'static str, Box<Node>),
    Binary(&'static str, Box<Node>, Box<Node>),
    /// `(a, b)`.
    Tuple(Vec<Node>),
    /// `a <= b <= c`.
    Compare(Box<Node>, Vec<(&'static str, Node)>),
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Text(String),
    Tuple(Vec<Value>),
}
