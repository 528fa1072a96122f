//! The parent of a command, which ends it when the gateway requests that, or has ended.
//!
//! The gateway itself may not signal a command of root that has become another user: in its sandbox it
//! has no privileges. This process keeps those of the caller, and does nothing else.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::spawn::exit_status;
use super::sys::is_signal_ignored;

/// The signals that end the command.
const END_SIGNALS: [Signal; 2] = [Signal::SIGTERM, Signal::SIGHUP];
/// Signals that a terminal sends to the command as well.
const TERMINAL_SIGNALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// The state that the parent and the command share, made before the fork.
pub(super) struct CommandParent {
    /// Closed, or with data, when the command must be killed.
    gateway: OwnedFd,
    /// Whether the command is the first process of a PID namespace. The kernel ignores a signal for
    /// it that it has no handler for, and kills all other processes of the namespace with it.
    is_init: bool,
    /// The /proc of the parent's PID namespace, which the command may mount over.
    proc: File,
    /// The signals that the parent waits for, which are blocked.
    signals: SignalFd,
    /// The signal mask to restore in the command's process.
    mask: SigSet,
    /// A pipe whose reader the command's process has until it executes its program, and whose writer
    /// the parent has.
    start: (Option<PipeReader>, PipeWriter),
}

impl CommandParent {
    pub(super) fn new(gateway: OwnedFd, is_init: bool) -> io::Result<Self> {
        let signals = END_SIGNALS.into_iter().chain(TERMINAL_SIGNALS);
        // A blocked signal is queued even if it is ignored, e.g. SIGHUP by nohup(1).
        let signals = signals.filter(|signal| !is_signal_ignored(*signal as i32));
        let awaited: SigSet = signals.chain([Signal::SIGCHLD]).collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let (reader, writer) = io::pipe()?;
        Ok(Self {
            gateway,
            is_init,
            proc: File::open("/proc")?,
            signals: SignalFd::with_flags(&awaited, flags)?,
            start: (Some(reader), writer),
            mask: awaited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?,
        })
    }

    /// Prepares the command's process, which ends with its parent from now on. The returned file must
    /// be open until the process executes its program.
    ///
    /// # Errors
    /// `BrokenPipe` if the parent has ended already; the kernel's error otherwise.
    pub(super) fn enter_command(self) -> io::Result<PipeReader> {
        set_pdeathsig(Signal::SIGKILL)?;
        let (reader, writer) = self.start;
        drop(writer);
        let reader = reader.ok_or(io::ErrorKind::BrokenPipe)?;
        let mut polled = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::ZERO)? > 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.mask.thread_set_mask()?;
        Ok(reader)
    }

    /// Waits for the command, and ends it where that is requested. Returns its exit status.
    pub(super) fn wait(mut self, command: Pid) -> i32 {
        self.try_wait(command).unwrap_or_else(|error| {
            // Otherwise the process ID may be that of another process by now.
            if error.raw_os_error() != Some(Errno::ECHILD as i32) {
                let _ = kill(command, Signal::SIGKILL);
            }
            1
        })
    }

    fn try_wait(&mut self, command: Pid) -> io::Result<i32> {
        // Before, the process handles no signal, and its program may.
        drop(self.start.0.take());
        // The gateway may end earlier, e.g. while the program's file cannot be read.
        wait_for(&mut [
            PollFd::new(self.start.1.as_fd(), PollFlags::empty()),
            PollFd::new(self.gateway.as_fd(), PollFlags::POLLIN),
        ])?;
        let mut ended_by = None;
        let mut is_terminated = false;
        loop {
            match waitpid(command, Some(WaitPidFlag::WNOHANG)) {
                Ok(status @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) => {
                    let is_killed = matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _));
                    return Ok(match ended_by {
                        Some(signal) if is_killed => 128 + signal as i32,
                        _ => exit_status(status),
                    });
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let mut polled = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.gateway.as_fd(), PollFlags::POLLIN),
            ];
            wait_for(&mut polled)?;
            if polled[1].any() != Some(false) {
                kill(command, Signal::SIGKILL)?;
                return Ok(exit_status(waitpid(command, None)?));
            }
            if let Some(info) = self.signals.read_signal()?
                && let Some(signal) = self.on_signal(&info, command, &mut is_terminated)
            {
                ended_by = Some(signal);
            }
        }
    }

    /// Passes a signal on that ends the command. Returns it if the command got SIGKILL instead. SIGTERM
    /// is passed on once: a signal to a process group reaches the gateway, too, which then sends another.
    fn on_signal(&self, info: &siginfo, command: Pid, is_terminated: &mut bool) -> Option<Signal> {
        let signal = i32::try_from(info.ssi_signo).ok()?;
        let signal = Signal::try_from(signal).ok()?;
        let is_terminals = TERMINAL_SIGNALS.contains(&signal);
        if is_terminals && !(self.is_init && is_from_terminal(info)) {
            return None;
        }
        if !is_terminals && !END_SIGNALS.contains(&signal) {
            return None;
        }
        let passed = if is_terminals {
            signal
        } else {
            Signal::SIGTERM
        };
        if !is_terminals && *is_terminated {
            return None;
        }
        if self.is_init && !self.reacts_to(command, passed) {
            let _ = kill(command, Signal::SIGKILL);
            return Some(signal);
        }
        if !is_terminals {
            *is_terminated = true;
            let _ = kill(command, passed);
        }
        None
    }

    /// Returns whether a process handles, ignores or awaits a signal. An unreadable status counts as
    /// no.
    fn reacts_to(&self, pid: Pid, signal: Signal) -> bool {
        let path = format!("{pid}/status");
        let file = openat(&self.proc, &*path, OFlag::O_CLOEXEC, Mode::empty());
        let mut text = String::new();
        let read = file.map(|fd| File::from(fd).read_to_string(&mut text));
        // A program that waits for signals in a call, e.g. by a signalfd, blocks them.
        let names = ["SigCgt:", "SigIgn:", "SigBlk:"];
        matches!(read, Ok(Ok(_))) && names.iter().any(|name| mask_has(&text, name, signal))
    }
}

/// Waits for an event of one of the files.
fn wait_for(files: &mut [PollFd<'_>]) -> io::Result<()> {
    loop {
        match poll(files, PollTimeout::NONE) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether the terminal has sent a signal, and not a process.
fn is_from_terminal(info: &siginfo) -> bool {
    info.ssi_code == libc::SI_KERNEL
}

/// Returns whether a mask of a /proc/PID/status contains a signal.
pub(super) fn mask_has(status: &str, name: &str, signal: Signal) -> bool {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let mask = value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    mask.unwrap_or(0) & (1 << (signal as u32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_in_a_mask() {
        let status = "Name:\tsh\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000010002\n";
        assert!(mask_has(status, "SigIgn:", Signal::SIGHUP));
        assert!(mask_has(status, "SigCgt:", Signal::SIGINT));
        assert!(mask_has(status, "SigBlk:", Signal::SIGTERM));
        assert!(!mask_has(status, "SigCgt:", Signal::SIGTERM));
        assert!(!mask_has(status, "SigPnd:", Signal::SIGINT));
    }
}
