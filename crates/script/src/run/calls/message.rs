//! Parser and checks of control messages.

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use crate::script::{Expr, ExprKind, Field};

/// Length of `struct cmsghdr`, in bytes.
const HEADER: usize = 16;

/// A control message.
struct ControlMessage {
    level: i32,
    kind: i32,
    data: Vec<u8>,
}

impl ScriptRunner<'_> {
    /// Returns the control messages of a `msghdr` to send.
    pub(super) fn control_to_send(&self, header: &Expr) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for message in controls(header)? {
            let data = match &part(message, "cmsg_data")?.kind {
                ExprKind::Text(text) => text.clone(),
                _ => (self.int(part(message, "cmsg_data")?)? as i32)
                    .to_ne_bytes()
                    .to_vec(),
            };
            out.extend((HEADER + data.len()).to_ne_bytes());
            out.extend(self.flags(part(message, "cmsg_level")?)?.to_ne_bytes());
            out.extend(self.flags(part(message, "cmsg_type")?)?.to_ne_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        Ok(out)
    }

    /// Checks the `msghdr` of the script against the flags and control messages received.
    pub(super) fn check_header(&self, header: &Expr, flags: i32, control: &[u8]) -> Result<()> {
        if let Some(field) = header.field("msg_flags")?
            && !field.value.is_any()
        {
            let want = self.flags(&field.value)?;
            if want != flags {
                let message = format!("msg_flags are {flags:#x}, expected {want:#x}");
                return error_at(field.value.pos, message);
            }
        }
        let got = read_controls(control);
        let expected = controls(header)?;
        if header.field("msg_control")?.is_none() {
            return Ok(());
        }
        if got.len() != expected.len() {
            let kinds: Vec<_> = got.iter().map(|c| (c.level, c.kind)).collect();
            let message = format!(
                "{} control messages received, expected {}; (level, type): {kinds:?}",
                got.len(),
                expected.len()
            );
            return error_at(header.pos, message);
        }
        for (got, want) in got.iter().zip(expected) {
            self.check_control(got, want)?;
        }
        Ok(())
    }

    fn check_control(&self, got: &ControlMessage, want: &Expr) -> Result<()> {
        let level = self.flags(part(want, "cmsg_level")?)?;
        let kind = self.flags(part(want, "cmsg_type")?)?;
        if (got.level, got.kind) != (level, kind) {
            let message = format!(
                "the control message has level {} and type {}, expected {level} and {kind}",
                got.level, got.kind
            );
            return error_at(want.pos, message);
        }
        let data = part(want, "cmsg_data")?;
        match &data.kind {
            ExprKind::Any => Ok(()),
            ExprKind::Struct(fields) if has(fields, "scm_sec") => self.check_timestamps(got, data),
            ExprKind::Struct(fields) => self.check_error(got, fields),
            _ => {
                let value = got.data.first_chunk().map(|word| i32::from_ne_bytes(*word));
                let expected = self.flags(data)?;
                if value == Some(expected) {
                    return Ok(());
                }
                error_at(
                    data.pos,
                    format!("cmsg_data is {value:?}, expected {expected}"),
                )
            }
        }
    }

    /// Checks a `struct scm_timestamping`, whose first timestamp is the software's, on the script's
    /// clock.
    fn check_timestamps(&self, got: &ControlMessage, data: &Expr) -> Result<()> {
        let number = |name: &str| match data.field(name)? {
            Some(field) => self.int(&field.value),
            None => Ok(0),
        };
        let want = number("scm_sec")? * 1_000_000_000 + number("scm_nsec")?;
        let word = |at: usize| {
            let bytes = got.data.get(at..at + 8)?;
            Some(i64::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (Some(seconds), Some(nanos)) = (word(0), word(8)) else {
            return error_at(data.pos, "the control message is too short for a timestamp");
        };
        let at = self.target.script_time(seconds * 1_000_000_000 + nanos);
        if (at - want).abs() <= self.settings.tolerance {
            return Ok(());
        }
        error_at(
            data.pos,
            format!("the timestamp is {at} ns, expected {want}"),
        )
    }

    /// Checks a `struct sock_extended_err`.
    fn check_error(&self, got: &ControlMessage, fields: &[Field]) -> Result<()> {
        for field in fields {
            let (offset, len) = match field.name.as_deref() {
                Some("ee_errno") => (0, 4),
                Some("ee_origin") => (4, 1),
                Some("ee_type") => (5, 1),
                Some("ee_code") => (6, 1),
                Some("ee_info") => (8, 4),
                Some("ee_data") => (12, 4),
                _ => return error_at(field.value.pos, "expected a field of sock_extended_err"),
            };
            if field.value.is_any() {
                continue;
            }
            let Some(bytes) = got.data.get(offset..offset + len) else {
                return error_at(field.value.pos, "the control message is too short");
            };
            let value = bytes
                .iter()
                .rev()
                .fold(0, |sum: i64, b| sum << 8 | i64::from(*b));
            let want = self.int(&field.value)?;
            if value != want {
                let name = field.name.as_deref().unwrap_or("");
                let message = format!("{name} is {value}, expected {want}");
                return error_at(field.value.pos, message);
            }
        }
        Ok(())
    }
}

fn has(fields: &[Field], name: &str) -> bool {
    fields
        .iter()
        .any(|field| field.name.as_deref() == Some(name))
}

/// Returns the items of `msg_control`.
fn controls(header: &Expr) -> Result<&[Expr]> {
    match header.field("msg_control")? {
        Some(field) if !field.value.is_any() => field.value.items(),
        _ => Ok(&[]),
    }
}

fn part<'e>(message: &'e Expr, name: &str) -> Result<&'e Expr> {
    match message.field(name)? {
        Some(field) => Ok(&field.value),
        None => error_at(message.pos, format!("expected {name}")),
    }
}

fn read_controls(mut bytes: &[u8]) -> Vec<ControlMessage> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() {
        let [
            l0,
            l1,
            l2,
            l3,
            l4,
            l5,
            l6,
            l7,
            v0,
            v1,
            v2,
            v3,
            t0,
            t1,
            t2,
            t3,
        ] = *header;
        let len = usize::from_ne_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
        let Some(data) = len.checked_sub(HEADER).and_then(|len| rest.get(..len)) else {
            break;
        };
        found.push(ControlMessage {
            level: i32::from_ne_bytes([v0, v1, v2, v3]),
            kind: i32::from_ne_bytes([t0, t1, t2, t3]),
            data: data.to_vec(),
        });
        bytes = bytes.get(len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    found
}
