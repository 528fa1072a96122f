//! What all personalities do once their settings are known: relay until there is a reason to end.

use std::future::Future;
use std::io::{self, BufWriter};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use fullsend_device::{Capture, CaptureInterface, CapturedDevice, Device};
use fullsend_gateway::Gateway;
use fullsend_gateway::namespace::{Spawned, is_signal_ignored};
use fullsend_offload::Link;
use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::private_file;

/// Returns a runtime on the calling thread. Must be called after the guest's command has started,
/// whose limit of descriptors is not changed.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    // Each flow uses a descriptor; the default of 1024 is for programs that use select(2).
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // A refusal leaves the limit, which the gateway respects.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start")
}

/// Returns the guest's device, whose packets are written to the file `pcap` if it is given.
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

/// Begins a capture in the file `pcap` if it is given.
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

/// How long a command that was requested to end may take.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const LOST: &str = "the guest's network device is lost";

/// How long the last data of a command may take to the host's kernel.
const COMMAND_DRAIN: Duration = Duration::from_secs(10);
/// How long that of a namespace may take, whose maker waits for the end of this program.
const NAMESPACE_DRAIN: Duration = Duration::from_secs(3);

/// Relays until `end` is ready and the host's kernel has the guest's last data, or SIGTERM or SIGINT
/// arrives.
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

/// Starts a command and relays until it has ended, and then until the host's kernel has its last data,
/// at most for [`COMMAND_DRAIN`] or until another signal. Returns its exit status. SIGTERM and SIGHUP
/// end the command, which keeps its network until then, and the status is that of a process that the
/// signal has ended.
/// With `reloads`, SIGHUP reads the policy instead, and the command is not ended.
pub(crate) async fn relay_command(
    gateway: Gateway,
    command: &Spawned,
    reloads: bool,
) -> Result<ExitCode> {
    // A terminal sends these to the command as well, which may handle them.
    let _interrupt = signal(SignalKind::interrupt())?;
    let _quit = signal(SignalKind::quit())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // nohup(1) ignores it. A terminal sends it to the command as well.
    let is_hangup_ignored = reloads || is_signal_ignored(libc::SIGHUP);
    let mut hangup = signal(SignalKind::hangup())?;
    let handle = gateway.handle();
    command.start()?;
    let ended = async {
        let received = tokio::select! {
            status = command.wait() => Err(status?),
            _ = terminate.recv() => Ok(libc::SIGTERM),
            _ = hangup.recv(), if !is_hangup_ignored => Ok(libc::SIGHUP),
        };
        let status = match received {
            Ok(signal) => {
                command.terminate(END_TIMEOUT).await?;
                128 + signal
            }
            Err(status) => status,
        };
        // Earlier ones were meant for the command.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! {
            _ = handle.drain(COMMAND_DRAIN) => {}
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv(), if !is_hangup_ignored => {}
        }
        io::Result::Ok(status)
    };
    let status = tokio::select! {
        done = gateway.run() => {
            let ended = command.terminate(END_TIMEOUT).await;
            done.context(LOST)?;
            ended.map(|()| 128 + libc::SIGTERM)
        }
        status = ended => status,
    };
    Ok(ExitCode::from(u8::try_from(status?).unwrap_or(u8::MAX)))
}
