//! The removal of sockets whose directories the sandbox hides.

use std::io;
use std::os::fd::OwnedFd;

use fullsend::control::SocketFile;

use super::child::{channel, detach, receive};
use super::sys::{exit_now, fork};

/// A process outside of the sandbox that removes the files of sockets. It does so when this value is
/// dropped, or when the process that has it ends for any reason.
#[derive(Debug)]
pub struct SocketRemover {
    /// The other end hangs up when this one is closed.
    _channel: OwnedFd,
}

impl SocketRemover {
    /// Starts the process. Must be called before [`Sandbox::apply`](super::Sandbox::apply), and
    /// before this process has threads.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(files: &[&SocketFile]) -> io::Result<Self> {
        let (ours, theirs) = channel()?;
        if fork()?.is_some() {
            return Ok(Self { _channel: ours });
        }
        drop(ours);
        // Otherwise it only keeps descriptors that it does not need.
        let _ = detach(&theirs);
        while let Ok(Some(_)) = receive(&theirs) {}
        for file in files {
            file.remove();
        }
        exit_now(0)
    }
}
