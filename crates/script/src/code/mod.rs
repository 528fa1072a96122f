//! The language of `%{ ... }%`: assertions over the socket's `tcp_info`.
//!
//! Statements are separated by line ends or `;`: `assert condition`, `assert condition, message`,
//! `name = expression` (`+=`, `-=` too), `print(...)` (shown with `-v`). Expressions have Python's
//! operators and precedence, chained comparisons, tuples and `in`.

mod eval;
mod read;
#[cfg(test)]
mod tests;

use crate::error::ScriptError;
use crate::script::{Action, Script};

pub(crate) use eval::{Names, Scope};
pub(crate) use read::read;

/// Checks the syntax of a script's code blocks without running them.
///
/// # Errors
/// Returns the first syntax error.
pub fn check_code(script: &Script) -> Result<(), ScriptError> {
    for event in &script.events {
        if let Action::Code(text, pos) = &event.action {
            read(text).map_err(|(line, message)| ScriptError::new(pos.down(line), message))?;
        }
    }
    Ok(())
}

/// A statement with its line in the code block, from 0.
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
    /// `import` and `pass`, which have no effect.
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

/// The value of an expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Text(String),
    Tuple(Vec<Value>),
}
