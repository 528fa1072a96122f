//! What all personalities do once their settings are known: relay until there is a reason to end.

use std::fs::File;
use std::future::Future;
use std::io::{self, BufWriter};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use fullsend_device::{Capture, CapturedDevice, Device, Tun};
use fullsend_gateway::Gateway;
use fullsend_offload::Link;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

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
pub(crate) fn captured(device: Tun, name: &str, pcap: Option<&Path>) -> Result<Box<dyn Device>> {
    let Some(path) = pcap else {
        return Ok(Box::new(device));
    };
    let context = || format!("cannot write the capture {}", path.display());
    let file = BufWriter::new(File::create(path).with_context(context)?);
    let capture = Capture::new(file).with_context(context)?;
    let interface = capture
        .add_interface(name, Link::Ethernet)
        .with_context(context)?;
    Ok(Box::new(CapturedDevice::new(device, interface)))
}

/// Relays until `end` is ready, SIGTERM arrives, or SIGINT where `interruptible`.
pub(crate) async fn relay<T>(
    gateway: Gateway,
    interruptible: bool,
    end: impl Future<Output = io::Result<T>>,
) -> Result<Option<T>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let interrupted = async {
        while interrupt.recv().await.is_some() {
            if interruptible {
                return;
            }
        }
    };
    tokio::select! {
        done = gateway.run() => {
            done.context("the guest's network device is lost")?;
            Ok(None)
        }
        ended = end => Ok(Some(ended?)),
        _ = terminate.recv() => Ok(None),
        () = interrupted => Ok(None),
    }
}

/// Returns the exit status of a command, or of a gateway that a signal ended before it.
pub(crate) fn exit_status(status: Option<i32>) -> ExitCode {
    let status = status.unwrap_or(128 + nix::libc::SIGTERM);
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}
