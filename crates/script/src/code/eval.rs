//! Interpreter of code blocks.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{CodeExpr, Statement, StatementKind, Value};

/// The lookup of names in code: the fields of the socket's state and constants.
pub(crate) trait NameLookup {
    /// Returns the value of a name; `None` if it is unknown.
    fn value(&self, name: &str) -> Option<i128>;
}

/// The variables that a script has assigned.
#[derive(Default, Debug)]
pub(crate) struct Scope {
    variables: BTreeMap<String, Value>,
}

/// A failed assertion, or code that cannot be run, with its line in the code block, from 0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CodeError {
    pub(crate) line: u32,
    pub(crate) message: String,
}

type Result<T> = core::result::Result<T, String>;

impl Scope {
    /// Runs statements; printed lines are appended to `out`.
    pub(crate) fn run(
        &mut self,
        statements: &[Statement],
        names: &dyn NameLookup,
        out: &mut Vec<String>,
    ) -> core::result::Result<(), CodeError> {
        for statement in statements {
            self.statement(statement, names, out)
                .map_err(|message| CodeError {
                    line: statement.line,
                    message,
                })?;
        }
        Ok(())
    }

    fn statement(
        &mut self,
        statement: &Statement,
        names: &dyn NameLookup,
        out: &mut Vec<String>,
    ) -> Result<()> {
        match &statement.kind {
            StatementKind::Nothing => {}
            StatementKind::Assign(name, node) => {
                let value = self.eval(node, names)?;
                self.variables.insert(name.clone(), value);
            }
            StatementKind::Print(parts) => {
                let values: Result<Vec<String>> = parts
                    .iter()
                    .map(|part| Ok(show(&self.eval(part, names)?)))
                    .collect();
                out.push(values?.join(" "));
            }
            StatementKind::Assert(condition, message) => {
                if is_truthy(&self.eval(condition, names)?) {
                    return Ok(());
                }
                let note = match message {
                    Some(node) => format!("; {}", show(&self.eval(node, names)?)),
                    None => String::new(),
                };
                let shown_values = self.variable_values(condition, names);
                return Err(format!(
                    "{} does not hold: {shown_values}{note}",
                    statement.text
                ));
            }
        }
        Ok(())
    }

    /// Lists the names in an expression with their values.
    fn variable_values(&self, node: &CodeExpr, names: &dyn NameLookup) -> String {
        let mut found = Vec::new();
        collect(node, &mut found);
        found.dedup();
        let shown = found.iter().filter_map(|name| {
            let value = self.lookup(name, names).ok()?;
            Some(format!("{name} is {}", show(&value)))
        });
        shown.collect::<Vec<_>>().join(", ")
    }

    fn lookup(&self, name: &str, names: &dyn NameLookup) -> Result<Value> {
        if let Some(value) = self.variables.get(name) {
            return Ok(value.clone());
        }
        let value = names.value(name).map(Value::Int);
        value.ok_or_else(|| {
            format!("`{name}` is not a variable or a name of the socket's information")
        })
    }

    fn eval(&self, node: &CodeExpr, names: &dyn NameLookup) -> Result<Value> {
        Ok(match node {
            CodeExpr::Int(value) => Value::Int(*value),
            CodeExpr::Float(value) => Value::Float(*value),
            CodeExpr::Text(text) => Value::Text(text.clone()),
            CodeExpr::Name(name) => self.lookup(name, names)?,
            CodeExpr::Call(name, args) => {
                let args: Result<Vec<Value>> = args.iter().map(|a| self.eval(a, names)).collect();
                function(name, &args?)?
            }
            CodeExpr::Tuple(items) => {
                let items: Result<Vec<Value>> = items.iter().map(|i| self.eval(i, names)).collect();
                Value::Tuple(items?)
            }
            CodeExpr::Unary(op, inner) => unary(op, &self.eval(inner, names)?)?,
            CodeExpr::Binary("or", left, right) => {
                let left = self.eval(left, names)?;
                if is_truthy(&left) {
                    left
                } else {
                    self.eval(right, names)?
                }
            }
            CodeExpr::Binary("and", left, right) => {
                let left = self.eval(left, names)?;
                if is_truthy(&left) {
                    self.eval(right, names)?
                } else {
                    left
                }
            }
            CodeExpr::Binary(op, left, right) => {
                binary(op, &self.eval(left, names)?, &self.eval(right, names)?)?
            }
            CodeExpr::Compare(first, rest) => {
                let mut left = self.eval(first, names)?;
                for (op, right) in rest {
                    let right = self.eval(right, names)?;
                    if !compare(op, &left, &right)? {
                        return Ok(Value::Int(0));
                    }
                    left = right;
                }
                Value::Int(1)
            }
        })
    }
}

