//! The parent of a command that is the first process of a PID namespace.
//!
//! The kernel ignores a signal for the first process that has no handler for it, and kills all other
//! processes of the namespace when the first one ends.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::spawn::exit_status;
use super::sys::{is_signal_ignored, set_signal_handler};

/// The signals that end the command.
const END_SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGHUP];

/// What the parent and the first process of a PID namespace share. Made before the fork.
pub(super) struct InitParent {
    /// The signal mask to restore in the first process.
    mask: SigSet,
    /// The signals that the parent waits for, which are blocked.
    awaited: SigSet,
    /// The /proc of the parent's PID namespace, which the first process may mount over.
    proc: File,
    alive: (PipeReader, PipeWriter),
}

impl InitParent {
    pub(super) fn new() -> io::Result<Self> {
        let ends = END_SIGNALS.into_iter();
        // A blocked signal is queued even if it is ignored, e.g. SIGHUP by nohup(1).
        let ends = ends.filter(|signal| !is_signal_ignored(*signal as i32));
        let awaited: SigSet = ends.chain([Signal::SIGCHLD]).collect();
        Ok(Self {
            proc: File::open("/proc")?,
            alive: io::pipe()?,
            mask: awaited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?,
            awaited,
        })
    }

    /// Prepares the first process, which ends with its parent from now on.
    ///
    /// # Errors
    /// `BrokenPipe` if the parent has ended already; the kernel's error otherwise.
    pub(super) fn enter_init(self) -> io::Result<()> {
        set_pdeathsig(Signal::SIGKILL)?;
        let (reader, writer) = self.alive;
        drop(writer);
        let mut polled = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::ZERO)? > 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(self.mask.thread_set_mask()?)
    }

    /// Waits for the first process, and passes on signals that end it. Returns its exit status.
    pub(super) fn wait(self, init: Pid) -> i32 {
        // Signals of the terminal reach the command as well.
        for signal in [Signal::SIGINT, Signal::SIGQUIT] {
            set_signal_handler(signal, SigHandler::SigIgn);
        }
        loop {
            match waitpid(init, Some(WaitPidFlag::WNOHANG)) {
                Ok(status @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) => {
                    return exit_status(status);
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return 1,
            }
            if let Ok(signal) = self.awaited.wait()
                && END_SIGNALS.contains(&signal)
            {
                let handled = handles_sigterm(&self.proc, init);
                let signal = if handled {
                    Signal::SIGTERM
                } else {
                    Signal::SIGKILL
                };
                let _ = kill(init, signal);
            }
        }
    }
}

/// Returns whether a process handles or ignores SIGTERM. An unreadable status counts as no.
fn handles_sigterm(proc: &File, pid: Pid) -> bool {
    let path = format!("{pid}/status");
    let file = openat(proc, &*path, OFlag::O_CLOEXEC, Mode::empty());
    let mut text = String::new();
    let read = file.map(|fd| File::from(fd).read_to_string(&mut text));
    matches!(read, Ok(Ok(_))) && mask_has(&text, ["SigCgt:", "SigIgn:"], Signal::SIGTERM)
}

/// Returns whether one of the masks of a /proc/PID/status contains a signal.
fn mask_has(status: &str, names: [&str; 2], signal: Signal) -> bool {
    let masks = status.lines().filter_map(|line| {
        let value = names.iter().find_map(|name| line.strip_prefix(name))?;
        u64::from_str_radix(value.trim(), 16).ok()
    });
    let bit = 1 << (signal as u32 - 1);
    masks.fold(0, |all, mask| all | mask) & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handled_or_ignored_signal_is_in_a_mask() {
        let status = "Name:\tsh\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000010002\n";
        let has = |signal| mask_has(status, ["SigCgt:", "SigIgn:"], signal);
        assert!(has(Signal::SIGHUP) && has(Signal::SIGINT));
        assert!(!has(Signal::SIGTERM) && !has(Signal::SIGKILL));
    }
}
