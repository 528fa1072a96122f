//! Continuing in a background process.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

use nix::unistd::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::child::{channel, receive, send};
use super::failed;
use super::sys::{exit_now, fork};

/// The background process, whose caller has not been released yet.
#[derive(Debug)]
#[must_use = "the caller waits until `release` is called"]
pub struct Background(OwnedFd);

impl Background {
    /// Forks. The parent waits for [`release`](Self::release) and then ends with status 0, or with 1 if
    /// the child ends without it; only the child returns.
    ///
    /// Must be called before the process has threads.
    ///
    /// # Errors
    /// The error of starting the child.
    pub fn start() -> io::Result<Self> {
        let (ours, theirs) = channel().map_err(|e| failed("make a socket", e))?;
        if fork()
            .map_err(|e| failed("continue in the background", e))?
            .is_some()
        {
            drop(theirs);
            let released = matches!(receive(&ours), Ok(Some(_)));
            exit_now(i32::from(!released));
        }
        drop(ours);
        setsid()?;
        Ok(Self(theirs))
    }

    /// Closes standard input, output and error, and releases the caller. A caller that reads the output
    /// to its end does not wait for this process.
    ///
    /// # Errors
    /// The error of opening /dev/null.
    pub fn release(self, null: &OwnedFd) -> io::Result<()> {
        dup2_stdin(null)?;
        dup2_stdout(null)?;
        dup2_stderr(null)?;
        send(&self.0, b"ready", &[])
    }
}

/// Opens /dev/null for [`Background::release`], which may be called when /dev/null is hidden.
///
/// # Errors
/// The error of opening /dev/null.
pub fn open_null() -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).open("/dev/null");
    let file = file.map_err(|e| failed("open /dev/null", e))?;
    Ok(file.into())
}
