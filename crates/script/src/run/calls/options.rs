//! Socket options and `ioctl`.

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::{Attempt, arg};
use crate::constants::constant;
use crate::error::Pos;
use crate::script::{Call, Expr, ExprKind};

impl ScriptRunner<'_> {
    pub(super) fn setsockopt(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let (level, name) = self.level_and_name(pos, call)?;
        let mut value = self.option_value(arg(pos, call, 3)?)?;
        if let Some(len) = call.args.get(4).filter(|len| !len.is_any()) {
            value.resize(self.number(len)?, 0);
        }
        let done = self.target.setsockopt(handle, level, name, &value);
        Ok(done.into())
    }

    pub(super) fn getsockopt(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let (level, name) = self.level_and_name(pos, call)?;
        let expected = arg(pos, call, 3)?;
        let value = self.option_value(expected)?;
        let len_arg = arg(pos, call, 4)?;
        let len: usize = if len_arg.is_any() {
            value.len()
        } else {
            self.number(len_arg)?
        };
        let mut got = vec![0; len.min(4096)];
        let done = self.target.getsockopt(handle, level, name, &mut got);
        let done = match done {
            Ok(len) => len,
            Err(error) => return Ok(Attempt::Returned(Err(error))),
        };
        got.truncate(done);
        let same = got.starts_with(&value) || value.starts_with(&got) && !got.is_empty();
        if !expected.is_any() && !same {
            let show = |bytes: &[u8]| match bytes.first_chunk() {
                Some(word) if bytes.len() == 4 => i32::from_ne_bytes(*word).to_string(),
                _ => format!("{bytes:02x?}"),
            };
            let message = format!("the option is {}, expected {}", show(&got), show(&value));
            return error_at(expected.pos, message);
        }
        Ok(Attempt::Returned(Ok(0)))
    }

    fn level_and_name(&self, pos: Pos, call: &Call) -> Result<(i32, i32)> {
        let level = self.flags(arg(pos, call, 1)?)?;
        Ok((level, self.flags(arg(pos, call, 2)?)?))
    }

    /// Returns the bytes of an option's value, in Linux's layout.
    fn option_value(&self, expr: &Expr) -> Result<Vec<u8>> {
        match &expr.kind {
            ExprKind::Any => Ok(Vec::new()),
            ExprKind::Text(text) => Ok(text.clone()),
            ExprKind::Array(items) => {
                let parts: Result<Vec<Vec<u8>>> =
                    items.iter().map(|item| self.option_value(item)).collect();
                Ok(parts?.concat())
            }
            ExprKind::Struct(fields) => {
                // linger and timeval: both are two consecutive numbers.
                let wide = fields.iter().any(|field| {
                    field
                        .name
                        .as_deref()
                        .is_some_and(|name| name.starts_with("tv_"))
                });
                let parts: Result<Vec<Vec<u8>>> = fields
                    .iter()
                    .map(|field| {
                        let value = self.int(&field.value)?;
                        Ok(if wide {
                            value.to_ne_bytes().to_vec()
                        } else {
                            (value as i32).to_ne_bytes().to_vec()
                        })
                    })
                    .collect();
                Ok(parts?.concat())
            }
            _ => Ok((self.int(expr)? as i32).to_ne_bytes().to_vec()),
        }
    }

    pub(super) fn ioctl(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, handle) = self.fd(pos, call, 0)?;
        let request = self.int(arg(pos, call, 1)?)? as u32;
        let expected = call.args.get(2);
        let got = match self.target.ioctl(handle, request) {
            Ok(got) => got,
            Err(error) => return Ok(Attempt::Returned(Err(error))),
        };
        if let Some(expected) = expected.filter(|expr| !expr.is_any()) {
            let want = self.int(expected)?;
            if i64::from(got) != want {
                let message = format!("the ioctl returned {got}, expected {want}");
                return error_at(expected.pos, message);
            }
        }
        debug_assert!(constant("SIOCINQ").is_some());
        Ok(Attempt::Returned(Ok(0)))
    }
}
