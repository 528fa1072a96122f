//! Pipes, and `splice` between them and sockets.

use fullsend_posix::Errno;

use super::super::ScriptRunner;
use super::super::args::{Result, error_at};
use super::super::target::{Fd, TimeoutKind};
use super::{Attempt, CallProgress, arg};
use crate::constants::constant;
use crate::error::Pos;
use crate::script::Call;

impl ScriptRunner<'_> {
    /// Runs `pipe([5, 6])`.
    pub(super) fn pipe(&mut self, pos: Pos, call: &Call) -> Result<Attempt> {
        let names = arg(pos, call, 0)?.items()?;
        let [reader, writer] = names else {
            return error_at(pos, "expected two descriptors, as in pipe([5, 6])");
        };
        let names = [self.int(reader)?, self.int(writer)?];
        match self.target.pipe() {
            Ok((reader, writer)) => {
                self.files.open.insert(names[0], reader);
                self.files.open.insert(names[1], writer);
                Ok(Attempt::Returned(Ok(0)))
            }
            Err(error) => Ok(Attempt::Returned(Err(error))),
        }
    }

    pub(super) fn splice(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let (from_fd, from) = self.fd(pos, call, 0)?;
        let (to_fd, to) = self.fd(pos, call, 2)?;
        let len: usize = self.number(arg(pos, call, 4)?)?;
        let flags = self.flags(arg(pos, call, 5)?)? as u32;
        match self.target.splice(from, to, len, flags) {
            Ok(len) => {
                self.streams.entry(from_fd).or_default().read += len as u64;
                self.streams.entry(to_fd).or_default().written += len as u64;
                Ok(Attempt::Returned(Ok(len as i64)))
            }
            Err(Errno::EAGAIN)
                if !is_nonblocking(flags)
                    && self.target.is_blocking(from)
                    && self.target.is_blocking(to) =>
            {
                Ok(self.wait_for_either(progress, from, to))
            }
            Err(error) => Ok(Attempt::Returned(Err(error))),
        }
    }

    fn wait_for_either(&mut self, progress: &mut CallProgress, from: Fd, to: Fd) -> Attempt {
        self.target.watch(to);
        self.wait_for(progress, from, TimeoutKind::Receive)
    }
}

fn is_nonblocking(flags: u32) -> bool {
    let bit = constant("SPLICE_F_NONBLOCK").unwrap_or(0) as u32;
    flags & bit != 0
}