fn collect(node: &CodeExpr, found: &mut Vec<String>) {
    match node {
        CodeExpr::Name(name) => found.push(name.clone()),
        CodeExpr::Call(_, args) | CodeExpr::Tuple(args) => {
            for arg in args {
                collect(arg, found);
            }
        }
        CodeExpr::Unary(_, inner) => collect(inner, found),
        CodeExpr::Binary(_, left, right) => {
            collect(left, found);
            collect(right, found);
        }
        CodeExpr::Compare(first, rest) => {
            collect(first, found);
            for (_, node) in rest {
                collect(node, found);
            }
        }
        CodeExpr::Int(_) | CodeExpr::Float(_) | CodeExpr::Text(_) => {}
    }
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Int(value) => *value != 0,
        Value::Float(value) => *value != 0.0,
        Value::Text(text) => !text.is_empty(),
        Value::Tuple(items) => !items.is_empty(),
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(text) => text.clone(),
        Value::Tuple(items) => {
            let items: Vec<String> = items.iter().map(show).collect();
            format!("({})", items.join(", "))
        }
    }
}

fn float(value: &Value) -> Result<f64> {
    match value {
        Value::Int(value) => Ok(*value as f64),
        Value::Float(value) => Ok(*value),
        Value::Text(text) => Err(format!("\"{text}\" is not a number")),
        Value::Tuple(_) => Err(format!("{} is not a number", show(value))),
    }
}

fn unary(op: &str, value: &Value) -> Result<Value> {
    Ok(match (op, value) {
        ("not", value) => Value::Int(i128::from(!is_truthy(value))),
        ("-", Value::Int(value)) => Value::Int(value.wrapping_neg()),
        ("~", Value::Int(value)) => Value::Int(!value),
        ("-", value) => Value::Float(-float(value)?),
        (_, value) => value.clone(),
    })
}

fn binary(op: &str, left: &Value, right: &Value) -> Result<Value> {
    if let (Value::Int(left), Value::Int(right)) = (left, right) {
        return integers(op, *left, *right);
    }
    // `"text" % values` is only a message: the values are appended.
    if let (Value::Text(text), "%" | "+") = (left, op) {
        return Ok(Value::Text(format!("{text} {}", show(right))));
    }
    let (left, right) = (float(left)?, float(right)?);
    Ok(Value::Float(match op {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" => left / right,
        "//" => (left / right).floor(),
        "%" => left.rem_euclid(right),
        _ => return Err(format!("`{op}` requires whole numbers")),
    }))
}

fn integers(op: &str, left: i128, right: i128) -> Result<Value> {
    let shift = || u32::try_from(right).ok().filter(|shift| *shift < 64);
    let value = match op {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" if right != 0 && left % right != 0 => {
            return Ok(Value::Float(left as f64 / right as f64));
        }
        "/" | "//" => left.checked_div_euclid(right),
        "%" => left.checked_rem_euclid(right),
        "&" => Some(left & right),
        "|" => Some(left | right),
        "^" => Some(left ^ right),
        "<<" => shift().and_then(|shift| left.checked_mul(1 << shift)),
        ">>" => shift().map(|shift| left >> shift),
        _ => return Err(format!("the operator `{op}` is not supported")),
    };
    let value =
        value.ok_or_else(|| format!("`{left} {op} {right}` is undefined or out of range"))?;
    Ok(Value::Int(value))
}

fn order(left: &Value, right: &Value) -> Result<Option<Ordering>> {
    Ok(match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Tuple(left), Value::Tuple(right)) => {
            for (left, right) in left.iter().zip(right) {
                let order = order(left, right)?;
                if order != Some(Ordering::Equal) {
                    return Ok(order);
                }
            }
            Some(left.len().cmp(&right.len()))
        }
        _ => float(left)?.partial_cmp(&float(right)?),
    })
}

fn is_in(left: &Value, right: &Value) -> Result<bool> {
    let Value::Tuple(items) = right else {
        return Err(format!("`in` requires a tuple, not {}", show(right)));
    };
    for item in items {
        if compare("==", left, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn compare(op: &str, left: &Value, right: &Value) -> Result<bool> {
    match op {
        "in" => return is_in(left, right),
        "not in" => return Ok(!is_in(left, right)?),
        _ => {}
    }
    let order = order(left, right)?;
    Ok(order.is_some_and(|order| match op {
        "==" => order.is_eq(),
        "!=" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }))
}

fn function(name: &str, args: &[Value]) -> Result<Value> {
    let best = |better: fn(f64, f64) -> bool| -> Result<Value> {
        let mut best = args
            .first()
            .ok_or("min and max require an argument")?
            .clone();
        for arg in args {
            if better(float(arg)?, float(&best)?) {
                best = arg.clone();
            }
        }
        Ok(best)
    };
    match (name, args) {
        ("abs", [Value::Int(value)]) => Ok(Value::Int(value.wrapping_abs())),
        ("abs", [value]) => Ok(Value::Float(float(value)?.abs())),
        ("int", [value]) => Ok(Value::Int(float(value)? as i128)),
        ("float", [value]) => Ok(Value::Float(float(value)?)),
        ("str", [value]) => Ok(Value::Text(show(value))),
        ("min", _) => best(|a, b| a < b),
        ("max", _) => best(|a, b| a > b),
        _ => Err(format!(
            "the function {name} is not known; there are abs, int, float, str, min and max"
        )),
    }
}
