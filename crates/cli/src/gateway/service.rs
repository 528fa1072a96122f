//! The functions that all personalities share: the runtime, captures, and relaying until the end.

use std::fmt::{self, Display};
use std::fs::File;
use std::future::Future;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use fullsend_device::{Capture, CaptureInterface, CapturedDevice, Device};
use fullsend_gateway::namespace::{FileOpener, Identity, Spawned, is_signal_ignored, open_null};
use fullsend_gateway::{Config, Gateway};
use fullsend_offload::Link;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::stat::Mode;
use tokio::signal::unix::{SignalKind, signal};

use crate::private_file;

/// Returns a runtime on the calling thread, and raises the limit of descriptors. Must be called after the
/// guest's command has started, which keeps the lower limit.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    // Each flow uses a descriptor; the default of 1024 is for programs that use select(2).
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If this fails, the gateway observes the present limit.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Returns the guest's device, whose packets are also written to the file `pcap` if it is given.
pub(crate) fn captured(
    device: impl Device + 'static,
    name: &str,
    pcap: Option<&Path>,
) -> Result<Box<dyn Device>> {
    Ok(match capture(name, pcap)? {
        Some(interface) => Box::new(CapturedDevice::new(device, interface)),
        None => Box::new(device),
    })
}

/// Starts the process that opens the file of the host's resolvers, which the sandbox hides. Returns
/// `None` if the settings name resolvers. Must be called before the sandbox is applied.
pub(crate) fn resolv_conf_opener(
    config: &Config,
    user: Option<Identity>,
) -> Result<Option<FileOpener>> {
    if !config.dns.upstream.is_empty() {
        return Ok(None);
    }
    let opener = FileOpener::start_as(&config.dns.resolv_conf, user);
    let opener = opener.context("cannot start the process that reads the host's resolvers")?;
    Ok(Some(opener))
}

/// Starts a capture to the file `pcap` if it is given.
pub(crate) fn capture(name: &str, pcap: Option<&Path>) -> Result<Option<CaptureInterface>> {
    let Some(path) = pcap else {
        return Ok(None);
    };
    let context = || format!("cannot write the capture {}", path.display());
    let file = BufWriter::new(private_file::create(path, "capture")?);
    let capture = Capture::new(file).with_context(context)?;
    let interface = capture
        .add_interface(name, Link::Ethernet)
        .with_context(context)?;
    Ok(Some(interface))
}

/// A file for the process ID of this process, which is empty until that serves. A command for which the file is
/// read-only cannot have another process signalled in place of this one.
pub(crate) struct PidFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> PidFile<'a> {
    /// Creates or empties the file.
    pub(crate) fn create(path: &'a Path) -> Result<Self> {
        let file = private_file::create(path, "PID file")?;
        Ok(Self { path, file })
    }

    /// Returns the path of the file to protect from a command. A pipe or a terminal has none.
    pub(crate) fn protected(&self) -> Option<PathBuf> {
        let is_file = self
            .file
            .metadata()
            .is_ok_and(|metadata| metadata.is_file());
        is_file.then(|| self.path.to_owned())
    }

    /// Writes the process ID.
    pub(crate) fn write(mut self) -> Result<()> {
        let text = format!("{}\n", std::process::id());
        let written = self.file.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write the PID file {}", self.path.display()))
    }
}

/// Closes standard input and output, so that a reader of the command's output does not wait for this
/// process. Must be called after the command's process has started, which inherits signal masks.
pub(crate) fn leave_terminal() -> Result<()> {
    let null = open_null()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    log_without_waiting()?;
    Ok(())
}

/// Prevents log lines to a terminal from stopping this process: the command can stop the terminal's
/// output (tcflow), and put this process in the background. A line that the terminal does not accept at
/// once is lost.
fn log_without_waiting() -> io::Result<()> {
    if !io::stderr().is_terminal() {
        return Ok(());
    }
    let mut background = SigSet::empty();
    background.add(Signal::SIGTTOU);
    background.thread_block()?;
    // O_NONBLOCK belongs to the open file, which the command shares, so the terminal is opened again.
    let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    // Fails if the terminal belongs to another user.
    if let Ok(terminal) = open("/proc/self/fd/2", flags, Mode::empty()) {
        rustix::stdio::dup2_stderr(&terminal)?;
    }
    Ok(())
}

/// A command that cannot be executed.
#[derive(Debug)]
pub(crate) struct NotRun(io::Error);

impl NotRun {
    /// Returns the exit status with which a shell reports the failure.
    pub(crate) fn status(&self) -> u8 {
        if self.0.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        }
    }
}

impl Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for NotRun {}

/// Longest time for the end of a command after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const LOST: &str = "the guest's network device is lost";

/// Longest time for the last data of a command to reach the host's kernel.
const COMMAND_DRAIN: Duration = Duration::from_secs(10);
/// Longest time for the last data of a namespace, whose creator waits for the end of this program.
const NAMESPACE_DRAIN: Duration = Duration::from_secs(3);

/// Relays until SIGTERM or SIGINT arrives, or until `end` completes and the host's kernel has the guest's
/// last data.
pub(crate) async fn relay(
    gateway: Gateway,
    end: impl Future<Output = io::Result<()>>,
) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let handle = gateway.handle();
    let ended = async {
        end.await?;
        let _ = handle.drain(NAMESPACE_DRAIN).await;
        Ok(())
    };
    tokio::select! {
        done = gateway.run() => done.context(LOST),
        ended = ended => ended,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Starts a command and relays until it has ended, and then until the host's kernel has its last data, at
/// most for [`COMMAND_DRAIN`] or until another signal. Returns its exit status. SIGTERM and SIGHUP end
/// the command, which keeps its network until then, and the status is that of a process ended by the
/// signal. With `reloads`, SIGHUP reads the policy again instead.
///
/// If the command deletes its interface, it continues without a network.
///
/// # Errors
/// [`NotRun`] if the command cannot be executed.
pub(crate) async fn relay_command(
    gateway: Gateway,
    command: &Spawned,
    reloads: bool,
) -> Result<ExitCode> {
    // A terminal sends these signals to the command as well, which may handle them.
    let _interrupt = signal(SignalKind::interrupt())?;
    let _quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // nohup(1) ignores SIGHUP. A terminal sends it to the command as well.
    let is_hangup_ignored = reloads || is_signal_ignored(libc::SIGHUP);
    let mut hangup = signal(SignalKind::hangup())?;
    let handle = gateway.handle();
    command.start().map_err(NotRun)?;
    let mut ended = pin!(async {
        let received = tokio::select! {
            status = command.wait() => return status,
            _ = terminate.recv() => libc::SIGTERM,
            _ = hangup.recv(), if !is_hangup_ignored => libc::SIGHUP,
        };
        command.terminate(END_TIMEOUT).await?;
        Ok(128 + received)
    });
    let mut running = pin!(gateway.run());
    let status = tokio::select! {
        done = &mut running => {
            let reason = done.err().map_or_else(|| LOST.to_owned(), |error| error.to_string());
            tracing::warn!(
                "the command has no network any more: its interface {} was deleted, or failed: {reason}; \
                 it goes on without, and needs a new start to have a network again",
                command.tap.name
            );
            return Ok(exit_code(ended.await?));
        }
        status = &mut ended => status?,
    };
    // Earlier signals were meant for the command.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = handle.drain(COMMAND_DRAIN) => {}
        // The device is lost when the command ends its network.
        _ = &mut running => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv(), if !is_hangup_ignored => {}
    }
    Ok(exit_code(status))
}

fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}
