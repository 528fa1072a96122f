//! Parser of code blocks.

use super::{CodeExpr, Statement, StatementKind};

/// Most levels of nesting in an expression.
const MAX_DEPTH: u32 = 40;
/// Most binary operators of a statement: each may nest in the next.
const MAX_BINARY: u32 = 200;

/// The error is a message with its line in the code block, from 0.
type Result<T> = core::result::Result<T, (u32, String)>;

/// Parses the statements of a block.
pub(crate) fn parse(text: &str) -> Result<Vec<Statement>> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        next: 0,
        depth: 0,
        binary: 0,
    };
    let mut statements = Vec::new();
    loop {
        while matches!(parser.peek(), Token::End | Token::Op(";")) {
            if parser.next >= parser.tokens.len() {
                return Ok(statements);
            }
            parser.next += 1;
        }
        let line = parser.line();
        let kind = parser.statement()?;
        if !matches!(parser.peek(), Token::End | Token::Op(";")) {
            return parser.expected("the end of the statement");
        }
        let source = text.lines().nth(line as usize).unwrap_or("").trim();
        statements.push(Statement {
            line,
            text: source.to_owned(),
            kind,
        });
    }
}

#[derive(Clone, PartialEq, Debug)]
enum Token {
    Int(i128),
    Float(f64),
    Text(String),
    Name(String),
    Op(&'static str),
    /// The end of a line, outside parentheses.
    End,
}

/// The operators; an operator comes before its prefixes.
const OPERATORS: [&str; 33] = [
    "+=", "-=", "**", "<<", ">>", "//", "<=", ">=", "==", "!=", "&&", "||", "+", "-", "*", "/",
    "%", "&", "|", "^", "~", "<", ">", "=", "(", ")", "[", "]", ",", ";", "!", ":", ".",
];

fn tokens(text: &str) -> Result<Vec<(u32, Token)>> {
    let mut found = Vec::new();
    let (mut rest, mut line, mut open) = (text, 0, 0_i32);
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '\n' => {
                if open <= 0 {
                    found.push((line, Token::End));
                }
                line += 1;
                1
            }
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '\\' => {
                line += 1;
                rest.find('\n').map_or(rest.len(), |at| at + 1)
            }
            c if c.is_whitespace() => c.len_utf8(),
            '"' | '\'' => {
                let Some(len) = rest[1..].find(c) else {
                    return Err((line, format!("expected a string that ends with {c}")));
                };
                found.push((line, Token::Text(rest[1..=len].to_owned())));
                len + 2
            }
            '0'..='9' => number(rest, line, &mut found)?,
            c if c.is_ascii_alphabetic() || c == '_' => {
                let end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                let len = rest.find(end).unwrap_or(rest.len());
                found.push((line, Token::Name(rest[..len].to_owned())));
                len
            }
            c => {
                let Some(op) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
                    return Err((line, format!("unexpected \"{c}\"")));
                };
                open += i32::from(matches!(*op, "(" | "[")) - i32::from(matches!(*op, ")" | "]"));
                found.push((line, Token::Op(op)));
                op.len()
            }
        };
        rest = &rest[len..];
    }
    Ok(found)
}

fn number(rest: &str, line: u32, found: &mut Vec<(u32, Token)>) -> Result<usize> {
    let wrong = |text: &str| (line, format!("\"{text}\" is not a number"));
    if let Some(hex) = rest.strip_prefix("0x") {
        let len = hex
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(hex.len());
        let value = i64::from_str_radix(&hex[..len], 16).map_err(|_| wrong(&rest[..len + 2]))?;
        found.push((line, Token::Int(value.into())));
        return Ok(len + 2);
    }
    let in_number = |c: char| c.is_ascii_digit() || c == '.';
    let len = rest.find(|c| !in_number(c)).unwrap_or(rest.len());
    let text = &rest[..len];
    let token = if text.contains('.') {
        text.parse().map(Token::Float).map_err(|_| wrong(text))?
    } else {
        let value: i64 = text.parse().map_err(|_| wrong(text))?;
        Token::Int(value.into())
    };
    found.push((line, token));
    Ok(len)
}

