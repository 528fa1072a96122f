//! The script's system calls, made on its target.

mod file;
mod io;
mod message;
mod options;
mod pipe;
mod poll;
mod socket;

use std::collections::BTreeMap;

pub(crate) use file::Disk;
use fullsend_posix::Errno;

use super::ScriptRunner;
use super::args::{Result, error_at};
use super::target::Fd;
use crate::constants::{errno, errno_name};
use crate::error::Pos;
use crate::script::{Call, Expr, Nanos};

/// The script's descriptors.
#[derive(Default, Debug)]
pub(crate) struct Descriptors {
    open: BTreeMap<i64, Fd>,
    last: Option<i64>,
}

impl Descriptors {
    pub(crate) fn fd(&self, fd: i64, pos: Pos) -> Result<Fd> {
        match self.open.get(&fd) {
            Some(handle) => Ok(*handle),
            None => error_at(pos, format!("descriptor {fd} is not open")),
        }
    }

    /// Returns the socket that was opened last.
    pub(crate) fn last(&self) -> Option<i64> {
        self.last
    }
}

/// The progress of a call, which may take several attempts.
#[derive(Debug)]
pub(crate) struct CallProgress {
    /// Time at which the call started.
    pub(super) start: Nanos,
    /// Time at which the call's own timeout expires.
    pub(super) deadline: Option<Nanos>,
    /// Bytes sent or received.
    done: usize,
    /// An attempt was made.
    attempted: bool,
    /// The bytes sent are in a SYN that is not answered yet.
    opening: bool,
}

impl CallProgress {
    pub(super) fn new(start: Nanos) -> Self {
        Self {
            start,
            deadline: None,
            done: 0,
            attempted: false,
            opening: false,
        }
    }
}

/// The result of a call: a number, or an errno.
pub(super) type Returned = core::result::Result<i64, Errno>;

/// The result of an attempt.
pub(super) enum Attempt {
    Returned(Returned),
    Blocked,
}

impl From<core::result::Result<(), Errno>> for Attempt {
    fn from(result: core::result::Result<(), Errno>) -> Self {
        Self::Returned(result.map(|()| 0))
    }
}

impl ScriptRunner<'_> {
    /// Attempts a call.
    pub(super) fn attempt(
        &mut self,
        pos: Pos,
        call: &Call,
        progress: &mut CallProgress,
    ) -> Result<Attempt> {
        let step = self.dispatch(pos, call, progress);
        progress.attempted = true;
        step
    }

    fn dispatch(&mut self, pos: Pos, call: &Call, progress: &mut CallProgress) -> Result<Attempt> {
        match call.name.as_str() {
            "socket" => self.socket(pos, call),
            "bind" => self.bind(pos, call),
            "listen" => self.listen(pos, call),
            "accept" | "accept4" => self.accept(pos, call, progress),
            "connect" => self.connect(pos, call, progress),
            "close" => self.close(pos, call, progress),
            "shutdown" => self.shutdown(pos, call),
            "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => {
                self.receive_call(pos, call, progress)
            }
            "write" | "writev" | "send" | "sendto" | "sendmsg" => {
                self.send_call(pos, call, progress)
            }
            "fcntl" => self.fcntl(pos, call),
            "ioctl" => self.ioctl(pos, call),
            "setsockopt" => self.setsockopt(pos, call),
            "getsockopt" => self.getsockopt(pos, call),
            "poll" => self.poll(pos, call, progress),
            "epoll_create" | "epoll_create1" => self.epoll_create(call),
            "epoll_ctl" => self.epoll_ctl(pos, call),
            "epoll_wait" => self.epoll_wait(pos, call, progress),
            "pipe" => self.pipe(pos, call),
            "splice" => self.splice(pos, call, progress),
            "open" => self.open(pos, call),
            "sendfile" => self.sendfile(pos, call, progress),
            name => error_at(pos, format!("the system call {name} is not supported")),
        }
    }

    /// Returns the descriptor that an argument names, in the script and in the target.
    fn fd(&self, pos: Pos, call: &Call, index: usize) -> Result<(i64, Fd)> {
        let expr = arg(pos, call, index)?;
        let fd = self.int(expr)?;
        Ok((fd, self.files.fd(fd, expr.pos)?))
    }

    /// Records a new descriptor under the number that the script expects.
    fn register_fd(&mut self, call: &Call, handle: Fd, is_socket: bool) -> Result<i64> {
        let fd = self.int(&call.result)?;
        self.files.open.insert(fd, handle);
        if is_socket {
            self.files.last = Some(fd);
        }
        Ok(fd)
    }

    /// Checks the result of a call against the script's.
    pub(super) fn check_result(&mut self, pos: Pos, call: &Call, got: Returned) -> Result<()> {
        let show = |result: &Returned| match result {
            Ok(value) => value.to_string(),
            Err(error) => format!("-1 {}", errno_name(error.0)),
        };
        if call.result.is_any() {
            return Ok(());
        }
        let value = self.int(&call.result)?;
        let expected = match &call.errno {
            None if value == -1 && got.is_err() => return Ok(()),
            None => Ok(value),
            Some(name) => match errno(name) {
                Some(number) => Err(Errno(number)),
                None => return error_at(pos, format!("`{name}` is not a known errno")),
            },
        };
        if expected == got {
            return Ok(());
        }
        let (got, expected) = (show(&got), show(&expected));
        error_at(
            pos,
            format!("{} returned {got}, expected {expected}", call.name),
        )
    }
}

/// Returns an argument, or an error if it is missing.
fn arg(pos: Pos, call: &Call, index: usize) -> Result<&Expr> {
    match call.args.get(index) {
        Some(expr) => Ok(expr),
        None => error_at(
            pos,
            format!("{} requires more than {index} arguments", call.name),
        ),
    }
}
