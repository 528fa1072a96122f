//! The parent of a command, which ends the command when the gateway requests it or has ended.
//!
//! The gateway itself may not signal a command that root has started as another user: in its sandbox it
//! has no privileges. This process keeps only the privilege to send signals.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use caps::Capability;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_dumpable, set_name, set_no_new_privs, set_pdeathsig};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, chdir};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use super::child::{receive, send};
use super::open_null;
use super::sandbox::keep_capability;
use super::spawn::exit_status;
use super::sys::{close_others, is_signal_ignored};

/// The name of the process, which differs from the gateway's.
const NAME: &CStr = c"fullsend-init";
/// The gateway's messages: send SIGTERM, kill the command, and report whether processes of the process
/// group have caused a SIGHUP since the last such message.
pub(super) const TERMINATE: &[u8] = b"terminate";
pub(super) const KILL: &[u8] = b"kill";
pub(super) const HANGUP: &[u8] = b"hangup";
/// Signals that a terminal sends to the command as well.
const TERMINAL_SIGNALS: [Signal; 2] = [Signal::SIGINT, Signal::SIGQUIT];

/// The state of the parent and the command, created before the fork.
pub(super) struct CommandParent {
    /// The channel to the gateway, which closes it when the command must be killed.
    gateway: OwnedFd,
    /// Whether this process is the first one of the command's PID namespace; otherwise the command is.
    /// The kernel protects the first process from signals that it does not handle, and ends the whole
    /// namespace with it.
    is_init: bool,
    /// The /proc of the parent's PID namespace, if the command has another PID namespace.
    proc: Option<File>,
    /// The blocked signals that the parent waits for.
    signals: SignalFd,
    /// The signal mask to restore in the command's process.
    mask: SigSet,
    /// A pipe whose reader belongs to the command's process until it executes its program, and whose
    /// writer belongs to the parent.
    start: (Option<PipeReader>, PipeWriter),
}

impl CommandParent {
    pub(super) fn new(gateway: OwnedFd, is_init: bool) -> io::Result<Self> {
        // A blocked signal is queued even if its disposition is to ignore it.
        let ends = TERMINAL_SIGNALS.into_iter().chain([Signal::SIGTERM]);
        let ends = ends.filter(|signal| !is_signal_ignored(*signal as i32));
        let awaited: SigSet = ends.chain([Signal::SIGHUP, Signal::SIGCHLD]).collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let (reader, writer) = io::pipe()?;
        Ok(Self {
            gateway,
            is_init,
            proc: (!is_init).then(|| File::open("/proc")).transpose()?,
            signals: SignalFd::with_flags(&awaited, flags)?,
            start: (Some(reader), writer),
            mask: awaited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?,
        })
    }

    /// Prepares the command's process, which from now on ends with its parent. The returned file must
    /// stay open until the process executes its program.
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

    /// Waits for the command, and ends it on request. Returns its exit status.
    pub(super) fn wait(mut self, command: Pid) -> i32 {
        let waited = self.restrict().and_then(|()| self.try_wait(command));
        waited.unwrap_or_else(|error| {
            // After `ECHILD`, the process ID may belong to another process.
            if error.raw_os_error() != Some(Errno::ECHILD as i32) {
                let _ = kill(command, Signal::SIGKILL);
            }
            1
        })
    }

    /// Gives up everything that sending signals does not need. The process stays in the command's process
    /// group.
    fn restrict(&mut self) -> io::Result<()> {
        drop(self.start.0.take());
        set_name(NAME)?;
        // The memory is a copy of the gateway's: the command, root in its user namespace, must not read
        // it.
        set_dumpable(false)?;
        chdir("/")?;
        let null = open_null()?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        drop(null);
        let mut kept: Vec<RawFd> = vec![
            self.gateway.as_raw_fd(),
            self.signals.as_fd().as_raw_fd(),
            self.start.1.as_raw_fd(),
        ];
        kept.extend(self.proc.iter().map(AsRawFd::as_raw_fd));
        close_others(&kept);
        keep_capability(Capability::CAP_KILL)?;
        set_no_new_privs()?;
        Ok(())
    }