struct Parser {
    tokens: Vec<(u32, Token)>,
    next: usize,
    depth: u32,
    /// Binary operators of the statement so far.
    binary: u32,
}

/// The binary operators by precedence, the lowest first, above comparisons.
const LEVELS: [&[&str]; 6] = [
    &["|"],
    &["^"],
    &["&"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "//", "%"],
];
const COMPARISONS: [&str; 6] = ["==", "!=", "<=", ">=", "<", ">"];

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, t)| t)
    }

    fn line(&self) -> u32 {
        let last = self.tokens.last().map_or(0, |(line, _)| *line);
        self.tokens.get(self.next).map_or(last, |(line, _)| *line)
    }

    fn expected<T>(&self, what: &str) -> Result<T> {
        let there = match self.peek() {
            Token::End => "the end of the line".to_owned(),
            Token::Int(value) => value.to_string(),
            Token::Float(value) => value.to_string(),
            Token::Text(text) | Token::Name(text) => text.clone(),
            Token::Op(op) => (*op).to_owned(),
        };
        Err((self.line(), format!("expected {what}, found {there}")))
    }

    fn take_op(&mut self, among: &[&'static str]) -> Option<&'static str> {
        let Token::Op(op) = self.peek() else {
            return None;
        };
        let op = among.iter().find(|candidate| *candidate == op).copied()?;
        self.next += 1;
        Some(op)
    }

    fn take_name(&mut self, name: &str) -> bool {
        let taken = matches!(self.peek(), Token::Name(there) if there == name);
        self.next += usize::from(taken);
        taken
    }

    fn statement(&mut self) -> Result<StatementKind> {
        self.binary = 0;
        if self.take_name("assert") {
            let condition = self.or()?;
            let message = match self.take_op(&[","]) {
                Some(_) => Some(self.or()?),
                None => None,
            };
            return Ok(StatementKind::Assert(condition, message));
        }
        if self.take_name("import") || self.take_name("from") || self.take_name("pass") {
            while !matches!(self.peek(), Token::End) {
                self.next += 1;
            }
            return Ok(StatementKind::Nothing);
        }
        if self.take_name("print") {
            let parts = if self.take_op(&["("]).is_some() {
                self.arguments()?
            } else {
                vec![self.or()?]
            };
            return Ok(StatementKind::Print(parts));
        }
        let after = self.tokens.get(self.next + 1).map(|(_, token)| token);
        if let (Token::Name(name), Some(Token::Op("="))) = (self.peek().clone(), after) {
            self.next += 2;
            return Ok(StatementKind::Assign(name, self.or()?));
        }
        if let (Token::Name(name), Some(Token::Op(op @ ("+=" | "-=")))) =
            (self.peek().clone(), after)
        {
            let op = if *op == "+=" { "+" } else { "-" };
            self.next += 2;
            let old = CodeExpr::Name(name.clone());
            let sum = CodeExpr::Binary(op, Box::new(old), Box::new(self.or()?));
            return Ok(StatementKind::Assign(name, sum));
        }
        self.expected("assert, print or an assignment")
    }

    fn binary(&mut self, op: &'static str, left: CodeExpr, right: CodeExpr) -> Result<CodeExpr> {
        self.binary += 1;
        if self.binary > MAX_BINARY {
            return self.expected("a shorter expression");
        }
        Ok(CodeExpr::Binary(op, Box::new(left), Box::new(right)))
    }

    fn or(&mut self) -> Result<CodeExpr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.expected("an expression that is nested less deeply");
        }
        let mut left = self.and()?;
        while self.take_name("or") || self.take_op(&["||"]).is_some() {
            let right = self.and()?;
            left = self.binary("or", left, right)?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn and(&mut self) -> Result<CodeExpr> {
        let mut left = self.not()?;
        while self.take_name("and") || self.take_op(&["&&"]).is_some() {
            let right = self.not()?;
            left = self.binary("and", left, right)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<CodeExpr> {
        let mut negations = 0;
        while self.take_name("not") || self.take_op(&["!"]).is_some() {
            negations += 1;
        }
        let mut node = self.comparison()?;
        // An even number of negations is reduced to two, which convert to a truth value.
        for _ in 0..if negations > 2 {
            2 - negations % 2
        } else {
            negations
        } {
            node = CodeExpr::Unary("not", Box::new(node));
        }
        Ok(node)
    }

    fn comparison(&mut self) -> Result<CodeExpr> {
        let first = self.level(0)?;
        let mut rest = Vec::new();
        while let Some(op) = self.comparator() {
            rest.push((op, self.level(0)?));
        }
        Ok(if rest.is_empty() {
            first
        } else {
            CodeExpr::Compare(Box::new(first), rest)
        })
    }

    fn comparator(&mut self) -> Option<&'static str> {
        if self.take_name("in") {
            return Some("in");
        }
        let after = self.tokens.get(self.next + 1).map(|(_, token)| token);
        if matches!(after, Some(Token::Name(name)) if name == "in") && self.take_name("not") {
            self.next += 1;
            return Some("not in");
        }
        self.take_op(&COMPARISONS)
    }

    fn level(&mut self, level: usize) -> Result<CodeExpr> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.level(level + 1)?;
        while let Some(op) = self.take_op(operators) {
            let right = self.level(level + 1)?;
            left = self.binary(op, left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<CodeExpr> {
        if let Some(op) = self.take_op(&["-", "+", "~"]) {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return self.expected("an expression that is nested less deeply");
            }
            let node = self.unary()?;
            self.depth -= 1;
            return Ok(CodeExpr::Unary(op, Box::new(node)));
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<CodeExpr> {
        let token = self.peek().clone();
        let node = match token {
            Token::Int(value) => CodeExpr::Int(value),
            Token::Float(value) => CodeExpr::Float(value),
            Token::Text(text) => CodeExpr::Text(text),
            Token::Name(name) => {
                self.next += 1;
                return self.name(name);
            }
            Token::Op("(") => {
                self.next += 1;
                return self.parenthesis();
            }
            _ => return self.expected("an expression"),
        };
        self.next += 1;
        Ok(node)
    }

    /// Parses the rest of a parenthesis: an expression, or a tuple, which has a comma.
    fn parenthesis(&mut self) -> Result<CodeExpr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        while self.take_op(&[")"]).is_none() {
            items.push(self.or()?);
            if self.take_op(&[","]).is_some() {
                is_tuple = true;
            } else if self.take_op(&[")"]).is_some() {
                break;
            } else {
                return self.expected("\",\" or \")\"");
            }
        }
        match items.pop() {
            Some(only) if !is_tuple => Ok(only),
            last => Ok(CodeExpr::Tuple(items.into_iter().chain(last).collect())),
        }
    }

    fn name(&mut self, name: String) -> Result<CodeExpr> {
        if self.take_op(&["("]).is_none() {
            return Ok(match name.as_str() {
                "True" => CodeExpr::Int(1),
                "False" | "None" => CodeExpr::Int(0),
                _ => CodeExpr::Name(name),
            });
        }
        Ok(CodeExpr::Call(name, self.arguments()?))
    }

    /// Parses expressions separated by commas, up to the closing parenthesis.
    fn arguments(&mut self) -> Result<Vec<CodeExpr>> {
        let mut args = Vec::new();
        if self.take_op(&[")"]).is_some() {
            return Ok(args);
        }
        loop {
            args.push(self.or()?);
            if self.take_op(&[")"]).is_some() {
                return Ok(args);
            }
            if self.take_op(&[","]).is_none() {
                return self.expected("\",\" or \")\"");
            }
        }
    }
}
