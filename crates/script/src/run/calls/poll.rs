//! `poll`.

use fullsend_posix::abi::{EPOLLERR, EPOLLHUP};

use super::super::Runner;
use super::super::args::{Result, wrong};
use super::{Progress, Step, arg};
use crate::error::Pos;
use crate::script::{Call, Nanos};

impl Runner<'_> {
    pub(super) fn poll(&mut self, pos: Pos, call: &Call, progress: &mut Progress) -> Result<Step> {
        let entries = arg(pos, call, 0)?;
        let timeout: i64 = self.int(arg(pos, call, 2)?)?;
        let mut ready = 0;
        let mut differs = None;
        for entry in entries.items()? {
            let number = |name: &str| -> Result<Option<i64>> {
                match entry.field(name)? {
                    Some(field) => Ok(Some(self.int(&field.value)?)),
                    None => Ok(None),
                }
            };
            let (fd, events) = (number("fd")?.unwrap_or(-1), number("events")?.unwrap_or(0));
            let want = number("revents")?;
            let handle = self.files.handle(fd, entry.pos)?;
            let got = self.world.posix.poll_events(handle).unwrap_or(EPOLLERR);
            let got = i64::from(got) & (events | i64::from(EPOLLERR | EPOLLHUP)) & 0xffff;
            ready += i64::from(got != 0);
            if want.is_some_and(|want| want != got) {
                let want = want.unwrap_or(0);
                differs = Some((
                    entry.pos,
                    format!("revents are {got:#x}, expected {want:#x}"),
                ));
            }
        }
        if ready == 0 && self.may_wait(progress, timeout) {
            return Ok(Step::Blocks);
        }
        match differs {
            Some((pos, message)) => wrong(pos, message),
            None => Ok(Step::Returned(Ok(ready))),
        }
    }

    /// A wait of `timeout` milliseconds is not over.
    pub(super) fn may_wait(&self, progress: &mut Progress, timeout: i64) -> bool {
        if timeout > 0 {
            let gap: Nanos = timeout.saturating_mul(1_000_000);
            progress.deadline = Some(progress.start.saturating_add(gap));
        }
        let over = |deadline| self.world.now() >= deadline;
        timeout < 0 || timeout > 0 && !progress.deadline.is_some_and(over)
    }
}
