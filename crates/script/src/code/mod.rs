//! The language of `%{ ... }%`: assertions over the socket's `tcp_info`.
//!
//! Statements are separated by line ends or `;`: `assert condition`, `assert condition, message`,
//! `name = expression` (`+=`, `-=` too), `print(...)` (shown with `-v`). Expressions have Python's
//! operators and precedence, chained comparisons, tuples and `in`.

mod eval;
mod parser;
#[cfg(test)]
mod tests;

use crate::error::ScriptError;
use crate::script::{Action, Script};

pub(crate) use eval::{NameLookup, Scope};
pub(crate) use parser::parse;

/// Checks the syntax of a script's code blocks without running them.
///
/// # Errors
/// Returns the first syntax error.
pub fn check_code(script: &Script) -> Result<(), ScriptError> {
    for event in &script.events {
        if let Action::Code(text, pos) = &event.action {
            parse(text).map_err(|(line, message)| ScriptError::new(pos.down(line), message))?;
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
    Assert(CodeExpr, Option<CodeExpr>),
    Assign(String, CodeExpr),
    Print(Vec<CodeExpr>),
    /// `import` and `pass`, which have no effect.
    Nothing,
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum CodeExpr {
    Int(i128),
    Float(f64),
    Text(String),
    Name(String),
    Call(String, Vec<CodeExpr>),
    Unary(&'static str, Box<CodeExpr>),
    Binary(&'static str, Box<CodeExpr>, Box<CodeExpr>),
    /// `(a, b)`.
    Tuple(Vec<CodeExpr>),
    /// `a <= b <= c`.
    Compare(Box<CodeExpr>, Vec<(&'static str, CodeExpr)>),
}

/// The value of an expression.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Text(String),
    Tuple(Vec<Value>),
}