    fn try_wait(&mut self, command: Pid) -> io::Result<i32> {
        // Until the program runs, it handles no signal. The gateway may end before, e.g. while the
        // program's file cannot be read.
        wait_for(&mut [
            PollFd::new(self.start.1.as_fd(), PollFlags::empty()),
            PollFd::new(self.gateway.as_fd(), PollFlags::POLLIN),
        ])?;
        let mut state = State::default();
        loop {
            if let Some(status) = self.reap(command)? {
                let is_killed = matches!(status, WaitStatus::Signaled(_, Signal::SIGKILL, _));
                return Ok(match state.ended_by {
                    Some(signal) if is_killed => 128 + signal as i32,
                    _ => exit_status(status),
                });
            }
            let mut polled = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.gateway.as_fd(), PollFlags::POLLIN),
            ];
            wait_for(&mut polled)?;
            let has_message = polled[1].any() != Some(false);
            self.read_signals(command, &mut state)?;
            if has_message && !self.on_message(command, &mut state) {
                kill(command, Signal::SIGKILL)?;
                return Ok(exit_status(waitpid(command, None)?));
            }
        }
    }

    /// Reaps processes that have ended. Returns the command's status if it is among them.
    fn reap(&self, command: Pid) -> io::Result<Option<WaitStatus>> {
        // Orphans of the namespace become children of its first process.
        let awaited = (!self.is_init).then_some(command);
        loop {
            match waitpid(awaited, Some(WaitPidFlag::WNOHANG)) {
                Ok(status @ (WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, ..))) => {
                    if pid == command {
                        return Ok(Some(status));
                    }
                }
                Ok(_) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Handles a message of the gateway. Returns `false` if the command must be killed.
    fn on_message(&self, command: Pid, state: &mut State) -> bool {
        match receive(&self.gateway) {
            Ok(Some(message)) if message.bytes == TERMINATE => {
                self.terminate(command, state);
                true
            }
            Ok(Some(message)) if message.bytes == HANGUP => {
                let caused = std::mem::take(&mut state.is_hung_up);
                send(&self.gateway, &[u8::from(caused)], &[]).is_ok()
            }
            _ => false,
        }
    }

    fn read_signals(&mut self, command: Pid, state: &mut State) -> io::Result<()> {
        while let Some(info) = self.signals.read_signal()? {
            let signal = i32::try_from(info.ssi_signo).ok();
            match signal.and_then(|signal| Signal::try_from(signal).ok()) {
                Some(Signal::SIGTERM) => self.terminate(command, state),
                Some(Signal::SIGHUP) => state.is_hung_up |= !self.is_from_outside(&info),
                Some(signal) if TERMINAL_SIGNALS.contains(&signal) => {
                    // The terminal's signals reach the command as well. If it is the first process, the
                    // kernel protects it from them, so it is killed.
                    let is_ignored = !self.is_init && !self.reacts_to(command, signal);
                    if is_ignored && is_from_terminal(&info) {
                        state.kill(command, signal);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends SIGTERM to the command, once: a signal to the process group also reaches the gateway, which
    /// then requests another. A command that is the first process of its PID namespace is killed if the
    /// kernel would ignore the signal.
    fn terminate(&self, command: Pid, state: &mut State) {
        if state.is_terminated {
            return;
        }
        state.is_terminated = true;
        if self.is_init || self.reacts_to(command, Signal::SIGTERM) {
            let _ = kill(command, Signal::SIGTERM);
        } else {
            state.kill(command, Signal::SIGTERM);
        }
    }

    /// Returns whether a process outside of the command's PID namespace sent a signal to this process.
    /// Only a process in the namespace can detect it.
    fn is_from_outside(&self, info: &siginfo) -> bool {
        self.is_init && is_of_no_process_here(info.ssi_code, info.ssi_pid)
    }

    /// Returns whether a process handles, ignores or blocks a signal. Returns `false` if its status is
    /// unreadable.
    fn reacts_to(&self, pid: Pid, signal: Signal) -> bool {
        let path = format!("{pid}/status");
        let open = |proc| openat(proc, &*path, OFlag::O_CLOEXEC, Mode::empty()).ok();
        let file = self.proc.as_ref().and_then(open);
        let mut text = String::new();
        let read = file.map(|fd| File::from(fd).read_to_string(&mut text));
        // A program that waits for signals, e.g. with a signalfd, blocks them.
        let names = ["SigCgt:", "SigIgn:", "SigBlk:"];
        matches!(read, Some(Ok(_))) && names.iter().any(|name| mask_has(&text, name, signal))
    }
}

/// The requests and signals that the parent has processed.
#[derive(Default)]
struct State {
    /// The signal that was to be sent when the command was killed instead.
    ended_by: Option<Signal>,
    is_terminated: bool,
    /// Whether processes of the process group have caused a SIGHUP.
    is_hung_up: bool,
}

impl State {
    fn kill(&mut self, command: Pid, instead_of: Signal) {
        self.ended_by = Some(instead_of);
        let _ = kill(command, Signal::SIGKILL);
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

/// Returns whether kill(2) was called by a process without a process ID in this PID namespace. With other
/// negative codes the sender chooses the ID.
fn is_of_no_process_here(code: i32, pid: u32) -> bool {
    code == libc::SI_USER && pid == 0
}

/// Returns whether the terminal, and not a process, sent a signal.
fn is_from_terminal(info: &siginfo) -> bool {
    info.ssi_code == libc::SI_KERNEL
}

/// Returns whether the mask `name` of a /proc/PID/status contains a signal.
pub(super) fn mask_has(status: &str, name: &str, signal: Signal) -> bool {
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    let mask = value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    mask.unwrap_or(0) & (1 << (signal as u32 - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_of_kill_shows_that_its_sender_is_outside() {
        assert!(is_of_no_process_here(libc::SI_USER, 0));
        assert!(!is_of_no_process_here(libc::SI_USER, 2));
        assert!(!is_of_no_process_here(libc::SI_KERNEL, 0));
        // rt_sigqueueinfo(2) of the command.
        assert!(!is_of_no_process_here(libc::SI_QUEUE, 0));
    }

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
