//! `poll` and epoll sets.

use fullsend_posix::{EpollEvent, Errno};

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::super::target::PollEntry;
use super::{Attempt, CallProgress, arg};
use crate::error::Pos;
use crate::script::{Call, Expr, ExprKind, Nanos};

impl ScriptRunner<'_> {
    pub(super) fn poll(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let entries = arg(pos, call, 0)?;
        let timeout: i64 = self.int(arg(pos, call, 2)?)?;
        let mut lines = Vec::new();
        for entry in entries.items()? {
            let number = |name: &str| self.part_number(entry, name);
            let fd = number("fd")?.unwrap_or(-1);
            lines.push(PollEntry {
                fd: self.files.fd(fd, entry.pos)?,
                events: number("events")?.unwrap_or(0) as u16,
                revents: 0,
            });
        }
        let ready = match self.target.poll(&mut lines, timeout as i32) {
            Ok(ready) => ready,
            Err(Errno::EAGAIN) => return Ok(Attempt::Blocked),
            Err(error) => return Ok(Attempt::Returned(Err(error))),
        };
        if ready == 0 && self.still_waits(progress, timeout) {
            return Ok(Attempt::Blocked);
        }
        for (entry, line) in entries.items()?.iter().zip(lines) {
            let (got, want) = (i64::from(line.revents), self.part_number(entry, "revents")?);
            if let Some(want) = want.filter(|want| *want != got) {
                let message = format!("revents are {got:#x}, expected {want:#x}");
                return error_at(entry.pos, message);
            }
        }
        Ok(Attempt::Returned(Ok(ready as i64)))
    }

    fn part_number(&self, structure: &Expr, name: &str) -> Result<Option<i64>> {
        let field = structure.field(name)?;
        field.map(|field| self.int(&field.value)).transpose()
    }

    /// Returns whether a call with a timeout of `timeout` milliseconds still waits.
    pub(super) fn still_waits(&self, progress: &mut CallProgress, timeout: i64) -> bool {
        if self.target.blocks_itself() {
            return false;
        }
        if timeout > 0 {
            let gap: Nanos = timeout.saturating_mul(1_000_000);
            progress.deadline = Some(progress.start.saturating_add(gap));
        }
        let over = |deadline| self.target.now() >= deadline;
        timeout < 0 || timeout > 0 && !progress.deadline.is_some_and(over)
    }

    pub(super) fn epoll_create(&mut self, call: &Call) -> Result<Attempt> {
        match self.target.epoll_create() {
            Ok(handle) => Ok(Attempt::Returned(
                Ok(self.register_fd(call, handle, false)?),
            )),
            Err(error) => Ok(Attempt::Returned(Err(error))),
        }
    }

    pub(super) fn epoll_ctl(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let (_, set) = self.fd(pos, call, 0)?;
        let operation = self.flags(arg(pos, call, 1)?)?;
        let (_, handle) = self.fd(pos, call, 2)?;
        let event = match call
            .args
            .get(3)
            .filter(|expr| matches!(expr.kind, ExprKind::Struct(_)))
        {
            Some(expr) => self.epoll_event(expr)?,
            None => EpollEvent::default(),
        };
        let done = self.target.epoll_ctl(set, operation, handle, event);
        Ok(done.into())
    }

    /// Parses `{events=EPOLLIN, fd=4}`; the number may be called fd, ptr, u32 or u64.
    fn epoll_event(&self, expr: &Expr) -> Result<EpollEvent> {
        let mut event = EpollEvent::default();
        for field in expr.fields()? {
            match field.name.as_deref() {
                Some("events") => event.events = self.flags(&field.value)? as u32,
                Some("fd" | "ptr" | "u32" | "u64") => event.data = self.int(&field.value)? as u64,
                _ => return error_at(field.value.pos, "expected events, fd, ptr, u32 or u64"),
            }
        }
        Ok(event)
    }

    pub(super) fn epoll_wait(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let (_, set) = self.fd(pos, call, 0)?;
        let expected = arg(pos, call, 1)?;
        let most: usize = self.number(arg(pos, call, 2)?)?;
        let timeout = self.int(arg(pos, call, 3)?)?;
        let mut events = vec![EpollEvent::default(); most.min(1024)];
        let found = match self.target.epoll_wait(set, &mut events, timeout as i32) {
            Ok(found) => found,
            Err(Errno::EAGAIN) => return Ok(Attempt::Blocked),
            Err(error) => return Ok(Attempt::Returned(Err(error))),
        };
        if found == 0 && self.still_waits(progress, timeout) {
            return Ok(Attempt::Blocked);
        }
        let expected = match &expected.kind {
            ExprKind::Array(items) => items.as_slice(),
            ExprKind::Any => &[],
            _ => core::slice::from_ref(expected),
        };
        for (got, expr) in events[..found].iter().zip(expected) {
            let want = self.epoll_event(expr)?;
            if *got != want {
                let message = format!(
                    "the event is {:#x} for {}, expected {:#x} for {}",
                    got.events, got.data, want.events, want.data
                );
                return error_at(expr.pos, message);
            }
        }
        Ok(Attempt::Returned(Ok(found as i64)))
    }
}
